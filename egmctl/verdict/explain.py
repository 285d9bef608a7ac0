"""Which node of a run something is on: bus ids, NUMA nodes and findings are those of one node. Pure."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum
from fnmatch import fnmatchcase

from egmctl.bench.plan.flows import Use, in_use, listed
from egmctl.bench.plan.paths import gpu_obstacle
from egmctl.doctor.check import Scope
from egmctl.doctor.checks.gpu import SLOWDOWNS
from egmctl.doctor.checks.kernel_log import xids_of
from egmctl.doctor.checks.nvlink import has_errors
from egmctl.doctor.kernel_faults import C2C_XIDS, Blame, meaning
from egmctl.model.finding import (
    NODE,
    OF_GPUS,
    TOLD,
    Evidence,
    Finding,
    Place,
    PlaceKind,
    Remedy,
    RunCause,
    Status,
    Waiver,
    WaiverKind,
    on_gpus,
)
from egmctl.model.finding import Status as Found
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
from egmctl.topology.links import gpu_link, nvlink_joins, nvlinks_between
from egmctl.topology.routes import owners
from egmctl.units import format_kernel_list, format_size
from egmctl.verdict.yardsticks import is_degraded, is_lost


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
    return tuple(RunNode(one, name, by_host[host]) for one, (host, name) in zip(machines, names.items(), strict=True))


def touches(place: Place, flow: Flow, node: RunNode, *, whole: bool = False) -> bool:
    """Say whether a flow has an end at a place of a node.

    Parameters
    ----------
    whole
        The fault is the whole node's, whatever its place.
    """
    ends = [end for end in (flow.source, flow.destination) if node.has(end.rank)]
    if place.kind is PlaceKind.NODE or whole:
        return bool(ends) or node.has(flow.initiator_rank)
    match place.kind:
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


def joined_by_nvlink(flow: Flow, node: RunNode) -> bool:
    """Say whether NVLink joins the GPUs of a flow, or did before links went down; some pairs have none by design."""
    return _some_joined(flow, node, lambda _machine, _one, _other: True)


def short_of_nvlinks(flow: Flow, node: RunNode) -> bool:
    """Say whether links of a path are down: between its two GPUs, or behind a switch any link of either."""
    return _some_joined(flow, node, _lacks_links)


def _lacks_links(machine: Machine, one: Gpu, other: Gpu) -> bool:
    link = gpu_link(machine, one, other)
    return link.through != "direct" or link.nvlinks_expected is not None


def errors_on_the_way(flow: Flow, node: RunNode) -> bool:
    """Say whether links of a path count errors."""
    return _some_joined(flow, node, _has_errors)


def _has_errors(machine: Machine, one: Gpu, other: Gpu) -> bool:
    return gpu_link(machine, one, other).through != "direct" or any(map(has_errors, nvlinks_between(one, other)))


def lost_nvlink(flow: Flow, node: RunNode) -> bool:
    """Say whether NVLink joined two GPUs, of which one has none left: another path is what remains then."""
    links = [gpu.nvml.nvlinks for gpu in _gpus(flow, node) if gpu.nvml is not None and gpu.nvml.nvlinks]
    return any(not any(link.active for link in those) for those in links) and joined_by_nvlink(flow, node)


def _some_joined(flow: Flow, node: RunNode, holds: Callable[[Machine, Gpu, Gpu], bool]) -> bool:
    """Say whether NVLink joins one of the pairs on a flow's way, and something holds of that pair."""
    pairs = _joined(flow, node)
    return pairs is None or any(nvlink_joins(node.machine, *ends) and holds(node.machine, *ends) for ends in pairs)


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
    return any(one != numa for one in own for numa in _numa_nodes(flow))


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


class Symptom(Enum):
    """What is wrong with something that was measured, or tried."""

    SLOW = "slow"
    DEGRADED = "degraded"
    """It went without EGM, whose route is blocked."""
    CORRUPT = "corrupt"
    FAILED = "failed"
    """A driver call failed."""
    LOST = "lost"
    """It crashed, hung, or failed for no cause that the call names."""


Crosses = Callable[[Flow], bool]


