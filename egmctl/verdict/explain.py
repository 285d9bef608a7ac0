"""Find the causes of slow, broken and missing paths of a run: doctor's, and those that the run itself observed. Pure.

:mod:`egmctl.doctor.causes` has the rules that map a check's fault to the paths that it explains.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import replace

from egmctl.bench.case import Case
from egmctl.bench.path_class import is_degraded, is_lost
from egmctl.bench.plan.flows import PIDS_SHOWN, gpu_use
from egmctl.bench.plan.make import SECTIONS
from egmctl.bench.plan.paths import gpu_obstacle
from egmctl.dataclass import dataclass
from egmctl.doctor.check import Scope
from egmctl.doctor.findings import fact, failed, noted, warned
from egmctl.doctor.troubles import RunNode, Symptom, Trouble, numa_nodes
from egmctl.model.answer import Cause
from egmctl.model.change import ChangeKind
from egmctl.model.doubt import DoubtReason, Effect
from egmctl.model.finding import (
    OF_GPUS,
    OTHERS,
    THROTTLED,
    TOLD,
    Finding,
    Guard,
    Place,
    PlaceKind,
    RootCause,
    Status,
    Waiver,
    WaiverKind,
    on_gpus,
    on_numa,
    root_causes,
)
from egmctl.model.gpu import Gpu
from egmctl.model.machine import Machine
from egmctl.model.measurement import BROKEN, GpuEvidence, HostLoad, Measurement, MeasurementStatus, RunReport
from egmctl.model.remedy import todo
from egmctl.model.route import HOST_MEMORY, Carrier, LinkKind, MemoryKind, Route, UcxRoute, node_names
from egmctl.model.task import UCX_ENGINES, Engine, Quantity
from egmctl.model.verdict import BAD_GRADES, Grade, Judgement
from egmctl.topology.access import nvml_failure
from egmctl.topology.links import device_link
from egmctl.units import format_kernel_list, format_size, grouped, shortened
from egmctl.verdict.trust import host_busy, slowdowns
from egmctl.verdict.yardsticks import value_of

CAUSE_SECTIONS = ("switches", "confinement", "system")
"""The sections of a machine that causes are found in, in addition to those that a plan needs."""


@dataclass(frozen=True, slots=True)
class Shortfalls:
    """The measurements of a run that need an explanation, by index."""

    failing: frozenset[int] = frozenset()
    """Measurements that are too slow, or that broke with a known cause."""
    warned: frozenset[int] = frozenset()
    """Slightly slow measurements, and those made without EGM because its route is blocked."""
    waived: frozenset[int] = frozenset()
    """Measurements that were not made on the planned path."""
    lost: frozenset[int] = frozenset()
    """Measurements that crashed, hung, or failed without a known cause."""

    @property
    def slow(self) -> frozenset[int]:
        """All failing and warned measurements."""
        return self.failing | self.warned

    @property
    def broken(self) -> frozenset[int]:
        """The measurements that make their cause a failure."""
        return self.failing | self.lost


_SYMPTOMS = (
    *(DoubtReason.UNSTABLE, DoubtReason.WORST_SAMPLE, DoubtReason.ATTEMPTS_DIFFER),
    *(DoubtReason.PLACEMENT, DoubtReason.ROUTE, DoubtReason.TOO_FAST),
)
"""The doubts that show that something is wrong with the path, and so need an explanation."""


def shortfalls(run: RunReport) -> Shortfalls:
    """Return the measurements of a run with its doubts that need an explanation; of an interrupted one none waived."""
    numbered = list(enumerate(run.measurements))
    lost = frozenset(number for number, m in numbered if is_lost(m))
    failing = {number for number, m in numbered if m.status in BROKEN} - lost
    warned = {number for number, m in numbered if m.measured and is_degraded(m)}
    for judged in run.verdict.judged if run.verdict is not None else ():
        grades = {judgement.grade for judgement in judged.judgements}
        failing |= {judged.measurement} if Grade.FAIL in grades else set()
        warned |= {judged.measurement} if Grade.WARN in grades else set()
    for doubt in run.doubts:
        if doubt.effect is Effect.FAIL:
            failing.add(doubt.measurement)
        elif doubt.reason in _SYMPTOMS:
            warned.add(doubt.measurement)
    waived = frozenset(number for number, m in numbered if m.missed_path and not run.interrupted)
    return Shortfalls(frozenset(failing), frozenset(warned - failing), waived, lost)


# --- the causes of a run --------------------------------------------------------------------------------------------


def with_causes(
    report: RunReport,
    machine: Machine | None = None,
    *,
    asked: Collection[str] = (),
    numa: Collection[int] | None = None,
    short: Shortfalls | None = None,
) -> RunReport:
    """Return a run with the causes that explain it, ordered by severity, then by the number of measurements explained.

    Parameters
    ----------
    machine
        The live node, whose names the findings use; by default the run's own record of it, which has pseudonyms.
    asked
        Bus ids of the GPUs that the user named. It is a failure if one of them cannot be measured.
    numa
        NUMA nodes that the user named, or ``None``. It is a failure if the memory of one of them cannot be used.
    short
        The measurements to explain; by default all :func:`shortfalls` of the run.
    """
    short = shortfalls(report) if short is None else short
    scope = Scope(gpus=tuple(asked) or None, numa=None if numa is None else tuple(numa))
    result = [cause for node in nodes(report, machine) for cause in _node_causes(report, short, node, scope)]
    slow = {number for number in short.slow if Symptom.SLOW in _symptoms(report, short, number)}
    throttled = {number for cause in result if cause.finding.check == "gpu.throttle" for number in cause.measurements}
    for finding, numbers in during(report):
        # If the clocks were throttled before the run, doctor reports the cause.
        known = throttled if finding.check == THROTTLED else set()
        result.append(measurement_cause(finding, numbers & slow - known, short))
    result = _with_changes(report, result, list(_changed(report, short)))
    explaining = [cause for cause in result if cause.measurements]

    def place(cause: Cause) -> tuple[bool, int, int]:
        # What changed during the run comes first: the other causes may only be its effects.
        return cause.finding.check != CHANGED, list(Status).index(cause.status), -len(cause.measurements)

    order = sorted(explaining, key=place)
    return replace(report, causes=tuple(order))


def _changed(report: RunReport, short: Shortfalls) -> Iterator[Cause]:
    """Yield a cause for each change of a GPU during the run, with the measurements of it that fell short."""
    for change in report.changes:
        summary = f"changed during the run: {change.before} before, {change.after} after"
        place = Place(kind=PlaceKind.GPU, ids=(change.bus_id,), label=change.label)
        remedy = todo("Find out what changed it, then measure again.", look="egmctl doctor")
        if change.kind is ChangeKind.ACCESS:
            finding = warned(summary, remedy, place, check=CHANGED)
        else:
            finding = failed(summary, remedy, place, check=CHANGED)
        touching = {
            number
            for number in short.slow | short.lost | short.waived
            for flow in report.measurements[number].flows
            if change.bus_id in (flow.initiator, flow.source.bus_id, flow.destination.bus_id)
        }
        yield measurement_cause(finding, touching, short)


def _with_changes(report: RunReport, causes: Sequence[Cause], changed: Sequence[Cause]) -> list[Cause]:
    """Return all causes, each only once.

    A GPU that was taken away during the run explains what doctor says of access to it afterwards, and that CUDA does
    not see other GPUs: a worker that starts after the change may see none, because CUDA ignores what follows an
    unusable GPU in CUDA_VISIBLE_DEVICES (seen on 2 x H200). A GPU that the user named keeps its own cause, a failure.
    """
    taken = {change.bus_id for change in report.changes if change.kind in (ChangeKind.ACCESS, ChangeKind.LOST)}
    place = next((number for number, cause in enumerate(changed) if taken.issuperset(cause.finding.place.ids)), None)
    if not taken or place is None:
        return [*causes, *changed]

    def is_effect(cause: Cause) -> bool:
        gpus = cause.finding.place.gpus
        of_access = cause.finding.check.startswith("dev.") and bool(gpus) and taken.issuperset(gpus or ())
        return not cause.asked and (of_access or cause.finding.check == UNUSABLE)

    effects = [cause for cause in causes if is_effect(cause)]
    numbers = {number for cause in (changed[place], *effects) for number in cause.measurements}
    checks = (cause.finding.check for cause in effects)
    effect_checks = tuple(dict.fromkeys((*changed[place].finding.explains, *checks)))
    first = replace(
        changed[place],
        finding=replace(changed[place].finding, explains=effect_checks),
        measurements=tuple(sorted(numbers)),
    )
    others = [cause for cause in causes if cause not in effects]
    return [*others, *(first if number == place else cause for number, cause in enumerate(changed))]


def measurement_cause(
    finding: Finding, numbers: Collection[int], short: Shortfalls, node: str = "", asked: str = ""
) -> Cause:
    """Return a cause of measurements; it is a failure if it broke one of them or if the user ``asked`` for its GPUs.

    What others do on a GPU or the host proves nothing about the node, so it is no failure.
    """
    proves = finding.check not in (IN_USE, *EXCUSES) and (asked or short.broken.intersection(numbers))
    status = Status.FAIL if proves else finding.status
    return Cause(status=status, finding=finding, node=node, asked=asked, measurements=tuple(sorted(numbers)))


def explained_by(cause: RootCause, run: RunReport, short: Shortfalls) -> frozenset[int]:
    """Return the measurements of a run on one node that a root cause of doctor explains."""
    return frozenset(t.number for node in nodes(run)[:1] for t in _explained(cause, _troubles(run, short, node), node))


def _explained(cause: RootCause, troubles: Iterable[Trouble], node: RunNode) -> list[Trouble]:
    """Return the troubles that a root cause, or a finding that follows from it, explains."""
    # Imported late: most runs have nothing to explain.
    from egmctl.doctor.causes import explains

    # Only findings with status fail, warn or note explain a path. A finding that something is unknown does not.
    faults = [finding for finding in (cause.finding, *cause.explains) if finding.status in TOLD]
    return [trouble for trouble in troubles if any(explains(node, fault, trouble) for fault in faults)]


def _node_causes(report: RunReport, short: Shortfalls, node: RunNode, scope: Scope) -> Iterator[Cause]:
    """Yield the causes on one node: doctor's, then one for the GPUs left out for reasons that no check knows."""
    troubles = list(_troubles(report, short, node))
    if not troubles:
        return
    # Imported late: most runs have nothing to explain.
    from egmctl.doctor.runner import CHECKS, diagnose

    gpus = node.machine.gpus or ()
    explaining = [
        (cause.finding, _explained(cause, troubles, node))
        for cause in root_causes(diagnose(node.machine, scope, CHECKS).findings)
    ]
    known = {trouble for _, explained in explaining for trouble in explained}
    for kind in OF_GPUS:
        left = [trouble for trouble in troubles if trouble.kind is kind and trouble not in known]
        if excluded := [gpu for gpu in gpus if gpu.bus_id in _left_out_ids(left)]:
            explaining.append((left_out_finding(node.machine, excluded, kind), left))
    for finding, explained in explaining:
        requested = [gpu for gpu in gpus if gpu.bus_id in _left_out_ids(explained).intersection(scope.gpus or ())]
        asked = on_gpus(requested).label if requested else ""
        yield measurement_cause(finding, {trouble.number for trouble in explained}, short, node.name, asked)


