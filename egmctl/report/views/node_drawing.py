"""Draw a node as SVG: CPUs, GPUs, NICs and switches, the links between them, and the bandwidths measured over these.

Coordinates are in pixels at the natural size, from the upper left corner.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from itertools import combinations, pairwise
from xml.etree.ElementTree import Element

from egmctl.dataclass import dataclass
from egmctl.report.document import Tone
from egmctl.report.render.page import element
from egmctl.report.views import node_text, nvlink_drawing
from egmctl.report.views.findings import Faults
from egmctl.report.views.nvlink_drawing import SMALL, TRUNK, Ports, Rates, box, line, sign, text_at, width_of, wrapped
from egmctl.topology.links import NEAR
from egmctl.topology.topology import Topology
from egmctl.units import counted, gpu_name


@dataclass(frozen=True, slots=True, kw_only=True)
class _Size:
    """The distances in a drawing, and whether it has only the words that fit a phone."""

    column: int = 140
    gap: int = 10
    pad: int = 12
    between: int = 72
    """The distance between two NUMA nodes, with space for the label of their link."""
    left: int = 16
    """The distance from the left edge of a card to the link to its CPU."""
    link: int = 62
    """The distance from a CPU to its GPUs, or to the PCIe switches above them, where nothing was measured."""
    rates: int = 36
    """What two measured rates add to it."""
    near: int = 14
    """The distance from a GPU's link to the NICs of its PCIe switch."""
    host: int = 290
    """The least width of a CPU, with space for its words."""
    least: int = 360
    narrow: bool = False


_WIDE = _Size()
_LARGE = _Size(column=236, gap=12, left=24)
_HALF = _Size(column=130, gap=8, pad=10, between=30, left=14, host=0)
_NARROW = _Size(column=74, gap=3, pad=4, between=8, left=8, link=42, near=8, host=0, least=320, narrow=True)
_PHONE_ROW = 4
"""The number of GPUs side by side on a phone."""
_PHONE_COLUMNS = {0: 148, 1: 148, 2: 148, 3: 92, 4: 74}
"""The width of a GPU on a phone, by the number of GPUs side by side."""
_SIDES = 2
"""The number of NUMA nodes with which a drawing has space for all words."""
_HOST, _SWITCH = 36, 22
"""The heights of the boxes of CPUs and PCIe switches."""
_LINE, _SMALL_LINE = 17, 14
"""The distances between the lines of a card, and of a NIC."""
_ASIDE = 10
"""The space on the left of a phone's drawing for the link between the CPUs above and below the switches."""
_FAULTY = {Tone.BAD: "slow", Tone.WARN: "degraded"}
"""The classes of boxes of devices that fail and warn."""
_MEMORY = re.compile(r" [0-9]+GB.*")
"""The part of a GPU's name from its memory on, for which a phone has no space."""
_NO_FAULTS: Faults = {}


def node_drawing(
    topology: Topology, rates: Rates | None = None, faults: Faults = _NO_FAULTS, *, large: bool = False
) -> Element:
    """Return the drawing of a node as SVG.

    Parameters
    ----------
    rates
        The measured bandwidths, shown in addition to the nominal rates. Links are painted by their verdicts.
    faults
        What is wrong with the devices, which are painted.
    large
        Whether a few GPUs fill a page. Else those of one or two NUMA nodes fill half of it.
    """
    few = len(topology.gpus) <= _PHONE_ROW
    nodes = len(node_text.devices_by_node(topology, {}))
    size = _WIDE
    if few and large:
        size = _LARGE
    elif few and nodes <= _SIDES:
        size = _HALF
    if nodes > _SIDES:
        size = replace(size, host=_LARGE.column)
    return _Drawing(topology, rates or {}, faults, [list(topology.gpus)], size).drawing()


def phone_drawings(topology: Topology, rates: Rates | None = None, faults: Faults = _NO_FAULTS) -> Element:
    """Return the drawings of a node for a phone: rows of :data:`_PHONE_ROW` GPUs, two on either side of switches."""
    gpus = list(topology.gpus)
    rows = [gpus[place : place + _PHONE_ROW] for place in range(0, max(len(gpus), 1), _PHONE_ROW)]
    links = node_text.nvlink_pairs(topology, gpus)
    each = 2 if any(link.through == "switch" for link in links.values()) else 1
    parts = [rows[place : place + each] for place in range(0, len(rows), each)]
    size = replace(_NARROW, column=_PHONE_COLUMNS[max(map(len, rows))])
    if len(node_text.devices_by_node(topology, {})) > _SIDES:
        size = replace(size, column=min(size.column, 70), between=2)
    drawings = [_Drawing(topology, rates or {}, faults, part, size, again=part is not parts[0]) for part in parts]
    return element("div", [each.drawing() for each in drawings])


