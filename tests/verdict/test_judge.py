"""The verdict on a run: three judgements of each measurement, apart; a verdict for each class and for the run."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from egmctl.errors import ExitCode
from egmctl.model.codec import from_json, to_json
from egmctl.model.machine import Machine
from egmctl.model.measurement import GpuEvidence, MeasurementStatus, RunReport, TaskEvidence
from egmctl.model.profile import Profile
from egmctl.model.route import Route
from egmctl.model.task import Flow, Quantity, Task
from egmctl.model.verdict import Direction, Grade, Judgement, RunVerdict, Yardstick
from egmctl.units import MIB
from egmctl.verdict.answers import answered
from egmctl.verdict.judge import judge, with_verdict
from egmctl.verdict.profiles import load_profile
from tests.answers import code_of
from tests.bench.routes import C2C, PCIE, SMP, nv, over, to_host
from tests.doctor.machines import patched, shipped
from tests.verdict.runs import (
    BOTH,
    D2H,
    H2D,
    H200,
    LATENCY,
    LOCAL,
    READ,
    RING,
    USUAL,
    WRITE,
    run,
    slow_at,
    usual,
    with_status,
)

PROFILE = load_profile("hgx-h200")
REAL = json.loads((Path(__file__).parent / "h200_quick_runs.json").read_text())["runs"]
ALL = (WRITE, READ, BOTH, H2D, D2H, LOCAL, LATENCY, RING)


def verdict_of(report: RunReport, profile: Profile | None = PROFILE, *, strict: bool = False) -> RunVerdict:
    """Judge, and check what is so of every verdict."""
    verdict = judge(report, profile, strict=strict)
    for judged in verdict.judged:
        assert [judgement.yardstick for judgement in judged.judgements] == list(Yardstick)
    assert from_json(RunVerdict, to_json(verdict)) == verdict
    return verdict


def by(verdict: RunVerdict, yardstick: Yardstick) -> list[Judgement]:
    """Return the judgements against one yardstick."""
    return [j for judged in verdict.judged for j in judged.judgements if j.yardstick is yardstick]


def grades(verdict: RunVerdict) -> dict[str, Grade]:
    """Return the grade of each class."""
    return {one.case: one.grade for one in verdict.classes}


def test_a_healthy_run_passes_and_each_class_has_its_reference() -> None:
    verdict = verdict_of(run(*ALL))
    assert grades(verdict) == dict.fromkeys(ALL, Grade.PASS)
    assert all(one.expected and one.source and one.source.startswith("measured") for one in verdict.classes)


@pytest.mark.long
@given(st.lists(st.floats(0.99, 1.01), min_size=12, max_size=12))
def test_the_spread_of_real_runs_is_no_alarm(noise: list[float]) -> None:
    factors = iter(noise * 20)
    verdict = verdict_of(run(WRITE, READ, H2D, LOCAL, value=lambda task, _: USUAL[task.case] * next(factors)))
    assert set(grades(verdict).values()) == {Grade.PASS}
    assert not verdict.culprits


@pytest.mark.parametrize("number", range(len(REAL)))
def test_no_real_run_of_a_healthy_node_is_an_alarm(number: int) -> None:
    real = REAL[number]
    flows = real["flows"]
    cases = {key.split()[0] for key in flows}
    verdict = verdict_of(run(*cases, gpus=real["gpus"], value=lambda task, flow: flows[f"{task.case} {flow.path}"]))
    assert (set(grades(verdict).values()), verdict.culprits) == ({Grade.PASS}, ())


def test_the_profile_fails_what_is_below_and_only_that() -> None:
    verdict = verdict_of(
        run(WRITE, READ, value=lambda task, _: 0.9 * USUAL[WRITE] if task.case == WRITE else USUAL[READ])
    )
    assert grades(verdict) == {WRITE: Grade.FAIL, READ: Grade.PASS}
    assert {j.grade for j in by(verdict, Yardstick.LINK)} == {Grade.PASS}
    assert {j.grade for j in by(verdict, Yardstick.PEERS)} == {Grade.PASS}
    first = by(verdict, Yardstick.PROFILE)[0]
    assert first.reason == "GPU0 -> GPU1: 356.6 GB/s, below 376.4; typical is 396.2"


@pytest.mark.parametrize(
    ("case", "value", "grade"),
    [(WRITE, 380.0, Grade.WARN), (LATENCY, 2000.0, Grade.FAIL), (LATENCY, 500.0, Grade.PASS)],
)
def test_between_the_bounds_is_a_warning_and_of_a_latency_more_is_worse(case: str, value: float, grade: Grade) -> None:
    assert grades(verdict_of(run(case, value=lambda *_: value))) == {case: grade}


def test_unknown_hardware_has_no_reference_and_still_the_other_two() -> None:
    healthy = verdict_of(run(WRITE), None)
    slow = verdict_of(run(WRITE, value=slow_at("GPU2", destination=False)), None)
    assert set(grades(healthy).values()) == {Grade.NO_REFERENCE}
    assert {j.grade for j in by(healthy, Yardstick.LINK)} == {Grade.PASS}
    assert set(grades(slow).values()) == {Grade.FAIL}
    assert [(c.label, c.direction) for c in slow.culprits] == [("GPU2", Direction.EGRESS)]


@pytest.mark.parametrize(
    ("case", "path", "part", "grade"),
    [
        *((WRITE, "GPU0 -> GPU1", part, grade) for part, grade in ((0.96, Grade.PASS), (0.9, Grade.WARN))),
        (WRITE, "GPU0 -> GPU1", 0.8, Grade.FAIL),
        *((H2D, "NUMA0 -> GPU1", part, grade) for part, grade in ((0.85, Grade.PASS), (0.7, Grade.WARN))),
        (H2D, "NUMA0 -> GPU1", 0.5, Grade.FAIL),
        *((LATENCY, "GPU0 -> GPU1", part, grade) for part, grade in ((0.8, Grade.PASS), (1.3, Grade.WARN))),
        (LATENCY, "GPU0 -> GPU1", 2.0, Grade.FAIL),
    ],
)
def test_a_path_is_held_against_its_peers_by_the_bounds_of_its_kind(
    case: str, path: str, part: float, grade: Grade
) -> None:
    def value(task: Task, flow: Flow) -> float:
        return usual(task, flow) * (part if flow.path == path else 1)

    judgements = by(verdict_of(run(case, value=value), None), Yardstick.PEERS)
    grades_by_path = {judgement.reason.split(": ")[0]: judgement.grade for judgement in judgements}
    assert grades_by_path.pop(path) is grade
    assert set(grades_by_path.values()) == {Grade.PASS}


@pytest.mark.parametrize(("case", "part"), [(WRITE, 0.98), (LATENCY, 1.02)])
def test_the_worst_of_a_class_is_the_lowest_bandwidth_or_the_longest_latency(case: str, part: float) -> None:
    report = run(case, value=lambda task, flow: usual(task, flow) * (part if flow.path == "GPU0 -> GPU1" else 1))
    (path_class,) = verdict_of(report).classes
    assert path_class.worst == pytest.approx(USUAL[case] * part)
    assert path_class.median == pytest.approx(USUAL[case])


def test_a_slow_gpu_is_named_in_every_class_that_shows_it() -> None:
    culprits = verdict_of(run(WRITE, BOTH, H2D, value=slow_at("GPU1", source=False))).culprits
    assert [(culprit.label, culprit.direction) for culprit in culprits] == [("GPU1", Direction.INGRESS)] * 3


def test_what_a_link_cannot_carry_and_what_is_a_small_part_of_it_is_told() -> None:
    for gb_s, grade in ((500.0, Grade.NO_REFERENCE), (396.2, Grade.PASS), (200.0, Grade.WARN), (100.0, Grade.FAIL)):
        found = by(verdict_of(run(WRITE, value=lambda *_, gb_s=gb_s: gb_s), None), Yardstick.LINK)
        assert {j.grade for j in found} == {grade}
    assert "88 % of NV18's 450 GB/s" in by(verdict_of(run(WRITE)), Yardstick.LINK)[0].reason


GH200, GB200 = shipped("gh200"), shipped("gb200-nvl72")
PINNED, ONE_TO_ALL = "host_to_device_memcpy_ce", "one_to_all_write_ce"


@pytest.mark.parametrize(
    ("machine", "case", "gb_s", "grade", "words"),
    [
        (GH200, PINNED, 372.0, Grade.PASS, "97 % of LPDDR5X's 384 GB/s"),
        (GH200, PINNED, 400.0, Grade.PASS, "104 % of LPDDR5X's 384 GB/s"),
        (GH200, PINNED, 170.0, Grade.WARN, "44 % of LPDDR5X's 384 GB/s"),
        (
            patched(GH200, "host.numa_nodes[0]", memory_total_bytes=64 << 30),
            *(PINNED, 372.0, Grade.PASS, "83 % of C2C's 447.1 GB/s"),
        ),
        (shipped("gh200x4"), PINNED, 419.9, Grade.PASS, "94 % of C2C's 447.1 GB/s"),
        (shipped("gh200x4"), "host_to_device_bidirectional_memcpy_ce", 250.0, Grade.PASS, "98 % of LPDDR5X's 512 GB/s"),
        (GB200, PINNED, 200.7, Grade.PASS, "90 % of C2C's 223.6 GB/s"),
        (GB200, "host_to_all_memcpy_ce", 168.5, Grade.PASS, "88 % of LPDDR5X's 768 GB/s"),
        (GB200, "host_to_all_bidirectional_memcpy_ce", 91.0, Grade.PASS, "95 % of LPDDR5X's 768 GB/s"),
        (GB200, "host_one_node_to_all_memcpy_ce", 90.0, Grade.PASS, "94 % of LPDDR5X's 384 GB/s"),
        (shipped("dgx-station-gb300"), PINNED, 380.0, Grade.PASS, "96 % of LPDDR5X's 396 GB/s"),
        (shipped("gh200x4"), ONE_TO_ALL, 132.9, Grade.PASS, "89 % of NV6's 450 GB/s"),
        (H200, ONE_TO_ALL, 132.9, Grade.PASS, "89 % of NV18's 450 GB/s"),
    ],
)
def test_a_path_is_held_against_the_least_of_its_links_and_of_the_memory_that_all_its_flows_share(
    machine: Machine, case: str, gb_s: float, grade: Grade, words: str
) -> None:
    nodes = sorted({gpu.host_numa_id or 0 for gpu in machine.gpus or ()})
    judgement = by(verdict_of(run(case, machine=machine, nodes=nodes, value=lambda *_: gb_s), None), Yardstick.LINK)[0]
    assert judgement.reason.endswith(words)
    assert judgement.grade is grade
    assert f" of {judgement.limit}'s " in words
    assert ("published" in (judgement.source or "")) is ("LPDDR5X" in words)


@pytest.mark.parametrize(
    ("machine", "words"), [(shipped("gb300-nvl72"), "89 % of SMP's 150 GB/s"), (GB200, "59 % of C2C's 223.6 GB/s")]
)
def test_the_link_between_two_cpus_limits_a_path_across_it_where_its_rate_is_published(
    machine: Machine, words: str
) -> None:
    report = run(PINNED, machine=machine, nodes=[0, 1], value=lambda *_: 133.0)
    reasons = {j.reason.split(": ")[0]: j.reason for j in by(verdict_of(report, None), Yardstick.LINK)}
    assert reasons["NUMA1 -> GPU0"].endswith(words)
    assert reasons["NUMA0 -> GPU0"].endswith("59 % of C2C's 223.6 GB/s")


def test_a_path_across_cpus_whose_link_has_no_published_rate_is_not_called_slow_by_its_c2c() -> None:
    """133 GB/s are typical of the board (profiles/gh200x2-480gb.toml), and 30 % of its C2C."""
    report = run(PINNED, machine=shipped("gh200x2"), nodes=[0, 1], value=lambda *_: 133.0)
    grades = {j.reason.split(": ")[0]: j.grade for j in by(verdict_of(report, None), Yardstick.LINK)}
    assert (grades["NUMA0 -> GPU0"], grades["NUMA1 -> GPU0"]) == (Grade.WARN, Grade.NO_REFERENCE)


def test_flows_of_several_processes_are_not_taken_for_sharers_of_one_node_s_memory() -> None:
    case = "host_to_all_memcpy_ce"
    report = run(case, machine=GB200, nodes=[0, 1], value=lambda *_: 168.5)
    (m,) = report.measurements
    ranks = replace(m, flows=tuple(replace(flow, initiator_rank=number) for number, flow in enumerate(m.flows)))
    (judgement,) = by(verdict_of(replace(report, measurements=(ranks,)), None), Yardstick.LINK)
    assert judgement.reason == "its flows do not share one link in one direction"


def test_more_than_is_published_is_no_alarm_as_only_what_the_driver_reports_is_a_bound() -> None:
    report = run(PINNED, machine=shipped("gb300-nvl72"), nodes=[0, 1], value=lambda *_: 200.0)
    across = [j for j in by(verdict_of(report, None), Yardstick.LINK) if j.limit == "SMP"]
    assert {(j.grade, (j.source or "").split(":")[0]) for j in across} == {(Grade.PASS, "published")}


def by_way_of(report: RunReport, route: Route) -> RunReport:
    """Return a run whose bytes went another way."""
    changed = (replace(m, flows=tuple(replace(flow, route=route) for flow in m.flows)) for m in report.measurements)
    return replace(report, measurements=tuple(changed))


def test_a_gh200_of_120_gb_warns_before_it_has_lost_an_eighth() -> None:
    board = load_profile("gh200-120gb")
    for gb_s, grade in ((419.9, Grade.PASS), (0.88 * 419.9, Grade.WARN)):
        made = run(PINNED, machine=GH200, value=lambda *_, gb_s=gb_s: gb_s)
        assert grades(verdict_of(made, board)) == {PINNED: grade}


def test_memory_of_another_node_warns_below_half_of_the_c2c_that_makes_it_egm() -> None:
    for gb_s, grade in ((211.8, Grade.PASS), (110.0, Grade.WARN)):
        local = run(H2D, machine=GB200, gpus=1, value=lambda *_, gb_s=gb_s: gb_s)
        route = replace(to_host(nv(18), C2C), across_nodes=True)
        (m,) = by_way_of(local, route).measurements
        report = replace(local, measurements=(replace(m, case="fabric_host_numa_read_ce"),))
        assert {j.grade for j in by(verdict_of(report, load_profile("gb200-nvl72")), Yardstick.PROFILE)} == {grade}


def test_fewer_links_than_the_platform_has_are_held_against_all_of_them() -> None:
    report = by_way_of(run(WRITE, value=lambda *_: 396.2 * 16 / 18), over(nv(16)))
    found = by(verdict_of(report), Yardstick.PROFILE)
    assert {j.grade for j in found} == {Grade.FAIL}
    assert found[0].reason.endswith("over NV16, not NV18")


NO_REFERENCE = {
    "host memory by another way": (
        *(by_way_of(run(H2D), to_host(PCIE, SMP)), Yardstick.PROFILE),
        "hgx-h200 does not have this case over PCIe>SMP",
    ),
    "small buffers": (
        *(run(WRITE, value=lambda *_: 5.0, size_bytes=MIB), Yardstick.LINK),
        "buffers of less than 64 MiB are not judged",
    ),
    "fewer than four GPUs": (run(WRITE, gpus=3), Yardstick.PEERS, "no peers: fewer than 4 GPUs"),
    "another number of GPUs": (run(RING, gpus=3), Yardstick.PROFILE, "hgx-h200 has it for 4 flows, not 3"),
    "links that are active at no speed": (
        run(WRITE, machine=patched(H200, "gpus[*].nvml.nvlinks[*]", speed_mb_s=0)),
        *(Yardstick.LINK, "the link's rate is not known"),
    ),
}


@pytest.mark.parametrize("name", NO_REFERENCE)
def test_what_a_yardstick_says_nothing_of_has_no_reference_and_a_reason(name: str) -> None:
    report, yardstick, reason = NO_REFERENCE[name]
    profile = None if yardstick is Yardstick.LINK else PROFILE
    assert {(j.grade, j.reason) for j in by(verdict_of(report, profile), yardstick)} == {(Grade.NO_REFERENCE, reason)}


@pytest.mark.parametrize("case", ["ipc_event_round_trip", "ipc_socket_round_trip"])
def test_what_the_host_carries_is_not_held_against_peers(case: str) -> None:
    slow = lambda _, flow: 38600.0 if flow.destination.label == "GPU3" else 24700.0  # noqa: E731
    verdict = verdict_of(run(case, value=slow))
    assert grades(verdict) == {case: Grade.NO_REFERENCE}
    assert verdict.culprits == ()
    assert {j.reason for j in by(verdict, Yardstick.PEERS)} == {
        "no peers: a round trip by message depends on where the host runs the processes"
    }


@pytest.mark.parametrize(
    "status",
    [MeasurementStatus.CORRUPT, MeasurementStatus.FAILED, MeasurementStatus.CRASHED, MeasurementStatus.TIMED_OUT],
)
def test_a_class_of_which_something_broke_is_not_well(status: MeasurementStatus) -> None:
    verdict = verdict_of(with_status(run(WRITE, READ), status, [0]))
    assert grades(verdict) == {WRITE: Grade.FAIL, READ: Grade.PASS}
    assert 0 not in {judged.measurement for judged in verdict.judged}


def test_what_was_waived_is_not_judged() -> None:
    report = run(WRITE, READ)
    waived = with_status(
        report, MeasurementStatus.WAIVED, [n for n, m in enumerate(report.measurements) if m.case == READ]
    )
    assert grades(verdict_of(waived)) == {WRITE: Grade.PASS}


def test_error_counters_that_rose_are_a_warning() -> None:
    report = run(WRITE)
    seen = TaskEvidence(gpus=(GpuEvidence(bus_id="0000:00:07.0", label="GPU1", errors={"nvlink-crc-errors": 2}),))
    marked = tuple(replace(m, evidence=seen) if n < 2 else m for n, m in enumerate(report.measurements))
    verdict = verdict_of(replace(report, measurements=marked))
    assert (grades(verdict), verdict.warnings) == ({WRITE: Grade.PASS}, ("nvlink-crc-errors of GPU1 rose by 4",))


def test_the_exit_code_takes_it_into_account() -> None:
    def code(value: float, *, strict: bool = False) -> ExitCode:
        report = run(WRITE, value=lambda *_: value)
        return code_of(replace(report, verdict=verdict_of(report, strict=strict)))

    assert (code(396.2), code(380.0), code(300.0)) == (ExitCode.OK, ExitCode.OK, ExitCode.FAILED)
    assert (code(396.2, strict=True), code(380.0, strict=True)) == (ExitCode.OK, ExitCode.FAILED)
    crashed = with_status(run(WRITE, value=lambda *_: 396.2), MeasurementStatus.CRASHED, [0])
    assert code_of(replace(crashed, verdict=verdict_of(crashed))) is ExitCode.CRASHED
    crashed = with_status(run(WRITE, value=lambda *_: 300.0), MeasurementStatus.CRASHED, [0])
    assert code_of(replace(crashed, verdict=verdict_of(crashed))) is ExitCode.FAILED, "a rerun takes no fault back"


@pytest.mark.parametrize("name", ["gb200-tray", "gb200-nvl72", "gh200", "gh200x4", "dgx-h100"])
def test_every_machine_can_be_judged_without_a_profile(name: str) -> None:
    machine = shipped(name)
    report = run(*ALL, machine=machine, value=lambda task, _: 834.0 if task.case == LATENCY else 50.0)
    assert verdict_of(report, None).profile is None


def test_of_nothing_measured_no_class_is_judged() -> None:
    report = run(WRITE)
    nothing = with_status(report, MeasurementStatus.WAIVED, range(len(report.measurements)))
    assert verdict_of(nothing).classes == ()


class TestUnlikeGpus:
    """A node of six H100 beside two A100: each kind has its own peers."""

    CASES = (WRITE, H2D, LOCAL)

    def mixed(self, slow: str = "") -> RunReport:
        older = ("GPU6", "GPU7")

        def value(task: Task, flow: Flow) -> float:
            ends = {flow.source.label, flow.destination.label}
            part = 0.6 if ends & {*older} else 1
            return usual(task, flow) * part * (0.4 if slow in ends else 1)

        made = run(*self.CASES, value=value, machine=shipped("dgx-h100"))
        gpus = [replace(gpu, name="NVIDIA A100-SXM4-80GB" if gpu.label in older else gpu.name) for gpu in made.gpus]
        return replace(made, gpus=tuple(gpus))

    def test_the_slower_kind_is_no_outlier(self) -> None:
        verdict = verdict_of(self.mixed(), None)
        assert verdict.culprits == ()
        assert {grade.by_peers for grade in verdict.classes} <= {Grade.PASS, Grade.NO_REFERENCE}

    def test_each_class_names_its_kinds(self) -> None:
        names = {verdict.gpus for verdict in verdict_of(self.mixed(), None).classes if verdict.case == WRITE}
        assert names == {
            "H100 80GB HBM3",
            "A100-SXM4-80GB",
            "H100 80GB HBM3 -> A100-SXM4-80GB",
            "A100-SXM4-80GB -> H100 80GB HBM3",
        }
        assert {verdict.gpus for verdict in verdict_of(run(WRITE)).classes} == {""}

    def test_a_slow_gpu_among_its_own_kind_is_an_outlier(self) -> None:
        labels = {culprit.label for culprit in verdict_of(self.mixed(slow="GPU2"), None).culprits}
        assert "GPU2" in labels
        assert not labels & {"GPU6", "GPU7"}


@pytest.mark.parametrize(
    ("quantity", "value", "expected", "share"),
    [
        (Quantity.BANDWIDTH, 200.0, 400.0, 0.5),
        (Quantity.BANDWIDTH, 0.0, 400.0, 0.0),
        (Quantity.LATENCY, 1600.0, 800.0, 0.5),
        (Quantity.LATENCY, 0.0, 800.0, None),
        (Quantity.DURATION, 2.0, 1.0, 0.5),
        (Quantity.BANDWIDTH, 200.0, None, None),
    ],
)
def test_a_share_of_the_expected_speed_is_less_for_what_is_slower(
    quantity: Quantity, value: float, expected: float | None, share: float | None
) -> None:
    judgement = Judgement(Yardstick.PROFILE, Grade.FAIL, "", value=value, expected=expected)
    assert judgement.speed_share(quantity) == share


def test_one_measurement_without_a_reference_is_it() -> None:
    answer = answered(with_verdict(run(LOCAL, gpus=1), None, profile_reason="no profile matches")).answer
    assert str(answer.sentence).startswith("1 measurement and nothing to judge it by: no profile matches")
