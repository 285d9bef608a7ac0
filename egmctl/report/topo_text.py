"""The topology as text for people: the matrices nvidia-smi draws, EGM routes, P2P, notes, and a legend of what appears.

Text that is not verbose holds nothing that changes from second to second and no name of a host, so that a live node
and its recording give the same bytes. A modelled machine says so in the text itself.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from rich.text import Text

from egmctl.model.machine import Gpu
from egmctl.model.route import LinkClass, LinkKind
from egmctl.report.origin import modelled_banner
from egmctl.report.table import BAD, DIM, HEADING, WARN, Column, table, trimmed, wrap
from egmctl.report.topo_detail import details
from egmctl.topology.memory_mode import own_node
from egmctl.topology.routes import HostRoute, RouteKind
from egmctl.topology.topology import Topology
from egmctl.units import printable


def topo_text(topology: Topology, *, verbose: int = 0) -> Text:
    """Render a topology.

    Parameters
    ----------
    verbose
        From 1 on, each GPU and NIC follows with its ids, ports and the sources that know it; from 2 on also the
        names of all values that could not be read.
    """
    text = Text()
    for block in _blocks(topology, verbose):
        if text:
            text.append("\n")
        text.append_text(block)
    return trimmed(text)


def _blocks(topology: Topology, verbose: int) -> Iterator[Text]:
    yield _head(topology)
    if topology.gpus:
        yield _titled("GPU links", _gpu_matrix(topology))
    if topology.nics:
        yield _titled("NIC links", _nic_matrix(topology))
    if topology.routes:
        routes = "EGM routes" if any(route.egm for route in topology.routes) else "Routes"
        yield _titled(f"{routes} to host memory (nominal GB/s per direction)", _route_matrix(topology))
    yield from _p2p(topology)
    if topology.notes:
        yield _titled("Notes", _bullets(topology.notes))
    if verbose:
        yield from details(topology, everything=verbose > 1)
    legend = _legend(topology)
    if legend:
        yield _titled("Legend", legend)


def _head(topology: Topology) -> Text:
    line = wrap(f"Platform: {printable(topology.platform.line)}", indent="")
    return Text.assemble(modelled_banner(topology.machine), (line[:9], HEADING), line[9:])


def _titled(title: str, body: Text) -> Text:
    return Text.assemble((f"{title}\n", HEADING), body)


def _gpu_matrix(topology: Topology) -> Text:
    gpus = list(topology.gpus.values())
    headers = (("CPU", "affinity"), ("NUMA", "aff."), ("HOST_", "NUMA_ID"), ("GPU", "NUMA ID"))
    cells = [affinity_cells(gpu) for gpu in gpus]
    affinity = [Column([cell[place] for cell in cells], header) for place, header in enumerate(headers)]
    return table(list(topology.gpus), [*_link_columns(topology, list(topology.gpus), list(topology.gpus)), affinity])


def _nic_matrix(topology: Topology) -> Text:
    rows = [*topology.gpus, *topology.nics]
    body = table(rows, list(_link_columns(topology, rows, list(topology.nics))))
    names = "  ".join(f"{label}={printable(nic.name)}" for label, nic in topology.nics.items())
    return body.append_text(Text(wrap(names), DIM))


def _link_columns(topology: Topology, rows: list[str], columns: list[str]) -> Iterator[list[Column]]:
    for column in columns:
        cells = [" X" if row == column else link_cell(topology, row, column) for row in rows]
        styles = {cell: WARN for cell in cells if cell == "?" or cell.endswith("*")}
        yield [Column(cells, (column,), styles=styles)]


def link_cell(topology: Topology, row: str, column: str) -> str:
    """Return the symbol between two labels, marked where links are missing."""
    link = topology.link(row, column)
    return f"{link.symbol}*" if link.nvlinks_expected else link.symbol


def _route_matrix(topology: Topology) -> Text:
    groups = []
    for node in topology.nodes:
        routes = [route for route in topology.routes if route.node == node]
        cells = [route_cell(route) for route in routes]
        styles = {cell: BAD for cell in cells if cell.startswith("blocked")} | {"?": WARN}
        symbols = Column(cells, (f"NUMA {node}",), styles=styles)
        groups.append([symbols, Column([rate_text(route) for route in routes], align=">")])
    return table(list(topology.gpus), groups)


def route_cell(route: HostRoute) -> str:
    """Return the wires of a route, or what blocks it."""
    return route.symbol if route.blocked_by is None else f"{route.symbol}: {route.blocked_by.value}"


def rate_text(route: HostRoute) -> str:
    """Return the nominal GB/s of a route, as far as they are known."""
    if not route.hops:
        return ""
    if route.nominal_gb_s is not None:
        return f"{route.nominal_gb_s:.1f}"
    return f"<={route.at_most_gb_s:.1f}" if _is_at_most(route) else "?"


def _is_at_most(route: HostRoute) -> bool:
    """Say whether only a bound of a route's rate is known."""
    return route.nominal_gb_s is None and route.at_most_gb_s is not None