@dataclass(frozen=True, slots=True, kw_only=True)
class Mechanism:
    """What faults of some checks can do."""

    checks: tuple[str, ...]
    """Ids, or globs of ids, of doctor's checks and of what a run sees (:mod:`egmctl.verdict.explain`)."""
    does: frozenset[Symptom] = frozenset()
    stops: frozenset[WaiverKind] = frozenset()
    """Why something was not measured at all because of it."""
    crosses: Crosses | None = None
    """What a flow has to cross for a fault to concern it; ``None``: nothing, the place decides."""
    where: Callable[[Flow, RunNode], bool] | None = None
    """What has to hold of its GPUs as well."""
    given: Callable[[Finding, RunNode], bool] | None = None
    """Whether a finding of the checks counts; ``None``: all do."""
    whole_node: bool = False
    """All GPUs of the node have it, whichever one it was seen on."""
    of_links: bool = False
    """Also at the GPU whose links a flow takes on its way: the owner of EGM memory."""
    own_gpu: bool = False
    """Only where the fault is at a GPU: of another device it is not known which paths that is on."""


def mechanisms(check: str) -> Iterator[Mechanism]:
    """Yield what the faults of a check can do; nothing for one that makes no measurement slow, wrong or impossible."""
    return (row for row in MECHANISMS if any(fnmatchcase(check, pattern) for pattern in row.checks))


# --- of which findings ------------------------------------------------------------------------------------------------


def _xid(fits: Callable[[KernelEvent], bool]) -> Callable[[Finding, RunNode], bool]:
    """Return whether one of the Xids that a finding is about is such one."""
    return lambda finding, node: any(map(fits, xids_of(node.machine, finding)))


# Off the bus, or its clocks and links in an unknown state.
_slows_all = _xid(lambda event: event.number in (79, 109))
_of_nvlink = _xid(lambda event: meaning(event).blame is Blame.LINK)
_of_c2c = _xid(lambda event: event.number in C2C_XIDS)


# --- the table -------------------------------------------------------------------------------------------------------

_SLOW = frozenset({Symptom.SLOW})
_FAILED = frozenset({Symptom.FAILED})
_BOTH = _SLOW | _FAILED
_GPU = frozenset({WaiverKind.GPU_UNUSABLE})
_NO_P2P = frozenset({WaiverKind.NO_PEER_ACCESS, WaiverKind.NO_ATOMICS})
_NO_HANDLE = frozenset({WaiverKind.UNSUPPORTED_HANDLE, WaiverKind.REFUSED})
_NO_FABRIC = _NO_HANDLE | {WaiverKind.NO_IMEX_CHANNEL}
_NVLINK = (
    *("nvlink.bw-mode", "nvlink.disabled", "kernel.sxid"),
    *("fabric.manager", "fabric.management", "fabric.state", "fabric.consistency"),
)

