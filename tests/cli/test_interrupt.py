"""SIGINT at any moment, from the first line on, ends the command with 130 and no traceback; others unwind it alike."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from egmctl.signals import stopping
from tests.conftest import ROOT, command_environment

COMMAND = "import egmctl.__main__ as command; import os, sys; os.write(int(sys.argv.pop(1)), b'.'); command.main()"
"""As the script of an installed egmctl. Before its first line a signal is the interpreter's, which is still loading."""


def interrupted(folder: Path, after_s: float, *arguments: str) -> tuple[int, str]:
    """Return the code and the standard error of a command that gets SIGINT so long after its first line."""
    read, write = os.pipe()
    env = command_environment({"PYTHONPATH": f"{folder}:{ROOT}"})
    command = [sys.executable, "-c", COMMAND, str(write), *arguments]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    with subprocess.Popen(command, env=env, pass_fds=[write], start_new_session=True, **pipes) as process:  # type: ignore[call-overload]
        os.close(write)
        assert os.read(read, 1)
        os.close(read)
        time.sleep(after_s)
        process.send_signal(signal.SIGINT)
        err = process.communicate(timeout=60)[1].decode()
    return process.returncode, err


@pytest.mark.long
@pytest.mark.processes
def test_in_its_first_moments(tmp_path: Path) -> None:
    for hundredths in range(1, 40, 3):
        code, err = interrupted(tmp_path, hundredths / 100, "topo", "--machine", "gh200", "-q")
        # After its last line the signal is the interpreter's again, which a shell calls 130, too.
        assert code in (0, 130, -signal.SIGINT)
        assert err in (("",) if code == -signal.SIGINT else ("", "egmctl: interrupted\n"))


@pytest.mark.processes
def test_while_it_loads(tmp_path: Path) -> None:
    """A module that is never loaded to its end stands for the slowest disk."""
    (tmp_path / "typer.py").write_text("import time; time.sleep(60)\n")
    assert interrupted(tmp_path, 0.3, "--version") == (130, "")


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_to_end_is_an_interrupt_inside_the_block_only(number: signal.Signals) -> None:
    usual = signal.getsignal(number)
    with pytest.raises(KeyboardInterrupt), stopping():
        os.kill(os.getpid(), number)
    assert signal.getsignal(number) == usual


def test_a_signal_that_is_ignored_stays_ignored() -> None:
    usual = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with stopping():
            os.kill(os.getpid(), signal.SIGHUP)
        assert signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGHUP, usual)