def _p2p(topology: Topology) -> Iterator[Text]:
    """Say in one line what is alike for all pairs, and draw a matrix, as nvidia-smi does, of what is not."""
    alike = [matrix for matrix in topology.p2p if matrix.uniform]
    lines = Text()
    for source in dict.fromkeys(matrix.source for matrix in alike):
        words = [f"{name} {matrix.value}" for matrix in alike if matrix.source == source for name in matrix.names]
        lines.append(f"  {source}  {', '.join(words)}\n")
    if lines:
        every = "every pair" if all(gpu.nvml for gpu in topology.gpus.values()) else "every pair that NVML lists"
        yield _titled(f"P2P, the same for {every}", lines)
    labels = list(topology.gpus)
    for matrix in topology.p2p:
        if not matrix.uniform:
            columns = [[Column([" X" if r == c else matrix.cells[r, c] for r in labels], (c,))] for c in labels]
            yield _titled(f"P2P {', '.join(matrix.names)} ({matrix.source})", table(labels, columns))


def _bullets(lines: Iterable[str]) -> Text:
    text = Text()
    for line in lines:
        text.append(wrap(printable(line)))
    return text


def _legend(topology: Topology) -> Text:
    shown = legend_rows(topology)
    width = max((len(symbol) for symbol, _ in shown), default=0)
    text = Text()
    for symbol, meaning in shown:
        text.append(f"  {symbol.ljust(width)}  ").append(f"{meaning}\n", DIM)
    return text


def legend_rows(topology: Topology) -> list[tuple[str, str]]:
    """Explain the symbols that appear, in the order of nvidia-smi's legend and then of how good a route is."""
    links = {link.kind for link in topology.links.values()}
    kinds = {route.kind for route in topology.routes}
    statuses = {status for matrix in topology.p2p for status in matrix.cells.values()}
    hops = {hop.link for route in topology.routes for hop in route.hops}
    unknown = any(route.kind is RouteKind.UNKNOWN or rate_text(route) == "?" for route in topology.routes)
    symbols = [
        ("X", "self", bool(topology.gpus or topology.nics)),
        ("SYS", "PCIe and the interconnect between NUMA nodes", LinkClass.SYS in links),
        ("NODE", "PCIe and the interconnect between host bridges of one NUMA node", LinkClass.NODE in links),
        ("PHB", "PCIe and a host bridge (typically the CPU)", LinkClass.PHB in links),
        ("PXB", "several PCIe bridges, without the host bridge", LinkClass.PXB in links),
        ("PIX", "at most a single PCIe bridge", LinkClass.PIX in links),
        ("NV#", "a bonded set of # NVLinks", LinkClass.NVLINK in links),
        ("NV#*", "fewer NVLinks than there should be", any(link.nvlinks_expected for link in topology.links.values())),
        ("C2C", "EGM over the GPU's own NVLink-C2C", RouteKind.LOCAL in kinds),
        (
            "C2C|NV#>C2C",
            "EGM by the memory's owner: this GPU, or another of its CPU",
            any(route.siblings for route in topology.routes),
        ),
        ("NV#>C2C", "EGM over NVLink to a GPU of that node, then its NVLink-C2C", RouteKind.REMOTE in kinds),
        ("C2C-sys", "NVLink-C2C as ordinary system memory, not EGM", RouteKind.C2C in kinds),
        ("PCIe", "PCIe only, not EGM", RouteKind.PCIE in kinds),
        (">SMP", "onwards over the CPUs' interconnect", LinkKind.SMP in hops),
        ("<=", "at most: the rate of a wire on the route is not known", any(map(_is_at_most, topology.routes))),
        ("blocked", "no route from this process, see the notes", RouteKind.BLOCKED in kinds),
        ("CNS", "chipset not supported", "CNS" in statuses),
        ("GNS", "GPU not supported", "GNS" in statuses),
        ("TNS", "topology not supported", "TNS" in statuses),
        ("DR", "disabled by registry key", "DR" in statuses),
        ("NS", "not supported", "NS" in statuses),
        ("U", "unknown to the driver", "U" in statuses),
        (
            "?",
            "could not be told",
            LinkClass.UNKNOWN in links or LinkKind.UNKNOWN in hops or "?" in statuses or unknown,
        ),
    ]
    return [(symbol, meaning) for symbol, meaning, appears in symbols if appears]


def affinity_cells(gpu: Gpu) -> tuple[str, str, str, str]:
    """Return a GPU's CPUs and NUMA nodes: by NVML, NVML's affinity, HOST_NUMA_ID, and of its own memory."""
    numbers = _number(gpu.host_numa_id), _number(own_node(gpu))
    return _affinity(gpu), _nvml_text(gpu, "numa_affinity"), *numbers


def _affinity(gpu: Gpu) -> str:
    if gpu.nvml is not None and gpu.nvml.cpu_affinity is not None:
        return printable(gpu.nvml.cpu_affinity)
    return printable(gpu.pci.local_cpus) if gpu.pci is not None and gpu.pci.local_cpus else "N/A"


def _nvml_text(gpu: Gpu, name: str) -> str:
    value = getattr(gpu.nvml, name) if gpu.nvml is not None else None
    return "N/A" if value is None else printable(value)


def _number(value: int | None) -> str:
    return "N/A" if value is None or value < 0 else str(value)
