"""The route from each GPU to the memory of each CPU NUMA node, and whether it is EGM.

Extended GPU Memory is a CPU's memory that is accessed over the C2C link of a GPU on that CPU. There are two routes:
over the accessing GPU's own C2C (local), or over NVLink to such a GPU and then over its C2C (remote). The kernel driver
maps remote memory only if the owner GPU is registered in the same process and is a peer of the first. So a device
cgroup that denies the owner blocks the route; CUDA_VISIBLE_DEVICES does not (CUDA C++ Programming Guide, chapter
"Extended GPU Memory"; open-gpu-kernel-modules, ``uvm_map_external.c``, ``set_ext_gpu_map_location``).

**EGM memory belongs to one GPU**, its owner, under which it was allocated (open-gpu-kernel-modules 595.45.04,
``mem_desc.c``, memdescIsEgm; ``system_mem.c``). Memory of cuMemCreate and of pools is accessed over the owner's C2C
only: every other GPU, including the other GPU of the same Grace CPU, goes over NVLink to the owner (``nv_gpu_ops.c``
compares the mapping GPU's id with the owner's, without a shortcut). It is not documented which of a CPU's two GPUs
libcuda makes the owner. For managed and for plain memory, each GPU of the CPU uses its own C2C (``uvm_va_space.c``).
All of this is from the driver's source; none of it was measured.

All other routes reach the same memory, but not as EGM: on a Grace node over C2C as ordinary system memory, or, without
C2C, over PCIe. In Coherent Driver-based Memory Management (CDMM), a GPU's own memory is no NUMA node, but the CPU's
memory is, so EGM routes do not depend on CDMM.
"""

from __future__ import annotations

from dataclasses import field

from egmctl.compat import StrEnum
from egmctl.dataclass import dataclass
from egmctl.model.gpu import Gpu
from egmctl.model.host import NumaKind
from egmctl.model.machine import Machine
from egmctl.model.route import Hop, LinkKind, at_most_gb_s, symbol_of
from egmctl.topology.access import Block, Obstacle, obstacle
from egmctl.topology.links import c2c_hop, gpu_link, nvlink_hop, pcie_hop
from egmctl.topology.platform import C2c, c2c, cpu_link, egm
from egmctl.units import parse_kernel_list


class RouteKind(StrEnum):
    """The kinds of routes."""

    LOCAL = "egm-local"
    """EGM over the GPU's own NVLink-C2C, if the GPU owns the memory: see :attr:`HostRoute.siblings`."""
    REMOTE = "egm-remote"
    """EGM over NVLink to the owner GPU, then over the owner's NVLink-C2C."""
    C2C = "c2c-not-egm"
    """Ordinary system memory over the GPU's own NVLink-C2C."""
    PCIE = "pcie-not-egm"
    BLOCKED = "blocked"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class HostRoute:
    """The route from one GPU to the memory of one CPU NUMA node."""

    gpu: str
    """The bus id."""
    numa_node: int
    kind: RouteKind
    hops: tuple[Hop, ...] = ()
    """The links from the GPU to the memory; empty if blocked or unknown."""
    via: tuple[str, ...] = ()
    """The bus ids of the possible owner GPUs of a remote EGM route; all are equally good."""
    reason: str = ""
    """The reason why the route is blocked, unknown or not EGM."""
    blocked_by: Block | None = None
    otherwise: tuple[Hop, ...] = ()
    """The remaining links from the GPU to that CPU's memory, as ordinary system memory, if only the EGM route is
    blocked (uvm_va_space.c: without an owner, the driver silently maps the memory as system memory). A measurement
    tries them; whether the driver allocates HOST_NUMA memory in this case is not documented."""
    siblings: tuple[str, ...] = ()
    """The bus ids of the other GPUs on that CPU, for a local EGM route. Memory that one of them owns is reached over
    :attr:`to_sibling` and the owner's C2C: inferred from the driver's source, not measured."""
    to_sibling: Hop | None = None

    # Fields that are derived from the others: written to documents, but not read back.
    egm: bool | None = field(init=False)
    """Whether the route is EGM; null if unknown."""
    symbol: str = field(init=False)
    """The links as a symbol: ``C2C``, ``NV18>C2C``, ``C2C-sys``, ``PCIe>SMP``, ``blocked``, ``?``. ``C2C|NV18>C2C``
    depends on the owner of the memory: this GPU, or another GPU of the CPU."""
    at_most_gb_s: float | None = field(init=False)
    """The smallest known rate of a link in GB/s (1e9 bytes per second), which the route cannot exceed. Null if none is
    known."""
    nominal_gb_s: float | None = field(init=False)
    """The nominal rate of the slowest link in one direction, in GB/s; null if the rate of any link is unknown."""

    def __post_init__(self) -> None:
        at_most = at_most_gb_s(self.hops)
        derived = {
            "egm": None if self.kind is RouteKind.UNKNOWN else self.kind in (RouteKind.LOCAL, RouteKind.REMOTE),
            "symbol": self._symbol(),
            "at_most_gb_s": at_most,
            "nominal_gb_s": None if any(hop.nominal_gb_s is None for hop in self.hops) else at_most,
        }
        for name, value in derived.items():
            object.__setattr__(self, name, value)

    def _symbol(self) -> str:
        if not self.hops:
            return "blocked" if self.kind is RouteKind.BLOCKED else "?"
        own = symbol_of(self.hops, system=self.kind is RouteKind.C2C)
        return own if self.to_sibling is None else f"{own}|{symbol_of((self.to_sibling, *self.hops))}"


