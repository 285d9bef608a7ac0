"""What ``egmctl topo -v`` adds: of each GPU and NIC its ids, its place, its ports, and who knows it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import combinations

from egmctl.model.machine import C2cLink, Gpu, Machine, Nic, NvLink, OriginKind, PcieLink, PciFunction, Reason, Record
from egmctl.model.route import Hop, LinkClass, LinkKind
from egmctl.report import document as doc
from egmctl.report.document import Align, Level, Tone
from egmctl.report.views.machine import banners, machine_section, numa_rows, subject
from egmctl.report.views.node_scene import node_scene
from egmctl.topology.access import obstacle
from egmctl.topology.links import Link, nvlink
from egmctl.topology.notes import NoteKind
from egmctl.topology.platform import PlatformKind, own_node
from egmctl.topology.routes import HostRoute, RouteKind
from egmctl.topology.topology import Topology
from egmctl.units import format_kernel_list, gpu_name, natural, printable, several

_FEW = 8
"""Names of unread values that are listed without asking for all."""


def _devices(topology: Topology) -> Iterator[doc.Block]:
    """Yield whose indices are shown, then the NUMA nodes, each GPU, the NICs, and a modelled machine's sources."""
    numbers = "GPU indices are NVML's, as in nvidia-smi, whatever CUDA_VISIBLE_DEVICES says."
    yield doc.Paragraph(numbers, tone=Tone.DIM)
    yield _part("NUMA nodes", numa_rows(topology.machine))
    for label, gpu in topology.gpus.items():
        rows = (*_gpu(gpu), *_atomics(topology, gpu), *_routes(topology, gpu), *_unread(gpu, Level.VERBOSE))
        yield _part(f"{label}  {gpu_name(gpu.name)}", rows, tuple(_unread(gpu, Level.ALL)))
    yield _part("NICs", tuple((label, _nic(nic)) for label, nic in topology.nics.items()))
    origin = topology.machine.origin
    if origin.kind is OriginKind.MODELLED:
        lines = (("about", origin.description), *(("source", source) for source in origin.sources))
        yield _part(f"Model {origin.name}", tuple(line for line in lines if line[1]))


def found_anyway(machine: Machine) -> tuple[tuple[str, str], ...]:
    """Return what is known of a machine whose GPUs cannot be asked."""
    return (
        *numa_rows(machine),
        *((f"GPU{gpu.index}", _pci(gpu.bus_id, gpu.pci)) for gpu in machine.gpus or ()),
        *((f"NVSwitch{n}", _pci(one.pci.bus_id, one.pci)) for n, one in enumerate(machine.switches or ())),
        *(
            (f"NIC{n}", nic.name if nic.pci is None else f"{nic.name}, {_pci(nic.pci.bus_id, nic.pci)}")
            for n, nic in enumerate(machine.nics or ())
        ),
    )


def _pci(bus_id: str, pci: PciFunction | None) -> str:
    parts = [bus_id]
    if pci is not None and pci.pci_id is not None:
        parts.append(pci.pci_id)
    if pci is not None and pci.numa_node is not None and pci.numa_node >= 0:
        parts.append(f"NUMA {pci.numa_node}")
    if pci is not None and pci.driver is not None:
        parts.append(f"driver {pci.driver or 'none'}")
    return ", ".join(parts)


def _part(title: str, rows: tuple[tuple[str, str], ...], more: tuple[tuple[str, str], ...] = ()) -> doc.Section:
    body = (doc.KeyValues(rows), doc.KeyValues(more, level=Level.ALL))
    return doc.Section(title, body, folded=True, level=Level.VERBOSE)


