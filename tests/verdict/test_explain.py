"""What explains which measurement: each cause on a replayed machine, what it does not explain, and two at once."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest

from egmctl.bench.path_class import ceiling
from egmctl.doctor.check import EVERYTHING
from egmctl.doctor.runner import CHECKS
from egmctl.model.answer import State
from egmctl.model.finding import Status
from egmctl.model.machine import Machine
from egmctl.model.measurement import HostLoad, LinkEvidence, LinkProof, MeasurementStatus, RunReport, TaskEvidence
from egmctl.model.profile import Unit
from egmctl.model.route import LinkKind
from egmctl.model.task import Flow, Task
from egmctl.report.kinds import Format
from egmctl.report.views.bench_answer import seen_by_bench
from egmctl.verdict.bringup import bringup_answer
from egmctl.verdict.explain import with_causes
from egmctl.verdict.judge import with_verdict
from egmctl.verdict.profiles import load_profile
from tests.answers import code_of, diagnose, render
from tests.doctor.faults import weak_switch
from tests.doctor.machines import patched, shipped
from tests.mutation import mutated
from tests.verdict.narrow import H200, PROFILE, Change, as_measured, beside, explained, links_down, narrow
from tests.verdict.runs import H2D, OF_GPU2, WRITE, run, slow_at, usual, with_status


def told(report: RunReport) -> dict[str, set[str]]:
    """By the check that found it, the paths that each cause explains."""
    paths = [measurement.path for measurement in report.measurements]
    return {cause.finding.check: {paths[number] for number in cause.measurements} for cause in report.causes}


HOST = {"NUMA0 -> GPU2"}
HOT = {"throttle_reasons": ("hw-thermal-slowdown",)}
BUSY = HostLoad(cpus=16, load_average=24.3, wall_s=10.0, others_cpu_s=151.0)


def showing(**evidence: object) -> Change:
    """Let GPU2 show something while it is measured."""
    return lambda report: beside(report, "GPU2", **evidence)


def loaded(load: HostLoad | None) -> Change:
    return lambda report: replace(report, host_load=load)


def strayed(report: RunReport) -> RunReport:
    """Let the bytes of one path take another link."""
    route = LinkEvidence(link=LinkKind.NVLINK, expected_bytes=9, carried_bytes=0, verdict=LinkProof.REFUTED)
    evidence = TaskEvidence(gpus=(), route=route)
    changed = (replace(m, evidence=evidence) if m.path == "GPU0 -> GPU2" else m for m in report.measurements)
    return replace(report, measurements=tuple(changed))


def copied_by_the_cpu(report: RunReport) -> RunReport:
    """Let the driver have the CPU copy, as it did between host memory of two H200 with PCIe."""
    route = LinkEvidence(link=LinkKind.PCIE, expected_bytes=9, carried_bytes=0, verdict=LinkProof.REFUTED)
    evidence = TaskEvidence(gpus=(), route=route)
    return replace(report, measurements=tuple(replace(m, evidence=evidence) for m in report.measurements))


def test_a_copy_between_host_memory_that_the_cpu_made_blames_no_link() -> None:
    made = copied_by_the_cpu(run("host_numa_to_host_numa_memcpy_ce", value=lambda _task, _flow: 20.0, machine=H200))
    report = with_causes(with_verdict(replace(made, machines=(H200,)), PROFILE))
    ((finding, numbers),) = [(cause.finding, cause.measurements) for cause in report.causes]
    assert (finding.check, finding.status) == ("bench.other-link", Status.NOTE)
    assert finding.summary.endswith("the driver probably let the CPU copy between host memory")
    assert set(numbers) == set(range(len(report.measurements)))


NOT_BUSY = {
    "not known": None,
    "idle": HostLoad(cpus=16, load_average=1.2, wall_s=10.0, others_cpu_s=9.0),
    "of many CPUs": HostLoad(cpus=192, load_average=9.0, wall_s=10.0, others_cpu_s=80.0),
    "of few CPUs": HostLoad(cpus=4, load_average=1.9, wall_s=10.0, others_cpu_s=15.0),
    "seen for no time": HostLoad(cpus=16, load_average=24.0, wall_s=0.0, others_cpu_s=0.0),
}
WAS_HOT, POWER_CAP = patched(H200, "gpus[2].nvml", **HOT), ("sw-power-cap", "applications-clocks")
LINKS, LANES, HEAT = {"nvlink.links": OF_GPU2}, {"pcie.link": HOST}, {"bench.throttled": OF_GPU2 | HOST}
BY_HOST = {"bench.host-busy": HOST}

CAUSES: dict[str, tuple[Machine, str, Change, dict[str, set[str]]]] = {
    "links that are down": (links_down(), "GPU2 GPU3", as_measured, LINKS),
    "links that are down, and nothing is slow": (links_down(), "", as_measured, {}),
    "a narrow PCIe link": (narrow(2), "GPU2", as_measured, LANES),
    "heat": (H200, "GPU2", showing(**HOT), HEAT),
    "heat before, told once": (WAS_HOT, "GPU2", showing(**HOT), {"gpu.throttle": OF_GPU2 | HOST}),
    "a power cap": (H200, "GPU2", showing(throttle_reasons=POWER_CAP), {}),
    "another process": (H200, "GPU2", showing(other_processes=(1066,)), {"bench.other-processes": OF_GPU2 | HOST}),
    "another link": (H200, "GPU2", strayed, {"bench.other-link": {"GPU0 -> GPU2"}}),
    "a busy host": (H200, "GPU2", loaded(BUSY), BY_HOST),
    **{f"a host {name}": (H200, "GPU2", loaded(load), {}) for name, load in NOT_BUSY.items()},
    "a busy host and a narrow link": (narrow(2), "GPU2", loaded(BUSY), LANES | BY_HOST),
    "faults of two GPUs": (
        *(links_down(narrow(1)), "GPU1 GPU2", as_measured),
        LINKS | {"pcie.link": {"NUMA0 -> GPU1"}},
    ),
    "two faults of one GPU": (links_down(), "GPU2", showing(**HOT), LINKS | HEAT),
    "ACS beside NVLink": (replace(H200, system=weak_switch().system), "GPU2", as_measured, {}),
    "nothing": (H200, "GPU2", as_measured, {}),
}


@pytest.mark.parametrize("name", CAUSES)
def test_each_cause_explains_the_slow_paths_that_it_touches_and_no_other(name: str) -> None:
    machine, slow, change, causes = CAUSES[name]
    report = explained(machine, *slow.split(), change=change)
    assert told(report) == causes
    excused = causes.keys() == {"bench.other-processes"}
    failing = 1 if slow else 0
    assert code_of(report) == (3 if excused else failing)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (showing(**HOT), "hardware thermal slowdown"),
        (showing(other_processes=(1066, 1067)), "in use by process 1066, 1067 while measured"),
        (loaded(BUSY), "the host was busy: other processes used 15 of 16 CPUs"),
    ],
)
def test_what_the_run_itself_saw_is_told_in_words(change: Change, words: str) -> None:
    assert words in explained(H200, "GPU2", change=change).causes[0].finding.summary


def test_where_only_host_memory_is_slow_a_busy_host_is_the_cause_and_links_are_not_suspected() -> None:
    def value(task: Task, flow: Flow) -> float:
        return usual(task, flow) * (0.5 if task.case == H2D else 1)

    made = replace(run(WRITE, H2D, value=value), host_load=BUSY)
    report = with_causes(with_verdict(made, PROFILE))
    node = bringup_answer(diagnose(H200, EVERYTHING, CHECKS), report)
    assert (node.answer.state, node.answer.causes) == (State.INCOMPLETE, report.causes)
    for result in (report, node):
        words = " ".join(str(render(result, Format.TEXT)).split())
        assert "the host was busy: other processes used 15 of 16 CPUs" in words
        assert "Next: Measure again when the host is idle" in words
        assert "links" not in words.partition("Next: ")[2].partition("CAUSE")[0].partition("FAIL")[0]


def test_a_cause_on_one_gpu_hides_no_warning_of_another() -> None:
    """GPU3 is as fast as ever: nothing has its clocks for a cause, and they are told in a line without -v."""

    def throttled(made: RunReport) -> RunReport:
        hot = beside(made, "GPU2", **HOT)
        weak = beside(made, "GPU3", throttle_reasons=("hw-power-brake-slowdown",))
        pairs = zip(hot.measurements, weak.measurements, strict=True)
        return replace(made, measurements=tuple(pair["GPU2" not in pair[0].path] for pair in pairs))

    report = explained(H200, "GPU2", change=throttled)
    assert list(told(report)) == ["bench.throttled"]
    assert list(seen_by_bench(report, causes=False)) == ["clocks of GPU3 throttled: hw-power-brake-slowdown"]
    node = bringup_answer(diagnose(H200, EVERYTHING, CHECKS), report)
    for words in (str(render(report, Format.TEXT)), str(render(node, Format.TEXT))):
        plain = " ".join(words.split())
        assert "clocks of GPU3 throttled: hw-power-brake-slowdown (5 paths)" in plain
        assert plain.count("GPU2: clocks throttled") >= 1
        assert "clocks of GPU2 throttled" not in plain


def test_users_that_change_while_a_gpu_is_measured_are_told_once() -> None:
    def used(made: RunReport) -> RunReport:
        one, two = (beside(made, "GPU2", other_processes=pids) for pids in ((7,), (7, 9)))
        pairs = zip(one.measurements, two.measurements, strict=True)
        return replace(made, measurements=tuple(pair[n % 2] for n, pair in enumerate(pairs)))

    assert seen_by_bench(explained(H200, "GPU2", change=used), causes=False) == {}


@pytest.mark.long
def test_no_machine_is_too_strange_to_be_explained() -> None:
    choice = random.Random(7)  # noqa: S311
    made = run(WRITE, H2D, value=slow_at("GPU2"))
    judged = with_verdict(made, PROFILE)
    waived = with_status(judged, MeasurementStatus.WAIVED, range(0, len(made.measurements), 3))
    for _ in range(200):
        machine = mutated(choice.choice((H200, shipped("gh200"))), choice)
        with_causes(replace(choice.choice((judged, waived)), machines=(machine,)), asked=["", "0000:00:06.0"])


class TestMemoryOfGrace:
    """GH200 480GB: NVIDIA publishes a STREAM triad of 307 GB/s or more, and others 346 GB/s from host to device."""

    TRIAD, COPY = "host_triad_cpu", "host_to_device_memcpy_ce"

    def explained(self, triad_gb_s: float, copy_gb_s: float, load_now: HostLoad | None = None) -> RunReport:
        def value(task: Task, flow: Flow) -> float:  # noqa: ARG001
            return triad_gb_s if task.case == self.TRIAD else copy_gb_s

        made = run(self.TRIAD, self.COPY, value=value, machine=shipped("gh200"))
        return with_causes(with_verdict(replace(made, host_load=load_now), load_profile("gh200-480gb")))

    def test_memory_that_its_own_cpus_find_slow_is_the_cause_of_slow_copies(self) -> None:
        report = self.explained(250, 240)
        assert told(report) == {"bench.weak-memory": {"NUMA0 -> CPU0", "NUMA0 -> GPU0"}}
        (cause,) = report.causes
        assert cause.finding.place.label == "NUMA 0"
        assert cause.finding.summary == "memory is slow: its own CPUs reach 250 GB/s, not 307"
        assert "NVIDIA's guide to benchmarking Grace" in cause.finding.evidence[0].value

    @pytest.mark.parametrize(
        ("values", "causes"),
        [((330, 240, None), []), ((330, 360, None), []), ((250, 240, BUSY), ["bench.host-busy"])],
        ids=["a slow link", "a healthy node", "a busy host"],
    )
    def test_otherwise_memory_is_not_blamed(
        self, values: tuple[float, float, HostLoad | None], causes: list[str]
    ) -> None:
        assert list(told(self.explained(*values))) == causes

    def test_a_profile_with_a_fault_threshold_only_explains_as_well(self) -> None:
        profile = load_profile("gh200-480gb")
        references = [replace(each, warn=None, fail=300.0) for each in profile.references if each.case == self.TRIAD]
        made = run(self.TRIAD, value=lambda _task, _flow: 250, machine=shipped("gh200"))
        (cause,) = with_causes(with_verdict(made, replace(profile, references=tuple(references)))).causes
        assert cause.finding.summary == "memory is slow: its own CPUs reach 250 GB/s, not 300"

    def test_a_node_that_is_slow_at_several_sizes_is_one_cause(self) -> None:
        made = run(self.TRIAD, value=lambda _task, _flow: 250, machine=shipped("gh200"))
        (triad,) = made.measurements
        made = replace(made, measurements=(triad, replace(triad, size_bytes=4 * triad.size_bytes)))
        (cause,) = with_causes(with_verdict(made, load_profile("gh200-480gb"))).causes
        assert len(cause.measurements) == 2

    def test_a_path_far_slower_than_its_memory_has_another_cause(self) -> None:
        assert told(self.explained(299, 50)) == {"bench.weak-memory": {"NUMA0 -> CPU0"}}

    def test_slow_memory_explains_no_latency_whose_nanoseconds_are_no_bandwidth(self) -> None:
        latency = "host_to_device_latency_uncached"

        def value(task: Task, flow: Flow) -> float:  # noqa: ARG001
            return {self.TRIAD: 250.0, self.COPY: 240.0}.get(task.case, 5_000.0)

        made = run(self.TRIAD, self.COPY, latency, value=value, machine=shipped("gh200"))
        profile = load_profile("gh200-480gb")
        bound = replace(profile.references[0], case=latency, link="C2C", unit=Unit.NS, typical=700, warn=900, fail=1100)
        report = with_verdict(made, replace(profile, references=(*profile.references, bound)))
        (weak,) = (c for c in with_causes(report).causes if c.finding.check == "bench.weak-memory")
        assert {report.measurements[number].case for number in weak.measurements} == {self.TRIAD, self.COPY}

    def test_the_triad_is_shown_as_a_share_of_the_memory_s_published_rate(self) -> None:
        limit = ceiling(self.explained(330, 360).measurements[1])
        assert limit is not None
        assert (limit.name, limit.gb_s) == ("LPDDR5X", 384)
