"""Whatever happens inside a command, it ends with one sentence and a code that scripts can rely on."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

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
    )


def run(body: str, *arguments: str, **changes: str) -> Ended:
    with start(body, *arguments, **changes) as process:
        out, err = process.communicate(timeout=60)
    return Ended(process.returncode, out, err)


@pytest.mark.parametrize(
    ("raised", "code", "word"),
    [
        ("UsageError('--gpus 9: there is no GPU 9')", 2, "usage"),
        ("NothingToDo('no driver')", 3, "nothing"),
        ("ChildFailed('the facts child died', how='crashed', last_call='cuInit')", 4, "child-failed"),
        ("DriverCallError('cuMemCreate', 1, 'CUDA_ERROR_INVALID_VALUE')", 4, "driver-call"),
    ],
)
def test_each_error_is_one_sentence_its_code_and_a_document(raised: str, code: int, word: str) -> None:
    ended = run(f"raise {raised}")
    assert (ended.code, ended.out) == (code, "")
    assert ended.err.startswith("egmctl: ")
    assert ended.err.count("\n") == 1

    ended = run(f"raise {raised}", "--json")
    document = json.loads(ended.out)
    assert (ended.code, document["exit_code"]) == (code, code)
    assert document["schema"] == "egmctl.error/1"
    assert document["result"] is None
    assert [error["code"] for error in document["errors"]] == [word]
    assert ended.err == f"egmctl: {document['errors'][0]['message']}\n"


def test_the_document_keeps_what_the_error_knows() -> None:
    ended = run("raise ChildFailed('the child hung', how='timed-out', last_call='cuMemCreate')", "--json")
    details = json.loads(ended.out)["errors"][0]["details"]
    assert details["how"] == "timed-out"
    assert details["last_call"] == "cuMemCreate"


def test_a_fault_of_the_tool_is_one_sentence_that_asks_for_a_report() -> None:
    ended = run("{}['missing']", "--json")
    assert ended.code == 4
    assert ended.err == ("egmctl: unexpected KeyError: 'missing'; please report it with what EGMCTL_DEBUG=1 shows\n")
    assert json.loads(ended.out)["errors"][0]["code"] == "internal"


def test_a_file_that_the_system_keeps_from_the_user_is_no_fault_of_the_tool() -> None:
    ended = run("raise PermissionError(13, 'Permission denied', '/home/a/.bashrc')")
    assert (ended.code, ended.err) == (4, "egmctl: the system refused: Permission denied: /home/a/.bashrc\n")


def test_a_traceback_is_shown_only_when_asked_for() -> None:
    assert "Traceback" not in run("1 / 0").err
    assert "Traceback" in run("1 / 0", EGMCTL_DEBUG="1").err
    raised = "raise ChildFailed('it raised', how='raised', output='Traceback of\\nthe child\\x1b[0m')"
    assert "child" not in run(raised).err
    assert "child: Traceback of\nchild: the child\\x1b[0m\n" in run(raised, EGMCTL_DEBUG="1").err


def test_control_characters_of_a_message_are_escaped() -> None:
    assert run("raise UsageError('a\\x1b[31mb\\nc')").err == "egmctl: a\\x1b[31mb\\nc\n"


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


def test_a_signal_before_there_is_anything_to_report_is_told_in_json_too() -> None:
    ended = run("raise KeyboardInterrupt", "--json")
    document = json.loads(ended.out)
    assert (ended.code, document["exit_code"], document["errors"][0]["code"]) == (130, 130, "interrupted")


def test_no_command_shows_the_commands_and_is_a_usage_error(egmctl: RunEgmctl) -> None:
    ended = egmctl()
    assert (ended.code, ended.out) == (2, "")
    assert all(command in ended.err for command in ("topo", "bench", "snapshot"))


@pytest.mark.parametrize("option", ["-h", "--help"])
def test_help_names_the_commands_in_plain_text(egmctl: RunEgmctl, option: str) -> None:
    ended = egmctl(option, env={"FORCE_COLOR": "1"})
    assert (ended.code, ended.err) == (0, "")
    assert all(command in ended.out for command in ("topo", "bench", "snapshot"))
    assert "\x1b" not in ended.out


@pytest.mark.parametrize("option", ["-V", "--version"])
def test_version_tells_tool_bindings_and_driver(egmctl: RunEgmctl, option: str, tmp_path: Path) -> None:
    ended = egmctl(option, env={"EGMCTL_SYSROOT": str(tmp_path)})
    assert ended.code == 0
    assert [line.rpartition(" ")[0] for line in ended.out.splitlines()[:3]] == [
        "egmctl",
        "cuda-bindings",
        "nvidia-ml-py",
    ]
    assert ended.out.endswith("NVIDIA driver not loaded\n")


@pytest.mark.parametrize(
    ("line", "version"),
    [
        ("NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  580.159.04  Release Build  (x)", "580.159.04"),
        ("NVRM version: NVIDIA UNIX aarch64 Kernel Module  570.86  Sat Jan 2 2025", "570.86"),
        ("NVRM version: something else", "of an unknown version"),
    ],
)
def test_version_reads_the_loaded_drivers(egmctl: RunEgmctl, tmp_path: Path, line: str, version: str) -> None:
    path = tmp_path / "proc/driver/nvidia/version"
    path.parent.mkdir(parents=True)
    path.write_text(f"{line}\nGCC version:  gcc version 13.3.0\n")
    assert egmctl("-V", env={"EGMCTL_SYSROOT": str(tmp_path)}).out.endswith(f"NVIDIA driver {version}\n")


def shell(script: str) -> Ended:
    return ended(["bash", "-c", f"set -o pipefail; {script}"], env={"PY": sys.executable})


@pytest.mark.parametrize(
    ("redirection", "complaint"),
    [
        (">/dev/full", "egmctl: cannot write the result to standard output: No space left on device\n"),
        (">&-", "egmctl: standard output is closed: there is nowhere to write the result to\n"),
    ],
)
def test_a_result_that_cannot_be_written_is_not_success(redirection: str, complaint: str) -> None:
    done = shell(f'"$PY" -m egmctl --version {redirection}')
    assert (done.code, done.err) == (4, complaint)


def test_help_that_cannot_be_written_is_one_sentence() -> None:
    done = shell('"$PY" -m egmctl --help >/dev/full')
    assert (done.code, done.err) == (4, "egmctl: the system refused: No space left on device\n")


def test_a_reader_that_leaves_early_is_no_error() -> None:
    done = shell('(sleep 0.3; "$PY" -m egmctl --version) | true')
    assert (done.code, done.err) == (0, "")


def test_a_reader_of_help_that_leaves_early_is_told_nothing() -> None:
    assert shell('(sleep 0.3; "$PY" -m egmctl --help) | true').err == ""


def test_a_closed_standard_error_does_not_spill_into_the_result() -> None:
    done = shell('"$PY" -m egmctl topo --no-such 2>&-')
    assert (done.code, done.out) == (2, "")


@pytest.mark.parametrize("arguments", [("--help",), ("profile", "--help")])
def test_each_command_has_a_line_of_its_own_that_is_not_cut(egmctl: RunEgmctl, arguments: tuple[str, ...]) -> None:
    shown = egmctl(*arguments, env={"COLUMNS": "80"}).out
    listed, _, further = shown.partition("Commands:\n")[2].partition("\n\n")
    assert len(listed.splitlines()) >= 4
    assert all(re.match(r"  [a-z]+ +[A-Z].*\.$", line) and "..." not in line for line in listed.splitlines())
    assert "egmctl bringup" in further or arguments != ("--help",), "where to begin"
