"""Real runs of one node with 4 H200: ``egmctl bench --quick`` twice while it was idle, and once while another process
copied between GPU0 and GPU1, both directions in turns (``tests/data/runs``, egmctl 0.1.0, 2026-11-20; UUIDs replaced).
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from egmctl.comparison import compare
from egmctl.comparison.paths import known_spread
from egmctl.model.comparison import Comparison, Outcome
from egmctl.model.measurement import RunReport
from egmctl.report.exports.json import result_json
from egmctl.saved import Saved, load
from egmctl.verdict.profiles import all_profiles
from tests.comparison.runs import RUNS, unpacked
from tests.report.texts import text_of
from tests.schemas import validate


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Saved]:
    folder = tmp_path_factory.mktemp("runs")
    return {name: load(unpacked(name, folder)) for name in RUNS}


def compared(runs: dict[str, Saved], first: str, second: str) -> Comparison:
    pair = [runs[first], runs[second]]
    spread = known_spread(
        [machine for saved_run in pair for machine in saved_run.machines], [p for p, _ in all_profiles()]
    )
    return compare(pair, spread=spread)


@pytest.mark.parametrize("name", RUNS)
def test_they_state_no_answer_and_are_answered_when_they_are_loaded(name: str, tmp_path: Path) -> None:
    """They are documents of version 0.1."""
    path = unpacked(name, tmp_path)
    assert "answer" not in json.loads(path.read_text())
    result = load(path).result
    assert isinstance(result, RunReport)
    assert result.answer.word in ("PASS", "INCOMPLETE", "FAIL")
    validate(json.loads(result_json(result)), "bench")


def test_two_idle_runs_are_the_same(runs: dict[str, Saved]) -> None:
    for first, second in (("idle", "idle-again"), ("idle-again", "idle")):
        comparison = compared(runs, first, second)
        assert (comparison.compared, {path.outcome for path in comparison.paths}) == (74, {Outcome.SAME})
        assert "slowest first" not in text_of(comparison)


def test_traffic_beside_a_run_is_named_by_its_gpus_and_memory_of_the_host_is_not_blamed(runs: dict[str, Saved]) -> None:
    """The traffic went over NVLink only."""
    comparison = compared(runs, "idle", "beside-traffic")
    slower = {path.path: path.outcome for path in comparison.paths if path.is_slower}
    assert len([path for path in comparison.paths if path.is_slower]) == 25
    assert all(("GPU0" in path or "GPU1" in path) and "NUMA" not in path for path in slower)
    assert set(slower.values()) == {Outcome.DIFFERENT}, "others used the GPUs: the node is no worse for that"
    assert {"GPU0 -> *", "GPU1 -> *"} <= {row.where for row in comparison.affected}
    assert "settings differ: allow busy no in idle, yes in beside-traffic" in " ".join(text_of(comparison).split())


def test_bandwidths_and_latencies_are_told_apart(runs: dict[str, Saved]) -> None:
    comparison = compare([runs["idle"], runs["beside-traffic"]])
    for row in comparison.affected:
        assert len({comparison.paths[place].unit for place in row.paths}) == 1, row.where