def route(machine: Machine, gpu: Gpu, node: int) -> HostRoute:
    """Return the route from a GPU to the memory of a CPU NUMA node.

    Local EGM is preferred, then remote EGM, then other routes.
    """
    stopped = numa_node_obstacle(machine, node) or obstacle(machine, gpu)
    if stopped is not None:
        return HostRoute(gpu.bus_id, node, RouteKind.BLOCKED, reason=stopped.cause, blocked_by=stopped.block)
    own = egm(machine, gpu)
    if c2c(machine, gpu) in (C2c.ABSENT, C2c.DOWN):
        hops = (pcie_hop(gpu), *across(machine, gpu, node))
        return HostRoute(gpu.bus_id, node, RouteKind.PCIE, hops=hops, reason=own.cause)
    if own.able is None:
        return HostRoute(gpu.bus_id, node, RouteKind.UNKNOWN, reason=own.cause)
    if gpu.host_numa_id is None:
        return HostRoute(gpu.bus_id, node, RouteKind.UNKNOWN, reason="the GPU's host NUMA node is not known")
    if not own.able:
        return _system_memory(machine, gpu, node, own.cause)
    if gpu.host_numa_id == node:
        return _local(machine, gpu, node)
    return _remote(machine, gpu, node)


def possible_owners(machine: Machine, node: int) -> tuple[Gpu, ...]:
    """Return the GPUs on a CPU NUMA node that can own EGM; a Grace CPU has one (GH200) or two (GB200).

    A PCIe GPU on the same node, as in a DGX Station, owns none.
    """
    return tuple(gpu for gpu in machine.gpus or () if gpu.host_numa_id == node and c2c(machine, gpu) is not C2c.ABSENT)


def _local(machine: Machine, gpu: Gpu, node: int) -> HostRoute:
    """Return the route over the GPU's own C2C, with the other GPUs of the CPU that may own the memory instead."""
    siblings = {}
    for other in possible_owners(machine, node):
        if other is not gpu and obstacle(machine, other) is None and egm(machine, other).able:
            nvlinks = _peer_nvlinks(machine, gpu, other)
            if isinstance(nvlinks, int):
                siblings[other.bus_id] = nvlinks
    return HostRoute(
        gpu.bus_id,
        node,
        RouteKind.LOCAL,
        hops=(c2c_hop(gpu),),
        siblings=tuple(siblings),
        to_sibling=nvlink_hop(gpu, max(siblings.values())) if siblings else None,
    )


