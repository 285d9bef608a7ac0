"""How children end: by themselves, by a crash, past their deadline, with their parent; and that nothing is left."""

from __future__ import annotations

import contextlib
import os
import resource
import signal
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, TypeVar

import pytest

from egmctl.errors import ChildFailed, ChildNotStarted
from egmctl.launch import process
from egmctl.launch.channel import RAISED, RESULT
from tests.launch.start import ROOT, is_alive, open_descriptors, run, spawn, wait_until

pytestmark = pytest.mark.processes
T = TypeVar("T")

HEADER_OF_A_HUGE_MESSAGE = b"egmm" + (0).to_bytes(4, "little") + (1 << 30).to_bytes(4, "little")
HALF_A_MESSAGE = b"egmm" + (0).to_bytes(4, "little") + (100).to_bytes(4, "little") + b'{"half":'
NOT_JSON = b"egmm" + (0).to_bytes(4, "little") + (3).to_bytes(4, "little") + b"{,}"
NOT_AN_OBJECT = b"egmm" + (0).to_bytes(4, "little") + (2).to_bytes(4, "little") + b"[]"
DEEP = b"egmm" + (0).to_bytes(4, "little") + (200000).to_bytes(4, "little") + b"[" * 200000
NO_EXCEPTIONS = (
    b"[]",
    b'{"kind":"E"}',
    b'{"kind":"E","message":1,"own":null}',
    b'{"kind":"E","message":"","own":{"code":"c","exit_code":77,"details":{}}}',
    b'{"kind":"E","message":"","own":{"code":"c","exit_code":1,"details":[]}}',
)
MISSING_FILES = b"egmm" + (3).to_bytes(4, "little") + (2).to_bytes(4, "little") + b"{}"


@pytest.mark.parametrize(
    ("target", "arguments", "message", "last_call", "output"),
    [
        ("exit_with", {"code": 0}, "exit_with exited with code 0 without a result", None, ""),
        ("exit_with", {"code": 3}, "exit_with exited with code 3 without a result", None, ""),
        ("segfault", {}, "segfault died from SIGSEGV in cuMemMap", "cuMemMap", "in segfault"),
        ("kill_itself", {"signal": 40}, "died from signal 40", None, ""),
        ("send_garbage", {"hex": HALF_A_MESSAGE.hex(), "then": "exit"}, "exited with code 0", None, ""),
    ],
)
def test_a_child_that_ends_without_a_result_has_crashed(
    target: str, arguments: dict[str, Any], message: str, last_call: str | None, output: str
) -> None:
    with pytest.raises(ChildFailed, match=message) as caught:
        run(target, arguments)
    assert (caught.value.how, caught.value.last_call) == ("crashed", last_call)
    assert str(caught.value) == f"tests.launch.targets:{target} {caught.value.ending}"
    assert output in caught.value.output


def test_a_child_past_its_deadline_is_killed_and_its_last_call_told() -> None:
    with spawn("hang") as child:
        child.receive(timeout_s=60)
        with pytest.raises(ChildFailed, match=r": no result within 0\.3 s, it is in cuCtxCreate") as caught:
            child.result(0.3)
        assert (caught.value.how, caught.value.last_call) == ("timed-out", "cuCtxCreate")
        assert not is_alive(child.pid)


def test_a_stopped_child_times_out_and_is_killed() -> None:
    with spawn("stop_itself") as child, pytest.raises(ChildFailed, match=r": no result within 0\.3 s"):
        child.result(0.3)
    assert not is_alive(child.pid)


def test_events_without_end_do_not_hold_off_the_deadline() -> None:
    with pytest.raises(ChildFailed) as caught:
        run("flood", timeout_s=0.5, on_event=lambda _: time.sleep(0.01))
    assert caught.value.how == "timed-out"


@pytest.mark.parametrize(
    ("sent", "problem"),
    [
        (b"Segmentation fault (core dumped)\n", "not a message"),
        (HEADER_OF_A_HUGE_MESSAGE, "not a message"),
        (NOT_JSON, "not JSON"),
        (NOT_AN_OBJECT, "not an object"),
        (DEEP, "not JSON"),
        (MISSING_FILES, "file descriptors are missing"),
        *(
            (b"egmx" + struct.pack("<II", 0, len(content)) + content, "not the description of an exception")
            for content in NO_EXCEPTIONS
        ),
    ],
)
def test_garbage_from_a_child_is_a_failure_of_the_child(sent: bytes, problem: str) -> None:
    with spawn("send_garbage", {"hex": sent.hex(), "then": "hang"}) as child:
        with pytest.raises(ChildFailed, match=problem) as caught:
            child.result(30)
        assert caught.value.how == "crashed"
        assert not is_alive(child.pid)


