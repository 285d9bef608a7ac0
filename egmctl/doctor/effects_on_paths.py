"""The conditions under which a finding explains troubles of a run's paths, for rules in :mod:`egmctl.doctor.causes`."""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum

from egmctl.doctor.checks.kernel_log import xids_of
from egmctl.doctor.checks.nvlink import has_errors
from egmctl.doctor.kernel_faults import Blame, is_one_of
from egmctl.doctor.troubles import RunNode, Symptom, Trouble, numa_nodes
from egmctl.model.finding import NODE, OF_GPUS, Finding, Place, PlaceKind, Status
from egmctl.model.gpu import Gpu
from egmctl.model.route import NUMA_MEMORY, Carrier, LinkKind, MemoryKind
from egmctl.model.task import Flow, HandleKind
from egmctl.topology.links import Link, gpu_link, nvlink_joins, nvlinks_between
from egmctl.topology.routes import possible_owners


def _memory(flow: Flow) -> set[MemoryKind]:
    return {flow.source.memory, flow.destination.memory}


def _numa(flow: Flow) -> bool:
    return not _memory(flow).isdisjoint(NUMA_MEMORY)


def _peers(flow: Flow) -> bool:
    ends = {(end.bus_id, end.rank) for end in (flow.source, flow.destination)}
    return len(ends) == 2 and None not in (flow.source.bus_id, flow.destination.bus_id)


def _crosses(flow: Flow, link: LinkKind) -> bool:
    return any(hop.link is link for hop in flow.route.hops)


def _blocked(flow: Flow) -> bool:
    return flow.route.carrier is Carrier.NONE


def _pcie(flow: Flow) -> bool:
    return bool(numa_nodes(flow)) if _blocked(flow) else _crosses(flow, LinkKind.PCIE)


def _pageable(flow: Flow) -> bool:
    by_gpu = flow.initiator is not None and MemoryKind.SYSTEM in _memory(flow)
    return by_gpu or MemoryKind.GPU_NUMA in _memory(flow)


def _uses_fabric_handle(flow: Flow) -> bool:
    handles = {flow.source.handle, flow.destination.handle}
    return flow.route.across_nodes or not handles.isdisjoint((HandleKind.FABRIC, HandleKind.POOL_FABRIC))


class Flows(Enum):
    """The classes of flows that faults affect, by the links they cross and their ends; each tests a flow."""

    def __init__(self, includes: Callable[[Flow], bool]) -> None:
        self.includes = includes

    PEERS = (_peers,)
    """Flows between the memory of two GPUs."""
    DIRECT_PEERS = (lambda flow: _peers(flow) and not flow.route.staged,)
    """Flows between the memory of two GPUs that are not staged in host memory."""
    PCIE_PEERS = (lambda flow: _peers(flow) and not flow.route.staged and _pcie(flow),)
    """Flows between the memory of two GPUs, directly over PCIe."""
    HOST = (lambda flow: bool(numa_nodes(flow)),)
    """Flows with an end in host memory."""
    NUMA = (_numa,)
    """Flows with an end in memory allocated by NUMA node id, which can be EGM."""
    BLOCKED_NUMA = (lambda flow: _numa(flow) and (flow.route.degraded or _blocked(flow)),)
    """Flows of :attr:`NUMA` whose EGM route is blocked, whether or not another route is left."""
    SHARED_NUMA = (lambda flow: _numa(flow) and _uses_fabric_handle(flow),)
    """Flows of :attr:`NUMA` with memory shared by a fabric handle."""
    MANAGED = (lambda flow: MemoryKind.MANAGED in _memory(flow),)
    """Flows with an end in managed memory, which UVM routes by the GPUs of its NUMA node."""
    GPU_NUMA = (lambda flow: MemoryKind.GPU_NUMA in _memory(flow),)
    """Flows with an end in a GPU's memory as a NUMA node of the host."""
    PAGEABLE = (_pageable,)
    """Flows with an end in memory that needs shared page tables: malloc'ed memory for a GPU, and GPU NUMA nodes."""
    NVLINK = (
        lambda flow: _crosses(flow, LinkKind.NVLINK) or (_peers(flow) and _blocked(flow)) or flow.route.across_nodes,
    )
    """Flows over NVLink, which is the only link to other nodes, and blocked flows between GPUs."""
    C2C = (lambda flow: bool(numa_nodes(flow)) or _crosses(flow, LinkKind.C2C),)
    """Flows over C2C or with an end in host memory, which would use C2C if it were up."""
    PCIE = (_pcie,)
    """Flows over PCIe, and blocked flows with an end in host memory."""
    FABRIC_HANDLE = (_uses_fabric_handle,)
    """Flows with memory that is imported by a fabric handle."""
    OTHER_NODE = (lambda flow: flow.route.across_nodes,)
    """Flows with memory of another node."""


