"""What cases of several processes make tasks of: flows between the ranks of a node, or of a job on several nodes."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import combinations
from typing import NamedTuple

from egmctl.bench.case import Case, End
from egmctl.bench.plan.flows import FlowEnds, Location, expand, own_endpoint
from egmctl.bench.plan.paths import (
    DevicePaths,
    Path,
    host_path,
    joined,
    path_across,
    path_between,
    path_without_memory,
)
from egmctl.bench.plan.placement import RankLayout
from egmctl.bench.plan.task import Candidate
from egmctl.model.finding import Waiver, WaiverKind
from egmctl.model.machine import Machine
from egmctl.model.route import HOST_MEMORY, Carrier, Egm, MemoryKind, Rank, Route
from egmctl.model.task import UCX_ENGINES, Endpoint, Engine, Flow, Pattern

_MESSAGES = Path(route=Route(carrier=Carrier.SOCKET), rate_gb_s=1.0)
"""Messages. The rate to plan with: of UCX within a node, TCP reaches about half of it, CUDA IPC two hundred times."""


class RankFlow(NamedTuple):
    """One flow: the rank that issues its work, and the rank that owns the memory at the other end."""

    initiator: Rank
    owner: Rank
    numa_node: int | None = None
    """The NUMA node of the owner's memory, if it is host memory."""
    parts: int | None = None
    """See :attr:`egmctl.model.task.Endpoint.parts`."""


def flows_between(
    case: Case,
    ranks: Sequence[Rank],
    *,
    nodes: Sequence[int] | None = None,
    exporters: Sequence[Rank] = (),
    meetings: Sequence[FlowEnds] | None = None,
    hubs: Sequence[int] | None = None,
) -> Iterator[tuple[RankFlow, ...]]:
    """Yield the flows of each task of a case; none if there is only one rank.

    Parameters
    ----------
    nodes
        The NUMA nodes of one node on each of which every rank works on host memory. Another rank allocates it, if
        possible one whose nearest node it is. ``None``: host memory is on the nearest node of the rank that owns it.
    exporters
        The ranks that only allocate, for cases whose memory all GPUs share.
    meetings, hubs
        As for :func:`egmctl.bench.plan.flows.expand`.
    """
    on_host = case.engine not in UCX_ENGINES and shared_memory(case) in HOST_MEMORY
    if nodes is not None and case.for_all:
        yield from _to_one_allocation(case, ranks, nodes, exporters)
    elif nodes is not None and on_host:
        yield from _to_each_node(case, ranks, nodes)
    else:
        # A round trip by the host is the same from either end.
        one_way = case.engine in (Engine.EVENT, Engine.SOCKET)
        for flows in expand(case.pattern, len(ranks), meetings=meetings, hubs=hubs, one_way=one_way):
            yield tuple(
                RankFlow(ranks[first], ranks[second], ranks[second].numa_node if on_host else None)
                for first, second in flows
            )


def _to_one_allocation(
    case: Case, ranks: Sequence[Rank], nodes: Sequence[int], exporters: Sequence[Rank]
) -> Iterator[tuple[RankFlow, ...]]:
    """Yield the flows between every rank and the memory of each node that one rank allocates for all."""
    at_once = case.pattern is Pattern.ONE_NODE
    for node in nodes:
        near = sorted(exporters or ranks[:1], key=lambda rank: rank.numa_node != node)
        each = tuple(RankFlow(rank, near[0], node, len(ranks) if at_once else 1) for rank in ranks)
        if not at_once:
            yield from ((flow,) for flow in each)
        elif len(ranks) > 1:
            yield each


def _to_each_node(case: Case, ranks: Sequence[Rank], nodes: Sequence[int]) -> Iterator[tuple[RankFlow, ...]]:
    """Yield the flows between every rank and memory of each node that another rank allocates."""
    if len(ranks) < 2:
        return
    for node in nodes:
        if case.engine is Engine.PING_PONG:
            yield from (
                (RankFlow(first, first, node), RankFlow(second, first, node))
                for first, second in combinations(ranks, 2)
            )
        else:
            yield from ((RankFlow(rank, _owner(ranks, index, node), node),) for index, rank in enumerate(ranks))


def _owner(ranks: Sequence[Rank], index: int, node: int) -> Rank:
    """Return the next rank whose nearest node is ``node``, or else the next rank."""
    others = [*ranks[index + 1 :], *ranks[:index]]
    return next((rank for rank in others if rank.numa_node == node), others[0])


