"""Which measurements of a run are believed: each reason to doubt one, its effect, and what it forbids."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from egmctl.api.bench import Profiles, judge_run
from egmctl.bench.results import of_both, status_of, summarize
from egmctl.model.answer import Answer, GapKind, State
from egmctl.model.codec import from_json
from egmctl.model.doubt import Doubt, DoubtReason, Effect
from egmctl.model.measurement import (
    GpuEvidence,
    HostLoad,
    LinkEvidence,
    LinkProof,
    Measurement,
    Placement,
    RunReport,
    Sample,
    TaskEvidence,
    Verification,
)
from egmctl.model.route import LinkKind
from egmctl.model.verdict import Grade
from egmctl.verdict.answers import answered
from egmctl.verdict.explain import with_causes
from egmctl.verdict.judge import with_verdict
from egmctl.verdict.learning import Run, learn
from egmctl.verdict.profiles import load_profile
from egmctl.verdict.trust import MeasurementUse, unbelieved, with_doubts, with_effect
from tests.doctor.machines import shipped
from tests.verdict.runs import H2D, H200, LATENCY, LOCAL, USUAL, WRITE, run

PROFILE = load_profile("hgx-h200")
PATH = "GPU0 -> GPU1"
FLAPS = (112.0, 396.0, 396.0)
Change = Callable[[Measurement], Measurement]
R = DoubtReason


def sampled(measurement: Measurement, *values: float) -> Measurement:
    """Return a measurement with these samples, in GB/s, and the status that they give it."""
    samples = tuple(Sample(bandwidth_gb_s=value, flows_gb_s=(value,), elapsed_ms=8, wall_ms=9) for value in values)
    summary = summarize(values)
    status, reason = status_of(summary)
    return replace(
        measurement,
        status=status,
        reason=reason,
        samples=samples,
        bandwidth_gb_s=summary,
        flows_gb_s=(summary,),
        verification=Verification.GPU_EVERY_SAMPLE,
        gating="kernel",
    )


def attempted(measurement: Measurement, attempts: Sequence[Sequence[float]]) -> Measurement:
    """Return what is kept of several attempts at a measurement."""
    kept: Measurement | None = None
    for values in attempts:
        kept = of_both(kept, sampled(measurement, *values))
    assert kept is not None
    return kept


def judged(report: RunReport) -> RunReport:
    return with_verdict(report, PROFILE)


def with_change(change: Change, path: str = PATH, *cases: str) -> RunReport:
    """Return a judged run of which one path is changed; all others are steady."""
    made = run(*(cases or (WRITE,)))
    steady = (sampled(m, *3 * (USUAL[m.case],)) for m in made.measurements)
    return judged(replace(made, measurements=tuple(change(m) if m.path == path else m for m in steady)))


def seen(found: Iterable[Doubt]) -> list[tuple[DoubtReason, Effect]]:
    return [(doubt.reason, doubt.effect) for doubt in found]


def beside(**state: object) -> Change:
    """Return the change that puts a GPU with this state beside a measurement."""
    gpu = from_json(GpuEvidence, {"bus_id": "0000:1b:00.0", "label": "GPU0"} | state)
    return lambda measurement: replace(measurement, evidence=TaskEvidence(gpus=(gpu,)))


def over(verdict: LinkProof) -> Change:
    route = LinkEvidence(link=LinkKind.NVLINK, expected_bytes=1 << 30, carried_bytes=None, verdict=verdict)
    return lambda measurement: replace(measurement, evidence=TaskEvidence(gpus=(), route=route))


def placed(right: bool | None) -> Change:
    place = Placement(label="NUMA1", proof="move_pages", detail="3 of 4 pages are on node 0", right=right)
    return lambda measurement: replace(measurement, placements=(place,))


def test_a_steady_run_has_no_doubt() -> None:
    assert with_change(lambda measurement: measurement).doubts == ()


class TestSamples:
    """A link that flaps is slow in some samples, however good the median is."""

    def doubts_of(self, *attempts: Sequence[float]) -> tuple[Doubt, ...]:
        return with_change(lambda measurement: attempted(measurement, attempts)).doubts

    def test_a_link_that_flaps_in_every_attempt_has_a_fault(self) -> None:
        found = self.doubts_of(*4 * [FLAPS])
        assert seen(found) == [(DoubtReason.UNSTABLE, Effect.WARN), (DoubtReason.WORST_SAMPLE, Effect.FAIL)]
        (worst,) = (doubt for doubt in found if doubt.reason is DoubtReason.WORST_SAMPLE)
        assert (worst.lowest, worst.highest, worst.attempts) == (112, 396, 4)

    def test_one_bad_attempt_that_was_repeated_is_a_warning(self) -> None:
        found = self.doubts_of(FLAPS, 3 * [396.0])
        assert seen(found) == [(DoubtReason.WORST_SAMPLE, Effect.WARN)]
        assert found[0].attempts == 1

    def test_attempts_whose_medians_differ_are_a_warning(self) -> None:
        found = self.doubts_of((340.0, 396.0, 340.0), 3 * [396.0])
        assert (DoubtReason.ATTEMPTS_DIFFER, Effect.WARN) in seen(found)

    def test_a_path_that_is_slow_in_all_samples_is_judged_by_its_median_alone(self) -> None:
        assert self.doubts_of(3 * [200.0]) == ()

    def test_in_a_soak_two_slow_samples_among_all_are_a_fault(self) -> None:
        def soaked(values: Sequence[float]) -> Change:
            return lambda measurement: replace(sampled(measurement, *values), attempts=100)

        assert seen(with_change(soaked([396.0] * 98 + [112.0] * 2)).doubts)[-1] == (
            DoubtReason.WORST_SAMPLE,
            Effect.FAIL,
        )

    @given(st.lists(st.lists(st.floats(0.985, 1.002), min_size=3, max_size=3), min_size=1, max_size=4))
    def test_the_spread_of_real_runs_casts_no_doubt(self, attempts: list[list[float]]) -> None:
        assert self.doubts_of(*[[396 * part for part in values] for values in attempts]) == ()


@pytest.mark.parametrize(
    ("change", "case", "expected"),
    [
        (placed(False), H2D, (DoubtReason.PLACEMENT, Effect.FAIL)),
        (over(LinkProof.REFUTED), WRITE, (DoubtReason.ROUTE, Effect.VOID)),
        (over(LinkProof.UNKNOWN), WRITE, (DoubtReason.NO_COUNTERS, Effect.NOTE)),
        (lambda m: sampled(m, *3 * [460.0]), WRITE, (DoubtReason.TOO_FAST, Effect.VOID)),
        (beside(other_processes=[1066]), WRITE, (DoubtReason.OTHER_PROCESSES, Effect.LOW)),
        (beside(throttle_reasons=["hw-thermal-slowdown"]), WRITE, (DoubtReason.THROTTLED, Effect.WARN)),
        (beside(errors={"nvlink-replay": 3}), WRITE, (DoubtReason.ERRORS_ROSE, Effect.WARN)),
        (lambda m: replace(m, gating="none"), WRITE, (DoubtReason.UNGATED, Effect.NOTE)),
        (lambda m: replace(m, verification=None), WRITE, (DoubtReason.UNVERIFIED, Effect.NOTE)),
    ],
    ids=[*("placement", "route", "no counters", "too fast", "others", "throttled", "errors", "ungated", "unverified")],
)
def test_each_reason_has_its_effect(change: Change, case: str, expected: tuple[DoubtReason, Effect]) -> None:
    path = "NUMA0 -> GPU0" if case == H2D else PATH
    assert seen(with_change(change, path, case).doubts) == [expected]


@pytest.mark.parametrize(
    "change",
    [
        placed(True),
        placed(None),
        over(LinkProof.PROVEN),
        over(LinkProof.BY_EXCLUSION),
        beside(throttle_reasons=["sw-power-cap"]),
        beside(other_processes=[]),
    ],
)
def test_what_is_right_or_was_not_read_casts_no_doubt(change: Change) -> None:
    assert with_change(change).doubts == ()


def test_egm_traffic_over_another_link_is_a_fault() -> None:
    made = run(H2D, machine=shipped("gb200-nvl72"), value=lambda _task, _flow: 200.0)
    report = with_doubts(replace(made, measurements=tuple(over(LinkProof.REFUTED)(m) for m in made.measurements)))
    assert set(seen(d for d in report.doubts if d.reason is DoubtReason.ROUTE)) == {(DoubtReason.ROUTE, Effect.FAIL)}


def test_a_busy_host_excuses_paths_to_its_memory_alone() -> None:
    report = with_change(lambda measurement: measurement, "", WRITE, H2D)
    load_of_others = HostLoad(cpus=16, load_average=15, wall_s=10, others_cpu_s=150)
    found = with_doubts(replace(report, host_load=load_of_others)).doubts
    assert set(seen(found)) == {(DoubtReason.HOST_BUSY, Effect.LOW)}
    assert {report.measurements[doubt.measurement].case for doubt in found} == {H2D}


def test_latencies_and_local_copies_are_doubted_by_their_own_bounds() -> None:
    assert {doubt.effect for doubt in judged(run(LATENCY, LOCAL)).doubts} <= {Effect.NOTE}


any_change = st.sampled_from(
    [
        placed(False),
        over(LinkProof.REFUTED),
        beside(other_processes=[1066]),
        beside(throttle_reasons=["hw-slowdown"]),
        beside(errors={"nvlink-crc": 1}),
        lambda m: attempted(m, 4 * [FLAPS]),
        lambda m: attempted(m, [FLAPS, 3 * [396.0]]),
        lambda m: sampled(m, *3 * [470.0]),
    ]
)


PATHS = [f"GPU{a} -> GPU{b}" for a in range(4) for b in range(4) if a != b]


@given(st.dictionaries(st.sampled_from(PATHS), any_change))
def test_what_is_void_or_doubted_is_never_learnt(changes: dict[str, Change]) -> None:
    made = run(WRITE)
    steady = [sampled(m, *3 * (USUAL[WRITE],)) for m in made.measurements]
    changed = tuple(changes[m.path](m) if m.path in changes else m for m in steady)
    report = judged(replace(made, measurements=changed))
    forbidden = unbelieved(report.doubts, MeasurementUse.LEARN)
    assert {report.measurements[number].path for number in forbidden} == set(changes)
    assert with_effect(report.doubts, Effect.VOID) <= forbidden
    if len(changes) < len(changed):
        (reference,) = learn([Run(report, H200, "node")], "site", "2026-11-27").references
        assert reference.typical == pytest.approx(USUAL[WRITE], rel=1e-3)


def test_numbers_of_other_paths_are_no_measure_for_the_rest() -> None:
    """Two copies that did not cross their links make no slow group of all others."""
    too_fast = {"GPU0 -> GPU1", "GPU1 -> GPU0"}
    made = run(WRITE)
    values = {m.path: 470.0 if m.path in too_fast else 396.0 for m in made.measurements}
    report = judged(replace(made, measurements=tuple(sampled(m, *3 * (values[m.path],)) for m in made.measurements)))
    assert report.verdict is not None
    grades = {report.measurements[each.measurement].path: each.judgements[0].grade for each in report.verdict.judged}
    assert {grade for path, grade in grades.items() if path not in too_fast} == {Grade.PASS}
    assert {grades[path] for path in too_fast} == {Grade.NO_REFERENCE}
    assert report.verdict.culprits == ()


@pytest.mark.parametrize(
    ("reason", "forbidden"),
    [
        *((reason, {MeasurementUse.COMPARE_BETTER}) for reason in (R.UNSTABLE, R.WORST_SAMPLE, R.ATTEMPTS_DIFFER)),
        *((reason, {MeasurementUse.COMPARE_WORSE}) for reason in (R.OTHER_PROCESSES, R.HOST_BUSY)),
        *(
            (reason, {MeasurementUse.COMPARE_BETTER, MeasurementUse.COMPARE_WORSE})
            for reason in (R.PLACEMENT, R.ROUTE, R.TOO_FAST, R.DEGRADED)
        ),
        *((reason, set()) for reason in (R.THROTTLED, R.ERRORS_ROSE, R.UNGATED, R.UNVERIFIED)),
    ],
)
def test_what_is_doubted_is_not_learnt_and_compared_only_where_the_doubt_is_not_its_explanation(
    reason: DoubtReason, forbidden: set[MeasurementUse]
) -> None:
    doubt = Doubt(reason=reason, effect=Effect.WARN, measurement=5)
    assert {use for use in MeasurementUse if unbelieved([doubt], use) == {5}} == {MeasurementUse.LEARN, *forbidden}


class TestAnswer:
    """What a run answers, and with which code."""

    def answer_of(self, change: Change, path: str = PATH, *cases: str) -> Answer:
        report = with_change(change, path, *cases)
        judged_run = judge_run(report, H200, Profiles((PROFILE,)))
        return answered(with_causes(judged_run)).answer

    def test_a_link_that_flaps_fails_and_is_named_with_its_samples(self) -> None:
        answer = self.answer_of(lambda m: attempted(m, 4 * [FLAPS]))
        assert (answer.state, answer.word, answer.exit_code) == (State.BAD, "FAIL", 1)
        assert "GPU0 -> GPU1: 112 to 396 GB/s in 4 attempts" in answer.sentence

    def test_one_bad_attempt_is_a_warning(self) -> None:
        answer = self.answer_of(lambda m: attempted(m, [FLAPS, 3 * [396.0]]))
        assert (answer.state, answer.exit_code) == (State.WARN, 0)

    def test_clocks_that_were_lowered_are_a_warning_even_where_the_path_is_fast(self) -> None:
        answer = self.answer_of(beside(throttle_reasons=["hw-thermal-slowdown"]))
        assert (answer.state, answer.exit_code) == (State.WARN, 0)

    def test_memory_on_another_node_than_named_fails(self) -> None:
        answer = self.answer_of(placed(False), "NUMA0 -> GPU0", H2D)
        assert answer.state is State.BAD
        assert "memory is not on the requested NUMA node" in answer.sentence

    @pytest.mark.parametrize("change", [over(LinkProof.REFUTED), lambda m: sampled(m, *3 * [470.0])])
    def test_a_number_of_another_path_is_a_gap(self, change: Change) -> None:
        answer = self.answer_of(change)
        assert (answer.state, answer.exit_code) == (State.INCOMPLETE, 3)
        assert [gap.kind for gap in answer.gaps] == [GapKind.NOT_BELIEVED]

    def test_slow_beside_other_processes_is_a_gap_and_no_failure(self) -> None:
        other = beside(other_processes=[1066])
        answer = self.answer_of(lambda m: replace(sampled(m, *3 * [200.0]), evidence=other(m).evidence))
        assert answer.state is State.INCOMPLETE
        assert [gap.kind for gap in answer.gaps] == [GapKind.EXCUSED]

    @given(st.dictionaries(st.sampled_from(PATHS), any_change))
    def test_a_doubt_never_improves_an_answer(self, changes: dict[str, Change]) -> None:
        made = run(WRITE)
        steady = tuple(sampled(m, *3 * (USUAL[WRITE],)) for m in made.measurements)
        changed = tuple(changes[m.path](m) if m.path in changes else m for m in steady)

        def state(measurements: tuple[Measurement, ...]) -> State:
            report = judge_run(replace(made, measurements=measurements), H200, Profiles((PROFILE,)))
            return answered(with_causes(report)).answer.state

        order = list(State)
        assert order.index(state(changed)) <= order.index(state(steady))
