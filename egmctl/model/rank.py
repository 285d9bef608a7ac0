"""The processes of a measurement by several: one a GPU, on one node or on many."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from egmctl.model.record import BusId, Plain


@dataclass(frozen=True, slots=True, kw_only=True)
class Rank:
    """One process and its GPU."""

    number: int
    label: Plain
    """Of its GPU, for people: ``GPU0``; in a run over several nodes ``node1:GPU0``."""
    bus_id: BusId
    numa_node: int | None = None
    """Where host memory that it makes lies: the nearest node with memory, ``None`` where that is not known."""
    host: Plain | None = None
    """Its node's name, in a run over several: such a run is about its nodes, so documents keep their names."""


def node_names(hosts: Iterable[str | None]) -> dict[str | None, str]:
    """Return what results call the nodes of a run over several: ``node1`` in the order of their ranks. None for one."""
    ordered = list(dict.fromkeys(hosts))
    return {host: f"node{number}" for number, host in enumerate(ordered, 1)} if len(ordered) > 1 else {}
