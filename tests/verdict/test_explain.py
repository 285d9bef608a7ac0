"""What explains which measurement: each cause on a replayed machine, what it does not explain, and two at once."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import replace

import pytest

from egmctl.doctor.check import EVERYTHING
from egmctl.doctor.runner import CHECKS, diagnose
from egmctl.model.bringup import Answer
from egmctl.model.finding import RunCause
from egmctl.model.finding import Status as Found
from egmctl.model.gpu import GpuProcess
from egmctl.model.host import LibraryFailure
from egmctl.model.machine import Machine
from egmctl.model.measurement import (
    Evidence,
    GpuEvidence,
    HostLoad,
    LinkEvidence,
    Measurement,
    RunReport,
    Status,
    Verdict,
)
from egmctl.model.route import LinkKind
from egmctl.model.task import Flow, HandleKind, Task
from egmctl.report.kinds import Format, render
from egmctl.report.views.bench_answer import seen
from egmctl.verdict.bringup import bringup
from egmctl.verdict.explain import with_causes
from egmctl.verdict.judge import judge
from egmctl.verdict.profiles import load
from tests.doctor.faults import FAULTS, faults, healthy, weak_switch
from tests.doctor.machines import patched, shipped, with_gpu_denied
from tests.mutation import mutated
from tests.verdict.runs import H2D, WRITE, run, slow_at, usual, waived_on, with_status

H200 = shipped("hgx-h200x4")
PROFILE = load("hgx-h200")


def explained(
    machine: Machine,
    *labels: str,
    cases: Sequence[str] = (WRITE, H2D),
    change: Callable[[RunReport], RunReport] = lambda report: report,
    asked: Sequence[str] = (),
) -> RunReport:
    """A run on which paths that touch some GPUs are slow, with its causes; the plan is that of a healthy node."""
    made = change(replace(run(*cases, value=slow_at(*labels), machine=H200), machines=(machine,)))
    return with_causes(replace(made, verdict=judge(made, PROFILE)), asked=asked)


def planned_on(machine: Machine) -> Callable[[RunReport], RunReport]:
    """Waive what a plan for this machine waives."""
    return lambda report: waived_on(report, machine)


def paths(report: RunReport, cause: RunCause) -> set[str]:
    return {report.measurements[number].path for number in cause.explains}


def told(report: RunReport) -> dict[str, set[str]]:
    """By the check that found it, the paths that each cause explains."""
    return {cause.finding.check: paths(report, cause) for cause in report.causes}


def links_down(machine: Machine = H200, gpu: int = 2) -> Machine:
    nvml = (machine.gpus or ())[gpu].nvml
    assert nvml is not None
    links = tuple(replace(link, active=link.link > 1) for link in nvml.nvlinks or ())
    return patched(machine, f"gpus[{gpu}].nvml", nvlinks=links)


def narrow(gpu: int) -> Machine:
    """A PCIe link with half its lanes, as sysfs and NVML show it."""
    machine = patched(H200, f"gpus[{gpu}].pci.link", width=8)
    return patched(machine, f"gpus[{gpu}].nvml.link", width=8) if _nvml_link(machine, gpu) else machine


def _nvml_link(machine: Machine, gpu: int) -> bool:
    nvml = (machine.gpus or ())[gpu].nvml
    return nvml is not None and nvml.link is not None


def beside(report: RunReport, *labels: str, **seen: object) -> RunReport:
    """Let the GPUs with these labels show something while they are measured."""

    def one(m: Measurement) -> Measurement:
        ends = {end.label: end.bus_id for flow in m.flows for end in (flow.source, flow.destination)}
        gpus = tuple(
            GpuEvidence(bus_id=ends[label] or "", label=label, **seen)  # type: ignore[arg-type]
            for label in labels
            if label in ends
        )
        return replace(m, evidence=Evidence(gpus=gpus))

    return replace(report, measurements=tuple(map(one, report.measurements)))


OF_GPU2 = {f"GPU{a} -> GPU{b}" for a in range(4) for b in range(4) if a != b and 2 in (a, b)}


def test_links_down_explain_the_slow_paths_over_nvlink_that_touch_the_gpu_and_only_those() -> None:
    report = explained(links_down(), "GPU2", "GPU3")
    assert told(report) == {"nvlink.links": OF_GPU2}
    slow = {m.path for n, m in enumerate(report.measurements) if "GPU3" in m.path and "GPU2" not in m.path}
    assert slow, "the paths of GPU3 and host memory are slow too, and stay without a cause"


def test_links_down_do_not_explain_what_is_not_slow() -> None:
    assert explained(links_down()).causes == ()


@pytest.mark.parametrize(
    ("shown", "check", "words"),
    [
        ({"throttle_reasons": ("hw-thermal-slowdown",)}, "bench.throttled", "hardware thermal slowdown"),
        ({"other_processes": (1066, 1067)}, "bench.other-processes", "in use by process 1066, 1067 while measured"),
    ],
)
def test_what_a_gpu_showed_meanwhile_explains_the_paths_that_it_showed_it_on(
    shown: dict[str, object], check: str, words: str
) -> None:
    report = explained(H200, "GPU2", change=lambda made: beside(made, "GPU2", **shown))
    assert told(report) == {check: {*OF_GPU2, "NUMA0 -> GPU2"}}
    assert words in report.causes[0].finding.summary


BUSY = HostLoad(cpus=16, load_average=24.3, wall_s=10.0, others_cpu_s=151.0)


def test_a_busy_host_explains_slow_host_memory_and_never_a_path_between_gpus() -> None:
    report = explained(H200, "GPU2", change=lambda made: replace(made, host_load=BUSY))
    assert told(report) == {"bench.host-busy": {"NUMA0 -> GPU2"}}
    assert report.causes[0].finding.summary == ("the host was busy: other processes used 15 of 16 CPUs")


def test_where_only_host_memory_is_slow_a_busy_host_is_the_cause_and_links_are_not_suspected() -> None:
    def value(task: Task, flow: Flow) -> float:
        return usual(task, flow) * (0.5 if task.case == H2D else 1)

    made = replace(run(WRITE, H2D, value=value), host_load=BUSY)
    report = with_causes(replace(made, verdict=judge(made, load("hgx-h200"))))
    node = bringup(diagnose(H200, EVERYTHING, CHECKS), report)
    assert (node.answer, node.causes) == (Answer.NO_GO, report.causes)
    for result in (report, node):
        words = " ".join(str(render(result, Format.TEXT)).split())
        assert "the host was busy: other processes used 15 of 16 CPUs" in words
        assert "Next: Measure again when the host is idle" in words
        assert "links" not in words.partition("Next: ")[2].partition("CAUSE")[0].partition("FAIL")[0]


@pytest.mark.parametrize(
    "load_",
    [
        None,
        HostLoad(cpus=16, load_average=1.2, wall_s=10.0, others_cpu_s=9.0),
        HostLoad(cpus=192, load_average=9.0, wall_s=10.0, others_cpu_s=80.0),
        HostLoad(cpus=4, load_average=1.9, wall_s=10.0, others_cpu_s=15.0),
        HostLoad(cpus=16, load_average=24.0, wall_s=0.0, others_cpu_s=0.0),
    ],
)
def test_a_slow_path_on_an_idle_host_stays_a_problem(load_: HostLoad | None) -> None:
    report = explained(H200, "GPU2", change=lambda made: replace(made, host_load=load_))
    assert (report.causes, report.exit_code) == ((), 1)


def test_a_narrow_link_stays_a_cause_beside_a_busy_host() -> None:
    report = explained(narrow(1), "GPU1", change=lambda made: replace(made, host_load=BUSY))
    assert set(told(report)) == {"pcie.link", "bench.host-busy"}


def test_a_cause_on_one_gpu_hides_no_warning_of_another() -> None:
    """GPU3 is as fast as ever: nothing has its clocks for a cause, and they are told in a line without -v."""

    def throttled(made: RunReport) -> RunReport:
        hot = beside(made, "GPU2", throttle_reasons=("hw-thermal-slowdown",))
        weak = beside(made, "GPU3", throttle_reasons=("hw-power-brake-slowdown",))
        pairs = zip(hot.measurements, weak.measurements, strict=True)
        both = (
            replace(one, evidence=one.evidence if _touches(one, "GPU2") else other.evidence) for one, other in pairs
        )
        return replace(made, measurements=tuple(both))

    report = explained(H200, "GPU2", change=throttled)
    assert list(told(report)) == ["bench.throttled"]
    assert list(seen(report, causes=False)) == ["clocks of GPU3 throttled: hw-power-brake-slowdown"]
    node = bringup(diagnose(H200, EVERYTHING, CHECKS), report)
    for words in (str(render(report, Format.TEXT)), str(render(node, Format.TEXT))):
        plain = " ".join(words.split())
        assert "clocks of GPU3 throttled: hw-power-brake-slowdown (5 paths)" in plain
        assert plain.count("GPU2: clocks throttled") >= 1
        assert "clocks of GPU2 throttled" not in plain


def _touches(measurement: Measurement, label: str) -> bool:
    return any(label in (flow.source.label, flow.destination.label) for flow in measurement.flows)


def test_users_that_change_while_a_gpu_is_measured_are_told_once() -> None:
    def used(made: RunReport) -> RunReport:
        one, two = (beside(made, "GPU2", other_processes=pids) for pids in ((7,), (7, 9)))
        pairs = zip(one.measurements, two.measurements, strict=True)
        return replace(made, measurements=tuple(pair[n % 2] for n, pair in enumerate(pairs)))

    assert seen(explained(H200, "GPU2", change=used), causes=False) == {}


def test_a_power_cap_explains_nothing() -> None:
    report = explained(
        H200, "GPU2", change=lambda made: beside(made, "GPU2", throttle_reasons=("sw-power-cap", "applications-clocks"))
    )
    assert report.causes == ()


def test_clocks_that_were_held_down_before_are_told_once() -> None:
    machine = patched(H200, "gpus[2].nvml", throttle_reasons=("hw-thermal-slowdown",))
    report = explained(
        machine, "GPU2", change=lambda made: beside(made, "GPU2", throttle_reasons=("hw-thermal-slowdown",))
    )
    assert list(told(report)) == ["gpu.throttle"]


def test_a_narrow_pcie_link_explains_paths_to_host_memory() -> None:
    assert told(explained(narrow(2), "GPU2")) == {"pcie.link": {"NUMA0 -> GPU2"}}


def test_bytes_that_took_another_link() -> None:
    def strayed(made: RunReport) -> RunReport:
        route = LinkEvidence(link=LinkKind.NVLINK, expected_bytes=9, carried_bytes=0, verdict=Verdict.REFUTED)
        changed = tuple(
            replace(m, evidence=Evidence(gpus=(), route=route)) if m.path == "GPU0 -> GPU2" else m
            for m in made.measurements
        )
        return replace(made, measurements=changed)

    assert told(explained(H200, "GPU2", change=strayed)) == {"bench.other-link": {"GPU0 -> GPU2"}}


def test_a_denied_gpu_explains_what_was_not_measured_and_nothing_slow() -> None:
    machine = with_gpu_denied(H200, 3)

    report = explained(machine, "GPU0", change=planned_on(machine))
    (cause,) = report.causes
    assert (cause.finding.check, cause.status) == ("dev.cgroup-restricted", Found.NOTE)
    assert all("GPU3" in path for path in paths(report, cause))
    assert report.exit_code == 1, "GPU0 is slow"
    asked = explained(machine, change=planned_on(machine), asked=[gpu.bus_id for gpu in machine.gpus or ()])
    assert (asked.causes[0].status, asked.exit_code) == (Found.FAIL, 1)
    assert explained(machine, change=planned_on(machine)).exit_code == 0


def test_a_busy_gpu_is_no_fault_of_its_links() -> None:
    """What is narrow or down on a GPU is not why it was not measured."""
    machine = patched(narrow(1), "gpus[1].nvml", processes=(GpuProcess(pid=4711),))

    report = explained(machine, change=planned_on(machine))
    (cause,) = report.causes
    assert cause.finding.check == "bench.gpu-in-use"
    assert cause.finding.remedy is not None
    assert cause.finding.remedy.command == "ps -o pid,user,etime,args -p 4711"
    assert {"GPU0 -> GPU1", "NUMA0 -> GPU1"} <= paths(report, cause)


def test_a_hidden_gpu_is_told_as_the_choice_that_it_is() -> None:
    machine = patched(H200, "process", environment={"CUDA_VISIBLE_DEVICES": "0,1,2"})

    (cause,) = explained(machine, change=planned_on(machine)).causes
    assert (cause.finding.check, cause.status) == ("bench.gpu-hidden", Found.NOTE)


def test_an_nvml_that_hangs_explains_why_no_link_is_known() -> None:
    machine = patched(patched(H200, "gpus[*]", nvml=None), "", pairs=())
    machine = patched(
        machine,
        "driver",
        nvml_failure=LibraryFailure(how="timed-out", call="nvmlDeviceGetFieldValues"),
        nvml_error=None,
    )
    made = run(WRITE, machine=machine)
    report = with_causes(made)
    (cause,) = report.causes
    assert "hangs in nvmlDeviceGetFieldValues" in cause.finding.summary
    assert len(cause.explains) == len(report.measurements)


def test_two_faults_at_once_stay_two_causes() -> None:
    report = explained(links_down(narrow(1)), "GPU1", "GPU2")
    assert told(report) == {"nvlink.links": OF_GPU2, "pcie.link": {"NUMA0 -> GPU1"}}


def test_two_faults_on_one_gpu_stay_two_causes_too() -> None:
    report = explained(
        links_down(), "GPU2", change=lambda made: beside(made, "GPU2", throttle_reasons=("hw-thermal-slowdown",))
    )
    assert told(report) == {"nvlink.links": OF_GPU2, "bench.throttled": {*OF_GPU2, "NUMA0 -> GPU2"}}


def test_what_nothing_explains_has_no_cause() -> None:
    report = explained(H200, "GPU2")
    assert report.causes == ()
    assert report.exit_code == 1


NOT_MADE = {
    "imex.channel": lambda: patched(healthy(), "driver", imex_channels=()),
    "imex.daemon": faults()["imex.daemon"].machine,
    "fabric.state": lambda: patched(healthy(), "gpus[*].nvml.fabric", state="in-progress"),
    "fabric.consistency": FAULTS["fabric.consistency"].machine,
}
"""What keeps fabric handles from being made or opened: by the check that finds it, a machine that has it."""


def fabric_run(machine: Machine, *, across_nodes: bool = False) -> RunReport:
    """A run between processes by fabric handles, none of which could be made."""
    base = run(WRITE, machine=shipped("gb200-nvl72"))

    def by_handle(m: Measurement) -> Measurement:
        flows = tuple(
            replace(
                flow,
                destination=replace(flow.destination, handle=HandleKind.FABRIC),
                route=replace(flow.route, across_nodes=across_nodes),
            )
            for flow in m.flows
        )
        return replace(m, flows=flows, status=Status.FAILED, known_cause=True, reason="cuMemCreate: 800")

    return replace(base, machines=(machine,), measurements=tuple(map(by_handle, base.measurements)))


@pytest.mark.parametrize("check", NOT_MADE)
def test_a_fabric_that_is_not_ready_explains_what_goes_over_its_handles(check: str) -> None:
    machine = NOT_MADE[check]()
    report = with_causes(fabric_run(machine, across_nodes=check == "imex.daemon"))
    causes = {cause.finding.check: cause for cause in report.causes}
    roots = [one for one in causes if one == check or check in causes[one].finding.explains]
    assert roots, list(causes)
    assert causes[roots[0]].explains


def test_the_imex_service_explains_nothing_within_a_node() -> None:
    """There a fabric handle needs a channel only (measured on HGX H200 without the service)."""
    assert with_causes(fabric_run(NOT_MADE["imex.daemon"]())).causes == ()


def test_p2p_that_cuda_alone_refuses_explains_copies_that_are_staged() -> None:
    """NVML says OK of the pair; that CUDA does not is recorded of it."""
    machine = patched(H200, "pairs[1]", can_access_peer=False)
    pair = (machine.pairs or ())[1]
    made = run(WRITE, machine=machine)
    (staged,) = [one for one in made.measurements if any(flow.route.staged for flow in one.flows)]
    assert staged.path in ("GPU0 -> GPU2", "GPU2 -> GPU0"), pair
    assert told(with_causes(made)) == {"p2p.status": {staged.path}}


def test_a_stale_device_node_of_a_container_explains_what_was_not_measured() -> None:
    """As after the driver was reloaded: the node has another device's numbers."""
    gone = with_gpu_denied(H200, 3)
    machine = patched(gone, "gpus[3].node", access="ok", exists=True, major=195, minor=9)

    report = explained(machine, change=planned_on(machine))
    (cause,) = report.causes
    assert cause.finding.check in ("dev.permissions", "dev.nodes-missing", "dev.count-consistency")
    assert all("GPU3" in path for path in paths(report, cause))


