"""The routes between two ends, the rates to plan with, and the reasons why a path cannot be measured. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from enum import Enum
from functools import lru_cache

from egmctl.bench.plan.flows import Location, numa_node_of
from egmctl.dataclass import dataclass
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
from egmctl.topology.access import Block, Step, classify, without_nvml
from egmctl.topology.links import Link, active_nvlinks, c2c_hop, gpu_link, nvlink_hop, pcie_hop
from egmctl.topology.platform import C2c, c2c, cpu_memory_rate, egm, gpu_memory_rate
from egmctl.topology.routes import RouteKind, across, route, smp

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
"""The device attribute that is 0 if a GPU cannot use a kind of memory."""
_USUAL_GB_S = {LinkKind.NVLINK: 20.0, LinkKind.C2C: 300.0, LinkKind.PCIE: 25.0}
"""The rates to plan with if none is reported: per NVLink, for C2C, for PCIe. They are not used to judge."""
_LOCAL_GB_S, _CPU_GB_S, _UNKNOWN_GB_S = 1500.0, 100.0, 25.0
"""The same for a GPU's own memory, for CPU threads, and for an unknown link."""
_REACHED = 0.88
"""The part of the nominal rate that copies reach: 396 of 450 GB/s over NVLink, 55.5 of 63 over PCIe 5.0 on H200."""
_EGM = {True: Egm.YES, False: Egm.NO, None: Egm.UNKNOWN}


class Staging(Enum):
    """The mode of copies between two GPUs through host memory.

    The driver stages copies if peer access is not enabled (CUDA driver API, cuMemcpyPeer). A kernel cannot be staged:
    it reaches only mapped memory.
    """

    NEVER = 0
    WITHOUT_ACCESS = 1
    """Only if the GPUs have no peer access."""
    ALWAYS = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class Path:
    """The route between two ends, and what a planner needs to know about it."""

    route: Route
    waiver: Waiver | None = None
    """The reason why nothing can be measured over it."""
    rate_gb_s: float
    """The rate to plan with: an estimate, not an expectation."""
    disjoint: bool = False
    """Whether pairs that share no GPU share no link either, as with NVLink or a GPU's own memory."""


class DevicePaths:
    """The paths between the memory of the GPUs of one machine, each found once: 72 GPUs have 5,112 pairs."""

    def __init__(self, machine: Machine) -> None:
        self._machine = machine
        self._paths: dict[tuple[str, str, str | None, Staging], Path] = {}
        self._links: dict[tuple[str, str], Link] = {}
        # Pairs of equal links share the path over them.
        self._over: dict[tuple[str, Link], Path] = {}

    def between(
        self, initiator: Gpu, other: Gpu, *, source: Gpu | None = None, staging: Staging = Staging.NEVER
    ) -> Path:
        """Return the path between the memory of two GPUs, or within one.

        Parameters
        ----------
        source
            The one of the two GPUs that the bytes come from; needed only if copies may be staged.
        """
        # Without staging it does not matter where the bytes come from.
        sender = None if source is None or staging is Staging.NEVER else source.bus_id
        key = (initiator.bus_id, other.bus_id, sender, staging)
        path = self._paths.get(key)
        if path is None:
            path = self._paths[key] = self._find(initiator, other, source, staging)
        return path

    def _find(self, initiator: Gpu, other: Gpu, source: Gpu | None, staging: Staging) -> Path:
        if initiator is other:
            return Path(route=Route(memory_rate=gpu_memory_rate(other)), rate_gb_s=_LOCAL_GB_S, disjoint=True)
        missing = _peer_waiver(self._machine, initiator, other)
        if staging is Staging.ALWAYS or (staging is Staging.WITHOUT_ACCESS and missing is not None):
            destination = initiator if source is other else other
            reason = "" if missing is None else missing.reason
            return _staged_path(self._machine, source or initiator, destination, reason)
        link = self._link(initiator, other)
        key = (initiator.bus_id, link)
        path = self._over.get(key)
        if path is None:
            path = self._over[key] = _path_over(initiator, link)
        return path if missing is None else replace(path, waiver=missing)

    def _link(self, initiator: Gpu, other: Gpu) -> Link:
        # Links are undirected.
        link = self._links.get((other.bus_id, initiator.bus_id))
        if link is None:
            link = self._links[initiator.bus_id, other.bus_id] = gpu_link(self._machine, initiator, other)
        return link