def _remote(machine: Machine, gpu: Gpu, node: int) -> HostRoute:
    """Return the route over the owner GPUs with the most NVLinks.

    If there is none, the route is unknown, blocked or ordinary system memory, with the reasons of the owners.

    The Grace CPU of a GB200 has two GPUs that can own memory. Which of them owns a given allocation, and so whose C2C
    carries it, is not documented.
    """
    possible: list[tuple[int, Gpu]] = []
    blocked: list[tuple[str, Block]] = []
    unknown: list[str] = []
    not_egm: list[str] = []
    for owner in possible_owners(machine, node):
        name, peer, nvlinks = f"GPU{owner.index}", egm(machine, owner), _peer_nvlinks(machine, gpu, owner)
        stopped = obstacle(machine, owner) or (nvlinks if isinstance(nvlinks, Obstacle) and peer.able else None)
        if stopped is not None:
            blocked.append((f"{name}: {stopped.cause}", stopped.block))
        elif peer.able is False:
            not_egm.append(f"{name}: {peer.cause}")
        elif peer.able is None:
            unknown.append(f"{name}: {peer.cause}")
        elif isinstance(nvlinks, int):
            possible.append((nvlinks, owner))
        else:
            unknown.append(f"{name}: NVML does not report the NVLinks to it, or its P2P state")
    if possible:
        most = max(nvlinks for nvlinks, _ in possible)
        best = [owner for nvlinks, owner in possible if nvlinks == most]
        hops = (nvlink_hop(gpu, most), c2c_hop(best[0]))
        return HostRoute(gpu.bus_id, node, RouteKind.REMOTE, hops=hops, via=tuple(owner.bus_id for owner in best))
    if unknown:
        return HostRoute(gpu.bus_id, node, RouteKind.UNKNOWN, reason="; ".join(unknown))
    if blocked:
        reason = "; ".join(words for words, _ in blocked)
        left = (c2c_hop(gpu), *across(machine, gpu, node))
        return HostRoute(gpu.bus_id, node, RouteKind.BLOCKED, reason=reason, blocked_by=blocked[0][1], otherwise=left)
    return _system_memory(machine, gpu, node, "; ".join(not_egm) or f"no GPU sits on NUMA node {node}")


def _peer_nvlinks(machine: Machine, gpu: Gpu, owner: Gpu) -> int | Obstacle | None:
    """Return the number of NVLinks from ``gpu`` to its peer ``owner``, the obstacle, or ``None`` if unknown."""
    link = gpu_link(machine, gpu, owner)
    if link.nvlinks is None:
        return None
    if link.nvlinks == 0:
        return Obstacle(Block.NVLINK_DOWN, "no NVLink to it is up")
    pair = machine.pair(gpu.bus_id, owner.bus_id)
    states = {name: pair.p2p_status.get(name) if pair else None for name in ("read", "write", "nvlink")}
    for name, status in states.items():
        if status not in (None, "OK"):
            return Obstacle(Block.NO_P2P, f"P2P {name} to it is {status}")
    return None if None in states.values() else link.nvlinks


def _system_memory(machine: Machine, gpu: Gpu, node: int, reason: str) -> HostRoute:
    """Return the route over the GPU's own C2C as ordinary system memory, plus the CPU interconnect if needed."""
    hops = (c2c_hop(gpu), *across(machine, gpu, node))
    return HostRoute(gpu.bus_id, node, RouteKind.C2C, hops=hops, reason=reason)


def smp(machine: Machine) -> Hop:
    """Return the hop from one NUMA node of the host to another, with its rate if one is published for the platform."""
    if (rate := cpu_link(machine)) is None:
        return Hop(link=LinkKind.SMP, reason="nothing reports the rate between NUMA nodes")
    return Hop(link=LinkKind.SMP, nominal_gb_s=rate.gb_s, source=rate.source)


def across(machine: Machine, gpu: Gpu, node: int) -> tuple[Hop, ...]:
    """Return the hop from the GPU's NUMA node to another; empty if it is the same or the only one."""
    if len(machine.cpu_nodes) <= 1 or gpu.host_numa_id == node:
        return ()
    if gpu.host_numa_id is None:
        return (Hop(link=LinkKind.UNKNOWN, reason="the GPU's host NUMA node is not known"),)
    return (smp(machine),)


def numa_node_obstacle(machine: Machine, node: int) -> Obstacle | None:
    """Return why this process cannot allocate memory on a CPU NUMA node; ``None`` if no obstacle is known."""
    host = machine.host
    if host is None:
        return None
    if any(n.id == node and n.kind is NumaKind.CPU_ONLY for n in host.numa_nodes or ()):
        return Obstacle(Block.NO_MEMORY, f"NUMA node {node} has no memory")
    allowed = host.allowed_numa_nodes
    if allowed is not None and node not in parse_kernel_list(allowed):
        return Obstacle(Block.MEMS_ALLOWED, f"this process may use memory of NUMA node {allowed} only (Mems_allowed)")
    return None
