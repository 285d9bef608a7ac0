"""A bench that is killed on real GPUs at random moments: what it had measured is on disk, and no memory stays taken."""

from __future__ import annotations

import os
import random
import subprocess
import sys
import time
from pathlib import Path

import pytest

from egmctl.journal.read import earlier
from egmctl.saved import load_journal
from tests.conftest import ROOT, command_environment
from tests.gpu.usage import used_memory_mib

pytestmark = pytest.mark.gpu

UNDER_WAY = "the command ended while this was measured"


def killed(folder: Path, after_s: float) -> list[str]:
    """Run a quick bench, kill it so long after its first step has begun, and return what it had told by then."""
    read_end, write_end = os.pipe()
    with subprocess.Popen(
        [
            sys.executable,
            "-m",
            "tests.journal.killed",
            str(write_end),
            "bench",
            "--quick",
            "-q",
            "--journal",
            str(folder),
        ],
        cwd=ROOT,
        env=command_environment({"EGMCTL_NO_JOURNAL": None}),
        pass_fds=[write_end],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    ) as process:
        os.close(write_end)
        first = os.read(read_end, 1)
        time.sleep(after_s)
        process.kill()
    with open(read_end, "rb") as file:
        return (first + file.read()).decode().splitlines()


@pytest.mark.timeout(200)
def test_ten_kills_cost_a_step_each(tmp_path: Path) -> None:
    before = used_memory_mib()
    choice = random.Random(11)  # noqa: S311
    for _ in range(10):
        told = killed(tmp_path, choice.random() * 2.5)
        kept = load_journal(earlier(tmp_path)[-1])
        # A step that was measured again, for its samples differed, is told twice.
        measured = {line for line in told if line.startswith("measurement ")}
        finished = [one for one in kept.report.measurements if one.reason != UNDER_WAY]
        assert len(finished) >= len(measured)
        assert (
            told[-1] == "end" or kept.under_way or told[-1].startswith("measurement") or len(finished) > len(measured)
        )
    time.sleep(1)
    assert used_memory_mib() == before
