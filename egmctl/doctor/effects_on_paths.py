"""On which paths of a run a fault has an effect: the conditions of the rules in :mod:`egmctl.doctor.causes`."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum

from egmctl.compat import StrEnum
from egmctl.doctor.checks.kernel_log import xids_of
from egmctl.doctor.checks.nvlink import has_errors
from egmctl.doctor.kernel_faults import Blame, is_one_of
from egmctl.model.finding import NODE, OF_GPUS, Finding, Place, PlaceKind, Waiver, WaiverKind
from egmctl.model.gpu import Gpu
from egmctl.model.machine import Machine
from egmctl.model.measurement import Measurement
from egmctl.model.route import NUMA_MEMORY, Carrier, LinkKind, MemoryKind
from egmctl.model.task import Flow, HandleKind
from egmctl.topology.links import Link, gpu_link, nvlink_joins, nvlinks_between
from egmctl.topology.routes import owners


@dataclass(frozen=True, slots=True)
class Node:
    """One node of a run, and which of its processes are there."""

    machine: Machine
    name: str = ""
    """As labels of the run begin, ``node1``; empty in a run on one."""
    ranks: frozenset[int] | None = None
    """``None``: all."""

    def has(self, rank: int | None) -> bool:
        """Say whether a process is on this node; ``None`` is the one of a run without ranks."""
        return self.ranks is None or rank in self.ranks

    def bus_ids(self, flow: Flow) -> set[str]:
        """Return the bus ids of the GPUs of this node that take part in a flow."""
        ends = {end.bus_id for end in (flow.source, flow.destination) if self.has(end.rank)}
        issuer = {flow.initiator} if self.has(flow.initiator_rank) else set()
        return {bus_id for bus_id in ends | issuer if bus_id is not None}

    def gpus(self, flow: Flow) -> list[Gpu]:
        """Return those GPUs, in the order of their indices."""
        bus_ids = self.bus_ids(flow)
        return [gpu for gpu in self.machine.gpus or () if gpu.bus_id in bus_ids]


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
    BLIND = "blind"
    """However it ended, nobody knows the links that it crossed: NVML failed as a whole."""


@dataclass(frozen=True, slots=True, eq=False)
class Trouble:
    """One symptom of a measurement, or one reason why it was not made."""

    number: int
    """The measurement's place in the run."""
    kind: Symptom | WaiverKind
    measurement: Measurement
    """As it was planned."""
    waiver: Waiver | None = None


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


def _by_handle(flow: Flow) -> bool:
    handles = {flow.source.handle, flow.destination.handle}
    return flow.route.across_nodes or not handles.isdisjoint((HandleKind.FABRIC, HandleKind.POOL_FABRIC))


class Way(Enum):
    """What a flow crosses, and what its ends are, as far as faults act on it; each says whether a flow does so."""

    def __init__(self, crossed_by: Callable[[Flow], bool]) -> None:
        self.crossed_by = crossed_by

    PEERS = (_peers,)
    """The memory of two GPUs."""
    DIRECT_PEERS = (lambda flow: _peers(flow) and not flow.route.staged,)
    """The memory of two GPUs, without a copy staged in host memory."""
    PCIE_PEERS = (lambda flow: _peers(flow) and not flow.route.staged and _pcie(flow),)
    """The memory of two GPUs, directly and over PCIe."""
    HOST = (lambda flow: bool(numa_nodes(flow)),)
    """Host memory of any kind."""
    NUMA = (_numa,)
    """Host memory made by the number of its NUMA node: only that can be EGM."""
    BLOCKED_NUMA = (lambda flow: _numa(flow) and (flow.route.degraded or _blocked(flow)),)
    """Such memory whose EGM route is blocked, whether or not another way is left."""
    SHARED_NUMA = (lambda flow: _numa(flow) and _by_handle(flow),)
    """Such memory, shared by a fabric handle."""
    MANAGED = (lambda flow: MemoryKind.MANAGED in _memory(flow),)
    """Managed memory, which UVM routes by the GPUs of its NUMA node."""
    GPU_NUMA = (lambda flow: MemoryKind.GPU_NUMA in _memory(flow),)
    """A GPU's memory as a NUMA node of the host."""
    PAGEABLE = (lambda flow: not _memory(flow).isdisjoint((MemoryKind.GPU_NUMA, MemoryKind.SYSTEM)),)
    """Memory in one page table for GPU and CPU: plain memory, and a GPU's as a NUMA node."""
    NVLINK = (
        lambda flow: _crosses(flow, LinkKind.NVLINK) or (_peers(flow) and _blocked(flow)) or flow.route.across_nodes,
    )
    """NVLink, or what might be NVLink were the route not blocked; nothing else leads to other nodes."""
    C2C = (lambda flow: bool(numa_nodes(flow)) or _crosses(flow, LinkKind.C2C),)
    """C2C, or what would be C2C where there is C2C and it were up."""
    PCIE = (_pcie,)
    """PCIe; of a blocked route, which has no links, host memory would."""
    FABRIC_HANDLE = (_by_handle,)
    """Another process' memory by a fabric handle."""
    OTHER_NODE = (lambda flow: flow.route.across_nodes,)
    """Another node's memory."""


def numa_nodes(flow: Flow) -> set[int]:
    """Return the NUMA nodes of a flow's ends that are host memory."""
    return {end.numa_node for end in (flow.source, flow.destination) if end.numa_node is not None}


