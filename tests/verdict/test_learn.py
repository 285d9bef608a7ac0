"""A site's own profile: what its runs reached, never of what was corrupt or unstable, with how far apart they were."""

from __future__ import annotations

from dataclasses import replace

import pytest

from egmctl.errors import UsageError
from egmctl.model.measurement import GpuEvidence, MeasurementStatus, RunReport, TaskEvidence
from egmctl.model.profile import Profile, Reference
from egmctl.model.task import Point
from egmctl.model.verdict import Grade
from egmctl.units import MIB
from egmctl.verdict.judge import judge
from egmctl.verdict.learning import Run, learn
from egmctl.verdict.profiles import match_profile
from egmctl.verdict.trust import with_doubts
from tests.doctor.machines import shipped
from tests.verdict.runs import H2D, H200, LATENCY, READ, RING, USUAL, WRITE, run, with_status


def learnt(*factors: float, cases: tuple[str, ...] = (WRITE,), nodes: tuple[str, ...] = ("a",)) -> Profile:
    """Return the profile of runs that reach so many times what is usual, on these nodes by turns."""
    reports = [run(*cases, value=lambda task, _, f=factor: f * USUAL[task.case]) for factor in factors]  # type: ignore[misc]
    return learnt_of(*reports, nodes=nodes)


def learnt_of(*reports: RunReport, nodes: tuple[str, ...] = ("a",)) -> Profile:
    return learn(
        [Run(with_doubts(one), H200, nodes[n % len(nodes)]) for n, one in enumerate(reports)], "site", "2026-11-20"
    )


def only(profile: Profile) -> Reference:
    """Return its one reference."""
    (reference,) = profile.references
    return reference


def test_it_says_of_how_many_runs_and_machines() -> None:
    source = learnt(1, 1, 1, nodes=("a", "b")).sources["runs"]
    assert (source.runs, source.machines) == (3, 2)
    assert source.text == "by egmctl, 3 runs on 2 machines, learnt 2026-11-20"


def test_the_typical_value_is_the_median_and_the_bounds_grow_with_the_spread() -> None:
    steady, loose = only(learnt(1, 1, 1)), only(learnt(0.98, 1, 1.01))
    assert steady.typical == loose.typical == 396.2
    assert [steady.warn, steady.fail] == pytest.approx([0.975 * 396.2, 0.95 * 396.2], rel=1e-3)
    assert [loose.warn, loose.fail] == pytest.approx([0.97 * 396.2, 0.95 * 396.2], rel=1e-3)


def test_how_far_runs_are_apart_is_told_where_there_are_several_of_a_node() -> None:
    assert only(learnt(1)).run_to_run is None
    assert only(learnt(1, 1.02, nodes=("a", "b"))).run_to_run is None
    assert only(learnt(0.98, 1, 1.02)).run_to_run == pytest.approx(0.02, rel=1e-3)


def used_by_others(report: RunReport) -> RunReport:
    gpu = GpuEvidence(bus_id="0000:00:06.0", label="GPU0", other_processes=(1066,))
    return replace(
        report, measurements=tuple(replace(m, evidence=TaskEvidence(gpus=(gpu,))) for m in report.measurements)
    )


def test_nothing_is_learnt_of_gpus_that_other_processes_used() -> None:
    busy = used_by_others(run(WRITE, value=lambda *_: 200.0))
    assert only(learnt_of(run(WRITE), busy)).fail == only(learnt(1)).fail


def test_of_latencies_the_bounds_are_above() -> None:
    reference = only(learnt(1, cases=(LATENCY,)))
    assert reference.typical == 834.0
    assert (reference.warn, reference.fail) == (917.4, 1042.0)


@pytest.mark.parametrize("status", [MeasurementStatus.UNSTABLE, MeasurementStatus.CORRUPT])
def test_it_learns_nothing_from_what_is_not_ok(status: MeasurementStatus) -> None:
    bad = with_status(run(WRITE, READ), status, range(12))
    assert [reference.case for reference in learnt_of(bad).references] == [READ]


@pytest.mark.parametrize(
    "report",
    [
        used_by_others(run(WRITE)),
        with_status(run(WRITE), MeasurementStatus.UNSTABLE, range(12)),
        run(WRITE, size_bytes=MIB),
    ],
    ids=["on GPUs that others used", "unstable", "of small buffers"],
)
def test_runs_that_teach_nothing_are_refused(report: RunReport) -> None:
    with pytest.raises(UsageError, match="hold nothing to learn from"):
        learnt_of(report)


def test_of_several_sizes_the_largest_counts() -> None:
    small = run(WRITE, value=lambda *_: 380.0, size_bytes=128 * MIB)
    large = run(WRITE, value=lambda *_: 396.0, size_bytes=1024 * MIB)
    for order in ((small, large), (large, small)):
        measurements = [replace(m, point=Point(size=m.size_bytes)) for part in order for m in part.measurements]
        sweep = replace(small, measurements=tuple(measurements))
        reference = only(learnt_of(sweep))
        assert (reference.typical, reference.least_bytes) == (396.0, 256 * MIB)


def test_what_depends_on_the_number_of_gpus_is_learnt_for_that_number() -> None:
    assert only(learnt(1, cases=(RING,))).flows == 4
    assert only(learnt(1, cases=(H2D,))).flows is None


def test_the_machine_that_it_was_learnt_from_is_recognised_and_passes() -> None:
    profile = learnt(0.99, 1, cases=(WRITE, READ, H2D, LATENCY, RING))
    assert match_profile(H200, profile).fits
    assert not match_profile(shipped("dgx-h100"), profile).fits
    report = run(WRITE, READ, H2D, LATENCY, RING)
    assert {each.grade for each in judge(report, profile).classes} == {Grade.PASS}


def test_runs_of_machines_that_differ_make_no_profile() -> None:
    other = shipped("dgx-h100")
    runs = [Run(run(WRITE), H200, "a"), Run(run(READ, machine=other), other, "b")]
    with pytest.raises(UsageError, match=r"machines that differ: a has NVIDIA H200 \(10de:2335\), b has NVIDIA H100"):
        learn(runs, "site", "2026-11-20")
