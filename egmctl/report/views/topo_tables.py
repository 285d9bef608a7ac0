"""The tables of a topology: links, affinities and routes, as nvidia-smi has them in text, and as matrices on a page."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from egmctl.model.gpu import Gpu
from egmctl.model.route import LinkClass, LinkKind, symbol_of
from egmctl.report import document as doc
from egmctl.report.document import Align, Level, Span, Tone
from egmctl.topology.links import Link
from egmctl.topology.platform import own_node
from egmctl.topology.routes import HostRoute, RouteKind
from egmctl.topology.topology import Topology
from egmctl.units import format_kernel_list, grouped, several


def gpu_matrix(topology: Topology, labels: Sequence[str] = ()) -> doc.Matrix:
    """Return the matrix of the links between GPUs, or between these GPUs and NICs, with each GPU's affinities."""
    labels = labels or list(topology.gpus)
    matrix = link_matrix(topology, GPU_LINKS, labels, labels)
    gpus = ((label, topology.gpus.get(label)) for label in labels)
    affinities = doc.grid("", ((label, _affinities(gpu) if gpu else {}) for label, gpu in gpus), align=Align.LEFT)
    return replace(matrix, groups=(*matrix.groups, tuple(doc.columns(affinities))))


def link_matrix(
    topology: Topology, caption: str, rows: Sequence[str], columns: Sequence[str], after: tuple[str, ...] = ()
) -> doc.Matrix:
    def cell(row: str, column: str) -> str | doc.Cell:
        return " X" if row == column else link_cell(topology.link(row, column))

    cells = ((row, {column: cell(row, column) for column in columns}) for row in rows)
    return doc.grid(caption, cells, align=Align.LEFT, after=after)


def nic_names(topology: Topology) -> tuple[str, ...]:
    names = "  ".join(f"{label}={nic.name}" for label, nic in topology.nics.items())
    return (names,) if names else ()


def link_cell(link: Link) -> doc.Cell:
    """Return the cell with the symbol of a link, marked with ``*`` if NVLinks are missing."""
    mark = "*" if link.nvlinks_expected else ""
    return doc.Cell(link.symbol, Tone.WARN if mark or link.symbol == "?" else Tone.PLAIN, mark)


GPU_LINKS, _ROUTES_CAPTION = "GPU links", " to host memory (nominal GB/s per direction)"
"""The captions of two tables; the second without its first word."""


def routes_matrix(topology: Topology) -> doc.Matrix:
    tones = {RouteKind.BLOCKED: Tone.BAD, RouteKind.UNKNOWN: Tone.WARN}
    groups = []
    for node in topology.numa_nodes:
        routes = [route for route in topology.routes if route.numa_node == node]
        symbols = tuple(
            doc.Cell(host_route_words(topology, route), tones.get(route.kind, Tone.PLAIN)) for route in routes
        )
        rates = tuple(doc.Cell(rate_text(route)) for route in routes)
        wrap = any(route.siblings for route in routes)
        groups.append((doc.Series((f"NUMA {node}",), symbols, align=Align.LEFT, wrap=wrap), doc.Series((), rates)))
    name = "EGM routes" if any(route.egm for route in topology.routes) else "Routes"
    return doc.Matrix(caption=f"{name}{_ROUTES_CAPTION}", rows=tuple(topology.gpus), groups=tuple(groups))


def host_route_words(topology: Topology, route: HostRoute) -> str:
    """Return a route's symbol, with its obstacle; in words if it depends on which GPU of the CPU owns the memory."""
    if route.to_sibling is not None:
        others = " or ".join(map(topology.label, route.siblings))
        return f"own {symbol_of(route.hops)} or {symbol_of((route.to_sibling, *route.hops))} of {others}"
    return route.symbol if route.blocked_by is None else f"{route.symbol}: {route.blocked_by.value}"


def rate_text(route: HostRoute) -> str:
    """Return the nominal GB/s of a route, an upper bound (``<=``), or ``?``; empty for a route without hops."""
    if not route.hops:
        return ""
    if route.nominal_gb_s is not None:
        return f"{route.nominal_gb_s:.1f}"
    return "?" if route.at_most_gb_s is None else f"<={route.at_most_gb_s:.1f}"