MECHANISMS: tuple[Mechanism, ...] = (
    # A GPU that is taken away is slow nowhere: nothing is measured on it.
    Mechanism(checks=("dev.*",), does=_FAILED, stops=_GPU),
    Mechanism(checks=("drv.libraries", "drv.versions", "drv.nouveau"), does=_FAILED, stops=_GPU, whole_node=True),
    Mechanism(checks=("gpu.compute-mode",), does=_FAILED, stops=_GPU),
    Mechanism(checks=("env.limits",), does=_FAILED | {Symptom.LOST}),
    Mechanism(checks=("gpu.mig",), stops=_GPU | _NO_P2P),
    Mechanism(checks=("env.visible-devices",), stops=frozenset({WaiverKind.GPU_HIDDEN})),
    # Uncorrectable errors of a GPU's memory end what touches it; ECC does not make it slow.
    Mechanism(checks=("gpu.health",), does=_FAILED | {Symptom.CORRUPT}, stops=_GPU),
    # Of the many Xids some end contexts, and some leave clocks or links down.
    Mechanism(checks=("kernel.xid",), does=_FAILED, stops=_GPU, own_gpu=True),
    Mechanism(checks=("kernel.xid",), does=_SLOW, own_gpu=True, given=_slows_all),
    Mechanism(
        checks=("kernel.xid",),
        does=_SLOW,
        crosses=by_nvlink,
        where=joined_by_nvlink,
        own_gpu=True,
        given=_of_nvlink,
    ),
    Mechanism(checks=("kernel.xid",), does=_SLOW, crosses=by_c2c, own_gpu=True, given=_of_c2c),
    Mechanism(checks=("gpu.throttle", "bench.throttled", "bench.other-processes", "bench.other-link"), does=_SLOW),
    # Others' CPUs take bandwidth from host memory, and nothing from links between GPUs.
    Mechanism(checks=("bench.host-busy",), does=_SLOW, crosses=host_memory),
    # Host memory is reached through encrypted bounce buffers, and single GPUs have no peers.
    Mechanism(checks=("gpu.cc-mode",), does=_BOTH, stops=_NO_P2P | {WaiverKind.UNSUPPORTED_HANDLE}),
    Mechanism(checks=("gpu.vgpu",), does=_BOTH, stops=_NO_P2P | _NO_FABRIC | {WaiverKind.UNSUPPORTED_MEMORY}),
    # NVLink replays what arrives wrong: errors cost time, no bytes.
    *(
        Mechanism(
            checks=checks,
            does=_BOTH,
            stops=_NO_P2P | {WaiverKind.NO_NVLINK},
            crosses=by_nvlink,
            where=on_its_way,
            of_links=True,
        )
        for checks, on_its_way in (
            (("nvlink.links",), short_of_nvlinks),
            (("nvlink.errors",), errors_on_the_way),
            (_NVLINK, joined_by_nvlink),
        )
    ),
    # These take NVLink from all pairs of a GPU; NVML may list no link any more.
    Mechanism(checks=("nvlink.disabled", "nvlink.bw-mode"), does=_BOTH, stops=_NO_P2P, crosses=in_place_of_nvlink),
    Mechanism(
        checks=("nvlink.links", "nvlink.errors", *_NVLINK),
        does=_BOTH,
        stops=_NO_P2P,
        crosses=in_place_of_nvlink,
        where=lost_nvlink,
    ),
    # A fabric handle needs a channel on one node too (800 without one, measured on HGX H200), other handles need none.
    Mechanism(checks=("imex.module", "imex.channel"), does=_FAILED, stops=_NO_FABRIC, crosses=by_fabric_handle),
    # The driver makes no fabric memory at all until the domain is recovered (open-gpu-kernel-modules,
    # imex_session_api.c: read there, not tried).
    Mechanism(checks=("fabric.*", "imex.recovery"), does=_FAILED, stops=_NO_HANDLE, crosses=by_fabric_handle),
    # Only memory of other nodes is imported with the service: within HGX H200 all handles worked without it.
    Mechanism(checks=("imex.daemon", "imex.domain"), does=_FAILED, stops=_NO_HANDLE, crosses=across_nodes),
    # Without P2P copies between GPUs are staged in host memory.
    Mechanism(checks=("p2p.status",), does=_BOTH, stops=_NO_P2P, crosses=between_gpus),
    Mechanism(checks=("p2p.verify",), does=_FAILED | {Symptom.CORRUPT}, crosses=between_gpus),
    Mechanism(checks=("pcie.acs",), does=_BOTH, crosses=peers_over_pcie),
    # "Silent device memory corruption" (CUDA C++ Programming Guide, "IOMMU on Linux").
    Mechanism(checks=("pcie.iommu",), does=_BOTH | {Symptom.CORRUPT}, crosses=peers_over_pcie),
    Mechanism(checks=("pcie.link",), does=_SLOW, crosses=over_pcie),
    Mechanism(checks=("kernel.aer",), does=_BOTH, crosses=over_pcie, own_gpu=True),
    # Where C2C is down the same memory is reached over PCIe.
    Mechanism(
        checks=("c2c.link",),
        does=_BOTH,
        stops=frozenset({WaiverKind.UNSUPPORTED_MEMORY, WaiverKind.REFUSED}),
        crosses=by_c2c,
        of_links=True,
    ),
    # Without EGM the same memory is ordinary system memory, which can be had as well.
    Mechanism(checks=("egm.capability", "egm.preconditions", "egm.override-key"), does=_SLOW, crosses=numa_memory),
    Mechanism(checks=("egm.hypervisor-mode",), does=_BOTH, crosses=numa_memory),
    # Managed memory goes over C2C as ordinary system memory then, and nothing says so (open-gpu-kernel-modules,
    # uvm_va_block.c: read there, not measured).
    Mechanism(
        checks=("egm.capability", "egm.preconditions", "egm.cgroup-route"),
        does=_SLOW,
        crosses=managed_memory,
    ),
    Mechanism(
        checks=("egm.cgroup-route",),
        does=_BOTH | {Symptom.DEGRADED},
        stops=frozenset({WaiverKind.EGM_BLOCKED, WaiverKind.REFUSED}),
        crosses=numa_memory,
    ),
    # It is the route to other nodes' memory: the GPU's own C2C has no part in it.
    Mechanism(checks=("egm.peer-route",), does=_SLOW, crosses=managed_memory, where=far_memory),
    Mechanism(
        checks=("egm.peer-route",),
        does=_BOTH | {Symptom.DEGRADED},
        stops=frozenset({WaiverKind.EGM_BLOCKED, WaiverKind.REFUSED}),
        crosses=blocked_numa_memory,
    ),
    Mechanism(
        checks=("egm.fabric-address",),
        does=_FAILED,
        stops=frozenset({WaiverKind.UNSUPPORTED_MEMORY, WaiverKind.REFUSED}),
        crosses=numa_memory_by_handle,
    ),
    Mechanism(
        checks=("egm.alloc-active",),
        does=_FAILED | {Symptom.CORRUPT},
        stops=frozenset({WaiverKind.REFUSED}),
        crosses=numa_memory,
    ),
    Mechanism(
        checks=("numa.cpuset-mems",),
        does=_FAILED,
        stops=frozenset({WaiverKind.NO_NUMA_MEMORY}),
        crosses=host_memory,
    ),
    Mechanism(checks=("numa.memory",), does=_FAILED, stops=frozenset({WaiverKind.REFUSED}), crosses=host_memory),
    Mechanism(
        checks=("numa.mempolicy-syscalls",),
        does=_FAILED,
        stops=frozenset({WaiverKind.REFUSED}),
        crosses=host_memory,
    ),
    # Without common page tables a GPU has no plain memory, and CPUs have none of a GPU's.
    Mechanism(
        checks=("uvm.addressing-mode",), stops=frozenset({WaiverKind.UNSUPPORTED_MEMORY}), crosses=pageable_memory
    ),
    Mechanism(checks=("numa.mode",), stops=frozenset({WaiverKind.UNSUPPORTED_MEMORY}), crosses=gpu_numa_memory),
    Mechanism(checks=("numa.balancing", "numa.cmdline"), does=_SLOW, crosses=host_memory),
)
"""A check that is in no row explains no measurement: the bench uses neither NCCL's variables nor NICs."""


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
            why = dict.fromkeys(gpu_obstacle(machine, gpu) or "CUDA does not see it" for gpu in gpus)
            advice = "See what stops them with 'egmctl doctor --active'."
            return _left_out(UNUSABLE, gpus, "; ".join(why), Remedy(text=advice))


