"""Which causes explain that paths of a run are slow, broken or not measured: doctor's, and what the run saw. Pure."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

from egmctl.bench.plan.flows import Use, in_use, listed
from egmctl.bench.plan.paths import gpu_obstacle
from egmctl.compat import StrEnum
from egmctl.doctor.causes import Rule, rules_from
from egmctl.doctor.check import Scope
from egmctl.doctor.checks.gpu import SLOWDOWNS
from egmctl.doctor.checks.kernel_log import xids_of
from egmctl.doctor.checks.nvlink import has_errors
from egmctl.doctor.kernel_faults import C2C_XIDS, Blame, meaning
from egmctl.model.finding import (
    NODE,
    OF_GPUS,
    TOLD,
    Cause,
    Evidence,
    Finding,
    Place,
    PlaceKind,
    Remedy,
    RunCause,
    Status,
    Waiver,
    WaiverKind,
    causes,
    on_gpus,
)
from egmctl.model.kernel_log import KernelEvent
from egmctl.model.machine import Gpu, Machine
from egmctl.model.measurement import (
    BROKEN,
    Endpoint,
    Flow,
    GpuEvidence,
    HandleKind,
    HostLoad,
    Measurement,
    RunReport,
    Verdict,
)
from egmctl.model.measurement import Status as MeasurementStatus
from egmctl.model.route import NUMA_MEMORY, Carrier, LinkKind, MemoryKind, Route
from egmctl.model.ucx import node_names
from egmctl.model.verdict import Grade
from egmctl.topology.access import nvml_failure
from egmctl.topology.links import Link, gpu_link, nvlink_joins, nvlinks_between
from egmctl.topology.routes import owners
from egmctl.units import format_kernel_list, format_size
from egmctl.verdict.yardsticks import is_degraded, is_lost

SECTIONS = ("switches", "confinement", "system")
"""The facts that causes are found in, besides those that a plan is made from."""


@dataclass(frozen=True, slots=True)
class Shortfalls:
    """The measurements of a run that need an explanation, by their places in it."""

    failing: frozenset[int] = frozenset()
    """Too slow, or broken by a known cause."""
    warned: frozenset[int] = frozenset()
    """A little slow, or without EGM where its route is blocked."""
    waived: frozenset[int] = frozenset()
    """Not made on the planned path."""
    lost: frozenset[int] = frozenset()
    """Crashed, hung, or failed for no cause that the failing call names."""

    @property
    def slow(self) -> frozenset[int]:
        """All that were measured and are not as they should be."""
        return self.failing | self.warned

    @property
    def broken(self) -> frozenset[int]:
        """All that make their cause a failure."""
        return self.failing | self.lost


class Symptom(StrEnum):
    """How a measurement that was tried went wrong."""

    SLOW = "slow"
    DEGRADED = "degraded"
    """It went without EGM, whose route is blocked."""
    CORRUPT = "corrupt"
    FAILED = "failed"
    """A driver call failed."""
    LOST = "lost"
    """It crashed, hung, or failed for no cause that the call names."""


@dataclass(frozen=True, slots=True, eq=False)
class Trouble:
    """One symptom of a measurement, or one reason why it was not made."""

    number: int
    """The measurement's place in the run."""
    kind: Symptom | WaiverKind
    measurement: Measurement
    """As it was planned."""
    waiver: Waiver | None = None


def with_causes(
    report: RunReport,
    machine: Machine | None = None,
    *,
    asked: Collection[str] = (),
    numa: Collection[int] | None = None,
) -> RunReport:
    """Return a run with the causes that explain it (``RunReport.causes``).

    Parameters
    ----------
    machine
        The live node, whose findings name things as they are called there; by default the run's own record of it, which
        has pseudonyms.
    asked
        Bus ids of the GPUs that the user named: that one cannot be measured is a fault then.
    numa
        NUMA nodes that the user named: that one's memory may not be used is a fault then; ``None``: none were.
    """
    return replace(report, causes=run_causes(report, shortfalls(report), machine, asked=asked, numa=numa))


def run_causes(
    report: RunReport,
    short: Shortfalls,
    machine: Machine | None = None,
    *,
    asked: Collection[str] = (),
    numa: Collection[int] | None = None,
) -> tuple[RunCause, ...]:
    """Return the causes of shortfalls, the gravest first; of equally grave ones those that explain most."""
    scope = Scope(gpus=tuple(asked) or None, numa=None if numa is None else tuple(numa))
    explanations = [cause for node in nodes(report, machine) for cause in _on_node(report, short, node, scope)]
    slow = frozenset(number for number in short.slow if Symptom.SLOW in _symptoms(report, short, number))
    throttled = {n for cause in explanations if cause.finding.check == "gpu.throttle" for n in cause.numbers}
    for seen in during(report):
        numbers = seen.measurements & slow
        numbers = numbers - throttled if seen.finding.check == THROTTLED else numbers
        explanations.append(_Explanation(seen.finding, numbers))
    gpus = {gpu.bus_id: gpu for machine in report.machines for gpu in machine.gpus or ()}
    named = [gpus[bus_id] for bus_id in gpus if bus_id in asked]
    result = [_run_cause(explanation, short, named) for explanation in explanations if explanation.numbers]
    return tuple(sorted(result, key=lambda cause: (list(Status).index(cause.status), -len(cause.explains))))


