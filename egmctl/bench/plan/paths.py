"""Which route the bytes between two ends take, what to plan with, and why it cannot be measured: pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import Enum

from egmctl.bench.plan.flows import Place, numa_node_of
from egmctl.model.finding import Waiver, WaiverKind
from egmctl.model.gpu import Gpu
from egmctl.model.machine import Machine
from egmctl.model.route import (
    HOST_MEMORY,
    HOST_NAMES,
    NUMA_MEMORY,
    POOLS,
    Carrier,
    Egm,
    Hop,
    LinkClass,
    LinkKind,
    MemoryKind,
    Route,
)
from egmctl.topology import links as rates
from egmctl.topology.access import Block, Step, classify, without_nvml
from egmctl.topology.links import active_nvlinks, gpu_link
from egmctl.topology.platform import C2c, c2c, egm
from egmctl.topology.routes import SMP, RouteKind, across, route

_NEEDS_ATTRIBUTE = {
    MemoryKind.HOST_NUMA: "HOST_NUMA_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED",
    **dict.fromkeys(POOLS, "HOST_NUMA_MEMORY_POOLS_SUPPORTED"),
    MemoryKind.HOST_DEFAULT_POOL: "HOST_MEMORY_POOLS_SUPPORTED",
    MemoryKind.DEVICE_DEFAULT_POOL: "MEMORY_POOLS_SUPPORTED",
    MemoryKind.PINNED: "CAN_MAP_HOST_MEMORY",
    MemoryKind.REGISTERED: "HOST_REGISTER_SUPPORTED",
    MemoryKind.HUGETLB: "HOST_REGISTER_SUPPORTED",
    MemoryKind.THP: "HOST_REGISTER_SUPPORTED",
    MemoryKind.MANAGED: "CONCURRENT_MANAGED_ACCESS",
    MemoryKind.SYSTEM: "PAGEABLE_MEMORY_ACCESS",
}
"""The device attribute that is 0 where a GPU cannot use a kind of memory."""
_USUAL_GB_S = {LinkKind.NVLINK: 20.0, LinkKind.C2C: 300.0, LinkKind.PCIE: 25.0}
"""Rates to plan with where none is reported: of one NVLink, of C2C, of PCIe. Nothing is judged by it."""
_LOCAL_GB_S, _CPU_GB_S, _UNKNOWN_GB_S = 1500.0, 100.0, 25.0
"""The same of a GPU's own memory, of CPU threads, and where not even the link is known."""
_REACHED = 0.88
"""The part of the nominal rate that copies reach: 396 of 450 GB/s over NVLink, 55.5 of 63 over PCIe 5.0 on H200."""
_EGM = {True: Egm.YES, False: Egm.NO, None: Egm.UNKNOWN}


class Staging(Enum):
    """Whether copies between two GPUs go through host memory (CUDA driver API, cuMemcpyPeer: they do where peer access
    is not enabled). Only the driver's copies can: a kernel reaches what is mapped, or nothing."""

    NEVER = 0
    WITHOUT_ACCESS = 1
    """Where they have no peer access."""
    ALWAYS = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class Path:
    """The route between two ends, and what a planner has to know of it."""

    route: Route
    waiver: Waiver | None = None
    """Why nothing can be measured over it."""
    rate_gb_s: float
    """The rate to plan with: an estimate, not an expectation."""
    disjoint: bool = False
    """Pairs that share no GPU do not share links either: NVLink, or a GPU's own memory."""


def device_path(
    machine: Machine, initiator: Gpu, other: Gpu, *, source: Gpu | None = None, staging: Staging = Staging.NEVER
) -> Path:
    """Return the path between the memory of two GPUs, or within one.

    Parameters
    ----------
    source
        Of the two, where the bytes come from; needed only of what may be staged.
    """
    if initiator is other:
        return Path(route=Route(), rate_gb_s=_LOCAL_GB_S, disjoint=True)
    missing = _peer_waiver(machine, initiator, other)
    if staging is Staging.ALWAYS or (staging is Staging.WITHOUT_ACCESS and missing is not None):
        destination = initiator if source is other else other
        return _staged_path(machine, source or initiator, destination, "" if missing is None else missing.reason)
    link = gpu_link(machine, initiator, other)
    if link.kind is LinkClass.NVLINK:
        hop = rates.nvlink(initiator, link.nvlinks or 1)
    elif link.kind is LinkClass.UNKNOWN:
        hop = Hop(link=LinkKind.UNKNOWN, reason=link.reason)
    else:
        hop = rates.pcie(initiator, link.kind)
    return Path(
        route=Route(hops=(hop,)),
        waiver=missing,
        rate_gb_s=_planned([hop]),
        disjoint=link.kind is LinkClass.NVLINK,
    )