def _left_out_ids(troubles: Iterable[Trouble]) -> frozenset[str]:
    """Return the bus ids of the GPUs that were left out."""
    waivers = [trouble.waiver for trouble in troubles if trouble.kind in OF_GPUS]
    return frozenset(bus_id for waiver in waivers if waiver is not None for bus_id in waiver.gpus)


def nodes(report: RunReport, machine: Machine | None = None) -> tuple[RunNode, ...]:
    """Return the nodes of a run, or none if the host of its ranks is unknown."""
    machines = report.machines
    if len(machines) == 1:
        return (RunNode(machine or machines[0]),)
    names = node_names(rank.host for rank in report.ranks)
    if len(names) != len(machines):
        return ()
    ranks_by_host = {host: frozenset(rank.number for rank in report.ranks if rank.host == host) for host in names}
    return tuple(RunNode(m, name, ranks_by_host[host]) for m, (host, name) in zip(machines, names.items(), strict=True))


# --- symptoms of each measurement ------------------------------------------------------------------------------------


def _troubles(report: RunReport, short: Shortfalls, node: RunNode) -> Iterator[Trouble]:
    """Yield every trouble of a run's measurements on a node."""
    for number in sorted(short.slow | short.lost):
        for symptom in _symptoms(report, short, number):
            yield Trouble(number, symptom, report.measurements[number])
    attempted = {number: m for number, m in enumerate(report.measurements) if m.status is not MeasurementStatus.WAIVED}
    if nvml_failure(node.machine) is not None and all(gpu.nvml is None for gpu in node.machine.gpus or ()):
        for number, measurement in attempted.items():
            if any(hop.link is LinkKind.UNKNOWN for flow in measurement.flows for hop in flow.route.hops):
                yield Trouble(number, Symptom.BLIND, measurement)
    # Skipped if nothing was waived: a run may have thousands of flows.
    attempts = attempted.values() if short.waived else ()
    measured = {bus_id for measurement in attempts for bus_id in _bus_ids(measurement, node)}
    for number in sorted(short.waived):
        measurement = _as_planned(report.measurements[number], node, measured)
        for waiver in measurement.waivers:
            # A waiver of a whole path names no rank.
            if waiver.rank is None or node.has(waiver.rank):
                yield Trouble(number, waiver.kind, measurement, waiver)