def _gpu(gpu: Gpu) -> Iterator[tuple[str, str]]:
    yield "bus id", gpu.bus_id
    yield "UUID", gpu.uuid or "not read"
    nvml, platform = gpu.nvml, gpu.nvml and gpu.nvml.platform
    if platform:
        places = [("module", platform.module_id), ("slot", platform.slot), ("tray", platform.tray)]
        known = [f"{name} {number}" for name, number in places if number is not None]
        if known:
            yield "place", ", ".join(known)
    if gpu.node is not None:
        yield "node", f"{gpu.node.path}: {gpu.node.access or 'access not read'}"
    link = (nvml and nvml.link) or (gpu.pci and gpu.pci.link)
    if link:
        yield "PCIe", _pcie(link)
    if nvml is not None and nvml.nvlinks:
        yield "NVLink", _nvlinks(nvml.nvlinks, nvml.nvlink_count)
    if nvml is not None and nvml.c2c_links:
        yield "C2C", _c2c(nvml.c2c_links)
    if nvml is not None and nvml.egm_capable is not None:
        yield "EGM bit", "set" if nvml.egm_capable else "clear"
    if nvml is not None and nvml.addressing_mode is not None:
        yield "addressing", nvml.addressing_mode
    fabric = nvml and nvml.fabric
    if fabric and fabric.state:
        parts = [fabric.state]
        if fabric.cluster_uuid:
            parts.append(f"cluster {fabric.cluster_uuid}")
        if fabric.clique_id is not None:
            parts.append(f"clique {fabric.clique_id}")
        yield "fabric", ", ".join(parts)
    yield "known to", ", ".join(gpu.sources) or "nothing"


def _atomics(topology: Topology, gpu: Gpu) -> Iterator[tuple[str, str]]:
    """Say what the links to host memory and to peers do natively of atomic operations, peers that are alike at once."""
    if gpu.cuda is not None and (told := _atomics_words(gpu.cuda, "host_atomics", gpu.cuda.host_atomics)):
        yield "host atomics", told
    peers: dict[str, list[str]] = {}
    for label, peer in topology.gpus.items():
        pair = topology.machine.pair(gpu.bus_id, peer.bus_id) if peer is not gpu else None
        if pair is not None and (told := _atomics_words(pair, "atomics", pair.atomics)):
            peers.setdefault(told, []).append(label)
    for told, labels in peers.items():
        yield "peer atomics", f"{' '.join(labels)}: {told}"


def _atomics_words(record: Record, field: str, atomics: Mapping[str, tuple[str, ...]] | None) -> str:
    """Return operations that are alike in one part, or why they are not known; nothing where they are not stated."""
    if atomics is None:
        why = record.unread.get(field)
        return (
            "" if why is None or why.reason is Reason.NOT_STATED else f"unknown, {why.reason}: {printable(why.detail)}"
        )
    alike: dict[tuple[str, ...], list[str]] = {}
    for operation, words in atomics.items():
        alike.setdefault(words, []).append(operation)
    return "; ".join(f"{' '.join(names)}: {' '.join(words) or 'none'}" for words, names in alike.items())


def _pcie(link: PcieLink) -> str:
    speed, width = link.max_speed_gt_s or link.speed_gt_s, link.width or link.max_width
    narrow = f" of x{link.max_width}" if link.width and link.max_width and link.width < link.max_width else ""
    return f"{_known(speed and f'{speed:g}')} GT/s x{_known(width)}{narrow}"


def _nvlinks(links: tuple[NvLink, ...], count: int | None) -> str:
    active = [link for link in links if link.active]
    parts = [f"{len(active)} of {max(count or 0, len(links))} active"]
    if active:
        parts[0] += f": {format_kernel_list({link.link for link in active})}"
        speeds = sorted({link.speed_mb_s for link in active if link.speed_mb_s is not None})
        parts += [f"{speed} MB/s each" for speed in speeds]
        remotes: dict[str, list[int]] = {}
        for link in active:
            remote = link.remote_bus_id or ""
            remotes.setdefault(f"{link.remote_type or 'unknown'} {remote}".strip(), []).append(link.link)
        parts += [f"{format_kernel_list(numbers)} to {remote}" for remote, numbers in remotes.items()]
    return ", ".join(parts)


def _c2c(links: tuple[C2cLink, ...]) -> str:
    active = [link for link in links if link.active]
    rates = sorted({link.max_rate_mb_s for link in active if link.max_rate_mb_s is not None})
    return ", ".join([f"{len(active)} of {len(links)} active", *(f"{rate} MB/s each" for rate in rates)])


def _nic(nic: Nic) -> str:
    parts = [nic.name]
    if nic.pci is not None:
        parts.append(nic.pci.bus_id)
    for port in nic.ports:
        rate = "" if port.rate_gbit_s is None else f" {port.rate_gbit_s:g} Gbit/s"
        parts.append(f"port {port.number} {port.link_layer or 'unknown'} {port.state or 'state unknown'}{rate}")
    return ", ".join(parts)


