"""The topology of a node as one HTML page: the drawing, the matrices as tables, routes, P2P and notes."""

from __future__ import annotations

from collections.abc import Iterator

from egmctl.report.drawing import Rates, drawing
from egmctl.report.machine_html import machine_facts
from egmctl.report.markup import Child, arrows, element
from egmctl.report.origin import origin_banner
from egmctl.report.page import Section, bullets, page, table
from egmctl.report.topo_text import affinity_cells, legend_rows, link_cell, rate_text, route_cell
from egmctl.report.verdict_html import call
from egmctl.topology.missing import missing
from egmctl.topology.topology import Topology


def topo_html(topology: Topology) -> str:
    """Return the page."""
    machine = topology.machine
    banners = [text for text in [origin_banner(machine.origin)] if text]
    return page(
        "egmctl topo", machine.origin.name or "this node", topology.platform.line, banners, list(sections(topology))
    )


def parts(topology: Topology, rates: Rates | None = None, told: Child = None) -> Iterator[Child]:
    """Yield the drawing and the matrix of links between GPUs, for this page and others.

    Parameters
    ----------
    rates
        As for :func:`egmctl.report.drawing.drawing`.
    told
        What there is to say of them.
    """
    yield element("div", drawing(topology, rates), class_="scroll drawing")
    nominal = "Numbers behind a wire's name are its nominal GB/s in one direction. "
    yield element("p", nominal, told, class_="dim")
    if topology.gpus:
        yield table("GPU links, as nvidia-smi topo -m words them", *gpu_rows(topology))


def sections(topology: Topology) -> Iterator[Section]:
    """Yield the parts of the page, for this one and others."""
    lacking = missing(topology.machine)
    if lacking is not None:
        told = [element("h3", "What to do"), bullets(lacking.advice)] if lacking.advice else []
        yield Section(
            "missing", "Missing", (call("warn", "Not readable", lacking.sentence), bullets(lacking.missing), told)
        )
    yield Section("topology", "Topology", tuple(parts(topology)))
    if topology.nics:
        yield Section("nics", "NICs", (table("NIC links", *nic_rows(topology)),))
    if topology.routes:
        yield Section(
            "routes",
            "Routes to host memory",
            (table("Wires, and nominal GB/s in one direction", *route_rows(topology)),),
        )
    if topology.p2p:
        yield Section("p2p", "P2P", tuple(_p2p(topology)))
    if topology.notes:
        yield Section("notes", "Notes", (bullets(topology.notes),))
    yield Section("machine", "Machine", tuple(machine_facts(topology.machine)))
    yield Section("legend", "Legend", (_legend(topology),))


Rows = tuple[list[str], list[str], list[list[str]]]
"""Column headings, row headings and cells of a table."""


def gpu_rows(topology: Topology) -> Rows:
    """Return the matrix of GPU links with each GPU's affinity."""
    labels = list(topology.gpus)
    head = [*labels, "CPU affinity", "NUMA affinity", "HOST_NUMA_ID", "GPU NUMA ID"]
    rows = [
        [*("X" if row == column else link_cell(topology, row, column) for column in labels), *affinity_cells(gpu)]
        for row, gpu in topology.gpus.items()
    ]
    return head, labels, rows


def nic_rows(topology: Topology) -> Rows:
    """Return the matrix of the links to and between NICs."""
    rows = [*topology.gpus, *topology.nics]
    cells = [["X" if row == nic else link_cell(topology, row, nic) for nic in topology.nics] for row in rows]
    return [f"{label} {nic.name}" for label, nic in topology.nics.items()], rows, cells


def route_rows(topology: Topology) -> Rows:
    """Return the routes to host memory with their nominal rates."""
    rows = []
    for gpu in topology.gpus.values():
        own = {route.node: route for route in topology.routes if route.gpu == gpu.bus_id}
        rows.append([arrows(f"{route_cell(own[node])} {rate_text(own[node])}".strip()) for node in topology.nodes])
    return [f"NUMA {node}" for node in topology.nodes], list(topology.gpus), rows


def _p2p(topology: Topology) -> Iterator[Child]:
    same = [f"{matrix.source} {', '.join(matrix.names)}: {matrix.value}" for matrix in topology.p2p if matrix.uniform]
    if same:
        yield element("p", "The same for every pair:")
        yield bullets(same)
    labels = list(topology.gpus)
    for matrix in topology.p2p:
        if not matrix.uniform:
            rows = [["X" if a == b else matrix.cells[a, b] for b in labels] for a in labels]
            yield table(f"P2P {', '.join(matrix.names)} ({matrix.source})", labels, labels, rows)


def _legend(topology: Topology) -> Child:
    rows = [(arrows(symbol), words) for symbol, words in legend_rows(topology)]
    return table("Symbols", ["meaning"], [symbol for symbol, _ in rows], [[words] for _, words in rows])
