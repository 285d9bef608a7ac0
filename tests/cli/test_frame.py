"""Whatever happens inside a command, it ends with one sentence and a code that scripts can rely on."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from egmctl.units import printable
from tests.conftest import ROOT, Ended, RunEgmctl, command_environment, ended

pytestmark = pytest.mark.processes

HARNESS = """
import sys, os, time
import typer
from egmctl.cli import app as frame
from egmctl.cli.output import emit
from egmctl.errors import *

@frame.app.command()
def probe(json: bool = typer.Option(False, "--json")) -> None:
    {body}

frame.main()
"""


def start(body: str, *arguments: str, **changes: str) -> subprocess.Popen[str]:
    """Start a command whose body is ``body`` inside the real frame."""
    return subprocess.Popen(
        [sys.executable, "-c", HARNESS.format(body=body), "probe", *arguments],
        env=command_environment(changes),
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        # A shell starts what it runs in the background with SIGINT ignored.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )


def run(body: str, *arguments: str, **changes: str) -> Ended:
    with start(body, *arguments, **changes) as process:
        out, err = process.communicate(timeout=60)
    return Ended(process.returncode, out, err)


@pytest.mark.parametrize(
    ("raised", "code", "word", "sentence"),
    [
        ("raise UsageError('--gpus 9: a\\x1b[31mb\\nc')", 2, "usage", "--gpus 9: a\\x1b[31mb\\nc"),
        ("raise NothingToDo('no driver')", 3, "nothing", "no driver"),
        (
            "raise ChildFailed('the child hung', how='timed-out', last_call='cuMemCreate')",
            4,
            "child-failed",
            "the child hung",
        ),
        (
            "raise DriverCallError('cuMemCreate', 1, 'CUDA_ERROR')",
            4,
            "driver-call",
            "cuMemCreate failed: CUDA_ERROR (1)",
        ),
        ("{}['key']", 4, "internal", "unexpected KeyError: 'key'; please report it with what EGMCTL_DEBUG=1 shows"),
        ("raise PermissionError(13, 'No', '/a')", 4, "internal", "the system refused: No: /a"),
        ("raise KeyboardInterrupt", 130, "interrupted", "interrupted"),
    ],
)
def test_each_error_is_one_sentence_its_code_and_a_document(raised: str, code: int, word: str, sentence: str) -> None:
    ended = run(raised, "--json")
    document = json.loads(ended.out)
    assert (ended.code, document["exit_code"]) == (code, code)
    assert (document["schema"], document["result"]) == ("egmctl.error/1", None)
    (error,) = document["errors"]
    assert (error["code"], printable(error["message"])) == (word, sentence)
    assert ended.err == f"egmctl: {sentence}\n"
    assert run(raised) == Ended(code, "", ended.err)
    if word == "child-failed":
        assert (error["details"]["how"], error["details"]["last_call"]) == ("timed-out", "cuMemCreate")


def test_a_traceback_is_shown_only_when_asked_for() -> None:
    raised = "raise ChildFailed('it raised', how='raised', output='Traceback of\\nthe child\\x1b[0m')"
    assert run(raised) == Ended(4, "", "egmctl: it raised\n")
    told = run(raised, EGMCTL_DEBUG="1").err
    assert "Traceback (most recent call last)" in told
    assert "child: Traceback of\nchild: the child\\x1b[0m\n" in told


def test_a_command_that_says_nothing_is_fine_and_one_that_exits_keeps_its_code() -> None:
    assert run("pass") == Ended(0, "", "")
    assert run("raise typer.Exit(ExitCode.FAILED)").code == 1


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_ends_the_command_with_130_and_lets_it_clean_up(number: signal.Signals) -> None:
    body = """
    try:
        print("ready", flush=True)
        time.sleep(60)
    finally:
        print("cleaned", flush=True)"""
    with start(body) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        process.send_signal(number)
        out, err = process.communicate(timeout=60)
    assert (process.returncode, out, err) == (130, "cleaned\n", "egmctl: interrupted\n")


@pytest.mark.parametrize(("options", "code"), [((), 2), (("-h",), 0), (("--help",), 0)])
def test_help_names_the_commands_in_plain_text(egmctl: RunEgmctl, options: tuple[str, ...], code: int) -> None:
    ended = egmctl(*options, env={"FORCE_COLOR": "1"})
    text = ended.err if code else ended.out
    assert (ended.code, ended.out + ended.err) == (code, text)
    assert all(command in text for command in ("topo", "bench", "snapshot"))
    assert "\x1b" not in text


@pytest.mark.parametrize(
    ("line", "driver"),
    [
        ("NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  580.159.04  Release Build  (x)", "580.159.04"),
        ("NVRM version: NVIDIA UNIX aarch64 Kernel Module  570.86  Sat Jan 2 2025", "570.86"),
        ("NVRM version: something else", "of an unknown version"),
        (None, "not loaded"),
    ],
)
def test_version_tells_tool_bindings_and_driver(
    egmctl: RunEgmctl, tmp_path: Path, line: str | None, driver: str
) -> None:
    if line is not None:
        path = tmp_path / "proc/driver/nvidia/version"
        path.parent.mkdir(parents=True)
        path.write_text(f"{line}\nGCC version:  gcc version 13.3.0\n")
    ended = egmctl("-V", env={"EGMCTL_SYSROOT": str(tmp_path)})
    first = [text.rpartition(" ")[0] for text in ended.out.splitlines()[:3]]
    assert (ended.code, first) == (0, ["egmctl", "cuda-bindings", "nvidia-ml-py"])
    assert ended.out.endswith(f"NVIDIA driver {driver}\n")


def shell(script: str) -> Ended:
    return ended(["bash", "-c", f"set -o pipefail; {script}"], env={"PY": sys.executable})


@pytest.mark.parametrize(
    ("words", "code", "complaint"),
    [
        ("--version >/dev/full", 4, "cannot write the result to standard output: No space left on device"),
        ("--version >&-", 4, "standard output is closed: there is nowhere to write the result to"),
        ("--help >/dev/full", 4, "the system refused: No space left on device"),
        ("topo --no-such 2>&-", 2, ""),
    ],
)
def test_a_result_that_cannot_be_written_is_not_success(words: str, code: int, complaint: str) -> None:
    assert shell(f'"$PY" -m egmctl {words}') == Ended(code, "", f"egmctl: {complaint}\n" if complaint else "")


def test_a_reader_that_leaves_early_is_no_error() -> None:
    assert shell('(sleep 0.3; "$PY" -m egmctl --version) | true') == Ended(0, "", "")
    assert shell('(sleep 0.3; "$PY" -m egmctl --help) | true').err == ""


@pytest.mark.parametrize("arguments", [("--help",), ("profile", "--help")])
def test_each_command_has_a_line_of_its_own_that_is_not_cut(egmctl: RunEgmctl, arguments: tuple[str, ...]) -> None:
    shown = egmctl(*arguments, env={"COLUMNS": "80"}).out
    listed, _, further = shown.partition("Commands:\n")[2].partition("\n\n")
    assert len(listed.splitlines()) >= 4
    assert all(re.match(r"  [a-z]+ +[A-Z].*\.$", line) and "..." not in line for line in listed.splitlines())
    assert "egmctl bringup" in further or arguments != ("--help",), "where to begin"