@dataclass(frozen=True, slots=True)
class _Explanation:
    """A finding on a node, and the measurements that it explains."""

    finding: Finding
    numbers: frozenset[int]
    node: str = ""
    waivers: tuple[Waiver, ...] = ()
    """The reasons that it explains why some were not made."""


def _run_cause(explanation: _Explanation, short: Shortfalls, asked: Iterable[Gpu]) -> RunCause:
    taken = {bus_id for waiver in explanation.waivers if waiver.kind in OF_GPUS for bus_id in waiver.gpus}
    named = [gpu for gpu in asked if gpu.bus_id in taken]
    return RunCause(
        status=Status.FAIL if named or explanation.numbers & short.broken else explanation.finding.status,
        finding=explanation.finding,
        node=explanation.node,
        asked=on_gpus(named).label if named else "",
        explains=tuple(sorted(explanation.numbers)),
    )


def shortfalls(run: RunReport) -> Shortfalls:
    """Return the measurements of a run that need an explanation; after an interruption those that were made."""
    failing = {number for number, m in enumerate(run.measurements) if m.status in BROKEN and not is_lost(m)}
    warned = {number for number, m in enumerate(run.measurements) if m.measured and is_degraded(m)}
    for judged in run.verdict.judged if run.verdict is not None else ():
        grades = {judgement.grade for judgement in judged.judgements}
        if Grade.FAIL in grades:
            failing.add(judged.measurement)
        elif Grade.WARN in grades:
            warned.add(judged.measurement)
    waived = () if run.interrupted else (n for n, m in enumerate(run.measurements) if m.missed_path)
    lost = (n for n, m in enumerate(run.measurements) if is_lost(m))
    return Shortfalls(frozenset(failing), frozenset(warned - failing), frozenset(waived), frozenset(lost))


def explained_by(cause: Cause, run: RunReport, short: Shortfalls) -> frozenset[int]:
    """Return the shortfalls of a run on one node that a root cause of doctor's explains."""
    return frozenset(
        trouble.number
        for node in nodes(run)[:1]
        for trouble in _explained(cause, tuple(_troubles(run, short, node)), node)
    )


def _on_node(report: RunReport, short: Shortfalls, node: RunNode, scope: Scope) -> Iterator[_Explanation]:
    """Yield what explains shortfalls on one node: doctor's causes, then what no check knows of the GPUs left out."""
    # NVML failed as a whole: then nobody knows the links.
    blind = nvml_failure(node.machine) is not None and all(gpu.nvml is None for gpu in node.machine.gpus or ())
    if not (short.slow | short.waived | short.lost or blind):
        return
    # All checks: only where there is something to explain.
    from egmctl.doctor.runner import CHECKS, diagnose

    troubles = tuple(_troubles(report, short, node))
    known: set[Trouble] = set()
    for cause in causes(diagnose(node.machine, scope, CHECKS).findings):
        explained = _explained(cause, troubles, node)
        known.update(explained)
        numbers = {trouble.number for trouble in explained}
        if blind and "drv.libraries" in (cause.finding.check, *cause.finding.explains):
            numbers |= _over_unknown_links(report, node)
        waivers = tuple(trouble.waiver for trouble in explained if trouble.waiver is not None)
        yield _Explanation(cause.finding, frozenset(numbers), node.name, waivers)
    yield from _left_out_of(node, [trouble for trouble in troubles if trouble not in known])


def _left_out_of(node: RunNode, troubles: Iterable[Trouble]) -> Iterator[_Explanation]:
    """Yield who uses the GPUs that were not measured, who hides them, or what else a run recorded of them."""
    stopped: dict[WaiverKind, list[tuple[int, Waiver]]] = defaultdict(list)
    for trouble in troubles:
        waiver = trouble.waiver
        if waiver is not None and waiver.kind in OF_GPUS and waiver.gpus and node.has(waiver.rank):
            stopped[waiver.kind].append((trouble.number, waiver))
    for kind, pairs in stopped.items():
        ids = {bus_id for _, waiver in pairs for bus_id in waiver.gpus}
        gpus = [gpu for gpu in node.machine.gpus or () if gpu.bus_id in ids]
        if gpus:
            numbers = frozenset(number for number, _ in pairs)
            waivers = tuple(waiver for _, waiver in pairs)
            yield _Explanation(left_out(node.machine, gpus, kind), numbers, node.name, waivers)


def _over_unknown_links(report: RunReport, node: RunNode) -> set[int]:
    """Return the measurements that were tried over links that nobody knows, however they ended."""
    return {
        number
        for number, measurement in enumerate(report.measurements)
        if measurement.status is not MeasurementStatus.WAIVED
        and any(hop.link is LinkKind.UNKNOWN and node.gpus(f) for f in measurement.flows for hop in f.route.hops)
    }