def _routes(topology: Topology, gpu: Gpu) -> Iterator[tuple[str, str]]:
    """Spell out each link of the GPU's routes, and over which GPUs a remote one can lead."""
    for route in topology.routes:
        if route.gpu != gpu.bus_id:
            continue
        hops = [f"{hop.link.value}{_times(hop.nvlinks)} {_gb_s(hop)}" for hop in route.hops]
        if route.via:
            hops[-1] = f"{hops[-1]} of {' or '.join(map(topology.label, route.via))}"
        yield f"to NUMA {route.numa_node}", ", then ".join(hops) or route.reason
        if route.to_sibling is not None:
            owner = " or ".join(map(topology.label, route.siblings))
            first = f"{route.to_sibling.link.value}{_times(route.to_sibling.nvlinks)} {_gb_s(route.to_sibling)}"
            yield (
                "",
                f"where {owner} owns the memory: {first}, then its c2c (read in the driver's source, not measured)",
            )


def _times(nvlinks: int | None) -> str:
    return "" if nvlinks is None else f" x{nvlinks}"


def _gb_s(hop: Hop) -> str:
    return f"({hop.reason})" if hop.nominal_gb_s is None else f"{hop.nominal_gb_s:.1f} GB/s"


def _unread(gpu: Gpu, level: Level) -> Iterator[tuple[str, str]]:
    """Yield what could not be read of a GPU, by reason; many are counted, and named at the end."""
    reasons: dict[str, list[str]] = {}
    sources: list[tuple[str, Record | None]] = [("", gpu), ("nvml.", gpu.nvml), ("cuda.", gpu.cuda), ("pci.", gpu.pci)]
    for prefix, record in sources:
        for name, unread in (record.unread if record else {}).items():
            reasons.setdefault(unread.reason.value, []).append(f"{prefix}{name}")
    for reason, names in reasons.items():
        many = len(names) > _FEW
        if level is Level.VERBOSE:
            yield "unread", f"{reason}: {f'{len(names)} values (-vv names them)' if many else ', '.join(names)}"
        elif many:
            yield "unread", f"{reason}: {', '.join(names)}"


def _known(value: object) -> object:
    return "?" if value is None else value


_TONES = {NoteKind.HIDDEN: Tone.BAD, NoteKind.DEGRADED: Tone.WARN}
_NEAR = (LinkClass.PIX, LinkClass.PXB)
"""A NIC that shares PCIe bridges with a GPU, below the host bridge."""


def topo_document(topology: Topology) -> doc.Document:
    """Return what there is to say of a node's topology."""
    return doc.Document(
        command="egmctl topo",
        subject=subject(topology.machine.origin),
        banners=banners(topology.machine.origin),
        body=tuple(_body(topology)),
    )


def _body(topology: Topology) -> Iterator[doc.Block]:
    lacking = topology.missing
    if lacking is not None:
        why = lacking.sentence.removesuffix(".")
        sentence = f"{why[:1].lower()}{why[1:]}"
        yield doc.Verdict("NOT DETERMINED", Tone.WARN, sentence, advice=" ".join(lacking.advice))
        yield doc.Section("Missing", (doc.Bullets(lacking.missing),))
        yield doc.Section("Found", (doc.KeyValues(found_anyway(topology.machine)),))
        return
    yield from summary(topology)
    yield doc.Diagram(node_scene(topology))
    if topology.gpus:
        yield gpu_matrix(topology)
    if topology.nics:
        names = "  ".join(f"{label}={nic.name}" for label, nic in topology.nics.items())
        yield _matrix(topology, "NIC links", list(topology.gpus), list(topology.nics), after=(names,))
        nics = list(topology.nics)
        yield replace(_matrix(topology, "NIC to NIC links", nics, nics), level=Level.VERBOSE)
    if topology.routes:
        yield _topo_routes(topology)
    yield from _p2p(topology)
    remarks = tuple(note.words for note in topology.notes if note.kind is NoteKind.REMARK)
    yield doc.Section("Notes", (doc.Bullets(remarks),))
    yield doc.Section("Devices", partial(_devices, topology), level=Level.VERBOSE)
    yield machine_section(topology.machine)
    yield doc.Section("Legend", partial(_legend, topology))