class RankCandidates:
    """The flows between the ranks of a run, with their paths. What flows have in common is made once.

    Parameters
    ----------
    job
        Whether the ranks may be on several nodes. Then host memory is labelled with the rank that allocated it, through
        whose GPU it is reached, because every node has a NUMA 0. The allocating GPU is left out, because GPUs of
        several nodes may have the same bus id.
    device_paths
        The paths between the GPUs of nodes, by the name of the host.
    """

    def __init__(self, layout: RankLayout, *, job: bool, device_paths: Mapping[str, DevicePaths] | None = None) -> None:
        self._layout, self._job = layout, job
        known = device_paths or {}
        self._device_paths = {host: known.get(host) or DevicePaths(node) for host, node in layout.machines.items()}
        self._paths: dict[Hashable, dict[tuple[int, int, int | None], Path]] = {}
        # By identity: the path itself is kept, so that no other one gets the same.
        self._alone: dict[int, tuple[Path, Path]] = {}
        self._own_ends: dict[tuple[MemoryKind, int], Endpoint] = {}
        self._far_ends: dict[Hashable, Endpoint] = {}

    def of(self, case: Case, tasks: Iterable[tuple[RankFlow, ...]]) -> Iterator[Candidate]:
        """Yield what a case makes tasks of."""
        gpu_of = self._layout.gpu
        ends = (case.source, case.destination, case.initiator)
        paths = self._paths.setdefault((*ends, case.engine if case.engine in _OWN_PATHS else None), {})
        for flows in tasks:
            paths_of_flows = []
            for flow in flows:
                key = (flow.initiator.number, flow.owner.number, flow.numa_node)
                path = paths.get(key)
                if path is None:
                    path = paths[key] = self._path(case, flow)
                paths_of_flows.append(path)
            ranks = tuple({rank.number: rank for flow in flows for rank in (flow.initiator, flow.owner)}.values())
            first = flows[0]
            yield Candidate(
                flows=tuple([self._flow(case, flow, path) for flow, path in zip(flows, paths_of_flows, strict=True)]),
                paths=tuple(paths_of_flows),
                gpus=tuple(map(gpu_of, ranks)),
                cache=gpu_of(first.owner if first.numa_node is None else first.initiator),
                ranks=ranks,
            )

    def _flow(self, case: Case, rank_flow: RankFlow, path: Path) -> Flow:
        """Return the record of a flow. Each end of messages by UCX is memory of its own rank."""
        issuer = rank_flow.initiator
        near = self._own_end(own_memory(case), issuer)
        if case.engine in UCX_ENGINES:
            far = self._own_end(shared_memory(case), rank_flow.owner)
        else:
            far = self._far_end(case, rank_flow)
        pushed = case.initiator is End.SOURCE
        return Flow(
            source=near if pushed else far,
            destination=far if pushed else near,
            initiator=issuer.bus_id,
            initiator_label=issuer.label,
            initiator_rank=issuer.number,
            route=path.route,
        )

    def _own_end(self, memory: MemoryKind, rank: Rank) -> Endpoint:
        key = (memory, rank.number)
        end = self._own_ends.get(key)
        if end is None:
            end = self._own_ends[key] = own_endpoint(memory, rank)
        return end

    def _far_end(self, case: Case, rank_flow: RankFlow) -> Endpoint:
        """Return the end for memory that the owner has allocated and the issuer opens."""
        issuer, owner, node, parts = rank_flow
        memory, handle = shared_memory(case), None if issuer is owner else case.handle
        key = (memory, handle, owner.number, node, parts)
        end = self._far_ends.get(key)
        if end is None:
            label = owner.label if node is None else f"NUMA{node}"
            if node is not None and self._job:
                label = f"{owner.label}:{label}"
            # The owner's process uses no other GPU.
            names_owner = node is not None and not self._job
            end = self._far_ends[key] = Endpoint(
                memory=memory,
                label=label,
                bus_id=owner.bus_id if node is None else None,
                numa_node=node,
                parts=parts,
                rank=owner.number,
                handle=handle,
                allocated_by=owner.bus_id if names_owner else None,
                allocated_by_label=owner.label if names_owner else None,
            )
        return end

    def _path(self, case: Case, rank_flow: RankFlow) -> Path:
        """Return the path of a flow, with its waiver if it cannot be measured."""
        if case.engine in (Engine.EVENT, Engine.SOCKET):
            return _MESSAGES
        if case.engine in UCX_ENGINES:
            return ucx_path(case, rank_flow, self._layout.machine)
        if (waived := waived_path(case, rank_flow)) is not None:
            return waived
        if rank_flow.initiator.host == rank_flow.owner.host:
            return self._path_within_node(case, rank_flow)
        return self._path_between_nodes(case, rank_flow)

    def _path_within_node(self, case: Case, rank_flow: RankFlow) -> Path:
        layout, initiator = self._layout, rank_flow.initiator
        issuer = layout.gpu(initiator)
        near: Location = issuer
        if own_memory(case) in HOST_MEMORY and initiator.numa_node is not None:
            near = initiator.numa_node
        far = layout.gpu(rank_flow.owner) if rank_flow.numa_node is None else rank_flow.numa_node
        ends = (near, far) if case.initiator is End.SOURCE else (far, near)
        memory, device_paths = (case.source, case.destination), self._device_paths[initiator.host or ""]
        path = path_between(layout.machine(initiator), memory, ends, issuer, device_paths=device_paths)
        path = waive_blocked_egm(path)
        if case.engine is Engine.PING_PONG:
            # A flag's round trip uses one pair of ranks. Pairs of equal links share this path too.
            alone = self._alone.get(id(path))
            if alone is None:
                alone = self._alone[id(path)] = path, replace(path, disjoint=False)
            return alone[1]
        # EGM is reached through the GPU that owns it, which no other pair of a job's round uses.
        return replace(path, disjoint=True) if self._job and path.route.egm is Egm.YES else path

    def _path_between_nodes(self, case: Case, rank_flow: RankFlow) -> Path:
        layout, initiator, owner = self._layout, rank_flow.initiator, rank_flow.owner
        shared, own = shared_memory(case), own_memory(case)
        memory = shared if shared in HOST_MEMORY else None
        far = path_across(layout.gpu(initiator), layout.machine(owner), layout.gpu(owner), memory)
        if own not in HOST_MEMORY or initiator.numa_node is None:
            return far
        near = host_path(layout.machine(initiator), layout.gpu(initiator), initiator.numa_node, own)
        path = waive_blocked_egm(joined(near, far) if case.initiator is End.SOURCE else joined(far, near))
        # Pairs that share a NUMA node's memory are kept apart (:func:`egmctl.bench.plan.fabric.make_fabric_plan`).
        return replace(path, disjoint=True)


_OWN_PATHS = frozenset({Engine.EVENT, Engine.SOCKET, Engine.PING_PONG, *UCX_ENGINES})
"""The engines whose paths are not those of copies between the same ends."""


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