def _symptoms(report: RunReport, short: Shortfalls, number: int) -> Iterator[Symptom]:
    """Yield the symptoms of a measurement that was tried."""
    measurement = report.measurements[number]
    degraded = is_degraded(measurement)
    if measurement.status is MeasurementStatus.CORRUPT:
        yield Symptom.CORRUPT
    elif not measurement.measured:
        yield Symptom.LOST if number in short.lost else Symptom.FAILED
    elif degraded:
        yield Symptom.DEGRADED
    # A measurement without EGM has no reference. Only a comparison with another run can find that it is slow.
    if measurement.measured and (number in short.failing or not degraded):
        yield Symptom.SLOW


def _bus_ids(measurement: Measurement, node: RunNode) -> set[str]:
    return {bus_id for flow in measurement.flows for bus_id in node.bus_ids(flow)}


def _as_planned(measurement: Measurement, node: RunNode, measured: Collection[str]) -> Measurement:
    """Return a measurement that was not made as planned with its planned routes and complete waivers.

    A staged copy counts as a path without peer access. A worker that finds a GPU missing does not report which GPU it
    is: the waiver names those GPUs of the path of which nothing was measured.
    """
    ends = _bus_ids(measurement, node)
    missing = tuple(sorted(ends.difference(measured) or ends))
    waivers = [
        replace(waiver, gpus=missing) if waiver.kind in OF_GPUS and not waiver.gpus else waiver
        for waiver in measurement.waivers
    ]
    flows = list(measurement.flows)
    for index, flow in enumerate(flows):
        if reason := flow.route.staged_reason:
            gpus = tuple(sorted(node.bus_ids(flow)))
            waivers.append(Waiver(kind=WaiverKind.NO_PEER_ACCESS, reason=reason, gpus=gpus))
            flows[index] = replace(flow, route=Route(carrier=Carrier.NONE))
    return replace(measurement, waivers=tuple(waivers), flows=tuple(flows))