@pytest.mark.parametrize("check", ["pcie.acs", "pcie.iommu"])
def test_acs_and_iommu_explain_slow_copies_between_gpus_over_pcie(check: str) -> None:
    machine = patched(weak_switch(), "gpus[*].nvml", nvlinks=(), nvlink_count=0)
    machine = patched(machine, "pairs[*]", nvlink_count=0)
    if check == "pcie.iommu":
        machine = patched(machine, "system.bridges[*]", acs_control=0)
    made = run(WRITE, H2D, machine=machine, value=slow_at("GPU0"))
    report = with_causes(replace(made, verdict=judge(made, PROFILE)))
    explains = told(report)[check]
    assert explains
    assert all(path.count("GPU") == 2 for path in explains), "host memory is reached without peers"


def test_acs_does_not_explain_what_goes_over_nvlink() -> None:
    machine = replace(H200, system=weak_switch().system)
    assert "pcie.acs" not in told(explained(machine, "GPU2"))


@pytest.mark.long
def test_no_machine_is_too_strange_to_be_explained() -> None:
    choice = random.Random(7)  # noqa: S311
    made = run(WRITE, H2D, value=slow_at("GPU2"))
    judged = replace(made, verdict=judge(made, PROFILE))
    waived = with_status(judged, Status.WAIVED, range(0, len(made.measurements), 3))
    for _ in range(200):
        machine = mutated(choice.choice((H200, shipped("gh200"))), choice)
        with_causes(replace(choice.choice((judged, waived)), machines=(machine,)), asked=["", "0000:00:06.0"])