def summary(topology: Topology) -> Iterator[doc.Block]:
    """Yield the sentences that answer what is connected to what, and what is wrong with it."""
    for sentence in _sentences(topology):
        yield doc.Paragraph(sentence, level=Level.SUMMARY)
    for note in topology.notes:
        if note.kind in _TONES:
            words = note.words.removeprefix("* ")
            yield doc.Entry(note.kind.upper(), _TONES[note.kind], words, level=Level.SUMMARY)


def _sentences(topology: Topology) -> Iterator[str]:
    verdict = topology.platform
    egm = {PlatformKind.NO_EGM: "no EGM", PlatformKind.UNKNOWN: "EGM unknown"}.get(verdict.kind)
    why = f": {verdict.cause}" if egm and verdict.cause else ""
    number = len(topology.machine.gpus or ())
    usable = sum(_usable(topology, gpu) for gpu in topology.machine.gpus or ())
    if usable < number:
        yield f"{usable} of {several(number, 'GPU')} can be used from here."
    able = "with EGM" if verdict.able == number else f"EGM on {verdict.able} of {number} GPUs"
    told = f"{verdict.what}, {egm or able}{why}"
    domain = f"; one tray of a multi-node NVLink domain (clique {verdict.clique_id})"
    yield f"{told}{domain if verdict.clique_id is not None else ''}."
    yield from _between_gpus(topology)
    near = [
        f"NUMA {node}: {_folded(gpus) or 'no GPU'}" + (f" with {_folded(nics)}" if nics else "")
        for node in topology.numa_nodes
        for gpus, nics in [(_gpus_of(topology, node), _nics_of(topology, node))]
        if gpus or nics
    ]
    if near:
        yield f"{'; '.join(near)}."
    close = [f"{gpu}-{nic}" for gpu in topology.gpus for nic in topology.nics if topology.link(gpu, nic).kind in _NEAR]
    if close:
        yield f"On the same PCIe switch: {', '.join(close)}."
    blocked = sum(route.kind is RouteKind.BLOCKED for route in topology.routes)
    if blocked and not any(note.kind is NoteKind.HIDDEN for note in topology.notes):
        yield f"{blocked} of {len(topology.routes)} routes to host memory are blocked: see the notes."
    if not any(note.kind in _TONES for note in topology.notes):
        yield "No link is degraded, no GPU hidden."


def _between_gpus(topology: Topology) -> Iterator[str]:
    kinds: dict[str, list[tuple[str, str]]] = {}
    for pair in combinations(topology.gpus, 2):
        how = _joined(topology, pair)
        # Nothing can be known of the links of a GPU that cannot be asked: why not is a note.
        if how or all(_usable(topology, topology.gpus[label]) for label in pair):
            kinds.setdefault(how, []).append(pair)
    pairs = [pair for those in kinds.values() for pair in those]
    all_told = len(pairs) == len(topology.gpus) * (len(topology.gpus) - 1) // 2
    if len(kinds) == 1:
        (how,) = kinds
        whose = "all GPU pairs" if all_told else "all pairs of usable GPUs"
        if len(pairs) == 1:
            whose = "both GPUs" if all_told else " and ".join(pairs[0])
        yield f"{_capital(whose)} are joined by {how}." if how else f"The links of {whose} are unknown."
    elif kinds:
        told = [f"{_pairs(those)} joined by {how}" for how, those in kinds.items() if how]
        if unknown := kinds.get(""):
            told.append(f"the links of {len(unknown)} are unknown")
        yield f"Of {len(pairs)} {'GPU pairs' if all_told else 'pairs of usable GPUs'}, {'; '.join(told)}."


def _usable(topology: Topology, gpu: Gpu) -> bool:
    return obstacle(topology.machine, gpu) is None


def _capital(words: str) -> str:
    return words[:1].upper() + words[1:]


def _pairs(pairs: Sequence[tuple[str, str]]) -> str:
    return f"{len(pairs)} {'are' if len(pairs) != 1 else 'is'}"


def _joined(topology: Topology, pair: tuple[str, str]) -> str:
    """Return what joins two GPUs; empty if that is unknown."""
    link = topology.link(*pair)
    if link.kind is not LinkClass.NVLINK:
        return "" if link.kind is LinkClass.UNKNOWN else f"PCIe only ({link.symbol})"
    rate = nvlink(topology.gpus[pair[0]], link.nvlinks or 0).nominal_gb_s
    through = " through NVLink switches" if link.through == "switch" else ""
    each = f", {rate:.0f} GB/s in each direction" if rate is not None else ""
    return f"{several(link.nvlinks or 0, 'NVLink')}{through}{each}"