# --- findings of the run itself --------------------------------------------------------------------------------------

IN_USE, UNUSABLE, HIDDEN = "bench.gpu-in-use", "bench.gpu-unusable", "bench.gpu-hidden"
"""Check ids of findings on GPUs that are in use by others, that cannot be used, or that CUDA_VISIBLE_DEVICES hides."""
OTHER_LINK = "bench.other-link"
HOST_BUSY, WEAK_MEMORY = "bench.host-busy", "bench.weak-memory"
OTHER_NODE, CHANGED = "bench.other-node", "bench.changed"
EXCUSES = (OTHERS, HOST_BUSY, CHANGED)
"""The findings with which a slow path is no failure: others used its GPUs or the host while it was measured, or took
the GPU away (:class:`egmctl.model.doubt.Effect`, ``low``)."""
_LIMITED_BY_MEMORY = 0.75
"""Paths below this part of what a node's own CPUs reach are slow for another reason. Chosen: copies to the CPU of a
healthy GH200 480GB reach 295 GB/s (its profile), 0.85 of the 348 of its CPUs (:func:`egmctl.facts.host.cpus_of`)."""


def left_out_finding(machine: Machine, gpus: Sequence[Gpu], kind: WaiverKind) -> Finding:
    """Return the finding on GPUs that were not measured for a reason that no check of doctor knows.

    Parameters
    ----------
    kind
        One of :data:`egmctl.model.finding.OF_GPUS`, as the run recorded it.
    """
    if kind is WaiverKind.GPU_HIDDEN:
        remedy = todo("Unset CUDA_VISIBLE_DEVICES, or leave these GPUs out with --gpus.")
        return noted("hidden by CUDA_VISIBLE_DEVICES", gpus, check=HIDDEN, remedy=remedy)
    if kind is not WaiverKind.GPU_BUSY:
        reasons = "; ".join(dict.fromkeys(gpu_obstacle(machine, gpu) or "CUDA does not see it" for gpu in gpus))
        return noted(reasons, gpus, check=UNUSABLE, remedy=todo("See what stops them with 'egmctl doctor --active'."))
    uses = [use for gpu in gpus if (use := gpu_use(gpu)) is not None]
    pids = tuple(sorted({pid for use in uses for pid in use.pids}))
    users = [f"in use by process {shortened(pids, PIDS_SHOWN)}"] if pids else []
    evidence = [
        fact(f"nvmlDeviceGetComputeRunningProcesses(GPU{use.gpu.index})", f"process {', '.join(map(str, use.pids))}")
        if use.pids
        else fact(f"nvmlDeviceGetMemoryInfo(GPU{use.gpu.index})", f"{format_size(use.used_bytes)} used")
        for use in uses
    ]
    remedy = todo(
        "Wait until they are idle, or measure beside them with 'egmctl bench --allow-busy'.",
        look=_processes(pids) if pids else "nvidia-smi",
    )
    summary = "; ".join([*users, *(str(use) for use in uses if not use.pids)]) or "in use by others"
    return noted(summary, gpus, check=IN_USE, evidence=tuple(evidence), remedy=remedy)


