"""The flows between ranks of cases that need several processes, on one node or several."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from itertools import combinations

from egmctl.bench.case import Case, End
from egmctl.bench.plan.flows import Location, expand, own_endpoint
from egmctl.bench.plan.paths import DevicePath, Path, path_between, path_without_memory
from egmctl.bench.plan.task import Candidate
from egmctl.dataclass import dataclass
from egmctl.driver.signatures import cause_of
from egmctl.model.finding import Waiver, WaiverKind
from egmctl.model.gpu import Gpu
from egmctl.model.machine import Machine
from egmctl.model.route import HOST_MEMORY, Carrier, Egm, MemoryKind, Rank, Route
from egmctl.model.task import UCX_ENGINES, Endpoint, Engine, Flow, HandleKind, Pattern

_NEEDS_ATTRIBUTE = {
    HandleKind.POSIX_FD: "HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED",
    **dict.fromkeys((HandleKind.FABRIC, HandleKind.POOL_FABRIC), "HANDLE_TYPE_FABRIC_SUPPORTED"),
}
_POOL_HANDLES = "MEMPOOL_SUPPORTED_HANDLE_TYPES"
_POOL_BITS = {HandleKind.POOL: (1, "file descriptor"), HandleKind.POOL_FABRIC: (8, "fabric handle")}
"""CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR and CU_MEM_HANDLE_TYPE_FABRIC (cuda.h), in the mask of pools."""
_MESSAGES = Path(route=Route(carrier=Carrier.SOCKET), rate_gb_s=1.0)
"""Messages. The rate to plan with: of UCX within a node, TCP reaches about half of it, CUDA IPC two hundred times."""


@dataclass(frozen=True, slots=True)
class RankFlow:
    """One flow: the rank that issues its work, and the rank that owns the memory at the other end."""

    initiator: Rank
    owner: Rank
    numa_node: int | None = None
    """The NUMA node of the owner's memory, if it is host memory."""
    parts: int | None = None
    """See :attr:`egmctl.model.task.Endpoint.parts`."""


PathOf = Callable[[Case, RankFlow], Path]
"""A function that returns the path of a flow, with its waiver if it cannot be measured."""


def node_flows(
    case: Case, ranks: Sequence[Rank], nodes: Sequence[int], exporters: Sequence[Rank] = ()
) -> Iterator[tuple[RankFlow, ...]]:
    """Yield the flows of each task of a case; none if there is only one rank.

    Every rank works on host memory on each of ``nodes``. Another rank allocates it, if possible one whose nearest node
    it is.

    Parameters
    ----------
    exporters
        The ranks that only allocate, for cases whose memory all GPUs share.
    """
    count = len(ranks)
    if case.for_all:
        for node in nodes:
            near = sorted(exporters or ranks[:1], key=lambda rank: rank.numa_node != node)
            parts = count if case.pattern is Pattern.ONE_NODE else 1
            each = tuple(RankFlow(rank, near[0], node, parts) for rank in ranks)
            if case.pattern is not Pattern.ONE_NODE:
                yield from ((flow,) for flow in each)
            elif count > 1:
                yield each
        return
    if count < 2:
        return
    if case.engine not in UCX_ENGINES and shared_memory(case) in HOST_MEMORY:
        for node in nodes:
            if case.engine is Engine.PING_PONG:
                yield from (
                    (RankFlow(first, first, node), RankFlow(second, first, node))
                    for first, second in combinations(ranks, 2)
                )
            else:
                yield from ((RankFlow(rank, _owner(ranks, index, node), node),) for index, rank in enumerate(ranks))
        return
    # A round trip by the host is the same from either end.
    one_way = case.engine in (Engine.EVENT, Engine.SOCKET)
    for flows in expand(case.pattern, count, one_way=one_way):
        yield tuple(RankFlow(ranks[first], ranks[second]) for first, second in flows)


