"""A disk that is full, or a limit of a file's size: the journal is cut off there, and how its run ended is in it."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path

import pytest

from egmctl.journal.events import earlier, is_unmentioned
from egmctl.saved import load_journal
from tests.conftest import Ended, ended
from tests.doctor.cgroups import mounted
from tests.fake.node import FakeNode
from tests.fake.plugin import MakeFakeNode
from tests.in_process import run
from tests.journal.lines import BENCH

PAGE = 4096
SPARE = 20_000
"""Bytes of its journal that a run has no room for: some of its steps."""


@pytest.fixture(scope="module")
def node(fake_node: MakeFakeNode) -> FakeNode:
    return fake_node("gb200-tray")


LIMITED = """
import resource, sys
from egmctl.cli.app import run_command
from egmctl.journal import events

class Limited(events.Journal):
    def _begin(self, *arguments):
        # Not before: children share what is larger.
        resource.setrlimit(resource.RLIMIT_FSIZE, (int(sys.argv[1]), resource.RLIM_INFINITY))
        super()._begin(*arguments)

events.Journal = Limited
sys.exit(run_command(sys.argv[2:]))
"""


def bench(node: FakeNode, folder: Path, *options: str, limit: int | None = None) -> Ended:
    command = ["-m", "egmctl"] if limit is None else ["-c", LIMITED, str(limit)]
    env = {**node.environment(), "EGMCTL_NO_JOURNAL": None}
    return ended([sys.executable, *command, *BENCH, "--journal", str(folder), *options], env=env, timeout_s=240)


def said(done: Ended) -> list[str]:
    """Return what a command said, but for what it waited for: a busy machine may take its time."""
    return [line for line in done.err.splitlines() if not line.startswith("egmctl: waiting for ")]


@pytest.fixture(scope="module")
def needed(node: FakeNode, tmp_path_factory: pytest.TempPathFactory) -> int:
    """Return how long the journal of this bench is."""
    folder = tmp_path_factory.mktemp("whole")
    assert bench(node, folder, "-q").code == 0
    (path,) = earlier(folder)
    return path.stat().st_size


def check_cut(folder: Path, why: str) -> None:
    """See that the one journal of a folder holds what there was room for, that its run ended well, and not how."""
    (path,) = earlier(folder)
    kept = load_journal(path)
    assert (kept.exit_code, kept.under_way, kept.damage, kept.report.problems) == (0, (), None, ())
    assert 0 < len(kept.report.measurements) < 8
    assert {m.status.value for m in kept.report.measurements} == {"ok"}
    sentence = f"the journal was cut off ({why}): what was measured afterwards is unknown"
    assert kept.report.notes[-1] == sentence
    assert not is_unmentioned(path)
    shown = run("show", path, "--json")
    assert shown.code == json.loads(shown.out)["exit_code"] == 0
    assert shown.err == f"egmctl: {path}: {sentence}\n"
    assert json.loads(run("history", "--journal", folder, "--json").out)["result"]["runs"][0]["ending"] == (
        f"exit code 0; {sentence}"
    )


@pytest.mark.needs_root
@pytest.mark.needs("mount")
def test_on_a_full_disk_a_quiet_run_that_ended_well_is_one(node: FakeNode, tmp_path: Path, needed: int) -> None:
    size = (needed - SPARE) // PAGE * PAGE
    with mounted("tmpfs", f"size={size}", tmp_path / "small") as folder:
        first = bench(node, folder, "-q")
        assert (first.code, first.err) == (0, "")
        check_cut(folder, "No space left on device")
        # No room for a second journal.
        second = bench(node, folder)
        assert second.code == 0
        assert said(second) == [f"egmctl: the run has no journal: {folder}: No space left on device"]
        assert len(earlier(folder)) == 1


def test_at_the_limit_of_a_files_size_too(node: FakeNode, tmp_path: Path, needed: int) -> None:
    done = bench(node, tmp_path / "kept", "-q", limit=needed - SPARE)
    assert (done.code, done.err) == (0, "")
    check_cut(tmp_path / "kept", "File too large")


def test_where_there_is_no_room_for_its_beginning_none_is_kept(node: FakeNode, tmp_path: Path) -> None:
    done = bench(node, tmp_path / "kept", limit=PAGE)
    assert done.code == 0
    (sentence,) = said(done)
    assert re.fullmatch(r"egmctl: the run has no journal: \S+/bench-000001-\w+\.journal: File too large", sentence)
    assert list((tmp_path / "kept").iterdir()) == []