def _processes(pids: Iterable[int]) -> str:
    """Return the command that shows some processes."""
    return f"ps -o pid,user,etime,args -p {','.join(map(str, pids))}"


def during(report: RunReport) -> Iterator[tuple[Finding, set[int]]]:
    """Yield findings on GPUs, links and host during the run, with the indices of the measurements that each affects."""
    for check in (OTHERS, THROTTLED):
        yield from _gpu_findings(report, check)
    if (finding := _host_busy(report.host_load)) is not None:
        yield finding, {number for number, m in enumerate(report.measurements) if all(map(numa_nodes, m.flows))}
    else:
        yield from _weak_memory(report)
    by_reason = grouped((doubt.reason, doubt) for doubt in report.doubts)
    displaced = by_reason.get(DoubtReason.PLACEMENT, [])
    for detail, numbers in grouped((doubt.detail, doubt.measurement) for doubt in displaced).items():
        text = "See what places memory elsewhere: cpusets, memory policies, and the free memory of the node."
        remedy = todo(text, look="numastat -m")
        finding = warned("memory is not on the requested NUMA node", remedy, check=OTHER_NODE)
        yield replace(finding, evidence=(fact("placement", detail),)), set(numbers)
    rerouted = by_reason.get(DoubtReason.ROUTE, [])
    by_cpu = {doubt.measurement for doubt in rerouted if _is_left_to_the_cpu(report.measurements[doubt.measurement])}
    if by_cpu:
        text = (
            "Measure a GPU's path between host memory with kernels: egmctl bench --case 'host_numa_to_host_numa_*_sm'."
        )
        finding = noted(
            "PCIe carried too little: the driver probably let the CPU copy between host memory",
            check=OTHER_LINK,
            remedy=todo(text),
        )
        yield finding, by_cpu
    others = [doubt for doubt in rerouted if doubt.measurement not in by_cpu]
    for link, numbers in grouped((doubt.detail, doubt.measurement) for doubt in others).items():
        remedy = todo("See which links are up, and what keeps peers apart, with 'egmctl doctor'.")
        summary = f"the bytes did not go over {link}, by the counters of the links"
        finding = warned(summary, remedy, check=OTHER_LINK)
        yield finding, set(numbers)


