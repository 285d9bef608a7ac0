"""A topology for a ticket: the matrices as tables, notes and legend."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from egmctl.report.markdown import bullets, details, escaped, table, warning
from egmctl.report.origin import origin_banner
from egmctl.report.topo_html import gpu_rows, nic_rows, route_rows
from egmctl.report.topo_text import legend_rows
from egmctl.topology.missing import missing
from egmctl.topology.topology import Topology


def topo_markdown(topology: Topology) -> str:
    """Return the text."""
    return "\n".join(part for part in _parts(topology) if part)


def _parts(topology: Topology) -> Iterator[str]:
    banner = origin_banner(topology.machine.origin)
    yield f"## {escaped(topology.platform.line)}\n"
    yield warning([banner] if banner else [])
    if (lacking := missing(topology.machine)) is not None:
        yield f"**{escaped(lacking.sentence)}**\n"
        yield bullets((*lacking.missing, *lacking.advice))
    if topology.gpus:
        yield "### GPU links\n"
        yield _table(*gpu_rows(topology))
    if topology.routes:
        yield "### Routes to host memory (nominal GB/s in one direction)\n"
        yield _table(*route_rows(topology))
    yield bullets(topology.notes)
    if topology.nics:
        yield details("NIC links", _table(*nic_rows(topology)))
    same = [f"{matrix.source} {', '.join(matrix.names)}: {matrix.value}" for matrix in topology.p2p if matrix.uniform]
    labels = list(topology.gpus)
    matrices = [
        f"{escaped(f'{matrix.source} {chr(44).join(matrix.names)}')}\n\n"
        + _table(labels, labels, [["X" if a == b else matrix.cells[a, b] for b in labels] for a in labels])
        for matrix in topology.p2p
        if not matrix.uniform
    ]
    if same or matrices:
        yield details("P2P", "\n".join((bullets(f"every pair: {line}" for line in same), *matrices)))
    yield details("Legend", table(("symbol", "meaning"), [tuple(map(escaped, row)) for row in legend_rows(topology)]))


def _table(head: Sequence[str], labels: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    body = [[f"**{escaped(label)}**", *map(escaped, row)] for label, row in zip(labels, rows, strict=True)]
    return table([" ", *map(escaped, head)], body)