@pytest.mark.parametrize("kind", [RESULT, RAISED])
def test_files_that_come_with_the_end_are_closed(kind: bytes) -> None:
    before = open_descriptors()
    with contextlib.suppress(ChildFailed):
        run("end_with_files", {"kind": kind.decode()})
    assert open_descriptors() == before


def test_a_child_that_closes_its_channel_and_lives_has_crashed(monkeypatch: pytest.MonkeyPatch) -> None:
    wait = process.Child._wait_for_exit
    monkeypatch.setattr(process.Child, "_wait_for_exit", lambda child, _timeout_s: wait(child, 0.3))
    with pytest.raises(ChildFailed, match="closed its channel without a result"):
        run("close_the_channel")


def test_a_crash_is_seen_although_a_forked_process_holds_the_channel(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(process, "_LOOK_EVERY_S", 0.1)
    with spawn("crash_beside_a_fork") as child:
        child.receive(timeout_s=60)
        with pytest.raises(ChildFailed, match="exited with code 5"):
            child.result(30)


def test_what_a_child_prints_is_kept_within_bounds_and_its_end_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(process, "_LOOK_EVERY_S", 0.05)
    with spawn("print_without_end", {"bytes": 8 * process.OUTPUT_LIMIT, "ahead": 2 * process.OUTPUT_LIMIT}) as child:
        with pytest.raises(ChildFailed) as caught:
            child.result(30)
        status = os.fstat(child._output.fileno())
        assert status.st_blocks * 512 < 3 * process.OUTPUT_LIMIT < status.st_size
    assert caught.value.output.endswith("the last words\n")
    assert len(caught.value.output) == process.OUTPUT_TAIL


def test_leaving_the_block_closes_the_channel_and_lets_the_child_end_by_itself(tmp_path: Path) -> None:
    witness = tmp_path / "witness"
    with spawn("wait_for_the_parent_to_close", {"path": str(witness)}, grace_s=60) as child:
        child.receive(timeout_s=60)
        start = time.monotonic()
    assert witness.read_text() == "saw the end"
    assert time.monotonic() - start < 30
    assert not is_alive(child.pid)


def test_leaving_the_block_kills_a_child_that_does_not_end() -> None:
    with spawn("hang", grace_s=0.2) as child:
        child.receive(timeout_s=60)
        start = time.monotonic()
    assert 0.2 <= time.monotonic() - start < 30
    with pytest.raises(ProcessLookupError):
        os.kill(child.pid, 0)


def test_a_second_interrupt_does_not_keep_a_child_from_being_killed(monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(_timeout_s: float) -> None:
        raise KeyboardInterrupt

    child = spawn("hang")
    child.receive(timeout_s=60)
    monkeypatch.setattr(child, "_wait_for_exit", interrupted)
    with pytest.raises(KeyboardInterrupt):
        child.close()
    assert not is_alive(child.pid)


def test_what_a_child_has_started_ends_with_it() -> None:
    with spawn("start_a_grandchild") as child:
        message, _ = child.receive(timeout_s=60)
        assert os.getpgid(message["pid"]) == child.pid != os.getpgid(0)
    assert wait_until(lambda: not is_alive(message["pid"]))


def test_a_child_that_cannot_be_killed_is_left_and_told_of_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(process, "KILL_WAIT_S", 0.1)
    late, left = spawn("hang", grace_s=0), spawn("hang", grace_s=0)
    for child in (late, left):
        child.receive(timeout_s=60)
    with monkeypatch.context() as patch:
        patch.setattr(os, "killpg", lambda *_: None)
        with pytest.raises(ChildFailed, match=rf"process {late.pid} was killed but does not end") as caught:
            late.result(0.1)
        assert caught.value.how == "timed-out"
        with pytest.warns(RuntimeWarning, match=rf"process {left.pid} .* does not end"):
            left.close()
        late.close()
        left.close()
    for child in (late, left):
        assert is_alive(child.pid)
        os.killpg(child.pid, signal.SIGKILL)
        child._process.wait()


def test_children_leave_no_descriptors_behind() -> None:
    run("echo")
    before = open_descriptors()
    for _ in range(3):
        run("echo")
        with pytest.raises(ChildFailed):
            run("exit_with", {"code": 1})
        with spawn("converse", grace_s=0):
            pass
        with spawn("swap_files") as child:
            child.channel.send({}, fds=[0])
            child.result(30)
    assert open_descriptors() == before


def test_a_child_has_what_it_needs_and_nothing_else_open() -> None:
    reading, writing = os.pipe()
    os.set_inheritable(reading, True)
    try:
        reported = run("facts")
    finally:
        os.close(reading)
        os.close(writing)
    # Standard streams, the socket, the breadcrumb and its mapping's hold on it, and the folder that is being read.
    assert len(reported["descriptors"]) == 7
    assert len(reported["descriptors of a child of its own"]) == 4


def in_thread(work: Callable[[], T]) -> T:
    """Call a function in a thread of its own, which ends before this returns."""
    results: list[T] = []
    thread = threading.Thread(target=lambda: results.append(work()))
    thread.start()
    thread.join()
    return results[0]


def test_a_child_outlives_the_thread_that_started_it() -> None:
    with in_thread(lambda: spawn("converse")) as child:
        child.channel.send({"number": 4})
        assert child.receive(60)[0] == {"doubled": 8}


def test_a_failed_start_is_an_error_in_the_thread_that_asked_for_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "executable", "/nowhere/python")

    def start() -> str:
        with pytest.raises(ChildNotStarted, match="No such file") as caught:
            run("echo")
        return str(caught.value)

    assert "cannot be started" in in_thread(start)


def test_many_threads_start_children_at_once() -> None:
    with ThreadPoolExecutor(8) as pool:
        answers = list(pool.map(lambda number: run("echo", {"number": number}), range(16)))
    assert [answer["number"] for answer in answers] == list(range(16))


def test_a_thread_of_a_forked_process_starts_children_although_the_starting_thread_was_not_forked() -> None:
    program = (
        "import os, warnings\n"
        "from tests.launch.start import run\n"
        "from tests.launch.test_ends import in_thread\n"
        # Python 3.12 and newer warn of a fork beside threads.
        "warnings.simplefilter('ignore', DeprecationWarning)\n"
        "in_thread(lambda: run('echo'))\n"
        "if os.fork() == 0:\n"
        "    os._exit(in_thread(lambda: run('echo', {'code': 7}))['code'])\n"
        "print(os.waitstatus_to_exitcode(os.wait()[1]))\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, timeout=120, check=True
    )
    assert done.stdout == "7\n"


def test_a_process_that_cannot_be_started_is_a_child_that_failed(monkeypatch: pytest.MonkeyPatch) -> None:
    before = open_descriptors()
    monkeypatch.setattr(sys, "executable", "/nowhere/python")
    with pytest.raises(ChildFailed, match=r"cannot be started: .*No such file"):
        run("echo")
    assert open_descriptors() == before


def test_a_child_whose_parent_died_before_it_could_be_tied_to_it_ends() -> None:
    program = "from egmctl.launch.channel import die_with; die_with({parent_pid}); print('lives')"
    for parent_pid, output in (("__import__('os').getppid()", "lives\n"), ("1 << 22", "")):
        command = [sys.executable, "-c", program.format(parent_pid=parent_pid)]
        assert subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False).stdout == output