def _is_left_to_the_cpu(measurement: Measurement) -> bool:
    """Return whether the driver's own copy between host memory may be made by the CPU: seen on two H200 with PCIe."""
    route = measurement.evidence.route if measurement.evidence is not None else None
    if route is None or route.link is not LinkKind.PCIE or measurement.engine is not Engine.COPY_ENGINE:
        return False
    return all(end.memory in HOST_MEMORY for flow in measurement.flows for end in (flow.source, flow.destination))


def _weak_memory(report: RunReport) -> Iterator[tuple[Finding, set[int]]]:
    """Yield a finding for each NUMA node whose own CPUs find its memory slow, so that no link is blamed."""
    slow: dict[int, tuple[Measurement, Judgement]] = {}
    for judged in report.verdict.judged if report.verdict is not None else ():
        measurement = report.measurements[judged.measurement]
        below = next((judgement for judgement in judged.judgements if judgement.grade in BAD_GRADES), None)
        if measurement.engine is Engine.CPU_TRIAD and below is not None:
            for node in numa_nodes(measurement.flows[0]):
                slow.setdefault(node, (measurement, below))
    for node, (triad, below) in slow.items():
        # A profile may have a fault threshold only.
        threshold = below.warn or below.fail or 0
        finding = warned(
            f"memory is slow: its own CPUs reach {below.value:.0f} GB/s, not {threshold:.0f}",
            todo("See what else uses it, then CPU power limits and memory errors.", look="numastat -m"),
            on_numa([node]),
            check=WEAK_MEMORY,
            evidence=(fact(triad.name, f"{below.value:.1f} GB/s; {below.source}"),),
        )
        least = _LIMITED_BY_MEMORY * below.value
        # A latency is in nanoseconds, and says nothing of the memory's bandwidth.
        bandwidths = {n: m for n, m in enumerate(report.measurements) if m.quantity is Quantity.BANDWIDTH}
        using = {n: m for n, m in bandwidths.items() if any(node in numa_nodes(flow) for flow in m.flows)}
        yield finding, {n for n, m in using.items() if (value_of(m) or 0) >= least}


def _host_busy(load: HostLoad | None) -> Finding | None:
    """Return the finding that other processes kept the host's CPUs, and so its memory, busy; ``None`` otherwise."""
    if load is None or not host_busy(load):
        return None
    cpu_s, average = load.others_cpu_s, load.load_average
    return warned(
        f"the host was busy: other processes used {cpu_s / load.wall_s:.0f} of {load.cpus} CPUs",
        todo(
            "Measure again when the host is idle.",
            look="ps -e -o pid,user,pcpu,etime,comm --sort=-pcpu | head",
        ),
        check=HOST_BUSY,
        evidence=(
            fact("/proc/stat", f"{cpu_s:.1f} CPU-seconds of others in {load.wall_s:.1f} s"),
            fact("/proc/loadavg", f"{average:.2f}"),
        ),
    )


def _gpu_findings(report: RunReport, check: str) -> Iterator[tuple[Finding, set[int]]]:
    """Yield a check's findings on GPUs during the run; GPUs that showed the same share a finding."""
    by_sentence: dict[str, list[tuple[int, GpuEvidence]]] = defaultdict(list)
    for number, measurement in enumerate(report.measurements):
        for gpu in measurement.evidence.gpus if measurement.evidence is not None else ():
            if (sentence := gpu_sentence(check, gpu)) is not None:
                by_sentence[sentence].append((number, gpu))
    for sentence, affected in by_sentence.items():
        if check == OTHERS:
            pids = affected[-1][1].other_processes or ()
            remedy = todo("Measure again when the GPUs are idle.", look=_processes(pids))
        else:
            text = "Check fans, coolant and power supplies, then measure again."
            remedy = todo(text, look="nvidia-smi -q -d PERFORMANCE,TEMPERATURE")
        # GPUs are told apart by label: nodes of one run may have GPUs with the same bus ids.
        labels = dict.fromkeys(gpu.label for _, gpu in affected)
        indices = [label.removeprefix("GPU") for label in labels]
        label = ", ".join(labels)
        if all(map(str.isdecimal, indices)):
            label = f"GPU{format_kernel_list(set(map(int, indices)))}"
        place = Place(kind=PlaceKind.GPU, ids=tuple(dict.fromkeys(gpu.bus_id for _, gpu in affected)), label=label)
        finding = warned(sentence, remedy, place, check=check)
        yield finding, {number for number, _ in affected}


