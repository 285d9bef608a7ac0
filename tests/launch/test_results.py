"""What a child that works hands to its parent: its result, its events, files, and the errors of its target."""

from __future__ import annotations

import os
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from egmctl import launch
from egmctl.errors import ChildFailed, ExitCode
from egmctl.launch.channel import MESSAGE_LIMIT
from tests.launch.start import run, spawn

pytestmark = pytest.mark.processes


LARGE = {"text": "y" * (16 << 20)}


@pytest.mark.parametrize(
    "value",
    [{}, {"a": [1, 2.5, None, True, "ü \ud800 \x00"], "b": {"c": []}}, {"large": 2**64, "small": 5e-324}, LARGE],
    ids=["nothing", "nested", "numbers", "16 MiB"],
)
def test_arguments_and_result_are_json_data_that_arrive_unchanged(value: dict[str, Any]) -> None:
    assert run("echo", value) == value


def test_nobody_waits_for_what_a_target_does_after_its_answer() -> None:
    assert run("answer_and_hang", {"a": 1}) == {"a": 1}


def test_endings_go_on_beside_the_caller_and_are_waited_for() -> None:
    may_end = threading.Event()
    ended: list[int] = []

    def close() -> None:
        assert may_end.wait(60)
        ended.append(1)

    with launch.Endings() as endings:
        endings.begin(close)
        assert not ended
        may_end.set()
    assert ended == [1]


def test_an_ending_that_fails_says_so_where_it_is_waited_for() -> None:
    def close() -> None:
        raise OSError("no such process")

    endings = launch.Endings()
    endings.begin(close)
    with pytest.raises(OSError, match="no such process"):
        endings.wait()
    endings.wait()


@pytest.mark.usefixtures("no_thread_starts")
def test_where_no_thread_can_start_an_ending_is_waited_for_at_once() -> None:
    ended: list[int] = []
    with launch.Endings() as endings:
        endings.begin(lambda: ended.append(1))
        assert ended == [1]


def test_events_come_in_order_and_before_the_result_and_may_be_passed_over() -> None:
    events: list[dict[str, Any]] = []
    assert run("count", {"to": 1000}, on_event=events.append) == 1000
    assert events == [{"number": number} for number in range(1000)]
    assert run("count", {"to": 10}) == 10


def test_messages_of_several_threads_do_not_mix() -> None:
    events: list[dict[str, Any]] = []
    # Longer than a socket's buffer: each message goes out in several pieces.
    run("send_from_threads", {"each": 10, "padding": 500_000}, on_event=events.append)
    for thread in range(4):
        assert [event["number"] for event in events if event["thread"] == thread] == list(range(10))


def test_an_exception_in_on_event_ends_the_child() -> None:
    def stop(_event: dict[str, Any]) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt), spawn("hang") as child:
        child.result(60, on_event=stop)
    with pytest.raises(ProcessLookupError):
        os.kill(child.pid, 0)


def test_parent_and_child_converse() -> None:
    with spawn("converse") as child:
        for number in (1, 21):
            child.channel.send({"number": number})
            assert child.receive(timeout_s=60) == ({"doubled": 2 * number}, [])
        child.channel.send({"stop": True})
        assert child.result(60) == "stopped"


def test_receiving_from_a_target_that_has_returned_fails_and_its_result_stays() -> None:
    with spawn("echo") as child:
        with pytest.raises(launch.ChannelClosed, match="last message"):
            child.channel.receive(timeout_s=60)
        assert child.result(60) == {}
    with spawn("echo") as child, pytest.raises(ChildFailed, match="echo returned"):
        child.receive(timeout_s=60)


