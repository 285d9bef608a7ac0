"""Runs of idle, healthy machines raise no alarm, and a profile says in how many of them it raised one."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from egmctl.api.results import load_result
from egmctl.model.measurement import Measurement, RunReport, Summary
from egmctl.model.profile import Profile, SourceKind, Unit
from egmctl.model.verdict import Grade
from egmctl.report.render.text import text
from egmctl.report.views.bench import bench_document
from egmctl.verdict.answers import answered
from egmctl.verdict.judge import with_verdict
from egmctl.verdict.learning import Run, learn, profile_toml, raises_alarm
from egmctl.verdict.profiles import load_profile, parse_profile
from tests.conftest import ROOT
from tests.doctor.machines import shipped
from tests.verdict.runs import LOCAL, WRITE, run, slow_at, usual

FOLDER = ROOT / "tests/data/runs"
IDLE = ("idle", "idle-again", "standard-2xh200", "standard-4xh200")
"""Recorded on 2026-11-20 and 2026-11-27: two runs of one machine, and one each of two others."""
HGX_H200 = load_profile("hgx-h200")


def recorded(name: str) -> RunReport:
    return load_result(FOLDER / f"{name}.json.gz", RunReport)


def scaled(m: Measurement, factor: float) -> Measurement:
    """Return a measurement that reached so much of its bandwidth."""
    if m.bandwidth_gb_s is None:
        return m
    return replace(
        m,
        bandwidth_gb_s=scaled_summary(m.bandwidth_gb_s, factor),
        flows_gb_s=tuple(scaled_summary(flow, factor) for flow in m.flows_gb_s),
    )


def scaled_summary(summary: Summary, factor: float) -> Summary:
    return replace(summary, median=factor * summary.median, min=factor * summary.min, max=factor * summary.max)


@pytest.mark.parametrize("name", IDLE)
def test_a_recorded_run_of_an_idle_machine_raises_no_alarm(name: str) -> None:
    assert not raises_alarm(recorded(name), HGX_H200)


def test_the_shipped_profile_counts_these_runs_and_more_that_are_not_shipped() -> None:
    assert HGX_H200.healthy is not None
    assert HGX_H200.healthy.runs > len(IDLE)
    assert HGX_H200.healthy.alarms == 0


def test_two_ranks_by_fabric_handles_are_judged_by_their_own_references() -> None:
    """Two H200 and an IMEX channel, 2026-11-29: each case has a reference, and one that is slow is seen."""
    fabric = recorded("fabric-2xh200")
    judged = with_verdict(fabric, HGX_H200)
    assert judged.verdict is not None
    assert {each.grade for each in judged.verdict.classes} == {Grade.PASS}
    slow = replace(fabric, measurements=tuple(scaled(m, 0.9) for m in fabric.measurements))
    judged = with_verdict(slow, HGX_H200)
    assert judged.verdict is not None
    graded = {each.case: each.by_profile for each in judged.verdict.classes if each.unit is Unit.GB_S}
    over_nvlink = {case for case in graded if "host_numa" not in case}
    assert {graded[case] for case in over_nvlink} == {Grade.FAIL}
    assert {graded[case] for case in graded.keys() - over_nvlink} == {Grade.PASS}, (
        "the way to host memory is the server's"
    )


def test_a_run_beside_traffic_and_a_slow_path_raise_one() -> None:
    assert raises_alarm(recorded("beside-traffic"), HGX_H200)
    assert raises_alarm(run(WRITE, value=slow_at("GPU2")), HGX_H200)


def test_of_a_standard_run_only_what_depends_on_the_server_has_no_bound() -> None:
    judged = with_verdict(recorded("standard-2xh200"), HGX_H200)
    assert judged.verdict is not None
    unjudged = {each.case for each in judged.verdict.classes if each.by_profile is Grade.NO_REFERENCE}
    assert unjudged == {
        *("host_numa_to_all_memcpy_ce", "all_to_host_numa_memcpy_ce", "ipc_event_round_trip"),
        *("host_read_cpu", "host_write_cpu", "host_numa_read_cpu", "host_numa_write_cpu", "host_triad_cpu"),
    }
    assert len(judged.verdict.classes) == 68
    assert all(each.expected is not None for each in judged.verdict.classes), "all have a number to look at"


def test_each_reference_names_how_many_machines_and_runs_stand_behind_it() -> None:
    sources = {HGX_H200.sources[reference.source] for reference in HGX_H200.references}
    assert all(source.kind is SourceKind.MEASURED and source.machines and source.runs for source in sources)


def without_bounds(profile: Profile) -> Profile:
    references = tuple(replace(each, warn=None, fail=None, bounds_source=None) for each in profile.references)
    return replace(profile, references=references)


def test_a_reference_without_bounds_passes_nothing() -> None:
    judged = with_verdict(run(LOCAL, gpus=2), without_bounds(HGX_H200))
    assert judged.verdict is not None
    assert [each.by_profile for each in judged.verdict.classes] == [Grade.NO_REFERENCE]


def test_a_slow_run_says_how_often_its_profile_was_wrong_before_and_a_fast_one_does_not() -> None:
    slow, fast = (answered(with_verdict(run(WRITE, value=value), HGX_H200)) for value in (slow_at("GPU2"), usual))
    words = "Profile hgx-h200: 0 false alarms in 22 runs of 5 healthy machines"
    assert words in " ".join(text(bench_document(slow)).plain.split())
    assert "alarms in" not in text(bench_document(fast)).plain


def test_a_learnt_profile_counts_its_own_runs(tmp_path: Path) -> None:
    machine = shipped("hgx-h200x4")
    runs = [Run(run(WRITE), machine, "node1"), Run(run(WRITE), machine, "node1"), Run(run(WRITE), machine, "node2")]
    learnt = learn(runs, "ours", "2026-11-28")
    assert learnt.healthy is not None
    assert (learnt.healthy.machines, learnt.healthy.runs, learnt.healthy.alarms) == (2, 3, 0)
    assert parse_profile(profile_toml(learnt), tmp_path / "ours.toml").healthy == learnt.healthy
