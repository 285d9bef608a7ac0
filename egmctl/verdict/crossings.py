"""What a flow crosses: the predicates of :data:`egmctl.verdict.mechanisms.MECHANISMS`. Pure.

Only a link on a flow's own route has a part in it. The route of one that was refused names no link: there it counts
whether NVLink joins its two GPUs, or did before links went down.
"""

from __future__ import annotations

from collections.abc import Callable

from egmctl.doctor.checks.nvlink import has_errors
from egmctl.model.finding import Place
from egmctl.model.machine import Gpu, Machine
from egmctl.model.measurement import Flow, HandleKind
from egmctl.model.memory import NUMA_MEMORY, MemoryKind
from egmctl.model.route import Carrier, LinkKind
from egmctl.topology.links import gpu_link, nvlink_joins, nvlinks_between
from egmctl.topology.routes import owners
from egmctl.verdict.nodes import RunNode


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