PathCondition = Callable[[RunNode, Finding, Trouble], bool]
"""A condition: whether, on a node, a finding explains a trouble."""
FlowCondition = Callable[[RunNode, Flow], bool]


def on(
    flows_class: Flows | None = None,
    *,
    where: FlowCondition | None = None,
    given: Callable[[RunNode, Finding], bool] | None = None,
    whole_node: bool = False,
    via_owner: bool = False,
) -> PathCondition:
    """Return a condition: a finding's place is on the path of a flow of a trouble's measurement.

    For a waiver of whole GPUs, a finding on GPUs must include one of them; ``flows_class`` and ``where`` are ignored.

    Parameters
    ----------
    flows_class
        The class of affected flows; by default all.
    where
        A further condition for the flow.
    given
        A condition for the finding.
    whole_node
        Whether the fault affects all GPUs of the node, whichever it names.
    via_owner
        Whether the fault also affects flows over NVLink to EGM that its GPU owns.
    """

    def holds(node: RunNode, cause: Finding, trouble: Trouble) -> bool:
        if given is not None and not given(node, cause):
            return False
        place, waiver, flows = cause.place, trouble.waiver, trouble.measurement.flows
        if waiver is not None and waiver.kind in OF_GPUS and waiver.gpus:
            is_affected = whole_node or place.kind is not PlaceKind.GPU or not set(place.ids).isdisjoint(waiver.gpus)
            return is_affected and any(node.bus_ids(flow) for flow in flows)
        return any(
            (touches(NODE if whole_node else place, flow, node) or (via_owner and crosses_owner(place, flow, node)))
            and (flows_class is None or flows_class.includes(flow))
            and (where is None or where(node, flow))
            for flow in flows
        )

    return holds


_ALLOCATIONS = ("cuMemAlloc", "cuMemAllocFromPoolAsync", "cuMemAllocManaged", "cuMemCreate")
"""The calls that allocate memory of a GPU."""


def on_allocation(node: RunNode, cause: Finding, trouble: Trouble) -> bool:
    """Return whether a path with an end in memory of the finding's GPU had no room, or failed in an allocation."""
    has_failed = trouble.kind in (Symptom.FAILED, Symptom.LOST)
    return on(where=lambda _node, flow: _ends_at(cause.place, flow))(node, cause, trouble) and (
        not has_failed or trouble.measurement.last_call in _ALLOCATIONS
    )


def _ends_at(place: Place, flow: Flow) -> bool:
    return not {flow.source.bus_id, flow.destination.bus_id}.isdisjoint(place.ids)


def touches(place: Place, flow: Flow, node: RunNode) -> bool:
    """Return whether a flow uses a place of a node; no flow uses a NIC."""
    ends = [end for end in (flow.source, flow.destination) if node.has(end.rank)]
    match place.kind:
        case PlaceKind.NODE:
            return bool(ends) or node.has(flow.initiator_rank)
        case PlaceKind.GPU:
            return not node.bus_ids(flow).isdisjoint(place.ids)
        case PlaceKind.PAIR:
            bus_ids = [end.bus_id for end in ends if end.bus_id is not None]
            return len(bus_ids) == 2 and not {">".join(bus_ids), ">".join(bus_ids[::-1])}.isdisjoint(place.ids)
        case PlaceKind.NUMA:
            return any(str(end.numa_node) in place.ids for end in ends)
        case PlaceKind.NIC:
            return False