def _explained(cause: Cause, troubles: Iterable[Trouble], node: RunNode) -> list[Trouble]:
    """Return the troubles that a root cause, or a finding that follows from it, explains."""
    # That something could not be determined makes nothing slow, whatever it follows from.
    faults = [finding for finding in (cause.finding, *cause.explains) if finding.status in TOLD]
    rules = [
        (finding, rule)
        for finding in faults
        for rule in rules_from(RULES, finding.check)
        if rule.given is None or rule.given(node, finding)
    ]
    return [
        trouble
        for trouble in troubles
        if any(trouble.kind in rule.effects and rule.holds(node, finding, trouble) for finding, rule in rules)
    ]


def _troubles(report: RunReport, short: Shortfalls, node: RunNode) -> Iterator[Trouble]:
    """Yield everything that is wrong with a run's measurements on a node."""
    for number in sorted(short.slow | short.lost):
        for symptom in _symptoms(report, short, number):
            yield Trouble(number, symptom, report.measurements[number])
    if not short.waived:
        return
    tried = {gpu for m in report.measurements if m.status is not MeasurementStatus.WAIVED for gpu in _gpus_of(m, node)}
    for number in sorted(short.waived):
        measurement = _as_planned(report.measurements[number], node, tried)
        for waiver in measurement.waivers:
            # A waiver of a path names no rank.
            if waiver.rank is None or node.has(waiver.rank):
                yield Trouble(number, waiver.kind, measurement, waiver)


def _symptoms(report: RunReport, short: Shortfalls, number: int) -> Iterator[Symptom]:
    """Yield what is wrong with a measurement that was tried."""
    measurement = report.measurements[number]
    degraded = is_degraded(measurement)
    if measurement.status is MeasurementStatus.CORRUPT:
        yield Symptom.CORRUPT
    elif not measurement.measured:
        yield Symptom.LOST if number in short.lost else Symptom.FAILED
    elif degraded:
        yield Symptom.DEGRADED
    # What went without EGM has no reference: it is slow only by comparison with another run.
    if measurement.measured and (number in short.failing or not degraded):
        yield Symptom.SLOW


def _gpus_of(measurement: Measurement, node: RunNode) -> set[str]:
    return {gpu for flow in measurement.flows for gpu in node.gpus(flow)}


def _as_planned(measurement: Measurement, node: RunNode, tried: Collection[str]) -> Measurement:
    """Return a measurement that was not made as planned with its planned routes, waived with the reason.

    Copies that were staged are a path that was refused; a worker that finds a GPU missing does not say which of a path:
    it is the one of which nothing was measured.
    """
    ends = _gpus_of(measurement, node)
    missing = tuple(sorted(ends.difference(tried) or ends))
    waivers = [
        replace(waiver, gpus=missing) if waiver.kind in OF_GPUS and not waiver.gpus else waiver
        for waiver in measurement.waivers
    ]
    flows = list(measurement.flows)
    for place, flow in enumerate(flows):
        if reason := flow.route.staged_reason:
            gpus = tuple(sorted(node.gpus(flow)))
            waivers.append(Waiver(kind=WaiverKind.NO_PEER_ACCESS, reason=reason, gpus=gpus))
            flows[place] = replace(flow, route=Route(carrier=Carrier.NONE))
    return replace(measurement, waivers=tuple(waivers), flows=tuple(flows))


@dataclass(frozen=True, slots=True)
class RunNode:
    """One node of a run, and which of its processes are there."""

    machine: Machine
    name: str = ""
    """As labels of the run begin, ``node1``; empty in a run on one."""
    ranks: frozenset[int] | None = None
    """``None``: all."""

    def has(self, rank: int | None) -> bool:
        """Say whether a process is on this node; ``None`` is the one of a run without ranks."""
        return self.ranks is None or rank in self.ranks

    def gpus(self, flow: Flow) -> set[str]:
        """Return the bus ids of the GPUs of this node that take part in a flow."""
        ends = {end.bus_id for end in (flow.source, flow.destination) if self.has(end.rank)}
        issuer = {flow.initiator} if self.has(flow.initiator_rank) else set()
        return {bus_id for bus_id in ends | issuer if bus_id is not None}


def nodes(report: RunReport, machine: Machine | None = None) -> tuple[RunNode, ...]:
    """Return the nodes of a run; none where it is not known which process was on which."""
    machines = report.machines
    if len(machines) == 1:
        return (RunNode(machine or machines[0]),)
    names = node_names(rank.host for rank in report.ranks)
    if len(names) != len(machines):
        return ()
    by_host = {host: frozenset(rank.number for rank in report.ranks if rank.host == host) for host in names}
    return tuple(RunNode(m, name, by_host[host]) for m, (host, name) in zip(machines, names.items(), strict=True))


# --- which paths a fault is on ---------------------------------------------------------------------------------------

Holds = Callable[["RunNode", Finding, Trouble], bool]
"""Whether, on a node, a finding explains a trouble."""