def test_a_parent_that_was_started_to_ignore_its_children_can_have_some() -> None:
    program = (
        "import signal; signal.signal(signal.SIGCHLD, signal.SIG_IGN)\n"
        "from tests.launch.start import run\n"
        "print(run('echo'))\n"
        "run('exit_with', {'code': 3})\n"
    )
    done = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.stdout == "{}\n"
    assert done.stderr.endswith("ChildFailed: tests.launch.targets:exit_with ended without a result\n")


PARENT = """
import sys
from tests.launch.start import spawn
child = spawn("hang", before={before!r})
child.receive(timeout_s=60)
print(child.pid, flush=True)
{then}
"""


UNTIL_INTERRUPTED = """
from egmctl.signals import stopping
from tests.launch.start import is_alive
try:
    with child, stopping():
        print("ready", flush=True)
        child.result(60)
except KeyboardInterrupt:
    sys.exit(is_alive(child.pid))
"""


def start_parent(then: str, before: str | None = None) -> tuple[subprocess.Popen[str], int]:
    """Start a process that is a parent itself; return it and its child's number."""
    program = PARENT.format(then=then, before=before)
    parent = subprocess.Popen([sys.executable, "-c", program], cwd=ROOT, stdout=subprocess.PIPE, text=True)
    assert parent.stdout is not None
    return parent, int(parent.stdout.readline())


@pytest.mark.parametrize(
    "before",
    [None, pytest.param("tests.launch.hooks:become_nobody", marks=pytest.mark.needs_root)],
    ids=["", "whose hook has changed its user"],
)
def test_a_child_dies_with_a_parent_that_is_killed(before: str | None) -> None:
    parent, child = start_parent("import time; time.sleep(60)", before)
    with parent:
        assert is_alive(child)
        parent.kill()
    assert wait_until(lambda: not is_alive(child))


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_parent_that_is_told_to_stop_ends_its_child_on_its_way_out(number: signal.Signals) -> None:
    parent, child = start_parent(UNTIL_INTERRUPTED)
    with parent:
        assert parent.stdout is not None
        assert parent.stdout.readline() == "ready\n"
        parent.send_signal(number)
        assert parent.wait(timeout=60) == 0
    assert not is_alive(child)


def test_a_child_for_which_no_descriptor_is_left_names_the_limit() -> None:
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (3, before[1]))
        with pytest.raises(ChildNotStarted, match=r"Too many open files; raise the limit of open files \(ulimit -n\)"):
            spawn("anything")
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)