def crosses_owner(place: Place, flow: Flow, node: RunNode) -> bool:
    """Return whether a flow crosses NVLink and a GPU of a place, the owner of another CPU's EGM.

    If several GPUs can be the owner, the actual one is unknown, so the place must include all of them.
    """
    links = {hop.link for hop in flow.route.hops}
    if place.gpus is None or flow.route.across_nodes or not {LinkKind.NVLINK, LinkKind.C2C} <= links:
        return False
    owners_by_node = [{owner.bus_id for owner in possible_owners(node.machine, numa)} for numa in numa_nodes(flow)]
    return bool(node.gpus(flow)) and any(bus_ids and bus_ids <= place.gpus for bus_ids in owners_by_node)


def uses_remote_memory(node: RunNode, flow: Flow) -> bool:
    """Return whether an end is host memory of another NUMA node than that of one of the GPUs."""
    own_nodes = [gpu.host_numa_id for gpu in node.gpus(flow) if gpu.host_numa_id is not None]
    return any(numa_node != numa for numa_node in own_nodes for numa in numa_nodes(flow))


# --- NVLink between the GPUs of a flow -------------------------------------------------------------------------------


def any_nvlink(holds: Callable[[Link, Gpu, Gpu], bool]) -> FlowCondition:
    """Return a condition for flows: NVLink joins a pair of GPUs on the path, and ``holds`` is true for that pair.

    Pairs whose links went down count. The condition is also true if the pairs are unknown.
    """

    def check(node: RunNode, flow: Flow) -> bool:
        pairs = _joined(node, flow)
        return pairs is None or any(
            nvlink_joins(node.machine, *ends) and holds(gpu_link(node.machine, *ends), *ends) for ends in pairs
        )

    return check


joined_by_nvlink = any_nvlink(lambda _link, _gpu, _other: True)
# Direct links must join the two GPUs; behind a switch, any link of either GPU counts.
short_of_nvlinks = any_nvlink(lambda link, _gpu, _other: link.through != "direct" or link.nvlinks_expected is not None)
errors_on_path = any_nvlink(
    lambda link, gpu, other: link.through != "direct" or any(map(has_errors, nvlinks_between(gpu, other)))
)


def lost_nvlink(node: RunNode, flow: Flow) -> bool:
    """Return whether NVLink joined two GPUs and one of them has no active link left, so that another path is used."""
    links = [gpu.nvml.nvlinks for gpu in node.gpus(flow) if gpu.nvml is not None and gpu.nvml.nvlinks]
    return any(not any(link.active for link in gpu_links) for gpu_links in links) and joined_by_nvlink(node, flow)


def _joined(node: RunNode, flow: Flow) -> list[tuple[Gpu, Gpu]] | None:
    """Return the pairs of GPUs that NVLink may join on the path of a flow; ``None`` if unknown.

    To host memory, they are the GPU and each other GPU that can own the memory. They are unknown if the flow leads to
    another node, or has neither an end in host memory nor two GPUs.
    """
    if flow.route.across_nodes:
        return None
    gpus, nodes = node.gpus(flow), numa_nodes(flow)
    if not nodes:
        return [(gpus[0], gpus[1])] if len(gpus) == 2 else None
    owners = [owner for numa in nodes for owner in possible_owners(node.machine, numa)]
    return [(gpu, owner) for gpu in gpus for owner in owners if owner is not gpu]


# --- which findings count --------------------------------------------------------------------------------------------


def hits_gpu(_node: RunNode, cause: Finding) -> bool:
    """Return whether a fault is at a GPU. For other devices, the affected paths are unknown; a program's is of it."""
    return cause.place.kind is PlaceKind.GPU and cause.status is not Status.NOTE


def has_xid(*numbers_or_parts: int | Blame) -> Callable[[RunNode, Finding], bool]:
    """Return a condition: an Xid of a finding on a GPU has one of these numbers, or blames one of these parts."""

    def holds(node: RunNode, cause: Finding) -> bool:
        return hits_gpu(node, cause) and any(is_one_of(xid, numbers_or_parts) for xid in xids_of(node.machine, cause))

    return holds