def _path_over(initiator: Gpu, link: Link) -> Path:
    """Return the path over the link between two GPUs."""
    if link.kind is LinkClass.NVLINK:
        hop = nvlink_hop(initiator, link.nvlinks or 1, direct=link.through == "direct")
    elif link.kind is LinkClass.UNKNOWN:
        hop = Hop(link=LinkKind.UNKNOWN, reason=link.reason)
    else:
        hop = pcie_hop(initiator, link.kind)
    return _path_of_hop(hop, disjoint=link.kind is LinkClass.NVLINK)


@lru_cache(maxsize=64)
def _path_of_hop(hop: Hop, *, disjoint: bool) -> Path:
    """Return the path over one link. GPUs with equal links share it."""
    return Path(route=Route(hops=(hop,)), rate_gb_s=_planned([hop]), disjoint=disjoint)


def _staged_path(machine: Machine, source: Gpu, destination: Gpu, missing: str) -> Path:
    """Return the path through host memory that copies between GPUs use without peer access."""
    hops = tuple(c2c_hop(gpu) if c2c(machine, gpu) is C2c.UP else pcie_hop(gpu) for gpu in (source, destination))
    route = Route(hops=hops, staged=True, staged_reason=missing)
    # Each byte crosses host memory twice, one chunk after the other.
    return Path(route=route, rate_gb_s=_planned(hops) / 2)


