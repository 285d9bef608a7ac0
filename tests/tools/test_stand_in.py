"""``tests/stand_in.py`` does what the command does and ends as it ends, or tests of jobs would prove something else."""

from __future__ import annotations

import os
import select
import signal
import subprocess

import pytest

from tests.command_server import SERVER
from tests.conftest import RunEgmctl, command_environment, ended

pytestmark = pytest.mark.processes


def test_output_errors_and_exit_code_are_those_of_the_command(egmctl: RunEgmctl) -> None:
    for words in (("topo", "--machine", "gb200-tray"), ("no-such-command",)):
        assert ended([*SERVER.stand_in(), *words]) == egmctl(*words)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_reaches_the_command_and_its_end_is_the_end(number: signal.Signals) -> None:
    script = f"trap 'echo caught; exit 7' {number.name[3:]}; echo ready; while :; do sleep 0.05; done"
    words = ("explain", "--", "sh", "-c", script)
    with subprocess.Popen(
        [*SERVER.stand_in(), *words], stdout=subprocess.PIPE, env=command_environment({}), text=True
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        process.send_signal(number)
        assert process.stdout.readline() == "caught\n"
        assert process.wait(60) == 7


def test_a_command_whose_stand_in_is_killed_is_killed() -> None:
    words = ("explain", "--", "sh", "-c", "echo $PPID $$; exec sleep 60")
    with subprocess.Popen(
        [*SERVER.stand_in(), *words], stdout=subprocess.PIPE, env=command_environment({}), text=True
    ) as process:
        assert process.stdout is not None
        command, program = map(int, process.stdout.readline().split())
        gone = os.pidfd_open(command)
        process.kill()
        assert select.select([gone], [], [], 60)[0]
        os.close(gone)
        os.kill(program, signal.SIGKILL)