def _busy(gpus: Sequence[Gpu]) -> Finding:
    """Return the finding on GPUs that others use: who they are, and what to do."""
    uses = [use for gpu in gpus if (use := in_use(gpu)) is not None]
    pids = tuple(sorted({pid for use in uses for pid in use.pids}))
    told = [f"in use by process {listed(pids)}"] if pids else []
    words = "; ".join([*told, *(str(use) for use in uses if not use.pids)]) or "in use by others"
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
        of_host = frozenset(n for n, one in enumerate(report.measurements) if all(map(host_memory, one.flows)))
        yield Seen(busy, of_host)
    stray: dict[str, set[int]] = defaultdict(set)
    for number, one in enumerate(report.measurements):
        route = one.evidence.route if one.evidence is not None else None
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
    found = _SIGNS[check](gpu)
    return None if found is None else found[0]


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
    words = f"clocks throttled while measured: {'; '.join(slow)}"
    command = "nvidia-smi -q -d PERFORMANCE,TEMPERATURE"
    return words, Remedy(text="Check fans, coolant and power supplies, then measure again.", command=command)


_Sign = Callable[[GpuEvidence], tuple[str, Remedy] | None]
"""What a GPU showed, in words, and what to do about it."""
_SIGNS: dict[str, _Sign] = {OTHERS: _others, THROTTLED: _slowed}