def host_path(machine: Machine, gpu: Gpu, node: int, memory: MemoryKind, *, allocated_by: Gpu | None = None) -> Path:
    """Return the path between a GPU and host memory of a kind on a NUMA node.

    Parameters
    ----------
    allocated_by
        The GPU that is current when the memory is allocated, if the case selects one. It is expected to own EGM memory.
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
    # Pinned, registered and plain memory does not depend on the EGM route, only on the GPU and the node.
    is_blocked = links.kind is RouteKind.BLOCKED and not links.otherwise
    if is_blocked:
        if links.blocked_by in (Block.MEMS_ALLOWED, Block.NO_MEMORY):
            return no_path(memory, Waiver.about(WaiverKind.NO_NUMA_MEMORY, links.reason))
        return no_path(memory, Waiver.about(WaiverKind.GPU_UNUSABLE, links.reason, gpu))
    degraded = own and bool(links.otherwise)
    waiver = _memory_waiver(gpu, memory)
    if own:
        hops = links.hops or links.otherwise or (Hop(link=LinkKind.UNKNOWN, reason=links.reason),)
        if allocated_by is not None and allocated_by.bus_id in links.siblings and links.to_sibling is not None:
            hops = (links.to_sibling, c2c_hop(allocated_by))
        state, reason = _EGM[links.egm], f"the EGM route is blocked: {links.reason}" if degraded else links.reason
    else:
        coherent = c2c(machine, gpu) is C2c.UP
        hops = (c2c_hop(gpu) if coherent else pcie_hop(gpu), *across(machine, gpu, node))
        state, reason = Egm.NO, _NEVER
        if managed:
            state, reason = (Egm.NO, links.reason) if links.egm is False else (Egm.UNKNOWN, _BY_UVM)
    if state is Egm.YES:
        reason = ""
    rate = cpu_memory_rate(machine, node)
    return Path(
        route=Route(memory=memory, hops=hops, memory_rate=rate, egm=state, egm_reason=reason, degraded=degraded),
        waiver=waiver,
        # Only with C2C can it be unknown whether memory is EGM.
        rate_gb_s=_planned(hops, _USUAL_GB_S[LinkKind.C2C]),
    )


def joined(source: Path, destination: Path) -> Path:
    """Return the path through a GPU, from its paths to the source and to the destination.

    Its hops are those to the source, then those to the destination. It is EGM if both ends are.
    """
    halves = (source, destination)
    for half in halves:
        if half.route.carrier is Carrier.NONE:
            return half
    # The reason is that of the first half that is not EGM, or else of the first for which it is unknown.
    routes = [half.route for half in halves]
    decisive = next((route for egm in (Egm.NO, Egm.UNKNOWN) for route in routes if route.egm is egm), routes[0])
    return Path(
        route=Route(
            memory=source.route.memory,
            hops=tuple(hop for route in routes for hop in route.hops),
            across_nodes=any(route.across_nodes for route in routes),
            egm=decisive.egm,
            egm_reason=decisive.egm_reason,
            degraded=any(route.degraded for route in routes),
        ),
        waiver=next((half.waiver for half in halves if half.waiver is not None), None),
        rate_gb_s=min(half.rate_gb_s for half in halves),
    )


_NEVER = "EGM needs a NUMA node's number"
"""The reason why pinned, registered and plain memory is not EGM on any platform."""
_BY_UVM = (
    "UVM routes managed memory by the GPUs that this process registered as peers (uvm_va_space.c, read there, not "
    "measured)"
)


def no_path(memory: MemoryKind, waiver: Waiver) -> Path:
    """Return the waived path to host memory that cannot be reached or does not exist."""
    route = Route(carrier=Carrier.NONE, memory=memory, egm=Egm.NO, egm_reason=waiver.reason)
    return Path(route=route, waiver=waiver, rate_gb_s=_UNKNOWN_GB_S)


def path_without_memory(memory: MemoryKind, label: str) -> Path:
    """Return the waived path to host memory of a rank whose node has no known NUMA node with memory."""
    return no_path(memory, Waiver.about(WaiverKind.NO_NUMA_MEMORY, f"{label} has no NUMA node that has memory"))


def coherent_path(machine: Machine, gpu: Gpu, cpu_node: int) -> Path:
    """Return the path between the CPUs of a NUMA node and a GPU's memory that is also a NUMA node."""
    hops = (c2c_hop(gpu),) if cpu_node == gpu.host_numa_id else (smp(machine), c2c_hop(gpu))
    name = "PAGEABLE_MEMORY_ACCESS_USES_HOST_PAGE_TABLES"
    reason = None
    if gpu.attribute(name) == 0:
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
        The kind of memory on the owner's nearest NUMA node; ``None`` for the owner's own memory.
    """
    nvlinks = nvlink_hop(initiator, active_nvlinks(initiator) or 0)
    if not nvlinks.nvlinks:
        blocked = Route(carrier=Carrier.NONE, memory=memory, across_nodes=True)
        waiver = Waiver.about(WaiverKind.NO_NVLINK, f"GPU{initiator.index} has no active NVLink", initiator)
        return Path(route=blocked, waiver=waiver, rate_gb_s=_UNKNOWN_GB_S)
    if memory is None:
        direct = Route(hops=(nvlinks,), across_nodes=True)
        return Path(route=direct, rate_gb_s=_planned(direct.hops), disjoint=True)
    name = "HOST_NUMA_MULTINODE_IPC_SUPPORTED"
    missing = next((gpu for gpu in (initiator, owner) if gpu.attribute(name) == 0), None)
    refused = None
    if missing is not None:
        reason = f"GPU{missing.index} cannot share host memory across nodes: CU_DEVICE_ATTRIBUTE_{name} is 0"
        refused = Waiver.about(WaiverKind.UNSUPPORTED_MEMORY, reason, missing)
    own, rate = egm(owner_machine, owner), cpu_memory_rate(owner_machine, owner.host_numa_id)
    hops = (nvlinks, c2c_hop(owner))
    return Path(
        route=Route(
            memory=memory, hops=hops, memory_rate=rate, across_nodes=True, egm=_EGM[own.able], egm_reason=own.cause
        ),
        waiver=refused,
        rate_gb_s=_planned(hops),
        disjoint=True,
    )


def path_between(
    machine: Machine,
    memory: tuple[MemoryKind, MemoryKind],
    ends: tuple[Location, Location],
    initiator: Gpu | None,
    *,
    staging: Staging = Staging.NEVER,
    allocated_by: Gpu | None = None,
    device_paths: DevicePaths | None = None,
) -> Path:
    """Return the path of a flow.

    Parameters
    ----------
    memory, ends
        The kind and the location of the memory, each of the source and of the destination.
    initiator
        The GPU that issues the work, ``None`` for CPU threads.
    allocated_by
        As for :func:`host_path`.
    device_paths
        The paths between the machine's GPUs that are known; ``None``: none is.
    """
    if MemoryKind.GPU_NUMA in memory:
        (gpu,) = (end for end in ends if isinstance(end, Gpu))
        (node,) = (end for end in ends if not isinstance(end, Gpu))
        return coherent_path(machine, gpu, node)
    source, destination = ends
    if isinstance(source, Gpu) and isinstance(destination, Gpu):
        if initiator is None:
            raise ValueError("between GPUs one of them issues the work")
        other = destination if source is initiator else source
        path = (device_paths or DevicePaths(machine)).between(initiator, other, source=source, staging=staging)
        if path.waiver is not None:
            return path
        waiver = _memory_waiver(source, memory[0]) or _memory_waiver(destination, memory[1])
        return path if waiver is None else replace(path, waiver=waiver)
    nodes = [end for end in ends if not isinstance(end, Gpu)]
    host = next(kind for kind in memory if kind in HOST_MEMORY)
    if initiator is None:
        hops = () if nodes[0] == nodes[1] else (smp(machine),)
        rate = cpu_memory_rate(machine, nodes[memory.index(host)])
        return Path(route=Route(carrier=Carrier.CPU, memory=host, hops=hops, memory_rate=rate), rate_gb_s=_CPU_GB_S)
    if len(nodes) > 1:
        return joined(*(host_path(machine, initiator, node, kind) for node, kind in zip(nodes, memory, strict=True)))
    return host_path(machine, initiator, nodes[0], host, allocated_by=allocated_by)


def gpu_waiver(machine: Machine, gpu: Gpu) -> Waiver | None:
    """Return why a GPU cannot be measured; ``None`` if it can."""
    visible = cuda_visible(machine)
    if gpu.cuda is not None and visible is not None and gpu.bus_id not in visible:
        return Waiver.about(WaiverKind.GPU_HIDDEN, f"CUDA_VISIBLE_DEVICES hides GPU{gpu.index}", gpu)
    if (obstacle := gpu_obstacle(machine, gpu)) is None:
        return None
    return Waiver.about(WaiverKind.GPU_UNUSABLE, f"GPU{gpu.index}: {obstacle}", gpu)


def gpu_obstacle(machine: Machine, gpu: Gpu) -> str | None:
    """Return why this process cannot use all of a GPU, without the GPU's name; ``None`` if it can."""
    obstacle = classify(machine, gpu, through=Step.WHOLE)
    if obstacle is not None:
        return obstacle.cause
    return None if gpu.cuda is not None else "CUDA was not queried"


