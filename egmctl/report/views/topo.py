"""The view of ``egmctl topo``: the connections between devices and their faults, and with ``-v`` each device."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from itertools import combinations

from egmctl.model.answer import State
from egmctl.model.gpu import Gpu
from egmctl.model.route import LinkClass, LinkKind
from egmctl.report import document as doc
from egmctl.report.document import Align, Level, Tone
from egmctl.report.views.findings import faults, verdict
from egmctl.report.views.machine import banners, machine_section, node_diagram, page_facts, subject
from egmctl.report.views.topo_devices import devices, found_anyway
from egmctl.report.views.topo_tables import (
    gpu_matrix,
    link_matrix,
    nic_names,
    rate_text,
    routes_matrix,
    tables_on_page,
)
from egmctl.topology.access import obstacle
from egmctl.topology.links import NEAR, nvlink_hop
from egmctl.topology.platform import PlatformKind
from egmctl.topology.routes import RouteKind
from egmctl.topology.topology import NoteKind, Topology
from egmctl.units import grouped, several

CONNECTED = "What is connected to what"
"""The title of the section with the drawing on a page."""


_TONES = {NoteKind.HIDDEN: Tone.BAD, NoteKind.DEGRADED: Tone.WARN}
_WITHOUT_EGM = {PlatformKind.NO_EGM: "no EGM", PlatformKind.UNKNOWN: "EGM unknown"}


def topo_document(topology: Topology) -> doc.Document:
    """Return the document of a topology."""
    return doc.Document(
        command="egmctl topo",
        subject=subject(topology.machine),
        facts=page_facts(topology.machine),
        banners=banners(topology.machine.origin),
        body=tuple(_body(topology)),
    )


def matrix_document(topology: Topology) -> doc.Document:
    """Return the document of ``topo -m``: the matrix of all devices, as ``nvidia-smi topo -m`` has it, and the routes.

    A topology without a matrix is shown whole.
    """
    whole = topo_document(topology)
    matrix = gpu_matrix(topology, [*topology.gpus, *topology.nics])
    matrix = replace(matrix, caption="", after=nic_names(topology))
    body: tuple[doc.DocumentBlock, ...] = (matrix, routes_matrix(topology), *_legend(topology))
    return whole if topology.missing is not None else replace(whole, body=body)


def _body(topology: Topology) -> Iterator[doc.DocumentBlock]:
    lacking = topology.missing
    if lacking is not None:
        sentence = lacking.sentence.removesuffix(".")
        sentence = f"{sentence[:1].lower()}{sentence[1:]}"
        yield doc.Verdict("NOT DETERMINED", Tone.WARN, sentence, advice=" ".join(lacking.advice))
        yield doc.Section("Missing", (doc.Bullets(lacking.missing),))
        yield doc.Section("Found", (doc.KeyValues(found_anyway(topology.machine)),))
        return
    shown = topology.answer.state in (State.WARN, State.BAD)
    # Text of a node without faults begins with the sentences, of which the first is the answer.
    sentences, entries = topology_summary(topology)
    details = " ".join(doc.plain(each.words) for each in (sentences if shown else sentences[1:]))
    first = verdict(topology.answer)
    clauses = (*(first.clauses or (doc.plain(first.sentence),)), details)
    yield replace(first, sentence="; ".join(clauses), clauses=clauses, level=Level.PAGE)
    if shown:
        yield replace(first, paged=False)
    yield from (replace(sentence, paged=False) for sentence in sentences)
    # The answer of a page already has what a cause says.
    said = {cause.title for cause in topology.answer.causes}
    yield from (replace(entry, paged=doc.plain(entry.title) not in said) for entry in entries)
    drawing = node_diagram(lambda: topology, causes=topology.answer.causes, large=True)
    yield replace(drawing, lines=partial(_drawn, topology), paged=False)
    note = "Nominal GB/s in each direction. A square is an NVLink; a red one with a cross is down."
    yield doc.Section(CONNECTED, (replace(drawing, note=note),), level=Level.PAGE)
    tables = tuple(_tables(topology))
    yield from (replace(table, paged=False) for table in tables)
    yield from tables_on_page(topology, tables)
    yield from _p2p(topology)
    remarks = tuple(note.words for note in topology.notes if note.kind is NoteKind.REMARK)
    yield doc.Section("Notes", (doc.Bullets(remarks),))
    each = partial(devices, topology)
    yield doc.Section("Devices", each, folded=True, note=_devices_note(topology), level=Level.VERBOSE)
    yield machine_section(topology.machine)
    yield doc.Section("Legend", partial(_legend, topology), folded=True, note="the symbols of the tables")


def _tables(topology: Topology) -> Iterator[doc.Matrix]:
    if topology.gpus:
        yield gpu_matrix(topology)
    if topology.nics:
        nics = list(topology.nics)
        yield link_matrix(topology, "NIC links", list(topology.gpus), nics, nic_names(topology))
        yield replace(link_matrix(topology, "NIC to NIC links", nics, nics), level=Level.VERBOSE)
    if topology.routes:
        yield routes_matrix(topology)


def _devices_note(topology: Topology) -> str:
    counts = {"GPU": len(topology.gpus), "NIC": len(topology.nics), "NUMA node": len(topology.numa_nodes)}
    return ", ".join(several(count, name) for name, count in counts.items() if count)


def topology_summary(topology: Topology) -> tuple[list[doc.Paragraph], list[doc.Entry]]:
    """Return sentences on the connections of a node, and an entry for each hidden GPU and degraded link."""
    sentences = [doc.Paragraph(sentence, level=Level.SUMMARY) for sentence in _sentences(topology)]
    entries = [
        doc.Entry(note.kind.upper(), _tone(topology, note.kind), note.words.removeprefix("* "), level=Level.SUMMARY)
        for note in topology.notes
        if note.kind in _TONES
    ]
    return sentences, entries


def _tone(topology: Topology, kind: NoteKind) -> Tone:
    """Return the tone of a note. What hides a GPU on purpose is a note of doctor, and no fault."""
    is_meant = topology.answer.state is State.GOOD and kind is NoteKind.HIDDEN
    return Tone.UNKNOWN if is_meant else _TONES[kind]


def _sentences(topology: Topology) -> Iterator[str]:
    platform = topology.platform
    gpus = topology.machine.gpus or ()
    usable = sum(_usable(topology, gpu) for gpu in gpus)
    if usable < len(gpus):
        yield f"{usable} of {several(len(gpus), 'GPU')} can be used from here."
    egm = "with EGM" if platform.able == len(gpus) else f"EGM on {platform.able} of {len(gpus)} GPUs"
    if platform.kind in _WITHOUT_EGM:
        egm = _WITHOUT_EGM[platform.kind] + (f": {platform.cause}" if platform.cause else "")
    domain = f"; one tray of a multi-node NVLink domain (clique {platform.clique_id})"
    yield f"{platform.what}, {egm}{domain if platform.clique_id is not None else ''}."
    yield from _between_gpus(topology)
    close = [f"{gpu}-{nic}" for gpu in topology.gpus for nic in topology.nics if topology.link(gpu, nic).kind in NEAR]
    if close:
        yield f"On the same PCIe switch: {', '.join(close)}."
    for words in topology.answer.notes:
        yield f"{words}."
    notes = {note.kind for note in topology.notes}
    blocked = sum(route.kind is RouteKind.BLOCKED for route in topology.routes)
    if blocked and NoteKind.HIDDEN not in notes:
        yield f"{blocked} of {len(topology.routes)} routes to host memory are blocked: see the notes."
    answer = topology.answer
    if not notes.intersection(_TONES) and answer.state is State.GOOD and not answer.causes:
        known = "known " if any(link.kind is LinkClass.UNKNOWN for link in topology.links) else ""
        yield f"No {known}link is degraded, no GPU hidden."


def _between_gpus(topology: Topology) -> Iterator[str]:
    """Yield a sentence on the links between pairs of GPUs, without pairs of unusable GPUs whose link is unknown."""
    pairs = [(_joined(topology, pair), pair) for pair in combinations(topology.gpus, 2)]
    usable = {label for label, gpu in topology.gpus.items() if _usable(topology, gpu)}
    links = grouped((link, pair) for link, pair in pairs if link or usable.issuperset(pair))
    if len(links) == 1 and sum(map(len, links.values())) == len(pairs):
        subject = "Both GPUs" if len(pairs) == 1 else "All GPU pairs"
        yield f"{subject} are joined by {next(iter(links)) or 'unknown links'}."
    elif links:
        parts = [f"{len(joined)} joined by {link or 'unknown links'}" for link, joined in links.items()]
        yield f"Pairs of usable GPUs: {'; '.join(parts)}."


def _usable(topology: Topology, gpu: Gpu) -> bool:
    return obstacle(topology.machine, gpu) is None


def _joined(topology: Topology, pair: tuple[str, str]) -> str:
    """Return the words for the link between two GPUs; empty if it is unknown."""
    link = topology.link(*pair)
    if link.kind is not LinkClass.NVLINK:
        return "" if link.kind is LinkClass.UNKNOWN else f"PCIe only ({link.symbol})"
    rate = nvlink_hop(topology.gpus[pair[0]], link.nvlinks or 0).nominal_gb_s
    through = " through NVLink switches" if link.through == "switch" else ""
    each = f", {rate:.0f} GB/s in each direction" if rate is not None else ""
    return f"{several(link.nvlinks or 0, 'NVLink')}{through}{each}"


def _drawn(topology: Topology, width: int) -> Iterator[doc.Words]:
    from egmctl.report.views.node_text import node_text

    return node_text(topology, width, faults(topology, topology.answer.causes))


def _p2p(topology: Topology) -> Iterator[doc.DocumentBlock]:
    """Yield a section with the P2P values that all pairs share, and a matrix, as in nvidia-smi, for the others."""
    alike = grouped(
        (matrix.source, f"{name} {matrix.value}")
        for matrix in topology.p2p
        for name in (matrix.names if matrix.value is not None else ())
    )
    every = "every pair" if all(gpu.nvml for gpu in topology.gpus.values()) else "every pair that NVML lists"
    rows = tuple((source, ", ".join(words)) for source, words in alike.items())
    yield doc.Section(f"P2P, the same for {every}", (doc.KeyValues(rows),))
    labels = list(topology.gpus)
    for matrix in topology.p2p:
        if matrix.value is None:
            cells = ((row, {end: matrix.cells.get((row, end), " X") for end in labels}) for row in labels)
            yield doc.grid(f"P2P {', '.join(matrix.names)} ({matrix.source})", cells, align=Align.LEFT)


_MEANINGS = {
    "X": "self",
    "SYS": "PCIe and the interconnect between NUMA nodes",
    "NODE": "PCIe and the interconnect between host bridges of one NUMA node",
    "PHB": "PCIe and a host bridge (typically the CPU)",
    "PXB": "several PCIe bridges, without the host bridge",
    "PIX": "at most a single PCIe bridge",
    "NV#": "a bonded set of # NVLinks",
    "NV#*": "fewer NVLinks than expected",
    "C2C": "EGM over the GPU's own NVLink-C2C",
    "NV#>C2C": "EGM over NVLink to the memory's owner, then over that GPU's NVLink-C2C",
    "C2C-sys": "NVLink-C2C as ordinary system memory, not EGM",
    "PCIe": "PCIe only, not EGM",
    ">SMP": "onwards over the CPUs' interconnect",
    "<=": "at most: the rate of a link on the route is unknown",
    "blocked": "no route from this process, see the notes",
    "CNS": "chipset not supported",
    "GNS": "GPU not supported",
    "TNS": "topology not supported",
    "DR": "disabled by registry key",
    "NS": "not supported",
    "U": "unknown to the driver",
    "?": "unknown",
}
"""The meanings of symbols: links in the order of nvidia-smi's legend, routes from best to worst, then P2P statuses."""
_ROUTES = {
    RouteKind.REMOTE: "NV#>C2C",
    RouteKind.C2C: "C2C-sys",
    RouteKind.PCIE: "PCIe",
    RouteKind.BLOCKED: "blocked",
    RouteKind.UNKNOWN: "?",
}


def _legend(topology: Topology) -> Iterator[doc.KeyValues]:
    """Yield the meanings of the symbols that links, routes and pairs have."""
    symbols = {"X"} if topology.gpus or topology.nics else set()
    for link in topology.links:
        symbols.add("NV#" if link.kind is LinkClass.NVLINK else link.symbol)
        symbols |= {"NV#*"} if link.nvlinks_expected else set()
    for route in topology.routes:
        symbols |= {_ROUTES.get(route.kind, "C2C"), "NV#>C2C" if route.siblings else ""}
        symbols |= {">SMP" for hop in route.hops if hop.link is LinkKind.SMP}
        symbols |= {"?" for hop in route.hops if hop.link is LinkKind.UNKNOWN}
        symbols |= {"<=" if rate_text(route).startswith("<=") else rate_text(route)}
    symbols = symbols.union(*(matrix.cells.values() for matrix in topology.p2p))
    yield doc.KeyValues(tuple(row for row in _MEANINGS.items() if row[0] in symbols))