def _on_gpus(report: RunReport, check: str, sign: _Sign) -> Iterator[Seen]:
    """Yield what was seen of GPUs, those with the same sign together."""
    # By their labels: nodes of one run have GPUs of the same bus ids.
    ids: dict[str, dict[str, str]] = defaultdict(dict)
    numbers: dict[str, set[int]] = defaultdict(set)
    remedies: dict[str, Remedy] = {}
    for number, one in enumerate(report.measurements):
        for gpu in one.evidence.gpus if one.evidence is not None else ():
            if (found := sign(gpu)) is not None:
                words, remedies[found[0]] = found
                ids[words][gpu.label] = gpu.bus_id
                numbers[words].add(number)
    for words, gpus in ids.items():
        numbered = [label.removeprefix("GPU") for label in gpus]
        label = ", ".join(gpus)
        if all(map(str.isdecimal, numbered)):
            label = f"GPU{format_kernel_list(set(map(int, numbered)))}"
        place = Place(kind=PlaceKind.GPU, ids=tuple(dict.fromkeys(gpus.values())), label=label)
        finding = Finding(check=check, status=Status.WARN, summary=words, place=place, remedy=remedies[words])
        yield Seen(finding, frozenset(numbers[words]))


@dataclass(frozen=True, slots=True)
class RootCause:
    """A problem that no other explains, and the findings that it does."""

    finding: Finding
    explains: tuple[Finding, ...]

    @property
    def status(self) -> Status:
        """The gravest of them all."""
        return min((one.status for one in (self.finding, *self.explains)), key=list(Status).index)


def causes(findings: Sequence[Finding]) -> tuple[RootCause, ...]:
    """Return the root causes of all failures, warnings and notes, the gravest first; each finding is in one of them.

    What could not be determined is among what they explain.
    """
    roots = [one for one in findings if one.status in TOLD and not one.explained_by]
    below: dict[int, list[Finding]] = {id(root): [] for root in roots}
    for finding in findings:
        if finding.explained_by:
            known = [root for check in finding.explained_by for root in roots if root.check == check]
            # A check may have found several: the one of the same GPUs explains it.
            if root := next((one for one in known if one.place.meets(finding.place)), next(iter(known), None)):
                below[id(root)].append(finding)
    gravity = list(Status)
    found = [RootCause(root, tuple(below[id(root)])) for root in roots]
    return tuple(sorted(found, key=lambda cause: gravity.index(cause.status)))


SECTIONS = ("switches", "confinement", "system")
"""The facts that causes are found in, besides those that a plan is made from."""


@dataclass(frozen=True, slots=True)
class Shortfalls:
    """The measurements of a run that need an explanation, by their places in it."""

    failing: frozenset[int] = frozenset()
    """For their speed, or a known cause."""
    warned: frozenset[int] = frozenset()
    """A little slow, or without EGM where its route is blocked."""
    waived: frozenset[int] = frozenset()
    """Whose planned path was not measured."""
    lost: frozenset[int] = frozenset()
    """That crashed, hung, or failed for no cause that the failing call names."""

    @property
    def slow(self) -> frozenset[int]:
        """All that were measured and are not as they should be."""
        return self.failing | self.warned

    @property
    def all(self) -> frozenset[int]:
        """All of them."""
        return self.slow | self.waived | self.lost


@dataclass(slots=True)
class _Explained:
    """What one cause explains."""

    finding: Finding
    node: str = ""
    numbers: set[int] = field(default_factory=set)
    waivers: set[tuple[int, Waiver]] = field(default_factory=set)
    """Each with the measurement that it stopped."""


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
    found: list[_Explained] = []
    scope = Scope(gpus=tuple(asked) or None, numa=None if numa is None else tuple(numa))
    for node in nodes(report, machine):
        found += _on_node(report, short, node, scope)
    throttled = frozenset[int]().union(*(one.numbers for one in found if one.finding.check == "gpu.throttle"))
    for one in during(report):
        numbers = {n for n in one.measurements & short.slow if _produces(one.finding, _symptoms(report, short, n))}
        found.append(_Explained(one.finding, "", numbers - throttled if one.finding.check == THROTTLED else numbers))
    gpus = {gpu.bus_id: gpu for machine in report.machines for gpu in machine.gpus or ()}
    told = [_told(one, short, asked, gpus) for one in found if one.numbers]
    return tuple(sorted(told, key=lambda one: (list(Found).index(one.status), -len(one.explains))))


def _told(one: _Explained, short: Shortfalls, asked: Collection[str], gpus: dict[str, Gpu]) -> RunCause:
    taken = {bus_id for _, waiver in one.waivers if waiver.kind in OF_GPUS for bus_id in waiver.gpus}
    named = [gpus[bus_id] for bus_id in taken & set(asked) & gpus.keys()]
    return RunCause(
        status=Found.FAIL if named or one.numbers & (short.failing | short.lost) else one.finding.status,
        finding=one.finding,
        node=one.node,
        asked=on_gpus(named).label if named else "",
        explains=tuple(sorted(one.numbers)),
    )