Holds = Callable[[Node, Finding, Trouble], bool]
"""Whether, on a node, a finding explains a trouble."""
Where = Callable[[Node, Flow], bool]


def on(
    way: Way | None = None,
    *,
    where: Where | None = None,
    given: Callable[[Node, Finding], bool] | None = None,
    whole_node: bool = False,
    of_links: bool = False,
) -> Holds:
    """Return whether a fault is on the way of one of a measurement's flows.

    Parameters
    ----------
    way
        What such a flow has to cross; by default nothing, the place decides.
    where
        What has to hold of its GPUs as well.
    given
        What has to hold of the finding; by default each counts.
    whole_node
        All GPUs of the node have the fault, whichever one it was seen on.
    of_links
        The fault counts also at the GPU whose links a flow takes on its way: the owner of EGM memory.
    """

    def holds(node: Node, cause: Finding, trouble: Trouble) -> bool:
        if given is not None and not given(node, cause):
            return False
        place, waiver, flows = cause.place, trouble.waiver, trouble.measurement.flows
        if waiver is not None and waiver.kind in OF_GPUS and waiver.gpus:
            same = whole_node or place.kind is not PlaceKind.GPU or not set(place.ids).isdisjoint(waiver.gpus)
            return same and any(node.bus_ids(flow) for flow in flows)
        return any(
            (touches(NODE if whole_node else place, flow, node) or (of_links and leads_through(place, flow, node)))
            and (way is None or way.crossed_by(flow))
            and (where is None or where(node, flow))
            for flow in flows
        )

    return holds


def touches(place: Place, flow: Flow, node: Node) -> bool:
    """Say whether a flow has an end at a place of a node."""
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


def leads_through(place: Place, flow: Flow, node: Node) -> bool:
    """Say whether a flow leads over NVLink through a GPU of a place: the owner of another CPU's EGM.

    Of two GPUs that can be the owner nobody says which is, so the place must have both.
    """
    links = {hop.link for hop in flow.route.hops}
    if place.gpus is None or flow.route.across_nodes or not {LinkKind.NVLINK, LinkKind.C2C} <= links:
        return False
    of_nodes = [{owner.bus_id for owner in owners(node.machine, numa)} for numa in numa_nodes(flow)]
    return bool(node.gpus(flow)) and any(bus_ids and bus_ids <= place.gpus for bus_ids in of_nodes)


def far_memory(node: Node, flow: Flow) -> bool:
    """Say whether an end is host memory of a NUMA node that is not a GPU's own."""
    own = [gpu.host_numa_id for gpu in node.gpus(flow) if gpu.host_numa_id is not None]
    return any(numa_node != numa for numa_node in own for numa in numa_nodes(flow))


# --- NVLink between the GPUs of a flow -------------------------------------------------------------------------------


def on_nvlink(holds: Callable[[Link, Gpu, Gpu], bool]) -> Where:
    """Return whether NVLink joins one of the pairs on a flow's way, and something holds of that pair.

    Some pairs have none by design; links that went down joined their pair.
    """

    def check(node: Node, flow: Flow) -> bool:
        pairs = _joined(node, flow)
        return pairs is None or any(
            nvlink_joins(node.machine, *ends) and holds(gpu_link(node.machine, *ends), *ends) for ends in pairs
        )

    return check


joined_by_nvlink = on_nvlink(lambda _link, _gpu, _other: True)
# Between its two GPUs, or behind a switch any link of either.
short_of_nvlinks = on_nvlink(lambda link, _gpu, _other: link.through != "direct" or link.nvlinks_expected is not None)
errors_on_the_way = on_nvlink(
    lambda link, gpu, other: link.through != "direct" or any(map(has_errors, nvlinks_between(gpu, other)))
)


def lost_nvlink(node: Node, flow: Flow) -> bool:
    """Say whether NVLink joined two GPUs, of which one has none left: another path is what remains then."""
    links = [gpu.nvml.nvlinks for gpu in node.gpus(flow) if gpu.nvml is not None and gpu.nvml.nvlinks]
    return any(not any(link.active for link in of_gpu) for of_gpu in links) and joined_by_nvlink(node, flow)


def _joined(node: Node, flow: Flow) -> list[tuple[Gpu, Gpu]] | None:
    """Return the pairs of GPUs one of which is joined on a flow's way; ``None`` where that is on several nodes.

    To EGM of another CPU they are the GPU and each that can own memory there: which one does is not known.
    """
    if flow.route.across_nodes:
        return None
    gpus, nodes = node.gpus(flow), numa_nodes(flow)
    if not nodes:
        return [(gpus[0], gpus[1])] if len(gpus) == 2 else None
    return [(gpu, owner) for gpu in gpus for numa in nodes for owner in owners(node.machine, numa) if owner is not gpu]


# --- which findings count --------------------------------------------------------------------------------------------


def at_gpu(_node: Node, cause: Finding) -> bool:
    """Say whether a fault is at a GPU: of another device it is not known which paths that is on."""
    return cause.place.kind is PlaceKind.GPU


def with_xid(*numbers_or_parts: int | Blame) -> Callable[[Node, Finding], bool]:
    """Return whether one of the Xids that a finding on a GPU is about is of these numbers, or blames these parts."""

    def holds(node: Node, cause: Finding) -> bool:
        return at_gpu(node, cause) and any(is_one_of(event, numbers_or_parts) for event in xids_of(node.machine, cause))

    return holds
