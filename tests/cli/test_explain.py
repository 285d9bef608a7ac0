"""``egmctl explain``: arguments in any order, texts, and programs, which end as they would without it."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from egmctl.api.doctor import judged
from egmctl.cli.explain import LOG_PART
from egmctl.doctor.explain import failures_of
from egmctl.model.explanation import ErrorLog
from tests.conftest import RunEgmctl, command_environment
from tests.doctor.changed import container
from tests.fake.plugin import MakeFakeNode
from tests.in_process import run

H200 = ("--machine", "hgx-h200x4", "-q")
CUDA_LOG = "[03:06:38.965][1397][CUDA][E] "
NOISE = f"{CUDA_LOG}Returning 1 (CUDA_ERROR_INVALID_VALUE) from cuGetProcAddress_v2\n"
FAILED = (
    f"{CUDA_LOG}Requested size not aligned to minimum granularity (0x200000 bytes)\n"
    f"{CUDA_LOG}Returning 1 (CUDA_ERROR_INVALID_VALUE) from cuMemCreate\n"
)


def logging(text: str, after: str = "exit 0") -> tuple[str, ...]:
    """A program that writes a text as CUDA writes its error log."""
    return ("explain", "--", "sh", "-c", f'echo out; echo err >&2; printf %s "{text}" >> "$CUDA_LOG_FILE"; {after}')


NOT_READ = (
    "; its standard output, where NCCL prints, is not read (NCCL_DEBUG=WARN NCCL_DEBUG_FILE=/dev/stderr moves that)\n"
)


def test_the_order_of_call_and_error_does_not_matter() -> None:
    first = run("explain", "cuMemCreate", "800", *H200)
    assert first.code == 0
    assert first.out.startswith("CAUSE: there is no IMEX channel")
    assert run("explain", "CUDA_ERROR_NOT_PERMITTED", "cuMemCreate", *H200) == first


def test_json_has_the_causes_the_checks_and_their_findings() -> None:
    document = json.loads(run("explain", "cuMemCreate", "800", *H200, "--json").out)
    assert (document["schema"], document["exit_code"]) == ("egmctl.explain/2", 0)
    (explanation,) = document["result"]["explanations"]
    (cause, *_) = explanation["causes"]
    assert (cause["state"], cause["findings"][0]["check"]) == ("holds", "imex.channel")
    assert set(cause["remedy"]) >= {"text", "look", "run", "needs", "works_in"}
    assert explanation["sources"]


def test_a_saved_answer_is_shown_as_it_was(tmp_path: Path) -> None:
    run("explain", "cuMemCreate", "800", *H200, "-o", tmp_path / "answer.json")
    assert run("show", tmp_path / "answer.json", "-v").out == run("explain", "cuMemCreate", "800", *H200, "-v").out


@pytest.mark.parametrize(
    ("words", "named"),
    [
        ((), "give a function, an error or both"),
        (("cuMemCreate", "cuInit"), "give a function, an error or both"),
        (("800", "801"), "give a function, an error or both"),
        (("800", "/dev/null"), "or one file"),
        (("cuMemCreate", "800", "801"), "give a function, an error or both"),
        (("nonsense",), "explain 'nonsense': not a known function (cuMemCreate,"),
        (("no-such-file.log",), "message or file"),
        (("cuMemCreate", "CUDA_ERROR_FOO"), "there is no error CUDA_ERROR_FOO of CUDA"),
        (("CUDA_ERROR_NOT_PERMIT",), "of CUDA; did you mean CUDA_ERROR_NOT_PERMITTED?"),
        (("cuMemCreat", "800"), "there is no function cuMemCreat; did you mean cuMemCreate?"),
        (("nvmlInt",), "there is no function nvmlInt; did you mean nvmlInit?"),
        (("/",), "/ cannot be read: Is a directory"),
        (("800", "--", "true"), "leave out what else is to be explained"),
        (("--machine", "gh200", "--", "true"), "leave out what else is to be explained"),
        (("--json", "--", "true"), "leave out -o and --json"),
        (("--pid", "1", "--machine", "gh200", "800"), "--machine and --pid exclude each other"),
        (("cuMemCreate", "800", "--pid", "999999999"), "no process 999999999"),
    ],
)
def test_what_is_wrong_is_one_sentence_and_ends_with_2(words: tuple[str, ...], named: str) -> None:
    done = run("explain", *words)
    assert (done.code, done.err.count("\n")) == (2, 1)
    assert named in done.err


def test_what_is_not_known_and_a_text_without_errors_end_with_3(tmp_path: Path) -> None:
    (text := tmp_path / "app.log").write_text("all is well\n")
    assert run("explain", "cuLaunchKernel", "717", *H200).code == 3
    done = run("explain", text, *H200)
    assert done.code == 3
    assert done.out.startswith("NOT KNOWN: no known error is in what was read (1 line)\n")
    assert "-v" not in done.out.splitlines()[-1]


@pytest.mark.processes
@pytest.mark.parametrize("words", [(), ("-",)])
def test_a_text_that_is_piped_in_needs_no_argument(words: tuple[str, ...]) -> None:
    command = [sys.executable, "-m", "egmctl", "explain", *words, *H200]
    done = subprocess.run(
        command,
        input="cuMemCreate failed: 800\n",
        env=command_environment({}),
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stdout.splitlines()[0][:6]) == (0, "CAUSE:")


def test_a_text_is_answered_once_for_each_kind_with_its_line(tmp_path: Path) -> None:
    (text := tmp_path / "app.log").write_text(
        "start\n" + FAILED + "RuntimeError: CUDA error: invalid argument\x1b[2J\n"
        "NVRM: Xid (PCI:0000:00:06): 79, pid=1, GPU has fallen off the bus.\n" + FAILED
    )
    done = run("explain", text, *H200)
    shown = " ".join(done.out.split())
    assert done.code == 0
    assert shown.startswith("CAUSE: GPU fell off the bus"), "the gravest line leads"
    assert shown.count("CUDA_ERROR_INVALID_VALUE (1)") == 1
    assert "line 3, 2 times" in shown
    assert "Xid 79" in shown
    assert "\x1b" not in done.out


@pytest.mark.parametrize(
    ("lines", "answer"),
    [
        (["Returning 1 (X) from cuMemCreate"], "POSSIBLE CAUSE: the NUMA node of the allocation does not exist"),
        (["Returning 2 (X) from cuMemAlloc_v2"], "POSSIBLE CAUSE: there is not enough free memory"),
        (
            ["Index 0: Invalid type (0x0)", "Returning 1 (X) from cuMemSetAccess"],
            "POSSIBLE CAUSE: the driver says: Index 0: Invalid type",
        ),
        (["Bad day", "Returning 717 (X) from cuLaunchKernel"], "CAUSE: the driver says: Bad day"),
        (["No CUDA context is current", "Returning 201 (X) from cuCtxGetDevice_v2"], "NOT KNOWN: no known error is"),
    ],
    ids=["words of the others are missing", "the only one", "words that are not known", "no cause", "PyTorch asks"],
)
def test_the_drivers_own_words_and_their_absence_decide(lines: list[str], answer: str, tmp_path: Path) -> None:
    (text := tmp_path / "cuda.log").write_text("".join(f"{CUDA_LOG}{line}\n" for line in lines))
    assert " ".join(run("explain", text, *H200).out.split()).startswith(answer)


def test_without_the_drivers_log_no_words_can_be_missing(tmp_path: Path) -> None:
    (text := tmp_path / "app.log").write_text("cuMemCreate failed: CUDA_ERROR_INVALID_VALUE\n")
    shown = run("explain", text, *H200).out
    assert shown.startswith("POSSIBLE CAUSE: the NUMA node")
    assert "LIKELY" not in shown


def test_the_next_step_is_that_of_the_finding_that_explains_the_others() -> None:
    log = ErrorLog(failures=failures_of("cuInit", "CUDA_ERROR_NO_DEVICE"))
    (explanation,) = judged(log, container(gpus=False), redacted=False).explanations
    assert [finding.check for finding in explanation.causes[0].findings][:1] == ["dev.nodes-missing"]


@pytest.mark.parametrize(
    ("text", "cause"),
    [
        ("[Bug] GpuBuffer cuMemCreate failed: operation not permitted", "no IMEX channel"),
        ("[CUDA_ERROR_NOT_PERMITTED] operation not permitted in expression cuMemCreate(&h)", "no IMEX channel"),
        ("CUDA error in cuMemImportFromShareableHandle: invalid resource handle", "the IMEX domain is broken"),
        ("cuMemImportFromShareableHandle failed: CUDA_ERROR_INVALID_DEVICE", "cannot use the GPU that owns the memory"),
    ],
    ids=["mscclpp-467", "nvbandwidth-46", "dra-1417", "dra-294"],
)
def test_what_people_paste_has_the_cause_that_their_thread_found(text: str, cause: str, tmp_path: Path) -> None:
    (file := tmp_path / "pasted").write_text(text)
    (explanation,) = json.loads(run("explain", file, *H200, "--json").out)["result"]["explanations"]
    assert any(cause in each["cause"] for each in explanation["causes"][:1])


@pytest.mark.processes
def test_a_pipe_is_read_to_its_end() -> None:
    script = f'echo "cuMemCreate failed: 800" | exec "{sys.executable}" -m egmctl explain - {" ".join(H200)}'
    done = subprocess.run(
        ["sh", "-c", script], capture_output=True, text=True, env=command_environment({}), check=False
    )
    assert done.returncode == 0
    assert "line 1" in done.stdout


def test_doctor_sends_calls_and_errors_here() -> None:
    for word in ("cuMemCreate", "CUDA_ERROR_NOT_PERMITTED", "cudaErrorNotPermitted", "nvmlInit"):
        done = run("doctor", "--explain", word)
        assert (done.code, "egmctl explain" in done.err) == (2, True)


def test_the_checks_are_run_on_this_node_without_loading_cuda(egmctl: RunEgmctl, fake_node: MakeFakeNode) -> None:
    node = fake_node("hgx-h200x4")
    done = egmctl("explain", "cuMemCreate", "800", env=node.environment())
    assert done.code == 0
    assert done.out.startswith("CAUSE: there is no IMEX channel that this process may read and write")
    assert "of this process, or of --pid PID" in done.out
    assert not [call for call in node.calls() if call.name.startswith("cu")]


def test_a_program_that_fails_is_explained_after_its_output(egmctl: RunEgmctl) -> None:
    done = egmctl(*logging(NOISE + FAILED, "exit 7"))
    assert (done.code, done.out) == (7, "out\n")
    lines = done.err.splitlines()
    assert lines[:2] == ["err", "egmctl: sh ended with 7; CUDA's log says what failed"]
    assert lines[2] == "CAUSE: the size is no multiple of the granularity"
    assert "driver  Requested size not aligned to minimum granularity (0x200000 bytes)" in lines
    assert "cuGetProcAddress" not in done.err


@pytest.mark.parametrize("text", ["", NOISE])
def test_nothing_is_said_where_nothing_failed(egmctl: RunEgmctl, text: str) -> None:
    assert egmctl(*logging(text)) == (0, "out\n", "err\n")


def test_a_program_that_succeeds_all_the_same_gets_the_answer_only(egmctl: RunEgmctl) -> None:
    done = egmctl(*logging(FAILED))
    assert done.code == 0
    assert "CAUSE: the size is no multiple" in done.err
    assert "POSSIBLE" not in done.err


def test_a_failure_without_a_log_says_since_when_there_is_one(egmctl: RunEgmctl) -> None:
    done = egmctl("explain", "--", "false", env={"OMPI_COMM_WORLD_RANK": "3", "OMPI_COMM_WORLD_SIZE": "4"})
    assert done.code == 1
    assert done.err == (
        "egmctl: false (rank 3) ended with 1; CUDA logged no failed call (drivers before 575, CUDA 12.9, log none), "
        f"and its standard error has no known error{NOT_READ}"
    )


def test_a_program_that_is_not_there_is_named(egmctl: RunEgmctl) -> None:
    done = egmctl("explain", "--", "/no/such/program")
    assert (done.code, done.err) == (
        2,
        "egmctl: explain -- /no/such/program cannot be run: No such file or directory\n",
    )


def test_options_of_the_program_are_its_own(egmctl: RunEgmctl) -> None:
    assert egmctl("explain", "--", "echo", "--json", "--", "-q").out == "--json -- -q\n"


def test_a_file_of_its_own_is_kept_and_its_new_part_read(egmctl: RunEgmctl, tmp_path: Path) -> None:
    file = tmp_path / "own.log"
    file.write_text(f"{CUDA_LOG}Returning 2 (CUDA_ERROR_OUT_OF_MEMORY) from cuMemAlloc_v2\n")
    done = egmctl(*logging(FAILED, "exit 1"), env={"CUDA_LOG_FILE": str(file)})
    assert "granularity" in done.err
    assert "OUT_OF_MEMORY" not in done.err
    assert file.read_text().endswith(FAILED)


def test_a_log_that_cannot_be_read_is_said(egmctl: RunEgmctl) -> None:
    done = egmctl("explain", "--", "false", env={"CUDA_LOG_FILE": "stderr"})
    assert (done.code, done.err) == (
        1,
        "egmctl: false ended with 1; CUDA_LOG_FILE=stderr cannot be read, and its standard error has no known error"
        f"{NOT_READ}",
    )
    done = egmctl("explain", "--", "sh", "-c", 'rm "$CUDA_LOG_FILE"; exit 1')
    assert "CUDA_LOG_FILE=/" in done.err


def test_of_a_log_that_fills_up_the_first_and_the_last_part_are_read(egmctl: RunEgmctl) -> None:
    many = f"yes '{CUDA_LOG}Returning 46 (CUDA_ERROR_DEVICE_UNAVAILABLE) from cuInit' | head -c {3 * LOG_PART}"
    last = f"printf %s '{FAILED}'"
    done = egmctl("explain", "--", "sh", "-c", f'{{ {many}; echo; {last}; }} >> "$CUDA_LOG_FILE"; exit 1', "-v")
    assert done.code == 1
    assert "cuInit: CUDA_ERROR_DEVICE_UNAVAILABLE (46)" in done.err
    assert "cuMemCreate: CUDA_ERROR_INVALID_VALUE (1)" in done.err


def test_the_log_is_private_and_gone_afterwards(egmctl: RunEgmctl, tmp_path: Path) -> None:
    done = egmctl(
        *("explain", "--", "sh", "-c", 'stat -c %a "$CUDA_LOG_FILE" "$(dirname "$CUDA_LOG_FILE")"'),
        env={"TMPDIR": str(tmp_path)},
    )
    assert done.out == "600\n700\n"
    assert list(tmp_path.iterdir()) == []


@pytest.mark.processes
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP, signal.SIGINT, signal.SIGQUIT])
def test_a_signal_reaches_the_program_and_its_end_is_the_end(number: signal.Signals, tmp_path: Path) -> None:
    ready = tmp_path / "ready"
    script = (
        f"trap 'echo caught; trap - {number.name[3:]}; kill -{number.name[3:]} $$' {number.name[3:]}; : > {ready}; "
    )
    process = subprocess.Popen(
        [sys.executable, "-m", "egmctl", "explain", "--", "sh", "-c", script + "while :; do sleep 0.05; done"],
        stdout=subprocess.PIPE,
        env=command_environment({}),
        start_new_session=True,
        text=True,
        # Tests that a shell runs in the background have SIGINT and SIGQUIT ignored, and what is ignored stays so.
        preexec_fn=lambda: signal.signal(number, signal.SIG_DFL),
    )
    while not ready.exists():
        assert process.poll() is None
        time.sleep(0.02)
    os.kill(process.pid, number)
    try:
        out, _ = process.communicate(timeout=60)
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
    assert (process.returncode, out) == (-number, "caught\n")


@pytest.mark.processes
@pytest.mark.parametrize("number", [signal.SIGSEGV, signal.SIGKILL])
def test_a_program_that_dies_of_a_signal_is_explained_and_the_command_dies_alike(number: signal.Signals) -> None:
    words = logging(FAILED, f"kill -{number.name[3:]} $$")
    done = subprocess.run(
        [sys.executable, "-m", "egmctl", *words],
        capture_output=True,
        text=True,
        env=command_environment({}),
        check=False,
    )
    assert (done.returncode, done.stdout) == (-number, "out\n")
    assert f"egmctl: sh ended by {number.name}; CUDA's log says what failed" in done.stderr


@pytest.mark.parametrize("words", [("Xid 79",), ("Xid", "79")])
def test_words_that_were_pasted_are_a_message(words: tuple[str, ...]) -> None:
    done = run("explain", *words)
    assert done.code == 0
    assert done.out.startswith("CAUSE: GPU fell off the bus")


def test_an_error_alone_is_answered_by_the_node() -> None:
    done = run("explain", "101", "--machine", "h200-cgroup-denied", "-q")
    assert done.code == 0
    assert "\nCAUSE: " in done.out
    assert "cgroup" in done.out.partition("Next:")[0]


@pytest.mark.parametrize(
    "text", ["802", "cuInit 802", "Error 802: system not yet initialized", "No devices were found"]
)
def test_a_short_text_is_read_as_its_words(text: str, tmp_path: Path) -> None:
    (file := tmp_path / "pasted").write_text(f"{text}\n")
    done = run("explain", file, *H200)
    assert done.code == 0
    assert "NOT KNOWN" not in done.out


def test_a_healthy_host_says_nothing_about_a_container(tmp_path: Path) -> None:
    (file := tmp_path / "pasted").write_text("Failed to initialize NVML: Unknown Error\n")
    shown = " ".join(run("explain", file, *H200).out.split())
    assert "POSSIBLE CAUSE: the container lost its device rules" in shown
    assert "NOT HERE" not in shown


@pytest.mark.processes
def test_a_fifo_is_read_when_it_is_written(tmp_path: Path) -> None:
    os.mkfifo(fifo := tmp_path / "fifo")
    with subprocess.Popen(["sh", "-c", f"echo 'cuMemCreate failed: 800' > {fifo}"]):
        assert "no IMEX channel" in run("explain", fifo, *H200).out


def test_what_a_program_prints_is_read_if_cuda_logged_nothing(egmctl: RunEgmctl) -> None:
    text = "RuntimeError: No CUDA GPUs are available"
    done = egmctl("explain", "--", "sh", "-c", f"echo '{text}' >&2; exit 5")
    assert (done.code, done.out) == (5, "")
    assert done.err.startswith(f"{text}\negmctl: sh ended with 5; CUDA logged no failed call, its standard error says")
    assert "CUDA offers this process no GPU" in " ".join(done.err.split())


def test_a_program_that_failed_is_not_answered_by_a_line_that_is_harmless(egmctl: RunEgmctl) -> None:
    line = "NVRM: Persistence mode is deprecated and will be removed in a future release."
    done = egmctl("explain", "--", "sh", "-c", f"echo '{line}' >&2; exit 5")
    assert done.code == 5
    assert "its standard error has no known error" in done.err
    assert "NO FAULT" not in done.err


def test_standard_error_is_passed_on_unchanged_and_remains_what_it_was(egmctl: RunEgmctl) -> None:
    script = r"printf 'a\r\n\033[1mb\tno newline' >&2; test -t 2 && echo terminal; exit 0"
    assert egmctl("explain", "--", "sh", "-c", script) == (0, "", "a\r\n\033[1mb\tno newline")


@pytest.mark.processes
def test_a_terminal_remains_one() -> None:
    import pty

    master, slave = pty.openpty()
    words = [sys.executable, "-m", "egmctl", "explain", "--", "sh", "-c", "test -t 2 && echo yes >&2"]
    done = subprocess.run(words, stdout=subprocess.PIPE, stderr=slave, env=command_environment({}), check=False)
    os.close(slave)
    shown = os.read(master, 1000)
    os.close(master)
    assert (done.returncode, shown) == (0, b"yes\r\n")


@pytest.mark.processes
def test_a_child_that_outlives_the_program_is_said_and_still_heard(tmp_path: Path) -> None:
    (go := tmp_path / "go").touch()
    script = f"( while test -e {go}; do sleep 0.05; done; echo late >&2 ) & exit 4"
    process = subprocess.Popen(
        [sys.executable, "-m", "egmctl", "explain", "--", "sh", "-c", script],
        stderr=subprocess.PIPE,
        env=command_environment({}),
    )
    assert process.wait(timeout=60) == 4
    go.unlink()
    assert process.stderr is not None
    with process.stderr as stream:
        shown = stream.read().decode()
    assert "a process that sh started still runs" in shown
    assert shown.endswith("late\n")


@pytest.mark.processes
def test_the_folder_of_a_killed_command_goes_at_the_next_start(egmctl: RunEgmctl, tmp_path: Path) -> None:
    ready = tmp_path / "ready"
    folders = tmp_path / "tmp"
    folders.mkdir()
    process = subprocess.Popen(
        [sys.executable, "-m", "egmctl", "explain", "--", "sh", "-c", f": > {ready}; exec sleep 600"],
        env={**command_environment({}), "TMPDIR": str(folders)},
        start_new_session=True,
    )
    while not ready.exists():
        assert process.poll() is None
        time.sleep(0.02)
    egmctl("explain", "--", "true", env={"TMPDIR": str(folders)})
    assert len(list(folders.iterdir())) == 1, "the folder of a running command stays"
    process.kill()
    process.wait()
    try:
        egmctl("explain", "--", "true", env={"TMPDIR": str(folders)})
        assert list(folders.iterdir()) == []
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