def gpu_sentence(check: str, gpu: GpuEvidence) -> str | None:
    """Return the finding's sentence on a GPU, or ``None`` if the GPU showed nothing of the kind.

    Parameters
    ----------
    check
        :data:`OTHERS` or :data:`THROTTLED`.
    """
    if check == OTHERS:
        pids = shortened(gpu.other_processes or (), PIDS_SHOWN)
        return f"in use by process {pids} while measured" if pids else None
    slow = slowdowns(gpu)
    return f"clocks throttled while measured: {'; '.join(slow)}" if slow else None


def sections(cases: Sequence[Case]) -> tuple[str, ...]:
    """Return the sections of a machine that a plan of these cases and its explanation need."""
    return (*SECTIONS, "nics", "system") if any(case.engine in UCX_ENGINES for case in cases) else SECTIONS


def with_ucx_notes(report: RunReport) -> RunReport:
    """Return a report with a note for each finding of doctor that may explain the route that UCX selected.

    No notes are added if GPUDirect RDMA was used for every path with GPU memory.
    """
    report = replace(report, measurements=tuple(_with_distances(m, report) for m in report.measurements))
    gpu_paths = [
        m.ucx
        for m in report.measurements
        if m.ucx is not None
        and MemoryKind.DEVICE in (m.flows[0].source.memory, m.flows[0].destination.memory)
        and m.ucx.route is not UcxRoute.GPUDIRECT_RDMA
    ]
    if not gpu_paths:
        return report
    notes = [line for machine in report.machines for line in _findings(machine)]
    components = gpu_paths[0].components
    if "ib" not in components:
        notes.append(
            f"UCX {gpu_paths[0].version} found no InfiniBand transport (only {', '.join(components)}): it needs a NIC "
            "and a UCX build with InfiniBand. The libucx wheels have none; RAPIDS_LIBUCX_PREFER_SYSTEM_LIBRARY=1 "
            "makes ucxx use the system's UCX"
        )
    return replace(report, notes=(*report.notes, *dict.fromkeys(notes)))


def _with_distances(measurement: Measurement, report: RunReport) -> Measurement:
    """Return a measurement with the distance from the sender's GPU added to each of its network devices."""
    ucx, sender = measurement.ucx, measurement.flows[0].initiator
    ends = [(machine, gpu) for machine in report.machines for gpu in machine.gpus or () if gpu.bus_id == sender]
    if ucx is None or not ucx.devices or not ends:
        return measurement
    machine, gpu = ends[0]
    distances = {nic.name: device_link(machine, gpu, nic).kind.value for nic in machine.nics or ()}
    devices = (replace(device, distance=distances.get(device.name.partition(":")[0])) for device in ucx.devices)
    return replace(measurement, ucx=replace(ucx, devices=tuple(devices)))


def _findings(machine: Machine) -> Iterator[str]:
    # Imported late: most runs have nothing to explain.
    from egmctl.doctor.runner import CHECKS, diagnose

    checks = [check for check in CHECKS if check.id.startswith(("rdma.", "pcie.")) and Guard.RDMA in check.guards]
    findings = diagnose(machine, Scope(purposes=(Guard.RDMA,)), checks).findings
    bad = [finding for finding in findings if finding.status in (Status.FAIL, Status.WARN, Status.UNKNOWN)]
    for text, ids in grouped((f"{finding.status}: {finding.summary}", finding.check) for finding in bad).items():
        names = dict.fromkeys(ids)
        noun = "checks" if len(names) > 1 else "check"
        yield f"doctor's {noun} {', '.join(names)}: {text}"