def on(
    crosses: Callable[[Flow], bool] | None = None,
    *,
    where: Callable[[Flow, RunNode], bool] | None = None,
    whole_node: bool = False,
    of_links: bool = False,
) -> Holds:
    """Return whether a fault is on the way of one of a measurement's flows.

    Parameters
    ----------
    crosses
        What such a flow has to cross; by default nothing, the place decides.
    where
        What has to hold of its GPUs as well.
    whole_node
        All GPUs of the node have the fault, whichever one it was seen on.
    of_links
        The fault counts also at the GPU whose links a flow takes on its way: the owner of EGM memory.
    """

    def holds(node: RunNode, cause: Finding, trouble: Trouble) -> bool:
        place, waiver = cause.place, trouble.waiver
        if waiver is not None and waiver.kind in OF_GPUS and waiver.gpus:
            same = whole_node or place.kind is not PlaceKind.GPU or not set(place.ids).isdisjoint(waiver.gpus)
            return same and bool(_gpus_of(trouble.measurement, node))
        return any(
            (crosses is None or crosses(flow))
            and (where is None or where(flow, node))
            and (touches(NODE if whole_node else place, flow, node) or (of_links and leads_through(place, flow, node)))
            for flow in trouble.measurement.flows
        )

    return holds


def touches(place: Place, flow: Flow, node: RunNode) -> bool:
    """Say whether a flow has an end at a place of a node."""
    ends = [end for end in (flow.source, flow.destination) if node.has(end.rank)]
    match place.kind:
        case PlaceKind.NODE:
            return bool(ends) or node.has(flow.initiator_rank)
        case PlaceKind.GPU:
            return not node.gpus(flow).isdisjoint(place.ids)
        case PlaceKind.PAIR:
            return bool(_pairs(ends) & set(place.ids))
        case PlaceKind.NUMA:
            return any(str(end.numa_node) in place.ids for end in ends if end.numa_node is not None)
        case PlaceKind.NIC:
            return False


def _pairs(ends: Iterable[Endpoint]) -> set[str]:
    """Return two GPUs in both orders, as places of pairs name them."""
    ids = [end.bus_id for end in ends if end.bus_id is not None]
    return {">".join(ids), ">".join(ids[::-1])} if len(ids) == 2 else set()


def between_gpus(flow: Flow) -> bool:
    """Say whether both ends are the memory of GPUs, of two."""
    return None not in (flow.source.bus_id, flow.destination.bus_id) and (
        (flow.source.bus_id, flow.source.rank) != (flow.destination.bus_id, flow.destination.rank)
    )


def host_memory(flow: Flow) -> bool:
    """Say whether an end is host memory of any kind."""
    return bool(_numa_nodes(flow))


def numa_memory(flow: Flow) -> bool:
    """Say whether an end is host memory that is made by the number of its NUMA node: only that can be EGM."""
    return any(end.memory in NUMA_MEMORY for end in (flow.source, flow.destination))


def managed_memory(flow: Flow) -> bool:
    """Say whether an end is managed memory, which UVM routes by the GPUs of its NUMA node."""
    return MemoryKind.MANAGED in (flow.source.memory, flow.destination.memory)


def blocked_numa_memory(flow: Flow) -> bool:
    """Say whether the EGM route to such memory is blocked, whether or not another way is left."""
    return numa_memory(flow) and (flow.route.degraded or flow.route.carrier is Carrier.NONE)


def gpu_numa_memory(flow: Flow) -> bool:
    """Say whether an end is a GPU's memory as a NUMA node of the host."""
    return MemoryKind.GPU_NUMA in (flow.source.memory, flow.destination.memory)


def pageable_memory(flow: Flow) -> bool:
    """Say whether an end is memory of one page table for GPU and CPU: plain memory, and a GPU's as a NUMA node."""
    return gpu_numa_memory(flow) or MemoryKind.SYSTEM in (flow.source.memory, flow.destination.memory)


def numa_memory_by_handle(flow: Flow) -> bool:
    """Say whether such memory is shared by a fabric handle."""
    return numa_memory(flow) and by_fabric_handle(flow)


def by_nvlink(flow: Flow) -> bool:
    """Say whether a flow goes over NVLink, or might were its route not blocked; nothing else leads to other nodes."""
    nvlink = any(hop.link is LinkKind.NVLINK for hop in flow.route.hops)
    blocked = between_gpus(flow) and flow.route.carrier is Carrier.NONE
    return nvlink or blocked or flow.route.across_nodes


def in_place_of_nvlink(flow: Flow) -> bool:
    """Say whether one GPU works on another's memory, over whatever is left where no NVLink is."""
    return between_gpus(flow) and not flow.route.staged


def on_nvlink(holds: Callable[[Link, Gpu, Gpu], bool]) -> Callable[[Flow, RunNode], bool]:
    """Return whether NVLink joins one of the pairs on a flow's way, and something holds of that pair.

    Some pairs have none by design; links that went down joined their pair.
    """

    def check(flow: Flow, node: RunNode) -> bool:
        pairs = _joined(flow, node)
        return pairs is None or any(
            nvlink_joins(node.machine, *ends) and holds(gpu_link(node.machine, *ends), *ends) for ends in pairs
        )

    return check


