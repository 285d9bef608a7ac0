"""Which node of a run something is on: bus ids, NUMA nodes and findings are those of one node. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from egmctl.model.finding import Place, PlaceKind
from egmctl.model.machine import Machine
from egmctl.model.measurement import Endpoint, Flow, RunReport
from egmctl.model.rank import node_names


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
