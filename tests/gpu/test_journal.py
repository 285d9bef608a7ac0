"""A bench that is killed at random moments: what it had measured is on disk, and no memory stays taken."""

from __future__ import annotations

import os
import random
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path

import pytest

from egmctl.journal import events
from egmctl.journal.events import earlier, what
from egmctl.saved import load_journal
from tests.conftest import ROOT, command_environment
from tests.gpu.node import Node
from tests.journal.lines import BENCH, UNDER_WAY

KILLS = int(os.environ.get("EGMCTL_TEST_KILLS", "3"))
"""The moments at which a run on a fake node is killed; 100 were run once."""
ON_GPUS = 10


def killed(words: tuple[str, ...], env: Mapping[str, str | None], after_s: float) -> list[str]:
    """Run a bench, kill it so long after its first line in the journal, and return what it had told by then."""
    read_end, write_end = os.pipe()
    command = [sys.executable, "-m", "tests.journal.killed", str(write_end), *words]
    whole = command_environment({**env, "EGMCTL_NO_JOURNAL": None})
    null = subprocess.DEVNULL
    with subprocess.Popen(command, cwd=ROOT, env=whole, pass_fds=[write_end], stdout=null, stderr=null) as process:
        os.close(write_end)
        first = os.read(read_end, 1)
        time.sleep(after_s)
        process.kill()
    with open(read_end, "rb") as file:
        return (first + file.read()).decode().splitlines()


@pytest.mark.long
@pytest.mark.timeout(200 + 20 * KILLS)
def test_killed_at_any_moment_each_journal_has_what_was_measured_and_names_the_step(node: Node, tmp_path: Path) -> None:
    choice = random.Random(7 if node.is_fake else 11)  # noqa: S311
    bench, longest_s = (BENCH, 1.5) if node.is_fake else (("bench", "--quick"), 2.5)
    with node.no_process_left(wait_s=1):
        for number in range(KILLS if node.is_fake else ON_GPUS):
            words = (*bench, "-q", "--journal", str(tmp_path))
            lines = killed(words, node.variables(), choice.random() * longest_s)
            assert len(earlier(tmp_path)) == min(number + 1, events.FILES_LIMIT)
            kept = load_journal(earlier(tmp_path)[-1])
            # A step that was measured again, for its samples differed, is told twice.
            measured = {line for line in lines if line.startswith("measurement ")}
            finished = [m for m in kept.report.measurements if m.reason != UNDER_WAY]
            assert len(finished) >= len(measured), "nothing that was measured is lost"
            if lines[-1] == "end" or kept.exit_code is not None:
                # It ended before it was killed, perhaps without having said so.
                assert (kept.exit_code, kept.under_way) == (0, ())
                continue
            if not kept.under_way and any(line.startswith("step ") for line in lines):
                # Killed between its last measurement and the next step.
                assert lines[-1].startswith("measurement") or len(finished) > len(measured)
            for task in kept.under_way:
                assert what(task) in kept.ending or "more at once" in kept.ending
            assert kept.ending in kept.report.problems[-1]
            # On GPUs a step may be measured again when it is killed.
            assert not node.is_fake or len(kept.report.measurements) == len(finished) + len(kept.under_way)