joined_by_nvlink = on_nvlink(lambda _link, _one, _other: True)
# Between its two GPUs, or behind a switch any link of either.
short_of_nvlinks = on_nvlink(lambda link, _one, _other: link.through != "direct" or link.nvlinks_expected is not None)
errors_on_the_way = on_nvlink(
    lambda link, one, other: link.through != "direct" or any(map(has_errors, nvlinks_between(one, other)))
)


def lost_nvlink(flow: Flow, node: RunNode) -> bool:
    """Say whether NVLink joined two GPUs, of which one has none left: another path is what remains then."""
    links = [gpu.nvml.nvlinks for gpu in _gpus(flow, node) if gpu.nvml is not None and gpu.nvml.nvlinks]
    return any(not any(link.active for link in of_gpu) for of_gpu in links) and joined_by_nvlink(flow, node)


def _joined(flow: Flow, node: RunNode) -> list[tuple[Gpu, Gpu]] | None:
    """Return the pairs of GPUs one of which is joined on a flow's way; ``None`` where that is on several nodes.

    To EGM of another CPU they are the GPU and each that can own memory there: which one does is not known.
    """
    if flow.route.across_nodes:
        return None
    gpus = _gpus(flow, node)
    nodes = _numa_nodes(flow)
    if not nodes:
        return [(gpus[0], gpus[1])] if len(gpus) == 2 else None
    return [(gpu, owner) for gpu in gpus for numa in nodes for owner in owners(node.machine, numa) if owner is not gpu]


def leads_through(place: Place, flow: Flow, node: RunNode) -> bool:
    """Say whether a flow leads over NVLink through a GPU of a place: the owner of another CPU's EGM.

    Of two GPUs that can be the owner nobody says which is, so the place must have both.
    """
    if flow.route.across_nodes or place.gpus is None or not _gpus(flow, node):
        return False
    hops = [hop.link for hop in flow.route.hops]
    nodes = _numa_nodes(flow)
    ids = [{owner.bus_id for owner in owners(node.machine, numa)} for numa in nodes]
    return LinkKind.NVLINK in hops and LinkKind.C2C in hops and any(own and own <= place.gpus for own in ids)


def far_memory(flow: Flow, node: RunNode) -> bool:
    """Say whether an end is host memory of a NUMA node that is not a GPU's own."""
    own = [gpu.host_numa_id for gpu in _gpus(flow, node) if gpu.host_numa_id is not None]
    return any(node_id != numa for node_id in own for numa in _numa_nodes(flow))


def _numa_nodes(flow: Flow) -> set[int]:
    return {end.numa_node for end in (flow.source, flow.destination) if end.numa_node is not None}


def _gpus(flow: Flow, node: RunNode) -> list[Gpu]:
    ids = node.gpus(flow)
    return [gpu for gpu in node.machine.gpus or () if gpu.bus_id in ids]


def by_c2c(flow: Flow) -> bool:
    """Say whether a flow goes over C2C, or would where there is C2C and it were up."""
    return host_memory(flow) or any(hop.link is LinkKind.C2C for hop in flow.route.hops)


def over_pcie(flow: Flow) -> bool:
    """Say whether a flow crosses PCIe; of a blocked route, which has no links, whether host memory would."""
    if flow.route.carrier is Carrier.NONE:
        return host_memory(flow)
    return any(hop.link is LinkKind.PCIE for hop in flow.route.hops)


def peers_over_pcie(flow: Flow) -> bool:
    """Say whether one GPU works on another's memory over PCIe: staged copies are between each and the host."""
    return between_gpus(flow) and over_pcie(flow) and not flow.route.staged


_FABRIC = frozenset({HandleKind.FABRIC, HandleKind.POOL_FABRIC})


def by_fabric_handle(flow: Flow) -> bool:
    """Say whether a flow's memory is another process' by a fabric handle."""
    return across_nodes(flow) or not _FABRIC.isdisjoint((flow.source.handle, flow.destination.handle))


def across_nodes(flow: Flow) -> bool:
    """Say whether a flow's memory is another node's."""
    return flow.route.across_nodes


# --- the table -------------------------------------------------------------------------------------------------------


def at_gpu(_node: RunNode, cause: Finding) -> bool:
    """Say whether a fault is at a GPU: of another device it is not known which paths that is on."""
    return cause.place.kind is PlaceKind.GPU


def _xid(fits: Callable[[KernelEvent], bool]) -> Callable[[RunNode, Finding], bool]:
    """Return whether one of the Xids that a finding on a GPU is about is such one."""
    return lambda node, cause: at_gpu(node, cause) and any(map(fits, xids_of(node.machine, cause)))


_SLOW = frozenset({Symptom.SLOW})
_FAILED = frozenset({Symptom.FAILED})
_CORRUPT = frozenset({Symptom.CORRUPT})
_BOTH = _SLOW | _FAILED
_NO_GPU = frozenset({WaiverKind.GPU_UNUSABLE})
_NO_P2P = frozenset({WaiverKind.NO_PEER_ACCESS, WaiverKind.NO_ATOMICS})
_REFUSED = frozenset({WaiverKind.REFUSED})
_NO_MEMORY = frozenset({WaiverKind.UNSUPPORTED_MEMORY})
_NO_HANDLE = _REFUSED | {WaiverKind.UNSUPPORTED_HANDLE}
_NO_FABRIC = _NO_HANDLE | {WaiverKind.NO_IMEX_CHANNEL}
_EGM_BLOCKED = _BOTH | _REFUSED | {Symptom.DEGRADED, WaiverKind.EGM_BLOCKED}
_NVLINK = (
    *("nvlink.bw-mode", "nvlink.disabled", "kernel.sxid"),
    *("fabric.manager", "fabric.management", "fabric.state", "fabric.consistency"),
)