def rank_candidate(
    case: Case,
    rank_flows: Sequence[RankFlow],
    path_of: PathOf,
    gpu_of: Callable[[Rank], Gpu],
    *,
    across_nodes: bool = False,
) -> Candidate:
    """Return flows between ranks with their paths; ``across_nodes`` as for :func:`flow_of`."""
    paths = tuple(path_of(case, rank_flow) for rank_flow in rank_flows)
    ranks = {rank.number: rank for flow in rank_flows for rank in (flow.initiator, flow.owner)}
    first = rank_flows[0]
    return Candidate(
        flows=tuple(
            flow_of(case, rank_flow, path, across_nodes=across_nodes)
            for rank_flow, path in zip(rank_flows, paths, strict=True)
        ),
        paths=paths,
        gpus=tuple(map(gpu_of, ranks.values())),
        cache=gpu_of(first.owner if first.numa_node is None else first.initiator),
    )


def flow_of(case: Case, rank_flow: RankFlow, path: Path, *, across_nodes: bool = False) -> Flow:
    """Return the record of a flow. Each end of messages by UCX is memory of its own rank.

    Parameters
    ----------
    across_nodes
        Whether to label host memory with the rank that allocated it, through whose GPU it is reached, because every
        node has a NUMA 0. The allocating GPU is left out, because GPUs of several nodes may have the same bus id.
    """
    issuer, owner = rank_flow.initiator, rank_flow.owner
    pushed = case.initiator is End.SOURCE
    near = own_endpoint(own_memory(case), issuer)
    on_host = rank_flow.numa_node is not None
    if case.engine in UCX_ENGINES:
        far = own_endpoint(shared_memory(case), owner)
    else:
        label = f"NUMA{rank_flow.numa_node}" if on_host else owner.label
        if on_host and across_nodes:
            label = f"{owner.label}:{label}"
        far = Endpoint(
            memory=shared_memory(case),
            label=label,
            bus_id=None if on_host else owner.bus_id,
            numa_node=rank_flow.numa_node,
            parts=rank_flow.parts,
            rank=owner.number,
            handle=None if issuer is owner else case.handle,
            # The owner's process uses no other GPU.
            allocated_by=owner.bus_id if on_host and not across_nodes else None,
            allocated_by_label=owner.label if on_host and not across_nodes else None,
        )
    return Flow(
        source=near if pushed else far,
        destination=far if pushed else near,
        initiator=issuer.bus_id,
        initiator_label=issuer.label,
        initiator_rank=issuer.number,
        route=path.route,
    )


def shared_memory(case: Case) -> MemoryKind:
    """Return the kind of the memory that another rank allocates."""
    return case.destination if case.initiator is End.SOURCE else case.source


def own_memory(case: Case) -> MemoryKind:
    """Return the kind of the memory at the end of the rank that issues the work."""
    return case.source if case.initiator is End.SOURCE else case.destination


def waived_path(case: Case, rank_flow: RankFlow) -> Path | None:
    """Return the waived path of a flow with host memory of a rank that has no NUMA node; ``None`` if there is none."""
    if rank_flow.numa_node is None and shared_memory(case) in HOST_MEMORY:
        return path_without_memory(shared_memory(case), rank_flow.owner.label)
    if rank_flow.initiator.numa_node is None and own_memory(case) in HOST_MEMORY:
        return path_without_memory(own_memory(case), rank_flow.initiator.label)
    return None


def waive_blocked_egm(path: Path) -> Path:
    """Return a path over a blocked EGM route as waived, and any other path unchanged.

    Blocked routes are tried only within one process, where a crash affects nothing else.
    """
    if not path.route.degraded or path.waiver is not None:
        return path
    return replace(path, waiver=Waiver(kind=WaiverKind.EGM_BLOCKED, reason=path.route.egm_reason))


def local_path(machine: Machine, case: Case, rank_flow: RankFlow, between: DevicePath | None = None) -> Path:
    """Return the path of a flow between ranks of one node; ``between`` as for :func:`path_between`."""
    if case.engine in (Engine.EVENT, Engine.SOCKET):
        return _MESSAGES
    if case.engine in UCX_ENGINES:
        return ucx_path(case, rank_flow, lambda _rank: machine)
    if (waived := waived_path(case, rank_flow)) is not None:
        return waived
    issuer, owner = machine.gpu(rank_flow.initiator.bus_id), machine.gpu(rank_flow.owner.bus_id)
    far = owner if rank_flow.numa_node is None else rank_flow.numa_node
    near: Location = issuer
    if own_memory(case) in HOST_MEMORY and rank_flow.initiator.numa_node is not None:
        near = rank_flow.initiator.numa_node
    ends = (near, far) if case.initiator is End.SOURCE else (far, near)
    path = waive_blocked_egm(path_between(machine, (case.source, case.destination), ends, issuer, between=between))
    # A flag's round trip uses one pair of ranks.
    return replace(path, disjoint=False) if case.engine is Engine.PING_PONG else path