def _gpus_of(topology: Topology, node: int) -> list[str]:
    return [label for label, gpu in topology.gpus.items() if gpu.host_numa_id == node]


def _nics_of(topology: Topology, node: int) -> list[str]:
    return [label for label, nic in topology.nics.items() if nic.pci is not None and nic.pci.numa_node == node]


def _folded(labels: Sequence[str]) -> str:
    """Return labels in short: ``GPU0-3``."""
    kinds: dict[str, set[int]] = {}
    for label in sorted(labels, key=natural):
        name = label.rstrip("0123456789")
        if name == label:
            return label
        kinds.setdefault(name, set()).add(int(label[len(name) :]))
    return ", ".join(f"{name}{format_kernel_list(numbers)}" for name, numbers in kinds.items())


def gpu_matrix(topology: Topology) -> doc.Matrix:
    """Return the links between GPUs, with each GPU's affinities."""
    headers = (("CPU", "affinity"), ("NUMA", "aff."), ("HOST_", "NUMA_ID"), ("GPU", "NUMA ID"))
    rows = [_affinities(gpu) for gpu in topology.gpus.values()]
    by_header = {header: [row[place] for row in rows] for place, header in enumerate(headers)}
    affinity = tuple(column for (column,) in doc.columns_of(by_header, Align.LEFT))
    labels = list(topology.gpus)
    return _matrix(topology, "GPU links", labels, labels, further=(affinity,))


def _matrix(
    topology: Topology,
    caption: str,
    rows: Sequence[str],
    columns: Sequence[str],
    *,
    further: tuple[tuple[doc.Series, ...], ...] = (),
    after: tuple[str, ...] = (),
) -> doc.Matrix:
    cells = {
        column: [" X" if row == column else link_cell(topology.link(row, column)) for row in rows] for column in columns
    }
    groups = (*doc.columns_of(cells, Align.LEFT), *further)
    return doc.Matrix(caption=caption, rows=tuple(rows), groups=groups, after=after)


def link_cell(link: Link) -> doc.Cell:
    """Return the symbol of a link, marked where NVLinks are missing."""
    mark = "*" if link.nvlinks_expected else ""
    return doc.Cell(link.symbol, mark=mark, tone=Tone.WARN if mark or link.symbol == "?" else Tone.PLAIN)


def _topo_routes(topology: Topology) -> doc.Matrix:
    groups = []
    for node in topology.numa_nodes:
        routes = [route for route in topology.routes if route.numa_node == node]
        cells = tuple(doc.Cell(_route_text(route), tone=_route_tone(route)) for route in routes)
        rates = tuple(doc.Cell(rate_text(route)) for route in routes)
        groups.append((doc.Series((f"NUMA {node}",), cells, align=Align.LEFT), doc.Series((), rates)))
    name = "EGM routes" if any(route.egm for route in topology.routes) else "Routes"
    return doc.Matrix(
        caption=f"{name} to host memory (nominal GB/s per direction)", rows=tuple(topology.gpus), groups=tuple(groups)
    )


def _route_text(route: HostRoute) -> str:
    return route.symbol if route.blocked_by is None else f"{route.symbol}: {route.blocked_by.value}"


def _route_tone(route: HostRoute) -> Tone:
    return {RouteKind.BLOCKED: Tone.BAD, RouteKind.UNKNOWN: Tone.WARN}.get(route.kind, Tone.PLAIN)


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


def _p2p(topology: Topology) -> Iterator[doc.Block]:
    """Say in one line what is alike for all pairs, and draw a matrix, as nvidia-smi does, of what is not."""
    alike = [matrix for matrix in topology.p2p if matrix.uniform]
    sources = dict.fromkeys(matrix.source for matrix in alike)
    rows = tuple(
        (source, ", ".join(f"{name} {one.value}" for one in alike if one.source == source for name in one.names))
        for source in sources
    )
    every = "every pair" if all(gpu.nvml for gpu in topology.gpus.values()) else "every pair that NVML lists"
    yield doc.Section(f"P2P, the same for {every}", (doc.KeyValues(rows),))
    labels = tuple(topology.gpus)
    for matrix in topology.p2p:
        if not matrix.uniform:
            cells = {
                column: [" X" if row == column else matrix.cells[row, column] for row in labels] for column in labels
            }
            caption = f"P2P {', '.join(matrix.names)} ({matrix.source})"
            yield doc.Matrix(caption=caption, rows=labels, groups=doc.columns_of(cells, Align.LEFT))