RULES: tuple[Rule[RunNode, Trouble], ...] = (
    # A GPU that is taken away is slow nowhere: nothing is measured on it.
    Rule(("dev.*", "gpu.compute-mode"), _FAILED | _NO_GPU, on()),
    Rule(("drv.libraries", "drv.versions", "drv.nouveau"), _FAILED | _NO_GPU, on(whole_node=True)),
    Rule(("env.limits",), _FAILED | {Symptom.LOST}, on()),
    Rule(("gpu.mig",), _NO_GPU | _NO_P2P, on()),
    Rule(("env.visible-devices",), {WaiverKind.GPU_HIDDEN}, on()),
    # Uncorrectable errors of a GPU's memory end what touches it; ECC does not make it slow.
    Rule(("gpu.health",), _FAILED | _CORRUPT | _NO_GPU, on()),
    # Of the many Xids some end contexts, and some leave clocks or links down: off the bus, or in an unknown state.
    Rule(("kernel.xid",), _FAILED | _NO_GPU, on(), given=at_gpu),
    Rule(("kernel.xid",), _SLOW, on(), given=_xid(lambda event: event.number in (79, 109))),
    Rule(
        ("kernel.xid",),
        _SLOW,
        on(by_nvlink, where=joined_by_nvlink),
        given=_xid(lambda event: meaning(event).blame is Blame.LINK),
    ),
    Rule(("kernel.xid",), _SLOW, on(by_c2c), given=_xid(lambda event: event.number in C2C_XIDS)),
    Rule(("gpu.throttle",), _SLOW, on()),
    # Host memory is reached through encrypted bounce buffers, and single GPUs have no peers.
    Rule(("gpu.cc-mode",), _BOTH | _NO_P2P | {WaiverKind.UNSUPPORTED_HANDLE}, on()),
    Rule(("gpu.vgpu",), _BOTH | _NO_P2P | _NO_FABRIC | _NO_MEMORY, on()),
    # NVLink replays what arrives wrong: errors cost time, no bytes.
    *(
        Rule(checks, _BOTH | _NO_P2P | {WaiverKind.NO_NVLINK}, on(by_nvlink, where=way, of_links=True))
        for checks, way in (
            (("nvlink.links",), short_of_nvlinks),
            (("nvlink.errors",), errors_on_the_way),
            (_NVLINK, joined_by_nvlink),
        )
    ),
    # These take NVLink from all pairs of a GPU; NVML may list no link any more.
    Rule(("nvlink.disabled", "nvlink.bw-mode"), _BOTH | _NO_P2P, on(in_place_of_nvlink)),
    Rule(("nvlink.links", "nvlink.errors", *_NVLINK), _BOTH | _NO_P2P, on(in_place_of_nvlink, where=lost_nvlink)),
    # A fabric handle needs a channel on one node too (800 without one, measured on HGX H200), other handles need none.
    Rule(("imex.module", "imex.channel"), _FAILED | _NO_FABRIC, on(by_fabric_handle)),
    # The driver makes no fabric memory at all until the domain is recovered (open-gpu-kernel-modules,
    # imex_session_api.c: read there, not tried).
    Rule(("fabric.*", "imex.recovery"), _FAILED | _NO_HANDLE, on(by_fabric_handle)),
    # Only memory of other nodes is imported with the service: within HGX H200 all handles worked without it.
    Rule(("imex.daemon", "imex.domain"), _FAILED | _NO_HANDLE, on(across_nodes)),
    # Without P2P copies between GPUs are staged in host memory.
    Rule(("p2p.status",), _BOTH | _NO_P2P, on(between_gpus)),
    Rule(("p2p.verify",), _FAILED | _CORRUPT, on(between_gpus)),
    Rule(("pcie.acs",), _BOTH, on(peers_over_pcie)),
    # "Silent device memory corruption" (CUDA C++ Programming Guide, "IOMMU on Linux").
    Rule(("pcie.iommu",), _BOTH | _CORRUPT, on(peers_over_pcie)),
    Rule(("pcie.link",), _SLOW, on(over_pcie)),
    Rule(("kernel.aer",), _BOTH, on(over_pcie), given=at_gpu),
    # Where C2C is down the same memory is reached over PCIe.
    Rule(("c2c.link",), _BOTH | _NO_MEMORY | _REFUSED, on(by_c2c, of_links=True)),
    # Without EGM the same memory is ordinary system memory, which can be had as well.
    Rule(("egm.capability", "egm.preconditions", "egm.override-key"), _SLOW, on(numa_memory)),
    Rule(("egm.hypervisor-mode",), _BOTH, on(numa_memory)),
    # Managed memory goes over C2C as ordinary system memory then, and nothing says so (open-gpu-kernel-modules,
    # uvm_va_block.c: read there, not measured).
    Rule(("egm.capability", "egm.preconditions", "egm.cgroup-route"), _SLOW, on(managed_memory)),
    Rule(("egm.cgroup-route",), _EGM_BLOCKED, on(numa_memory)),
    # It is the route to other nodes' memory: the GPU's own C2C has no part in it.
    Rule(("egm.peer-route",), _SLOW, on(managed_memory, where=far_memory)),
    Rule(("egm.peer-route",), _EGM_BLOCKED, on(blocked_numa_memory)),
    Rule(("egm.fabric-address",), _FAILED | _NO_MEMORY | _REFUSED, on(numa_memory_by_handle)),
    Rule(("egm.alloc-active",), _FAILED | _CORRUPT | _REFUSED, on(numa_memory)),
    Rule(("numa.cpuset-mems",), _FAILED | {WaiverKind.NO_NUMA_MEMORY}, on(host_memory)),
    Rule(("numa.memory", "numa.mempolicy-syscalls"), _FAILED | _REFUSED, on(host_memory)),
    # Without common page tables a GPU has no plain memory, and CPUs have none of a GPU's.
    Rule(("uvm.addressing-mode",), _NO_MEMORY, on(pageable_memory)),
    Rule(("numa.mode",), _NO_MEMORY, on(gpu_numa_memory)),
    Rule(("numa.balancing", "numa.cmdline"), _SLOW, on(host_memory)),
)
"""A check that is in no row explains no measurement: the bench uses neither NCCL's variables nor NICs."""