@dataclass(slots=True)
class _Node(node_text.Devices):
    """A NUMA node in the drawing, with the NICs that do not share a PCIe switch with a GPU."""

    size: _Size = _WIDE
    x: float = 0

    @property
    def columns(self) -> int:
        return max(len(self.gpus), min(len(self.nics), 2), 1)

    @property
    def width(self) -> float:
        columns = self.columns * (self.size.column + self.size.gap) - self.size.gap
        return max(columns, self.size.host) + 2 * self.size.pad

    @property
    def rows(self) -> int:
        """The number of rows of NICs."""
        return -(-len(self.nics) // self.columns)

    def centre(self, place: int) -> float:
        """Return the x coordinate of a GPU's centre; the GPUs of a node are centred in it."""
        step = self.size.column + self.size.gap
        left = (self.width - 2 * self.size.pad - len(self.gpus) * step + self.size.gap) / 2
        return self.x + self.size.pad + left + place * step + self.size.column / 2


@dataclass(kw_only=True)
class _Row:
    """NUMA nodes side by side. From the outer edge to the switches: NICs, CPU, links, PCIe switches with NICs, GPUs."""

    nodes: Sequence[_Node]
    start: float
    flipped: bool
    """Whether the outer edge is below, so that the GPUs face the switches above them."""
    host: float
    """The distances of the CPUs, of the PCIe switches and of the GPUs from the outer edge."""
    switches: float
    cards: float
    end: float

    def at(self, distance: float, height: float = 0) -> float:
        """Return the upper edge of what is so far from the outer edge and so high."""
        return self.start + (self.end - distance - height if self.flipped else distance)


class _Drawing:
    """The layout of a drawing: the position of each device and the height of each row."""

    def __init__(
        self,
        topology: Topology,
        rates: Rates,
        faults: Faults,
        rows: Sequence[Sequence[str]],
        size: _Size,
        *,
        again: bool = False,
    ) -> None:
        self.again = again
        """Whether a drawing above has the same switches."""
        self.topology, self.rates, self.faults, self.size = topology, rates, faults, size
        self.gpus = {label: topology.gpus[label] for row in rows for label in row}
        self.link = size.link + size.rates if rates else size.link
        self.behind = _behind_switches(topology)
        self.nodes = [self.nodes_of(row, first=not again and row is rows[0]) for row in rows]
        self.aside = _ASIDE if len(rows) > 1 else 0
        widths = [self.placed(nodes) for nodes in self.nodes]
        self.width = max(*widths, size.least)
        self.card_height = 32 + _LINE * max(map(len, map(self.card_lines, self.gpus)), default=1)
        shown = [nic for nodes in self.nodes for node in nodes for nic in node.nics]
        near = [nic for label in self.gpus for nic in self.behind.get(label, ())]
        heights = [len(self.nic_lines(nic, self.nic_width(nic in near))) for nic in (*shown, *near)]
        self.nic_height = 8 + _SMALL_LINE * max([2, *heights])
        centres = {label: node.centre(n) for nodes in self.nodes for node in nodes for n, label in enumerate(node.gpus)}
        self.ports = Ports(
            topology=topology, rates=rates, centres=centres, column=size.column, left=size.left, narrow=size.narrow
        )
        self.links = node_text.nvlink_pairs(topology, self.gpus)
        self.is_switched = any(link.through == "switch" for link in self.links.values())

    def nodes_of(self, gpus: Sequence[str], *, first: bool) -> list[_Node]:
        """Return the NUMA nodes of some GPUs; the first row also has those without a GPU if there is space."""
        parts = node_text.devices_by_node(self.topology, self.behind)
        own = [part for part in parts if set(part.gpus) & set(gpus) or (not self.size.narrow and first)]
        return [
            _Node(
                part.node,
                [gpu for gpu in part.gpus if gpu in gpus],
                # A NUMA node whose GPUs are in several rows has its NICs in the first of them.
                part.nics if not part.gpus or part.gpus[0] in gpus else [],
                self.size,
            )
            for part in own
        ]

    def placed(self, nodes: Sequence[_Node]) -> float:
        """Place NUMA nodes side by side and return their width."""
        x = float(self.size.pad + self.aside)
        for node in nodes:
            node.x = x
            x += node.width + self.size.between
        return x - self.size.between + self.size.pad

    @cached_property
    def rows(self) -> list[_Row]:
        """The rows from top to bottom, the second one below the switches."""
        rows: list[_Row] = []
        start = 0.0
        for nodes in self.nodes:
            most = max((len(self.behind.get(label, ())) for node in nodes for label in node.gpus), default=0)
            host = self.size.pad + max((node.rows for node in nodes), default=0) * (self.nic_height + 8)
            switches = host + _HOST + self.link
            cards = switches + (_SWITCH + 4 + most * (self.nic_height + 6) if most else 0)
            row = _Row(
                nodes=nodes,
                start=start,
                flipped=bool(rows),
                host=host,
                switches=switches,
                cards=cards,
                end=cards + self.card_height + self.size.pad,
            )
            rows.append(row)
            start += row.end + 2 * TRUNK + nvlink_drawing.switch_height(self.ports)
        return rows

    def drawing(self) -> Element:
        parts: list[Element] = []
        for row in self.rows:
            for node in row.nodes:
                parts += self.node(row, node)
            parts += self.between_cpus(row)
            for node in row.nodes:
                for label in node.gpus:
                    parts += self.card(row, label)
        below, height = self.nvlinks()
        return element(
            "svg",
            element("title", f"Topology: {self.topology.platform.line}"),
            element("desc", "; ".join((*self.wrong(), *_sentences(self.topology, self.behind)))),
            box("sheet", 0, 0, self.width, height),
            self.around(),
            parts,
            below,
            class_="figure topology",
            role="img",
            viewBox=f"0 0 {self.width:g} {height:g}",
            width=self.width,
            height=height,
        )

    def wrong(self) -> Iterator[str]:
        """Yield what is wrong with each device, in words."""
        yield from dict.fromkeys(fault.words for fault in self.faults.values())

    def marked(self, look: str, label: str) -> str:
        """Return the classes of a device's box: painted by its fault, if it has one."""
        fault = self.faults.get(label)
        return look if fault is None else f"{look} {_FAULTY[fault.tone]}"

    def sign(self, label: str, x: float, y: float) -> Iterator[Element]:
        """Yield the sign of a device's fault, which ends at ``x``."""
        if fault := self.faults.get(label):
            yield sign(fault, x, y)

    def node(self, row: _Row, node: _Node) -> Iterator[Element]:
        pad = self.size.pad
        inner, wide, top = node.x + pad, node.width - 2 * pad, row.at(row.host, _HOST)
        yield box("box", node.x, row.at(pad / 2, row.end - pad), node.width, row.end - pad, radius=10)
        label = f"NUMA{node.node}"
        yield box(self.marked("host", label), inner, top, wide, _HOST, radius=6)
        name, *further = node_text.host_words(self.topology, node.node)
        name = name.removeprefix("CPU, ") if self.size.narrow else name
        name = name if width_of(name) <= wide - 8 else "NUMA ?"
        right = 30 if label in self.faults else 12
        room = wide - self.size.left - right - width_of(name) - 8
        while further and width_of(" · ".join(further), SMALL) > room:
            further.pop(0)
        yield text_at(name, inner + self.size.left - 4, top + 23, "strong")
        yield from self.sign(label, inner + wide - 10, top + 23)
        yield text_at(" · ".join(further), inner + wide - right, top + 23, "dim end")
        for place, nic in enumerate(node.nics):
            line_of, column = divmod(place, node.columns)
            x = inner + column * (self.size.column + self.size.gap)
            distance = pad + (node.rows - 1 - line_of) * (self.nic_height + 8)
            if line_of == 0:
                ends = [row.at(distance + self.nic_height), row.at(row.host)]
                yield line("link", *((x + self.size.left, end) for end in ends))
            yield from self.nic(nic, x, row.at(distance, self.nic_height), self.nic_width(near=False))
        for place, gpu in enumerate(node.gpus):
            yield from self.host_link(row, gpu, node, node.centre(place) - self.size.column / 2)

    def nic_width(self, near: bool) -> float:
        """Return the width of a NIC; below a GPU's PCIe switch it leaves space for the GPU's own link."""
        return self.size.column - (self.size.near + self.size.left if near else 0)

    def nic_lines(self, label: str, width: float) -> list[str]:
        """Return the lines of a NIC: its label and name, whole, and the rates of its ports."""
        nic = self.topology.nics[label]
        name, room = f"{label} {nic.name}", width - 8
        lines = [name] if width_of(name) <= room + 2 else [label, *wrapped(nic.name, room, SMALL)]
        return lines + (wrapped(node_text.port_rates(nic), room, SMALL) if node_text.port_rates(nic) else [])

    def nic(self, label: str, x: float, y: float, width: float) -> Iterator[Element]:
        yield box(self.marked("nic", label), x, y, width, self.nic_height, radius=6)
        yield from self.sign(label, x + width - 6, y + 15)
        lines = self.nic_lines(label, width)
        start = y + (15 if len(lines) > 1 else self.nic_height / 2 + 4)
        for place, words in enumerate(lines):
            yield text_at(words, x + 5, start + _SMALL_LINE * place, "dim" if place else "")

    def host_link(self, row: _Row, label: str, node: _Node, left: float) -> Iterator[Element]:
        """Yield the link from a CPU to a GPU with this left edge, and the PCIe switch and the NICs on its way."""
        route, look = node_text.host_route(self.topology, label, node.node)
        down, up = self.rates.get((f"NUMA{node.node}", label)), self.rates.get((label, f"NUMA{node.node}"))
        x, start = left + self.size.left, row.host + _HOST
        looks = "link down" if look == "down" else self.ports.look(down, up)
        yield line(looks, (x, row.at(start)), (x, row.at(row.cards)))
        nics = self.behind.get(label, ())
        if nics:
            y = row.at(row.switches, _SWITCH)
            yield box("pcie-switch", left + 4, y, self.size.column - 4, _SWITCH, radius=4)
            name = "switch" if self.size.narrow else "PCIe switch"
            yield text_at(name, x + 10, y + 15, "dim")
            for place, nic in enumerate(nics):
                distance = row.switches + _SWITCH + 4 + place * (self.nic_height + 6)
                top = row.at(distance, self.nic_height)
                middle = top + self.nic_height / 2
                edge = row.at(row.switches + _SWITCH)
                bend, edge_of_nic = x + self.size.near / 2, x + self.size.near
                yield line("link", (bend, edge), (bend, middle), (edge_of_nic, middle))
                yield from self.nic(nic, edge_of_nic, top, self.nic_width(near=True))
        top = row.at(start, self.link)
        yield from self.ports.labels(node_text.route_lines(route), {"↓": down, "↑": up}, x + 10, top + 20)

    def between_cpus(self, row: _Row) -> Iterator[Element]:
        """Yield the links between the CPUs of neighbouring NUMA nodes. Nothing reports their rates."""
        known = [node for node in row.nodes if node.node is not None]
        for first, second in pairwise(known):
            y = row.at(row.host, _HOST) + _HOST / 2
            left, right = first.x + first.width - self.size.pad, second.x + self.size.pad
            yield line("link", (left, y), (right, y))
            if self.size.between > width_of("CPU to CPU", SMALL):
                yield text_at("CPU to CPU", (left + right) / 2, y - 7, "dim middle halo")

    def around(self) -> Iterator[Element]:
        """Yield the link between the CPUs of the rows above and below the switches."""
        for above, below in pairwise(self.rows):
            first, second = above.nodes[0], below.nodes[0]
            if None not in (first.node, second.node) and first.node != second.node:
                ends = [row.at(row.host, _HOST) + _HOST / 2 for row in (above, below)]
                x, host = 4.0, first.x + self.size.pad
                yield line("link", (host, ends[0]), (x, ends[0]), (x, ends[1]), (host, ends[1]))

    def card_lines(self, label: str) -> list[tuple[str, str]]:
        """Return the lines below a GPU's label, each with its look: its name, and its bus id or what is wrong."""
        gpu, size = self.gpus[label], SMALL if self.size.narrow else 13
        room = self.size.column - (10 if self.size.narrow else 20)
        name = gpu_name(gpu.name).removeprefix("NVIDIA ")
        name = _MEMORY.sub("", name) if self.size.narrow else name
        lines = [(words, "dim" if self.size.narrow else "") for words in wrapped(name, room, size)]
        state, words = node_text.gpu_state(self.topology, gpu)
        # A GPU that is denied on purpose is blocked without a fault.
        fault = self.faults.get(label)
        worst = {Tone.BAD: "bad rate", Tone.WARN: "warn rate"}.get(fault.tone) if fault else None
        look = (worst or {"degraded": "warn rate"}.get(state, "rate")) if state else "dim mono"
        if state or not self.size.narrow:
            lines += [(part, look) for part in wrapped(words, room, SMALL)]
        return lines

    def card(self, row: _Row, label: str) -> Iterator[Element]:
        gpu, x = self.gpus[label], self.ports.centres[label] - self.size.column / 2
        y, inset = row.at(row.cards, self.card_height), 6 if self.size.narrow else 12
        memory = node_text.gpu_memory(self.topology.machine, gpu)
        state, _ = node_text.gpu_state(self.topology, gpu)
        look = self.marked(f"card {state}".rstrip(), label)
        if all(rate is not None and rate.tone is Tone.BAD for rate in self.ports.trunk(label)):
            look = "card slow"
        yield box(look, x, y, self.size.column, self.card_height, radius=8)
        yield text_at(label, x + inset, y + 21, "strong")
        yield from self.sign(label, x + self.size.column - (4 if self.size.narrow else 10), y + 21)
        right = 28 if label in self.faults else 12
        size = memory or ""
        if width_of(size, SMALL) < self.size.column - inset - width_of(label) - 8 - right and not self.size.narrow:
            yield text_at(size, x + self.size.column - right, y + 21, "dim end")
        for place, (words, style) in enumerate(self.card_lines(label)):
            yield text_at(words, x + inset, y + 38 + _LINE * place, style)

    def nvlinks(self) -> tuple[list[Element], float]:
        """Return the drawing of the NVLinks, and the total height of the picture."""
        first, last = self.rows[0], self.rows[-1]
        pad = self.size.pad
        if not self.links:
            return [], last.start + last.end + pad
        if not self.is_switched:
            drawn, bottom = nvlink_drawing.direct(self.ports, self.links, first.cards + self.card_height, first.end)
            return drawn, bottom + pad
        parts: list[Element] = []
        for row in self.rows:
            for label in (label for node in row.nodes for label in node.gpus):
                if any(label in pair for pair in self.links):
                    parts += nvlink_drawing.trunk(
                        self.ports, label, (row.at(row.end - pad), row.at(row.end + TRUNK)), row.at(row.end, TRUNK)
                    )
        top = first.end + TRUNK
        width = self.width - 2 * pad - self.aside
        parts += nvlink_drawing.switch(self.ports, pad + self.aside, top, width, again=self.again)
        bottom = top + nvlink_drawing.switch_height(self.ports)
        return parts, (last.start + last.end if len(self.rows) > 1 else bottom) + pad


def _behind_switches(topology: Topology) -> dict[str, list[str]]:
    """Return the NICs below the same PCIe switch as a GPU, by the label of the nearest GPU."""
    nics: dict[str, list[str]] = {}
    for nic in topology.nics:
        near = [gpu for kind in NEAR for gpu in topology.gpus if topology.link(gpu, nic).kind is kind]
        if near:
            nics.setdefault(near[0], []).append(nic)
    return nics


def _sentences(topology: Topology, behind: Mapping[str, Sequence[str]]) -> Iterator[str]:
    """Yield the text alternative of the drawing, without the numbers, which the tables contain."""
    for node in node_text.devices_by_node(topology, {}):
        name = "NUMA node not known" if node.node is None else f"NUMA node {node.node}"
        yield f"{name} with {', '.join([*node.gpus, *node.nics]) or 'no GPU and no NIC'}"
    for gpu, nics in behind.items():
        yield f"{gpu} and {', '.join(nics)} on one PCIe switch"
    pairs = (topology.link(a, b) for a, b in combinations(topology.gpus, 2))
    yield from (f"{words} pairs of GPUs" for words in [counted(link.symbol for link in pairs)] if words)