def test_file_descriptors_go_both_ways(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_text("from the parent")
    with spawn("swap_files") as child:
        with path.open("rb") as file:
            child.channel.send({"file": "this"}, fds=[file.fileno()])
        message, fds = child.receive(timeout_s=60)
        assert message == {"files": 2}
        assert [os.get_inheritable(fd) for fd in fds] == [False, False]
        assert os.read(fds[0], 100) == b"from the child"
        for fd in fds:
            os.close(fd)
        assert child.result(60) == "from the parent"


def test_children_work_side_by_side() -> None:
    start = time.monotonic()
    with spawn("hang") as first, spawn("hang") as second, spawn("converse") as third:
        assert time.monotonic() - start < 30
        for child in (first, second):
            assert child.receive(timeout_s=60) == ({"hanging": True}, [])
        third.channel.send({"stop": 1})
        assert third.result(60) == "stopped"


def test_the_hook_runs_before_the_target_is_imported() -> None:
    reported = run("facts", before="tests.launch.hooks:mark", before_arguments={"mark": "the hook ran"})
    assert reported["environment"]["EGMCTL_TEST_HOOK_RAN"] == "the hook ran, then the target was imported"


def test_a_hook_that_fails_is_told_like_a_target_that_fails() -> None:
    with pytest.raises(ChildFailed, match=r"raised PermissionError: .*the cgroup cannot be joined") as caught:
        run("echo", before="tests.launch.hooks:fail")
    assert caught.value.kind == "PermissionError"


def test_the_environment_is_the_parents_with_the_changes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "1")
    monkeypatch.setenv("EGMCTL_TEST_KEPT", "kept")
    monkeypatch.setenv("OPENBLAS_NUM_THREADS", "64")
    changes = {"CUDA_VISIBLE_DEVICES": None, "EGMCTL_TEST_SET": "set", "MKL_NUM_THREADS": "2"}
    environment = run("facts", environment=changes)["environment"]
    assert "CUDA_VISIBLE_DEVICES" not in environment
    assert environment["EGMCTL_TEST_KEPT"] == "kept"
    assert environment["EGMCTL_TEST_SET"] == "set"
    assert environment["OPENBLAS_NUM_THREADS"] == "1"
    assert environment["MKL_NUM_THREADS"] == "2"


@pytest.mark.parametrize(
    ("target", "sentence", "kind", "exit_code", "details"),
    [
        (
            "raise_value_error",
            "tests.launch.targets:raise_value_error raised ValueError: seven is not even",
            "ValueError",
            ExitCode.CRASHED,
            {},
        ),
        ("raise_nothing_to_do", "there is no driver here", "NothingToDo", ExitCode.NOTHING, {}),
        (
            "raise_driver_error",
            "cuMemCreate failed: CUDA_ERROR_NOT_PERMITTED (800)",
            "DriverCallError",
            ExitCode.CRASHED,
            {"call": "cuMemCreate", "number": 800, "name": "CUDA_ERROR_NOT_PERMITTED", "log": ""},
        ),
    ],
)
def test_an_exception_of_the_target_keeps_its_class_and_ours_their_sentence_and_details(
    target: str, sentence: str, kind: str, exit_code: ExitCode, details: dict[str, Any]
) -> None:
    with pytest.raises(ChildFailed) as caught:
        run(target)
    error = caught.value
    assert (str(error), error.how, error.kind, error.last_call) == (sentence, "raised", kind, None)
    assert (error.exit_code, error.details) == (exit_code, details)
    assert error.ending == ("raised ValueError: seven is not even" if kind == "ValueError" else "")
    assert "Traceback" in error.output


def test_a_target_that_does_not_exist_is_named() -> None:
    with pytest.raises(ChildFailed, match="has no attribute 'no_such_target'"):
        run("no_such_target")
    with pytest.raises(ChildFailed, match=r"No module named 'egmctl\.nowhere'"):
        launch.run("egmctl.nowhere:f", {}, timeout_s=60)


def test_what_is_not_json_data_is_refused_on_either_side() -> None:
    with pytest.raises(TypeError):
        run("echo", {"a set": {1, 2}})
    with pytest.raises(ValueError, match="JSON"):
        run("echo", {"not a number": float("nan")})
    with pytest.raises(ChildFailed, match=r"TypeError: .*set is not JSON serializable"):
        run("return_a_set")


def test_a_message_past_the_limit_is_refused_by_its_sender() -> None:
    with pytest.raises(ChildFailed, match=rf"ValueError: .* is longer than the limit of {MESSAGE_LIMIT}"):
        run("return_text", {"size": MESSAGE_LIMIT})


def test_nothing_that_a_child_prints_reaches_the_output_of_the_command(capfd: pytest.CaptureFixture[str]) -> None:
    assert run("print_noise") == "", "its standard input is empty"
    assert capfd.readouterr() == ("", "")


def test_exit_handlers_of_libraries_cannot_hold_up_a_result() -> None:
    start = time.monotonic()
    with spawn("raise_at_exit", grace_s=60) as child:
        assert child.result(60) == "done"
    assert time.monotonic() - start < 30