def handle_waiver(machine: Machine, handle: HandleKind | None, gpu: Gpu) -> Waiver | None:
    """Return why a rank cannot export or import memory with a kind of handle; ``None`` if none is known.

    Attributes that report support are not taken as proof; the first allocation is.
    """
    needed = _NEEDS_ATTRIBUTE.get(handle) if handle is not None else None
    if needed is not None and gpu.attribute(needed) == 0:
        return _unsupported(gpu, f"does not support these handles: CU_DEVICE_ATTRIBUTE_{needed} is 0")
    mask = gpu.attribute(_POOL_HANDLES)
    bit, handle_name = _POOL_BITS.get(handle, (0, "")) if handle is not None else (0, "")
    if bit and mask is not None and not mask & bit:
        return _unsupported(gpu, f"exports no pools by {handle_name}: CU_DEVICE_ATTRIBUTE_{_POOL_HANDLES} is {mask}")
    return _imex_waiver(machine) if handle in (HandleKind.FABRIC, HandleKind.POOL_FABRIC) else None


def _unsupported(gpu: Gpu, reason: str) -> Waiver:
    return Waiver.about(WaiverKind.UNSUPPORTED_HANDLE, f"GPU{gpu.index} {reason}", gpu)


def _imex_waiver(machine: Machine) -> Waiver | None:
    channels = machine.driver.imex_channels if machine.driver is not None else None
    if channels is None or any(channel.access == "ok" for channel in channels):
        return None
    listed = ", ".join(f"{channel.path}: {channel.access}" for channel in channels)
    reason = f"{cause_of('cuMemCreate', 800)} ({listed or '/dev/nvidia-caps-imex-channels is empty'})"
    return Waiver(kind=WaiverKind.NO_IMEX_CHANNEL, reason=reason)


def _owner(ranks: Sequence[Rank], index: int, node: int) -> Rank:
    """Return the next rank whose nearest node is ``node``, or else the next rank."""
    others = [*ranks[index + 1 :], *ranks[:index]]
    return next((rank for rank in others if rank.numa_node == node), others[0])


def ucx_path(case: Case, rank_flow: RankFlow, machine_of: Callable[[Rank], Machine]) -> Path:
    """Return the path of messages, with the waiver if nothing can be sent and whether an end is EGM.

    Parameters
    ----------
    machine_of
        A function that returns the node of a rank.
    """
    ends = (rank_flow.initiator, rank_flow.owner)
    source, destination = ends if case.initiator is End.SOURCE else ends[::-1]
    routes = []
    for rank, kind in ((source, case.source), (destination, case.destination)):
        if kind not in HOST_MEMORY:
            continue
        machine = machine_of(rank)
        gpu = machine.gpu(rank.bus_id)
        own = path_without_memory(kind, rank.label)
        if rank.numa_node is not None:
            own = path_between(machine, (kind, MemoryKind.DEVICE), (rank.numa_node, gpu), gpu)
        if own.waiver is not None:
            return replace(_MESSAGES, route=Route(carrier=Carrier.UCX), waiver=own.waiver)
        routes.append(own.route)
    decisive = min(routes, key=lambda route: _ORDER.index(route.egm), default=Route())
    ucx = Route(carrier=Carrier.UCX, memory=decisive.memory, egm=decisive.egm, egm_reason=decisive.egm_reason)
    return replace(_MESSAGES, route=ucx)


_ORDER = (Egm.YES, Egm.NO, Egm.UNKNOWN, None)
"""The order of precedence: the end whose value comes first decides whether a flow is EGM."""
