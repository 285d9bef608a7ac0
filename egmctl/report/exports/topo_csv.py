"""The topology as tidy CSV: one row per link, route, or P2P capability of a pair.

Every row says where the machine came from, so that rows of a modelled machine cannot pass for facts once they are
cut out or put together with others.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from egmctl.report.exports.csv_text import csv_text
from egmctl.topology.topology import Topology

COLUMNS = (
    "origin",
    "machine",
    "record",
    "source",
    "source_id",
    "target",
    "target_id",
    "kind",
    "symbol",
    "nvlinks",
    "nvlinks_expected",
    "via",
    "egm",
    "nominal_gb_s",
    "at_most_gb_s",
    "blocked_by",
    "reason",
)
"""``record`` is ``link``, ``route`` or ``p2p``; ids are PCI bus ids; what makes no sense for a row is empty."""


def topo_csv(topology: Topology) -> str:
    """Return the CSV text with a header line."""
    origin = topology.machine.origin
    whole = ({"origin": origin.kind.value, "machine": origin.name, **row} for row in _rows(topology))
    return csv_text(COLUMNS, whole)


def _rows(topology: Topology) -> Iterator[dict[str, Any]]:
    ids = {label: gpu.bus_id for label, gpu in topology.gpus.items()}
    ids |= {label: nic.pci.bus_id if nic.pci else nic.name for label, nic in topology.nics.items()}
    for (source, target), link in topology.links.items():
        yield {
            "record": "link",
            "source": source,
            "source_id": ids[source],
            "target": target,
            "target_id": ids[target],
            "kind": link.kind.value,
            "symbol": link.symbol,
            "nvlinks": link.nvlinks,
            "nvlinks_expected": link.nvlinks_expected,
            "reason": link.reason,
        }
    for route in topology.routes:
        yield {
            "record": "route",
            "source": topology.label(route.gpu),
            "source_id": route.gpu,
            "target": f"NUMA{route.node}",
            "target_id": route.node,
            "kind": route.kind.value,
            "symbol": route.symbol,
            "nvlinks": next((hop.nvlinks for hop in route.hops if hop.nvlinks is not None), None),
            "via": " ".join(map(topology.label, route.via)),
            "egm": route.egm,
            "nominal_gb_s": route.nominal_gb_s,
            "at_most_gb_s": route.at_most_gb_s,
            "blocked_by": route.blocked_by and route.blocked_by.value,
            "reason": route.reason or ("" if route.nominal_gb_s is not None else route.rate_reason),
        }
    for matrix in topology.p2p:
        for name in matrix.names:
            for (source, target), value in matrix.cells.items():
                yield {
                    "record": "p2p",
                    "source": source,
                    "source_id": ids[source],
                    "target": target,
                    "target_id": ids[target],
                    "kind": f"{matrix.source} {name}",
                    "symbol": value,
                }