def _staged_path(machine: Machine, source: Gpu, destination: Gpu, missing: str) -> Path:
    """Return the path through host memory that copies between GPUs take without peer access."""
    hops = tuple(rates.c2c(gpu) if c2c(machine, gpu) is C2c.UP else rates.pcie(gpu) for gpu in (source, destination))
    route = Route(hops=hops, staged=True, staged_reason=missing)
    # Each byte crosses host memory twice, and chunk follows chunk.
    return Path(route=route, rate_gb_s=_planned(hops) / 2)


def host_path(machine: Machine, gpu: Gpu, node: int, memory: MemoryKind, *, allocated_by: Gpu | None = None) -> Path:
    """Return the path between a GPU and host memory of a kind on a NUMA node.

    Parameters
    ----------
    allocated_by
        The GPU under which the memory is allocated, where that is chosen: EGM memory is expected to belong to it.
    """
    own = memory in NUMA_MEMORY
    managed = memory is MemoryKind.MANAGED
    if gpu.nvml is None and gpu.cuda is not None:
        reason = without_nvml(machine, f"GPU{gpu.index}")
        unlisted = Route(
            memory=memory,
            hops=(Hop(link=LinkKind.UNKNOWN, reason=reason),),
            egm=Egm.UNKNOWN if own or managed else Egm.NO,
            egm_reason=reason if own or managed else _NEVER,
        )
        return Path(route=unlisted, rate_gb_s=_UNKNOWN_GB_S)
    links = route(machine, gpu, node)
    # Pinned, registered and plain memory never depend on the EGM route: only on the GPU and on the node.
    stopped = links.kind is RouteKind.BLOCKED and not links.otherwise
    if stopped:
        blocked = Route(carrier=Carrier.NONE, memory=memory, egm=Egm.NO, egm_reason=links.reason)
        forbidden = links.blocked_by in (Block.MEMS_ALLOWED, Block.NO_MEMORY)
        kind = WaiverKind.NO_NUMA_MEMORY if forbidden else WaiverKind.GPU_UNUSABLE
        why_not = Waiver.about(kind, links.reason, *() if forbidden else (gpu,))
        return Path(route=blocked, waiver=why_not, rate_gb_s=_UNKNOWN_GB_S)
    degraded = own and bool(links.otherwise)
    waiver = _memory_waiver(gpu, memory)
    if own:
        hops = links.hops or links.otherwise or (Hop(link=LinkKind.UNKNOWN, reason=links.reason),)
        if allocated_by is not None and allocated_by.bus_id in links.siblings and links.to_sibling is not None:
            hops = (links.to_sibling, rates.c2c(allocated_by))
        able, reason = _EGM[links.egm], f"the EGM route is blocked: {links.reason}" if degraded else links.reason
    else:
        coherent = c2c(machine, gpu) is C2c.UP
        hops = (rates.c2c(gpu) if coherent else rates.pcie(gpu), *across(machine, gpu, node))
        able, reason = Egm.NO, _NEVER
        if managed:
            able, reason = (Egm.NO, links.reason) if links.egm is False else (Egm.UNKNOWN, _BY_UVM)
    return Path(
        route=Route(memory=memory, hops=hops, egm=able, egm_reason=reason * (able is not Egm.YES), degraded=degraded),
        waiver=waiver,
        # Only where there is C2C can it be unknown whether memory is EGM.
        rate_gb_s=_planned(hops, _USUAL_GB_S[LinkKind.C2C]),
    )


def joined(source: Path, destination: Path) -> Path:
    """Return the path through a GPU of which its paths to the source and to the destination are known.

    Its hops are those to the source, then those to the destination. It is EGM where both ends are.
    """
    halves = (source, destination)
    for half in halves:
        if half.route.carrier is Carrier.NONE:
            return half
    # The first that is not EGM, or not known to be, says why.
    routes = [half.route for half in halves]
    telling = next((route for egm in (Egm.NO, Egm.UNKNOWN) for route in routes if route.egm is egm), routes[0])
    return Path(
        route=Route(
            memory=source.route.memory,
            hops=tuple(hop for route in routes for hop in route.hops),
            across_nodes=any(route.across_nodes for route in routes),
            egm=telling.egm,
            egm_reason=telling.egm_reason,
            degraded=any(route.degraded for route in routes),
        ),
        waiver=next((half.waiver for half in halves if half.waiver is not None), None),
        rate_gb_s=min(half.rate_gb_s for half in halves),
    )


_NEVER = "EGM needs a NUMA node's number"
"""Why pinned, registered and plain memory is no EGM on any platform."""
_BY_UVM = (
    "UVM routes managed memory by the GPUs that this process registered as peers (uvm_va_space.c, read there, not "
    "measured)"
)