def _legend(topology: Topology) -> Iterator[doc.KeyValues]:
    """Explain the symbols; those that only links between NICs have, where these are shown."""
    here = legend_rows(topology, between_nics=False)
    yield doc.KeyValues(tuple(here))
    further = tuple(row for row in legend_rows(topology) if row not in here)
    yield doc.KeyValues(further, level=Level.VERBOSE)


def legend_rows(topology: Topology, *, between_nics: bool = True) -> list[tuple[str, str]]:
    """Explain the symbols that appear, in the order of nvidia-smi's legend and then of how good a route is."""
    links = [link for link in topology.links if between_nics or link.source not in topology.nics]
    counted = Counter(link.kind for link in links)
    kinds = {route.kind for route in topology.routes}
    statuses = {status for matrix in topology.p2p for status in matrix.cells.values()}
    hops = {hop.link for route in topology.routes for hop in route.hops}
    unknown = any(route.kind is RouteKind.UNKNOWN or rate_text(route) == "?" for route in topology.routes)
    symbols = [
        ("X", "self", bool(topology.gpus or topology.nics)),
        ("SYS", "PCIe and the interconnect between NUMA nodes", LinkClass.SYS in counted),
        ("NODE", "PCIe and the interconnect between host bridges of one NUMA node", LinkClass.NODE in counted),
        ("PHB", "PCIe and a host bridge (typically the CPU)", LinkClass.PHB in counted),
        ("PXB", "several PCIe bridges, without the host bridge", LinkClass.PXB in counted),
        ("PIX", "at most a single PCIe bridge", LinkClass.PIX in counted),
        ("NV#", "a bonded set of # NVLinks", LinkClass.NVLINK in counted),
        ("NV#*", "fewer NVLinks than expected", any(link.nvlinks_expected for link in topology.links)),
        (
            "C2C",
            "EGM over the GPU's own NVLink-C2C",
            any(route.kind is RouteKind.LOCAL and not route.siblings for route in topology.routes),
        ),
        (
            "C2C|NV#>C2C",
            "EGM by the memory's owner: this GPU, or another of its CPU",
            any(route.siblings for route in topology.routes),
        ),
        ("NV#>C2C", "EGM over NVLink to a GPU of that node, then its NVLink-C2C", RouteKind.REMOTE in kinds),
        ("C2C-sys", "NVLink-C2C as ordinary system memory, not EGM", RouteKind.C2C in kinds),
        ("PCIe", "PCIe only, not EGM", RouteKind.PCIE in kinds),
        (">SMP", "onwards over the CPUs' interconnect", LinkKind.SMP in hops),
        ("<=", "at most: the rate of a link on the route is unknown", any(map(_is_at_most, topology.routes))),
        ("blocked", "no route from this process, see the notes", RouteKind.BLOCKED in kinds),
        ("CNS", "chipset not supported", "CNS" in statuses),
        ("GNS", "GPU not supported", "GNS" in statuses),
        ("TNS", "topology not supported", "TNS" in statuses),
        ("DR", "disabled by registry key", "DR" in statuses),
        ("NS", "not supported", "NS" in statuses),
        ("U", "unknown to the driver", "U" in statuses),
        ("?", "unknown", LinkClass.UNKNOWN in counted or LinkKind.UNKNOWN in hops or "?" in statuses or unknown),
    ]
    return [(symbol, meaning) for symbol, meaning, appears in symbols if appears]


def _affinities(gpu: Gpu) -> tuple[str, str, str, str]:
    """Return a GPU's CPUs and NUMA nodes: by NVML, NVML's affinity, HOST_NUMA_ID, and of its own memory."""
    cpus = gpu.nvml.cpu_affinity if gpu.nvml is not None else None
    if cpus is None and gpu.pci is not None:
        cpus = gpu.pci.local_cpus or None
    nodes = gpu.nvml.numa_affinity if gpu.nvml is not None else None
    return cpus or "N/A", nodes or "N/A", _number(gpu.host_numa_id), _number(own_node(gpu))


def _number(value: int | None) -> str:
    return "N/A" if value is None or value < 0 else str(value)