def cuda_visible(machine: Machine) -> frozenset[str] | None:
    """Return the bus ids that CUDA_VISIBLE_DEVICES leaves to a worker; ``None`` if it is not set.

    Notes
    -----
    Entries are numbers in the order of bus ids (the worker sets CUDA_DEVICE_ORDER accordingly), or UUIDs and unique
    prefixes of them. The first invalid entry ends the list (CUDA C++ Programming Guide, "CUDA Environment Variables").
    """
    text = (machine.process.environment or {}).get("CUDA_VISIBLE_DEVICES") if machine.process else None
    if text is None:
        return None
    gpus = [gpu for gpu in machine.gpus or () if gpu.cuda is not None]
    visible: list[str] = []
    for part in (part.strip() for part in text.split(",")):
        if part.isascii() and part.isdigit():
            matching = [gpu for gpu in gpus if gpu.cuda and gpu.cuda.ordinal == int(part)]
        else:
            matching = [gpu for gpu in gpus if part.startswith("GPU-") and (gpu.uuid or "").startswith(part)]
        if len(matching) != 1:
            break
        visible.append(matching[0].bus_id)
    return frozenset(visible)


def _memory_waiver(gpu: Gpu, memory: MemoryKind) -> Waiver | None:
    """Return why a GPU cannot use a kind of memory; ``None`` if it can, or if the attribute is unknown."""
    attribute = _NEEDS_ATTRIBUTE.get(memory)
    if attribute is None or gpu.attribute(attribute) != 0:
        return None
    name = HOST_NAMES.get(memory, "default pool")
    reason = f"GPU{gpu.index} cannot use {name} memory: CU_DEVICE_ATTRIBUTE_{attribute} is 0"
    return Waiver.about(WaiverKind.UNSUPPORTED_MEMORY, reason, gpu)


def _planned(hops: Sequence[Hop], usual_gb_s: float = _UNKNOWN_GB_S) -> float:
    """Return the rate to plan with over some links: that of the slowest link, or its usual rate if none is reported.

    Parameters
    ----------
    usual_gb_s
        The rate if no link is known.
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
    refused = [f"P2P {access} is {status}" for access, status in pair.p2p_status.items() if status not in ("OK", None)]
    answer = ", ".join(refused) or "cuDeviceCanAccessPeer says 0"
    reason = f"GPU{initiator.index} has no peer access to GPU{other.index}: {answer}"
    return Waiver.about(WaiverKind.NO_PEER_ACCESS, reason, initiator, other)