def nowhere(memory: MemoryKind, label: str) -> Path:
    """Return the path to host memory of a rank whose node has no NUMA node with memory, or does not say so."""
    reason = f"{label} has no NUMA node that has memory"
    route = Route(carrier=Carrier.NONE, memory=memory, egm=Egm.NO, egm_reason=reason)
    waiver = Waiver(kind=WaiverKind.NO_NUMA_MEMORY, reason=reason)
    return Path(route=route, waiver=waiver, rate_gb_s=_UNKNOWN_GB_S)


def coherent_path(gpu: Gpu, cpu_node: int) -> Path:
    """Return the path between the CPUs of a NUMA node and a GPU's memory that is one too."""
    hops = (rates.c2c(gpu),) if cpu_node == gpu.host_numa_id else (SMP, rates.c2c(gpu))
    name = "PAGEABLE_MEMORY_ACCESS_USES_HOST_PAGE_TABLES"
    reason = None
    if _attribute(gpu, name) == 0:
        reason = f"CPUs cannot address GPU{gpu.index}'s memory: CU_DEVICE_ATTRIBUTE_{name} is 0"
    elif numa_node_of(gpu) is None:
        reason = f"GPU{gpu.index}'s memory is no NUMA node of the host"
    if reason is not None:
        waiver = Waiver.about(WaiverKind.UNSUPPORTED_MEMORY, reason, gpu)
        return Path(route=Route(carrier=Carrier.NONE), waiver=waiver, rate_gb_s=_CPU_GB_S)
    return Path(route=Route(carrier=Carrier.CPU, hops=hops), rate_gb_s=_CPU_GB_S)


def path_across(initiator: Gpu, owner_machine: Machine, owner: Gpu, memory: MemoryKind | None) -> Path:
    """Return the path from a GPU of one node to memory of another node of its NVLink domain.

    Parameters
    ----------
    owner_machine
        The owner's node.
    memory
        Of the owner's nearest NUMA node; ``None``: it is the owner's own memory.
    """
    nvlinks = rates.nvlink(initiator, active_nvlinks(initiator) or 0)
    if not nvlinks.nvlinks:
        nothing = Route(carrier=Carrier.NONE, memory=memory, across_nodes=True)
        waiver = Waiver.about(WaiverKind.NO_NVLINK, f"GPU{initiator.index} has no active NVLink", initiator)
        return Path(route=nothing, waiver=waiver, rate_gb_s=_UNKNOWN_GB_S)
    if memory is None:
        direct = Route(hops=(nvlinks,), across_nodes=True)
        return Path(route=direct, rate_gb_s=_planned(direct.hops), disjoint=True)
    name = "HOST_NUMA_MULTINODE_IPC_SUPPORTED"
    missing = next((gpu for gpu in (initiator, owner) if _attribute(gpu, name) == 0), None)
    refused = None
    if missing is not None:
        reason = f"GPU{missing.index} cannot share host memory across nodes: CU_DEVICE_ATTRIBUTE_{name} is 0"
        refused = Waiver.about(WaiverKind.UNSUPPORTED_MEMORY, reason, missing)
    able = egm(owner_machine, owner)
    hops = (nvlinks, rates.c2c(owner))
    return Path(
        route=Route(memory=memory, hops=hops, across_nodes=True, egm=_EGM[able.able], egm_reason=able.cause),
        waiver=refused,
        rate_gb_s=_planned(hops),
        disjoint=True,
    )


def path_between(
    machine: Machine,
    memory: tuple[MemoryKind, MemoryKind],
    ends: tuple[Place, Place],
    initiator: Gpu | None,
    *,
    staging: Staging = Staging.NEVER,
    allocated_by: Gpu | None = None,
) -> Path:
    """Return the path of a flow.

    Parameters
    ----------
    memory, ends
        Of its source and of its destination.
    initiator
        The GPU that issues its work, ``None`` for CPU threads.
    allocated_by
        As for :func:`host_path`.
    """
    nodes = [place for place in ends if not isinstance(place, Gpu)]
    if MemoryKind.GPU_NUMA in memory:
        return coherent_path(next(place for place in ends if isinstance(place, Gpu)), nodes[0])
    host = next((kind for kind in memory if kind in HOST_MEMORY), None)
    if host is None:
        other = next((place for place in ends if isinstance(place, Gpu) and place is not initiator), initiator)
        if initiator is None or not isinstance(other, Gpu):
            raise ValueError("between GPUs one of them issues the work")
        source = next(place for place in ends if isinstance(place, Gpu))
        path = device_path(machine, initiator, other, source=source, staging=staging)
        waivers = [_memory_waiver(gpu, kind) for gpu, kind in zip(ends, memory, strict=True) if isinstance(gpu, Gpu)]
        return replace(path, waiver=next((waiver for waiver in [path.waiver, *waivers] if waiver is not None), None))
    if initiator is None:
        hops = () if nodes[0] == nodes[1] else (SMP,)
        return Path(route=Route(carrier=Carrier.CPU, memory=host, hops=hops), rate_gb_s=_CPU_GB_S)
    if len(nodes) > 1:
        return joined(*(host_path(machine, initiator, *end) for end in zip(nodes, memory, strict=True)))
    return host_path(machine, initiator, nodes[0], host, allocated_by=allocated_by)


