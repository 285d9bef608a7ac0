"""Programs of the system end with their time and with who asked them, and so does all that they have started."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from egmctl.launch.program import kept, output_of
from tests.conftest import command_environment
from tests.launch.start import ROOT, wait_until

pytestmark = pytest.mark.processes

PATH = {"PATH": "/usr/bin:/bin"}


@pytest.fixture
def sleepers(tmp_path: Path) -> Callable[[], int]:
    """Count the processes of :data:`FAMILY`: their program has a name of its own."""
    program = tmp_path / "sleeper"
    program.write_bytes(Path("/bin/sleep").read_bytes())
    program.chmod(0o755)

    def count() -> int:
        count = 0
        for entry in Path("/proc").glob("[0-9]*"):
            try:
                count += os.readlink(entry / "exe") == str(program)
            except OSError:
                continue
        return count

    return count


FAMILY = "(setsid {0} 60 &) ; ({0} 60 &) ; trap '' TERM HUP; setsid sh -c '{0} 60 & {0} 60' & {0} 60 & "
"""A child that ignores signals, a grandchild, an orphan, and two in sessions of their own, one of them an orphan."""


def family(folder: Path, then: str) -> list[str]:
    return ["/bin/sh", "-c", FAMILY.format(folder / "sleeper") + then]


def test_what_it_prints_is_returned_whatever_its_code() -> None:
    words = ["/bin/sh", "-c", 'echo out; echo err >&2; read line; echo "got <$line>"; exit 3']
    assert output_of(words, timeout_s=60, limit=1000, environment=PATH) == b"out\ngot <>\n", "and it has no input"


def test_its_environment_is_the_given_one() -> None:
    shown = output_of(["/usr/bin/env"], timeout_s=60, limit=10_000, environment={"A": "b"}).decode().split()
    assert "A=b" in shown
    assert not [line for line in shown if line.startswith(("PATH=", "HOME=", "PYTHON"))]


def test_output_is_bounded_while_it_is_read() -> None:
    began = time.monotonic()
    assert output_of(["/usr/bin/yes"], timeout_s=60, limit=100_000, environment=PATH) == b"y\n" * 50_000
    assert time.monotonic() - began < 30


@pytest.mark.parametrize(
    ("path", "error"), [("/no/such", FileNotFoundError), ("/etc/passwd", PermissionError), ("/", OSError)]
)
def test_what_cannot_be_started(path: str, error: type[OSError]) -> None:
    with pytest.raises(error):
        output_of([path], timeout_s=60, limit=10, environment=PATH)


@pytest.mark.parametrize("then", ["wait", "exit 0", "yes", "kill -9 $$"])
def test_nothing_stays_behind(tmp_path: Path, sleepers: Callable[[], int], then: str) -> None:
    try:
        output_of(family(tmp_path, then), timeout_s=0.6 if then == "wait" else 60, limit=1 << 20, environment=PATH)
    except TimeoutError:
        assert then == "wait"
    assert sleepers() == 0


def test_nothing_stays_behind_a_command_that_was_killed(tmp_path: Path, sleepers: Callable[[], int]) -> None:
    script = (
        "import sys; from egmctl.launch.program import output_of\n"
        "output_of(sys.argv[1:], timeout_s=60, limit=10, environment={'PATH': '/usr/bin:/bin'})\n"
    )
    command = [sys.executable, "-c", script, *family(tmp_path, "wait")]
    with subprocess.Popen(command, cwd=ROOT, env=command_environment({})) as process:
        assert wait_until(lambda: sleepers() == 5)
        process.kill()
    assert wait_until(lambda: sleepers() == 0)


def test_one_that_reads_the_input_may_end_in_an_orderly_way(tmp_path: Path) -> None:
    """As an ssh whose command on the node ends once its input does."""
    words = ["/bin/sh", "-c", "cat; sleep 0.3; echo orderly"]
    process = subprocess.Popen(
        kept(words, grace_s=20, passes_input=True), stdin=subprocess.PIPE, stdout=subprocess.PIPE, cwd=tmp_path
    )
    assert process.communicate(b"some\n", timeout=30)[0] == b"some\norderly\n"
    assert process.returncode == 0


def test_the_exit_code_is_the_programs() -> None:
    for script, code in (("exit 7", 7), ("kill -9 $$", 128 + signal.SIGKILL)):
        assert subprocess.run(kept(["sh", "-c", script], grace_s=0, passes_input=True), timeout=30).returncode == code
    gone = subprocess.run(kept(["/no/such"], grace_s=0, passes_input=True), capture_output=True, timeout=30)
    assert (gone.returncode, gone.stderr) == (127, b"/no/such: No such file or directory\n")
