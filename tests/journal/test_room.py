"""A disk that is full, or a limit of a file's size: the journal is cut off there, and its run has an end all the same."""

from __future__ import annotations

import json
import resource
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from egmctl.journal.read import earlier, to_tell
from egmctl.saved import load_journal
from tests.conftest import ROOT, Ended, command_environment
from tests.doctor.cgroups import mounted
from tests.fake.node import FakeNode
from tests.fake.plugin import MakeFakeNode
from tests.in_process import run
from tests.journal.test_journal import BENCH

PAGE = 4096
SPARE = 20_000
"""Bytes of its journal that a run has no room for: some of its steps."""


@pytest.fixture
def node(fake_node: MakeFakeNode) -> FakeNode:
    return fake_node("gb200-tray")


def bench(node: FakeNode, folder: Path, *options: str, before: Callable[[], None] | None = None) -> Ended:
    done = subprocess.run(
        [sys.executable, "-m", "egmctl", *BENCH, "--journal", str(folder), *options],
        cwd=ROOT,
        env=command_environment({**node.environment(), "EGMCTL_NO_JOURNAL": None}),
        capture_output=True,
        text=True,
        check=False,
        timeout=240,
        preexec_fn=before,
    )
    return Ended(done.returncode, done.stdout, done.stderr)


@pytest.fixture
def needed(node: FakeNode, tmp_path: Path) -> int:
    """Return how long the journal of this bench is."""
    assert bench(node, tmp_path / "whole", "-q").code == 0
    (path,) = earlier(tmp_path / "whole")
    return path.stat().st_size


def check_cut(folder: Path, why: str) -> None:
    """See that the one journal of a folder holds what there was room for, that its run ended well, and not how."""
    (path,) = earlier(folder)
    kept = load_journal(path)
    assert (kept.exit_code, kept.under_way, kept.damage, kept.report.problems) == (0, (), None, ())
    assert 0 < len(kept.report.measurements) < 8
    assert {one.status.value for one in kept.report.measurements} == {"ok"}
    sentence = f"the journal was cut off ({why}): what was measured afterwards is unknown"
    assert kept.report.notes[-1] == sentence
    assert to_tell(path) is None
    shown = run("show", path, "--json")
    assert shown.code == json.loads(shown.out)["exit_code"] == 0
    assert sentence in " ".join(run("show", path).out.split())


@pytest.mark.needs_root
@pytest.mark.needs("mount")
def test_on_a_full_disk_a_quiet_run_that_ended_well_is_one(node: FakeNode, tmp_path: Path, needed: int) -> None:
    size = (needed - SPARE) // PAGE * PAGE
    with mounted("tmpfs", f"size={size}", tmp_path / "small") as folder:
        assert bench(node, folder, "-q") == Ended(0, "", "")
        check_cut(folder, "No space left on device")
        # No room for a second journal.
        second = bench(node, folder)
        assert second.code == 0
        assert second.err == f"egmctl: the run's journal ends early: {folder}: No space left on device\n"
        assert len(earlier(folder)) == 1


def test_at_the_limit_of_a_files_size_too(node: FakeNode, tmp_path: Path, needed: int) -> None:
    size = needed - SPARE
    ended = bench(node, tmp_path, "-q", before=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (size, size)))
    assert ended.code == 0
    check_cut(tmp_path, "File too large")


@pytest.mark.parametrize("size", [100, PAGE])
def test_where_there_is_no_room_for_its_beginning_none_is_kept(node: FakeNode, tmp_path: Path, size: int) -> None:
    limit = resource.RLIMIT_FSIZE, (size, size)
    ended = bench(node, tmp_path / "kept", before=lambda: resource.setrlimit(*limit))
    assert ended.err.endswith(": File too large\n")
    assert "egmctl: the run's journal ends early: " in ended.err
    assert list((tmp_path / "kept").iterdir()) == []