def tables_on_page(topology: Topology, tables: Sequence[doc.Matrix]) -> Iterator[doc.Section]:
    """Yield the routes beside the links between GPUs, then the other tables, folded."""
    of_gpus = [table for table in tables if table.caption == GPU_LINKS]
    routes = [table for table in tables if table.caption.endswith(_ROUTES_CAPTION)]
    rest = [table for table in tables if table not in (*of_gpus, *routes)]
    for table in routes:
        title = table.caption.partition(" (")[0]
        words = "By which links a GPU reaches which memory; GB/s, nominal, each direction. Shaded: its own CPU."
        routes_drawn = replace(_routes_on_page(topology), caption=title, headed=True)
        yield doc.Section(title, (doc.Paragraph(words, tone=Tone.DIM), routes_drawn), level=Level.PAGE)
    for table in of_gpus:
        words = "As in nvidia-smi topo -m, with the links that are active."
        links = (doc.Paragraph(words, tone=Tone.DIM), _links_on_page(topology))
        yield doc.Section(GPU_LINKS, links, beside=bool(routes), level=Level.PAGE)
        affinities = replace(table, caption="Affinities", headed=True, groups=table.groups[-1:])
        note = "CPUs and NUMA nodes of each GPU"
        yield doc.Section("Affinities", (affinities,), folded=True, note=note, level=Level.PAGE)
    for table in rest:
        note = several(len(topology.nics), "NIC")
        yield doc.Section(table.caption, (replace(table, headed=True),), folded=True, note=note, level=Level.PAGE)


def _links_on_page(topology: Topology) -> doc.Matrix:
    """Return the links between GPUs as a heat map of the numbers of NVLinks; missing ones are faults."""

    def cell(row: str, column: str) -> doc.Cell:
        if row == column:
            return doc.Cell("·", Tone.DIM)
        link = topology.link(row, column)
        if link.kind is not LinkClass.NVLINK:
            return link_cell(link)
        tone, mark = (Tone.BAD, "!") if link.nvlinks_expected else (Tone.PLAIN, "")
        return doc.Cell(link.symbol, tone, mark, value=float(link.nvlinks or 0), kind=link.kind)

    labels = list(topology.gpus)
    rows = ((row, {column: cell(row, column) for column in labels}) for row in labels)
    shaded = any(link.kind is LinkClass.NVLINK for link in topology.links)
    matrix = doc.grid(GPU_LINKS, rows, align=Align.LEFT, better=doc.Better.HIGH if shaded else None)
    return replace(matrix, headed=True, keyed=False)


def _routes_on_page(topology: Topology) -> doc.Matrix:
    """Return the routes by GPU and CPU, each with its rate, and what else it may be; equal GPUs share a row."""
    cells = {
        label: tuple(
            _route_cell(topology, route)
            for route in topology.routes
            if route.gpu == gpu.bus_id and route.numa_node in topology.numa_nodes
        )
        for label, gpu in topology.gpus.items()
    }
    alike = grouped((row, label) for label, row in cells.items())
    names = [f"GPU{format_kernel_list({int(label[3:]) for label in labels})}" for labels in alike.values()]
    columns = tuple(
        doc.Series((f"memory of NUMA {node}",), tuple(row[place] for row in alike), align=Align.LEFT, wrap=True)
        for place, node in enumerate(topology.numa_nodes)
    )
    return doc.Matrix(rows=tuple(names), groups=(columns,))


def _route_cell(topology: Topology, route: HostRoute) -> doc.Cell:
    if route.kind in (RouteKind.BLOCKED, RouteKind.UNKNOWN):
        tone = Tone.BAD if route.kind is RouteKind.BLOCKED else Tone.WARN
        return doc.Cell(host_route_words(topology, route), tone)
    is_own = topology.machine.gpu(route.gpu).host_numa_id == route.numa_node
    own = "own " if is_own and route.hops[0].link is LinkKind.C2C else ""
    name = f"{own}{symbol_of(route.hops, system=route.kind is RouteKind.C2C)}".replace(">", " -> ")
    rest = ""
    if route.to_sibling is not None:
        others = " or ".join(map(topology.label, route.siblings))
        rest = f"or {symbol_of((route.to_sibling, *route.hops))} of {others}".replace(">", " -> ")
    elif route.via:
        rest = f"of {' or '.join(map(topology.label, route.via))}"
    elif any(hop.link is LinkKind.SMP for hop in route.hops):
        rest = "the rate of the CPUs' link is not known"
    below = (Span(f" {rest}", Tone.DIM),) if rest else ()
    words = (Span(name, Tone.STRONG), f"  {rate_text(route)}", *below)
    return doc.Cell(words, Tone.STRONG if is_own else Tone.PLAIN)


def _affinities(gpu: Gpu) -> dict[tuple[str, ...], str]:
    """Return a GPU's CPU affinity and its NUMA nodes: by NVML, by HOST_NUMA_ID, and that of its own memory."""
    cpus = gpu.nvml.cpu_affinity if gpu.nvml is not None else None
    if cpus is None and gpu.pci is not None:
        cpus = gpu.pci.local_cpus or None
    return {
        ("CPU", "affinity"): cpus or "N/A",
        ("NUMA", "aff."): (gpu.nvml and gpu.nvml.numa_affinity) or "N/A",
        ("HOST_", "NUMA_ID"): _number(gpu.host_numa_id),
        ("GPU", "NUMA ID"): _number(own_node(gpu)),
    }


def _number(value: int | None) -> str:
    return "N/A" if value is None or value < 0 else str(value)