# --- what the run itself saw -----------------------------------------------------------------------------------------

IN_USE, UNUSABLE, HIDDEN = "bench.gpu-in-use", "bench.gpu-unusable", "bench.gpu-hidden"
"""Ids of findings: a GPU that others use, one that cannot be used, one that CUDA_VISIBLE_DEVICES hides."""
OTHERS, THROTTLED, OTHER_LINK = "bench.other-processes", "bench.throttled", "bench.other-link"
HOST_BUSY = "bench.host-busy"
_BUSY_CPUS, _BUSY_PART = 4, 0.1
"""A host is busy whose other processes keep so many CPUs at work, and this part of all; of few CPUs, half of them.
Chosen: an idle host stays below one CPU, and four CPUs that copy take a fifth of a socket's memory bandwidth."""


@dataclass(frozen=True, slots=True)
class Seen:
    """A finding of the run, and the measurements that it is evidence of."""

    finding: Finding
    measurements: frozenset[int]


def left_out(machine: Machine, gpus: Sequence[Gpu], kind: WaiverKind) -> Finding:
    """Return the finding on GPUs of which nothing was measured, for a reason that no check of doctor's knows.

    Parameters
    ----------
    kind
        Of :data:`egmctl.model.finding.OF_GPUS`, as the run recorded it.
    """
    match kind:
        case WaiverKind.GPU_BUSY:
            return _busy(gpus)
        case WaiverKind.GPU_HIDDEN:
            words = "hidden by CUDA_VISIBLE_DEVICES"
            advice = "Unset CUDA_VISIBLE_DEVICES, or leave these GPUs out with --gpus."
            return _left_out(HIDDEN, gpus, words, Remedy(text=advice))
        case _:
            reasons = dict.fromkeys(gpu_obstacle(machine, gpu) or "CUDA does not see it" for gpu in gpus)
            advice = "See what stops them with 'egmctl doctor --active'."
            return _left_out(UNUSABLE, gpus, "; ".join(reasons), Remedy(text=advice))


def _busy(gpus: Sequence[Gpu]) -> Finding:
    """Return the finding on GPUs that others use: who they are, and what to do."""
    uses = [use for gpu in gpus if (use := in_use(gpu)) is not None]
    pids = tuple(sorted({pid for use in uses for pid in use.pids}))
    by_processes = [f"in use by process {listed(pids)}"] if pids else []
    words = "; ".join([*by_processes, *(str(use) for use in uses if not use.pids)]) or "in use by others"
    command = f"ps -o pid,user,etime,args -p {','.join(map(str, pids))}" if pids else "nvidia-smi"
    text = "Wait until they are idle (the command below shows who uses them)"
    remedy = Remedy(text=f"{text}, or measure beside them with 'egmctl bench --allow-busy'.", command=command)
    return _left_out(IN_USE, gpus, words, remedy, tuple(map(_use_evidence, uses)))


def _use_evidence(use: Use) -> Evidence:
    label = f"GPU{use.gpu.index}"
    if use.pids:
        pids = ", ".join(map(str, use.pids))
        return Evidence(source=f"nvmlDeviceGetComputeRunningProcesses({label})", value=f"process {pids}")
    return Evidence(source=f"nvmlDeviceGetMemoryInfo({label})", value=f"{format_size(use.used_bytes)} used")


