"""A terminal that was closed: the command ends quietly. A write to it fails with EIO, not as a closed pipe does."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from tests.conftest import ROOT, command_environment

pytestmark = pytest.mark.processes


def on_closed_terminal(*words: str, both: bool) -> tuple[int, str]:
    """Run a command whose terminal was closed before its first word; return its exit code and standard error."""
    ours, theirs = os.openpty()
    os.close(ours)
    try:
        done = subprocess.run(
            [sys.executable, "-m", "egmctl", *words],
            cwd=ROOT,
            env=command_environment({}),
            stdout=theirs,
            stderr=theirs if both else subprocess.PIPE,
            # Without a controlling terminal: no SIGHUP ends it first.
            start_new_session=True,
            timeout=240,
            check=False,
        )
    finally:
        os.close(theirs)
    return done.returncode, (done.stderr or b"").decode()


@pytest.mark.parametrize("both", [False, True], ids=["output", "output and messages"])
@pytest.mark.parametrize(
    ("words", "code"),
    [
        (("topo", "--machine", "dgx-h100"), 0),
        (("topo", "--machine", "dgx-h100", "--json"), 0),
        (("doctor", "--machine", "h200-links-down"), 1),
        (("--version",), 0),
    ],
)
def test_a_command_ends_quietly_with_the_code_of_its_result(words: tuple[str, ...], code: int, both: bool) -> None:
    assert on_closed_terminal(*words, both=both) == (code, "")


def test_a_wrong_option_stays_one() -> None:
    assert on_closed_terminal("topo", "--nonsense", both=True) == (2, "")


def test_a_device_that_takes_nothing_is_no_closed_terminal() -> None:
    with open("/dev/full", "wb") as full:
        done = subprocess.run(
            [sys.executable, "-m", "egmctl", "--version"],
            cwd=ROOT,
            env=command_environment({}),
            stdout=full,
            stderr=subprocess.PIPE,
            timeout=240,
            check=False,
        )
    assert (done.returncode, done.stderr.count(b"No space left on device")) == (4, 1)