def shortfalls(run: RunReport) -> Shortfalls:
    """Return what of a run needs an explanation; of one that was interrupted the rest does not."""
    failing = {number for number, one in enumerate(run.measurements) if one.status in BROKEN and not is_lost(one)}
    warned: set[int] = set()
    for judged in run.verdict.judged if run.verdict is not None else ():
        grades = {one.grade for one in judged.judgements}
        if Grade.FAIL in grades:
            failing.add(judged.measurement)
        elif Grade.WARN in grades:
            warned.add(judged.measurement)
    warned |= {number for number, one in enumerate(run.measurements) if one.measured and is_degraded(one)}
    waived = () if run.interrupted else (n for n, one in enumerate(run.measurements) if one.missed_path)
    lost = (n for n, one in enumerate(run.measurements) if is_lost(one))
    return Shortfalls(frozenset(failing), frozenset(warned - failing), frozenset(waived), frozenset(lost))


def explained_by(cause: RootCause, run: RunReport, short: Shortfalls) -> frozenset[int]:
    """Return the shortfalls of a run on one node that a root cause of doctor's explains."""
    return frozenset(
        number
        for node in nodes(run)[:1]
        for number in _by_doctor(cause, run, short, node, _waived(run, short, node)).numbers
    )


def _on_node(report: RunReport, short: Shortfalls, node: RunNode, scope: Scope) -> Iterator[_Explained]:
    """Yield what explains shortfalls on one node: doctor's causes, then what no check knows of the GPUs left out."""
    blind = _is_blind(node.machine)
    if not (short.all or blind):
        return
    # All checks: only where there is something to explain.
    from egmctl.doctor.runner import CHECKS, diagnose

    waived = _waived(report, short, node)
    found = [
        _by_doctor(one, report, short, node, waived) for one in causes(diagnose(node.machine, scope, CHECKS).findings)
    ]
    for one in found:
        if blind and "drv.libraries" in (one.finding.check, *one.finding.explains):
            one.numbers |= _of_unknown_links(report, node)
    yield from found
    known = {(number, waiver) for one in found for number, waiver in one.waivers}
    yield from _explain_left_out(node, waived, known)


def _explain_left_out(
    node: RunNode, waived: Mapping[int, Measurement], known: Collection[tuple[int, Waiver]]
) -> Iterator[_Explained]:
    """Yield who uses the GPUs that were not measured, who hides them, or what else a run recorded of them."""
    stopped: dict[WaiverKind, set[tuple[int, Waiver]]] = {}
    for number, one in waived.items():
        for waiver in one.waivers:
            if waiver.kind in OF_GPUS and waiver.gpus and node.has(waiver.rank) and (number, waiver) not in known:
                stopped.setdefault(waiver.kind, set()).add((number, waiver))
    for kind, those in stopped.items():
        ids = {bus_id for _, waiver in those for bus_id in waiver.gpus}
        gpus = [gpu for gpu in node.machine.gpus or () if gpu.bus_id in ids]
        if gpus:
            yield _Explained(left_out(node.machine, gpus, kind), node.name, {n for n, _ in those}, those)


def _is_blind(machine: Machine) -> bool:
    """Say whether NVML failed as a whole: then nobody knows the links."""
    return nvml_failure(machine) is not None and all(gpu.nvml is None for gpu in machine.gpus or ())


def _of_unknown_links(report: RunReport, node: RunNode) -> set[int]:
    """Return what was tried over links that nobody knows, however it ended."""
    return {
        number
        for number, one in enumerate(report.measurements)
        if one.status is not MeasurementStatus.WAIVED
        and any(hop.link is LinkKind.UNKNOWN and node.gpus(flow) for flow in one.flows for hop in flow.route.hops)
    }


# --- what a check's fault explains -----------------------------------------------------------------------------------


def _by_doctor(
    cause: RootCause, report: RunReport, short: Shortfalls, node: RunNode, waived: Mapping[int, Measurement]
) -> _Explained:
    found = _Explained(cause.finding, node.name)
    # That something could not be determined makes nothing slow, whatever it follows from.
    faults = [one for one in (cause.finding, *cause.explains) if one.status in TOLD]
    rows = [(finding, row) for finding in faults for row in mechanisms(finding.check) if _can(finding, row, node)]
    for number in short.slow | short.lost:
        one, symptoms = report.measurements[number], _symptoms(report, short, number)
        if any(row.does & symptoms and _concerns(finding, row, one, node) for finding, row in rows):
            found.numbers.add(number)
    for number, one in waived.items():
        for waiver in one.waivers:
            if any(_stops(finding, row, waiver, one, node) for finding, row in rows):
                found.waivers.add((number, waiver))
                found.numbers.add(number)
    return found