def gpu_waiver(machine: Machine, gpu: Gpu) -> Waiver | None:
    """Say why nothing can be measured on a GPU; ``None`` if it can."""
    visible = cuda_visible(machine)
    if gpu.cuda is not None and visible is not None and gpu.bus_id not in visible:
        return Waiver.about(WaiverKind.GPU_HIDDEN, f"CUDA_VISIBLE_DEVICES hides GPU{gpu.index}", gpu)
    if (why := gpu_obstacle(machine, gpu)) is None:
        return None
    return Waiver.about(WaiverKind.GPU_UNUSABLE, f"GPU{gpu.index}: {why}", gpu)


def gpu_obstacle(machine: Machine, gpu: Gpu) -> str | None:
    """Say why this process cannot use the whole of a GPU, without the GPU's name; ``None`` if it can."""
    stopped = classify(machine, gpu, through=Step.WHOLE)
    if stopped is not None:
        return stopped.cause
    return None if gpu.cuda is not None else "CUDA was not queried"


def cuda_visible(machine: Machine) -> frozenset[str] | None:
    """Return the bus ids that CUDA_VISIBLE_DEVICES leaves to a worker; ``None`` if it is not set.

    Notes
    -----
    Entries are numbers in the order of bus ids (the worker sets CUDA_DEVICE_ORDER so) or UUIDs and unique prefixes of
    them; the first invalid entry ends the list (CUDA C++ Programming Guide, "CUDA Environment Variables").
    """
    text = (machine.process.environment or {}).get("CUDA_VISIBLE_DEVICES") if machine.process else None
    if text is None:
        return None
    gpus = [gpu for gpu in machine.gpus or () if gpu.cuda is not None]
    visible: list[str] = []
    for part in (part.strip() for part in text.split(",")):
        if part.isascii() and part.isdigit():
            named = [gpu for gpu in gpus if gpu.cuda and gpu.cuda.ordinal == int(part)]
        else:
            named = [gpu for gpu in gpus if part.startswith("GPU-") and (gpu.uuid or "").startswith(part)]
        if len(named) != 1:
            break
        visible.append(named[0].bus_id)
    return frozenset(visible)


def _attribute(gpu: Gpu, name: str) -> int | None:
    return None if gpu.cuda is None else gpu.cuda.attributes.get(name)


def _memory_waiver(gpu: Gpu, memory: MemoryKind) -> Waiver | None:
    """Say why a GPU cannot use a kind of memory; ``None`` if it can, or its driver does not know the attribute."""
    attribute = _NEEDS_ATTRIBUTE.get(memory)
    if attribute is None or _attribute(gpu, attribute) != 0:
        return None
    name = HOST_NAMES.get(memory, "default pool")
    reason = f"GPU{gpu.index} cannot use {name} memory: CU_DEVICE_ATTRIBUTE_{attribute} is 0"
    return Waiver.about(WaiverKind.UNSUPPORTED_MEMORY, reason, gpu)


def _planned(hops: Sequence[Hop], usual_gb_s: float = _UNKNOWN_GB_S) -> float:
    """Return what to plan with for bytes that cross some links: what the slowest one reaches or, unknown, usually does.

    Parameters
    ----------
    usual_gb_s
        Where no link is known.
    """
    known = (
        _USUAL_GB_S[hop.link] * (hop.nvlinks or 1) if hop.nominal_gb_s is None else _REACHED * hop.nominal_gb_s
        for hop in hops
        if hop.nominal_gb_s is not None or hop.link in _USUAL_GB_S
    )
    return min(known, default=usual_gb_s)


def _peer_waiver(machine: Machine, initiator: Gpu, other: Gpu) -> Waiver | None:
    pair = machine.pair(initiator.bus_id, other.bus_id)
    if pair is None or pair.can_access_peer is not False:
        return None
    refused = [f"P2P {word} is {status}" for word, status in pair.p2p_status.items() if status not in ("OK", None)]
    answer = ", ".join(refused) or "cuDeviceCanAccessPeer says 0"
    reason = f"GPU{initiator.index} has no peer access to GPU{other.index}: {answer}"
    return Waiver.about(WaiverKind.NO_PEER_ACCESS, reason, initiator, other)