def _left_out(
    check: str, gpus: Sequence[Gpu], words: str, remedy: Remedy, evidence: tuple[Evidence, ...] = ()
) -> Finding:
    place = on_gpus(gpus)
    return Finding(check=check, status=Status.NOTE, summary=words, place=place, evidence=evidence, remedy=remedy)


def during(report: RunReport) -> Iterator[Seen]:
    """Yield what the GPUs and the links of measurements showed while these ran."""
    for check, sign in _SIGNS.items():
        yield from _on_gpus(report, check, sign)
    if (busy := _host_busy(report.host_load)) is not None:
        of_host = frozenset(n for n, m in enumerate(report.measurements) if all(map(host_memory, m.flows)))
        yield Seen(busy, of_host)
    stray: dict[str, set[int]] = defaultdict(set)
    for number, measurement in enumerate(report.measurements):
        route = measurement.evidence.route if measurement.evidence is not None else None
        if route is not None and route.verdict is Verdict.REFUTED:
            stray[route.link].add(number)
    for link, numbers in stray.items():
        yield Seen(
            Finding(
                check=OTHER_LINK,
                status=Status.WARN,
                summary=f"the bytes did not go over {link}, by the counters of the links",
                place=NODE,
                remedy=Remedy(text="See which links are up, and what keeps peers apart, with 'egmctl doctor'."),
            ),
            frozenset(numbers),
        )


def _host_busy(load: HostLoad | None) -> Finding | None:
    """Return the finding on other processes that keep the host's CPUs, and with these its memory, at work."""
    if load is None or load.wall_s <= 0:
        return None
    if load.others_cpu_s / load.wall_s < max(min(_BUSY_CPUS, load.cpus / 2), _BUSY_PART * load.cpus):
        return None
    return Finding(
        check=HOST_BUSY,
        status=Status.WARN,
        summary=f"the host was busy: load {load.load_average:.0f} on {load.cpus} CPUs, other processes used "
        f"{load.others_cpu_s:.0f} CPU-seconds in {load.wall_s:.0f} s",
        place=NODE,
        evidence=(
            Evidence(source="/proc/stat", value=f"{load.others_cpu_s:.1f} CPU-seconds of others"),
            Evidence(source="/proc/loadavg", value=f"{load.load_average:.2f}"),
        ),
        remedy=Remedy(
            text="Measure again when the host is idle (the command below shows what runs).",
            command="ps -eo pid,user,pcpu,etime,comm --sort=-pcpu | head",
        ),
    )


def words(check: str, gpu: GpuEvidence) -> str | None:
    """Return the finding's sentence on what a GPU showed, ``None`` where it showed nothing of the sort.

    Parameters
    ----------
    check
        :data:`OTHERS` or :data:`THROTTLED`.
    """
    sign = _SIGNS[check](gpu)
    return None if sign is None else sign[0]


def _others(gpu: GpuEvidence) -> tuple[str, Remedy] | None:
    if not gpu.other_processes:
        return None
    pids = gpu.other_processes
    command = f"ps -o pid,user,etime,args -p {','.join(map(str, pids))}"
    words = f"in use by process {listed(pids)} while measured"
    return words, Remedy(text="Measure again when the GPUs are idle.", command=command)


def _slowed(gpu: GpuEvidence) -> tuple[str, Remedy] | None:
    slow = [SLOWDOWNS[reason] for reason in gpu.throttle_reasons or () if reason in SLOWDOWNS]
    if not slow:
        return None
    advice = "Check fans, coolant and power supplies, then measure again."
    remedy = Remedy(text=advice, command="nvidia-smi -q -d PERFORMANCE,TEMPERATURE")
    return f"clocks throttled while measured: {'; '.join(slow)}", remedy


_Sign = Callable[[GpuEvidence], tuple[str, Remedy] | None]
"""What a GPU showed, in words, and what to do about it."""
_SIGNS: dict[str, _Sign] = {OTHERS: _others, THROTTLED: _slowed}


def _on_gpus(report: RunReport, check: str, sign: _Sign) -> Iterator[Seen]:
    """Yield what was seen of GPUs, those with the same sign together."""
    showing: dict[str, list[tuple[int, GpuEvidence, Remedy]]] = defaultdict(list)
    for number, measurement in enumerate(report.measurements):
        for gpu in measurement.evidence.gpus if measurement.evidence is not None else ():
            if (shown := sign(gpu)) is not None:
                showing[shown[0]].append((number, gpu, shown[1]))
    for sentence, cases in showing.items():
        # By their labels: nodes of one run have GPUs of the same bus ids.
        labels = dict.fromkeys(gpu.label for _, gpu, _ in cases)
        numbered = [label.removeprefix("GPU") for label in labels]
        label = ", ".join(labels)
        if all(map(str.isdecimal, numbered)):
            label = f"GPU{format_kernel_list(set(map(int, numbered)))}"
        place = Place(kind=PlaceKind.GPU, ids=tuple(dict.fromkeys(gpu.bus_id for _, gpu, _ in cases)), label=label)
        finding = Finding(check=check, status=Status.WARN, summary=sentence, place=place, remedy=cases[-1][2])
        yield Seen(finding, frozenset(number for number, _, _ in cases))