def _waived(report: RunReport, short: Shortfalls, node: RunNode) -> dict[int, Measurement]:
    """Return what was not measured as planned, with what stopped it."""
    if not short.waived:
        return {}
    tried = {
        gpu for one in report.measurements if one.status is not MeasurementStatus.WAIVED for gpu in _gpus_of(one, node)
    }
    return {number: _as_asked(report.measurements[number], node, tried) for number in sorted(short.waived)}


def _gpus_of(one: Measurement, node: RunNode) -> set[str]:
    return {gpu for flow in one.flows for gpu in node.gpus(flow)}


def _as_asked(one: Measurement, node: RunNode, tried: Collection[str]) -> Measurement:
    """Return the planned measurement as waived, with its reason.

    Copies that were staged are a path that was refused; a worker that finds a GPU missing does not say which of a path:
    it is the one of which nothing was measured.
    """
    ends = _gpus_of(one, node)
    missing = tuple(sorted(ends.difference(tried) or ends))
    one = replace(
        one,
        waivers=tuple(
            replace(waiver, gpus=missing) if waiver.kind in OF_GPUS and not waiver.gpus else waiver
            for waiver in one.waivers
        ),
    )
    staged = [flow for flow in one.flows if flow.route.staged_reason]
    if not staged:
        return one
    no_access = tuple(
        Waiver(kind=WaiverKind.NO_PEER_ACCESS, reason=flow.route.staged_reason, gpus=tuple(sorted(node.gpus(flow))))
        for flow in staged
    )
    flows = tuple(replace(flow, route=Route(carrier=Carrier.NONE)) if flow in staged else flow for flow in one.flows)
    return replace(one, flows=flows, waivers=(*one.waivers, *no_access))


def _symptoms(report: RunReport, short: Shortfalls, number: int) -> frozenset[Symptom]:
    """Return what is wrong with a measurement that was tried."""
    one = report.measurements[number]
    if one.status is MeasurementStatus.CORRUPT:
        return frozenset({Symptom.CORRUPT})
    if not one.measured:
        return frozenset({Symptom.LOST if number in short.lost else Symptom.FAILED})
    # What went without EGM has no reference: it is slow only by comparison with another run.
    slow = {Symptom.SLOW} if number in short.failing or not is_degraded(one) else set[Symptom]()
    return frozenset(slow | ({Symptom.DEGRADED} if is_degraded(one) else set()))


def _produces(finding: Finding, symptoms: Collection[Symptom]) -> bool:
    return any(not row.does.isdisjoint(symptoms) for row in mechanisms(finding.check))


def _can(finding: Finding, row: Mechanism, node: RunNode) -> bool:
    """Say whether a finding is one that a row is about."""
    placed = finding.place.kind is PlaceKind.GPU or not row.own_gpu
    return placed and (row.given is None or row.given(finding, node))


def _stops(finding: Finding, row: Mechanism, waiver: Waiver, one: Measurement, node: RunNode) -> bool:
    """Say whether a fault is why something was not measured."""
    # A waiver of a path names no rank.
    if waiver.kind not in row.stops or (waiver.rank is not None and not node.has(waiver.rank)):
        return False
    if waiver.kind in OF_GPUS and waiver.gpus:
        ids = waiver.gpus if row.whole_node or finding.place.kind is not PlaceKind.GPU else finding.place.ids
        return bool(_gpus_of(one, node)) and not set(ids).isdisjoint(waiver.gpus)
    return _concerns(finding, row, one, node)


def _concerns(finding: Finding, row: Mechanism, one: Measurement, node: RunNode) -> bool:
    """Say whether a fault is on the way of one of a measurement's flows."""
    return any(
        (row.crosses is None or row.crosses(flow))
        and (row.where is None or row.where(flow, node))
        and (
            touches(finding.place, flow, node, whole=row.whole_node)
            or (row.of_links and leads_through(finding.place, flow, node))
        )
        for flow in one.flows
    )
