"""Draw a node as SVG: CPUs, GPUs, NICs and switches, the links between them, and the bandwidths measured over these.

Coordinates are in pixels at the natural size, from the upper left corner. The style sheet ``figure.css`` defines the
classes.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import combinations, pairwise
from xml.etree.ElementTree import Element

from egmctl.model.gpu import Gpu
from egmctl.report.document import Dot, Tone, number
from egmctl.report.render.page import element
from egmctl.report.views import node_text
from egmctl.report.views.faults import Fault, Faults
from egmctl.report.views.machine import port_rates
from egmctl.topology.links import NEAR, Link
from egmctl.topology.topology import Topology
from egmctl.units import counted, gpu_name


def _cut(text: str, width: float) -> str:
    """Return text truncated to the width of a box; a character is 7.7 pixels wide on average."""
    most = int(width / 7.7)
    return text if len(text) <= most else f"{text[: most - 1].rstrip()}…"


Rates = Mapping[tuple[str, str], Dot]
"""The measured GB/s by the labels of source and destination, ``("NUMA0", "GPU1")``, with the grades. Their
labels are the shares of the links' rates."""


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
    host: int = 290
    """The least width of a CPU, with space for its words."""
    least: int = 360
    narrow: bool = False


_WIDE = _Size()
_LARGE = _Size(column=224, gap=12, left=24)
_NARROW = _Size(column=74, gap=3, pad=4, between=8, left=8, host=0, least=320, narrow=True)
_PHONE_ROW = 4
"""The number of GPUs side by side on a phone."""
_CARD, _HOST, _NIC, _SWITCH = 66, 36, 36, 22
"""The heights of the boxes."""
_LINK = 94
"""The distance from a CPU to its GPUs."""
_BELOW = 82
_ROW = 24
"""The distance between two direct NVLink connections, and between slow pairs."""
_PAIRS_DRAWN = 28
"""The maximum number of pairs that are drawn: all pairs of eight GPUs."""
_SLOW_DRAWN = 6
"""The maximum number of slow pairs that are drawn in a switch."""
_STATES = {Tone.BAD: "bad", Tone.WARN: "warn"}
_FAULTY = {Tone.BAD: "slow", Tone.WARN: "degraded"}
"""The classes of boxes of devices that fail and warn."""
_MEMORY = re.compile(r" [0-9]+GB.*")
"""The part of a GPU's name from its memory on, for which a phone has no space."""
_FAULT_SIGNS = {Tone.BAD: "✕", Tone.WARN: "▲"}


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
        Whether a few GPUs fill a page.
    """
    size = _LARGE if large and len(topology.gpus) <= _PHONE_ROW else _WIDE
    return _Drawing(topology, rates or {}, faults, list(topology.gpus), size).drawing()


def phone_drawings(topology: Topology, rates: Rates | None = None, faults: Faults = _NO_FAULTS) -> Element:
    """Return the drawings of a node for a phone, without NICs: one for every :data:`_PHONE_ROW` GPUs."""
    gpus = list(topology.gpus)
    rows = [gpus[place : place + _PHONE_ROW] for place in range(0, len(gpus), _PHONE_ROW)]
    drawn = [_Drawing(topology, rates or {}, faults, row, _NARROW, again=row is not rows[0]) for row in rows]
    return element("div", [each.drawing() for each in drawn])


def _box(look: str, x: float, y: float, width: float, height: float, radius: float = 0) -> Element:
    return element("rect", x=x, y=y, width=width, height=height, rx=radius or None, class_=look)


def _line(look: str, *points: tuple[float, float]) -> Element:
    path = "L".join(f"{x:.1f} {y:.1f}" for x, y in points)
    return element("path", d=f"M{path}", class_=look)


def _text(text: str, x: float, y: float, look: str = "") -> Element:
    """Return a line of text; ``y`` is its baseline."""
    return element("text", text, x=x, y=y, class_=look or None)


class _Drawing:
    """The layout of a drawing: the position of each device and the height of each row."""

    def __init__(
        self,
        topology: Topology,
        rates: Rates,
        faults: Faults,
        gpus: Sequence[str],
        size: _Size,
        *,
        again: bool = False,
    ) -> None:
        self.again = again
        """Whether a drawing above has the same switches."""
        self.topology, self.rates, self.faults, self.size = topology, rates, faults, size
        self.gpus = {label: topology.gpus[label] for label in gpus}
        self.behind = {} if size.narrow else _behind_switches(topology)
        self.nodes = [
            _Node(part.node, [gpu for gpu in part.gpus if gpu in gpus], [] if size.narrow else part.nics, size)
            for part in node_text.devices_by_node(topology, self.behind)
            if not size.narrow or set(part.gpus) & set(gpus)
        ]
        x = float(size.pad)
        for node in self.nodes:
            node.x = x
            x += node.width + size.between
        self.width = max(x - size.between + size.pad, size.least)
        self.top = size.pad + max((node.rows for node in self.nodes), default=0) * (_NIC + 8)
        most = max(map(len, self.behind.values()), default=0)
        self.link = _LINK + (_SWITCH + most * (_NIC + 6) if most else 0)
        self.cards = self.top + _HOST + self.link
        self.bottom = self.cards + _CARD + size.pad
        self.centres = {label: node.centre(place) for node in self.nodes for place, label in enumerate(node.gpus)}

    def drawing(self) -> Element:
        parts = [part for node in self.nodes for part in self.node(node)]
        parts += self.between_cpus()
        for label, gpu in self.gpus.items():
            parts += self.card(label, gpu)
        below, height = self.below()
        return element(
            "svg",
            element("title", f"Topology: {self.topology.platform.line}"),
            element("desc", "; ".join((*self.wrong(), *_sentences(self.topology, self.behind)))),
            _box("sheet", 0, 0, self.width, height),
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
            yield _sign(fault, x, y)

    def node(self, node: _Node) -> Iterator[Element]:
        inner, wide = node.x + self.size.pad, node.width - 2 * self.size.pad
        yield _box("box", node.x, self.size.pad / 2, node.width, self.bottom - self.size.pad / 2, radius=10)
        label = f"NUMA{node.node}"
        yield _box(self.marked("host", label), inner, self.top, wide, _HOST, radius=6)
        name, *further = node_text.host_words(self.topology, node.node)[: 1 if self.size.narrow else None]
        name = _cut(name.removeprefix("CPU, "), wide) if self.size.narrow else name
        yield _text(name, inner + self.size.left - 4, self.top + 23, "strong")
        yield from self.sign(label, inner + wide - 10, self.top + 23)
        right = 30 if label in self.faults else 12
        yield _text(" · ".join(further), inner + wide - right, self.top + 23, "dim end")
        for place, label in enumerate(node.nics):
            row, column = divmod(place, node.columns)
            x = inner + column * (self.size.column + self.size.gap)
            yield from self.nic(label, x, self.size.pad + row * (_NIC + 8), self.size.column)
        for place, label in enumerate(node.gpus):
            yield from self.host_link(label, node, node.centre(place) - self.size.column / 2 + self.size.left)

    def nic(self, label: str, x: float, y: float, width: float) -> Iterator[Element]:
        nic = self.topology.nics[label]
        ports = port_rates(nic)
        yield _box(self.marked("nic", label), x, y, width, _NIC, radius=6)
        yield from self.sign(label, x + width - 6, y + 15)
        yield _text(_cut(f"{label} {nic.name}", width - 7), x + 6, y + (15 if ports else 22))
        if ports:
            yield _text(ports, x + 6, y + 29, "dim")

    def host_link(self, label: str, node: _Node, x: float) -> Iterator[Element]:
        route, look = node_text.host_route(self.topology, label, node.node)
        down, up = self.rates.get((f"NUMA{node.node}", label)), self.rates.get((label, f"NUMA{node.node}"))
        start = self.top + _HOST
        yield _line("link down" if look == "down" else self.look(down, up), (x, start), (x, self.cards))
        nics = self.behind.get(label, ())
        if nics:
            y = self.cards - len(nics) * (_NIC + 6) - _SWITCH - 8
            card = x - self.size.left
            yield _box("pcie-switch", card + 8, y, self.size.column - 8, _SWITCH, radius=4)
            yield _text("PCIe switch", card + 18, y + 15, "dim")
            for place, nic in enumerate(nics):
                top = y + _SWITCH + 4 + place * (_NIC + 6)
                middle = top + _NIC / 2
                yield _line("link", (x + 8, y + _SWITCH), (x + 8, middle), (x + 14, middle))
                yield from self.nic(nic, x + 14, top, self.size.column - 14 - self.size.left)
        yield from self.labels(node_text.route_lines(route), {"↓": down, "↑": up}, x + 10, start + 20)

    def look(self, *rates: Dot | None) -> str:
        """Return the class of a link by its verdict; a run that did not measure it says so by dots."""
        tones = [rate.tone for rate in rates if rate is not None]
        states = [state for tone, state in _STATES.items() if tone in tones]
        return " ".join(("link", *states[:1], *(["unmeasured"] if self.rates and not tones else [])))

    def labels(self, nominal: Sequence[str], rates: Mapping[str, Dot | None], x: float, y: float) -> Iterator[Element]:
        """Yield the label of a link: its nominal values, and a line for the bandwidth measured in each direction."""
        for text in (nominal[-1].replace(" GB/s", ""),) if self.size.narrow and nominal else nominal:
            yield _text(text, x, y, "dim")
            y += 16
        for arrow, rate in rates.items():
            if rate is not None:
                yield from _chip(f"{arrow} {self.rate_words(rate)}", rate.tone, x, y)
                y += 18

    def rate_words(self, rate: Dot) -> str:
        """Return the words for a measured rate, with its share of the nominal one where there is space."""
        return f"{rate.value:.0f}" if self.size.narrow else f"{number(rate.value)} {rate.label}".rstrip()

    def between_cpus(self) -> Iterator[Element]:
        """Yield the links between the CPUs of neighbouring NUMA nodes. Nothing reports their rates."""
        known = [node for node in self.nodes if node.node is not None]
        for first, second in pairwise(known):
            y, left, right = self.top + _HOST / 2, first.x + first.width - self.size.pad, second.x + self.size.pad
            yield _line("link", (left, y), (right, y))
            if not self.size.narrow:
                yield _text("CPU to CPU", (left + right) / 2, y - 7, "dim middle halo")

    def card(self, label: str, gpu: Gpu) -> Iterator[Element]:
        x, y = self.centres[label] - self.size.column / 2, self.cards
        memory = node_text.gpu_memory(self.topology.machine, gpu)
        state, words = node_text.gpu_state(self.topology, gpu)
        look = self.marked(f"card {state}".rstrip(), label)
        if all(rate is not None and rate.tone is Tone.BAD for rate in self.trunk(label)):
            look = "card slow"
        yield _box(look, x, y, self.size.column, _CARD, radius=8)
        yield _text(label, x + 12, y + 21, "strong")
        yield from self.sign(label, x + self.size.column - (4 if self.size.narrow else 10), y + 21)
        if memory and not self.size.narrow:
            right = 28 if label in self.faults else 12
            yield _text(memory, x + self.size.column - right, y + 21, "dim end")
        name = gpu_name(gpu.name).removeprefix("NVIDIA ")
        name = _MEMORY.sub("", name) if self.size.narrow else name
        yield _text(_cut(name, self.size.column - 20), x + 12, y + 39)
        if state or not self.size.narrow:
            style = {"blocked": "bad", "degraded": "warn"}.get(state, "dim mono")
            yield _text(_cut(words, self.size.column - 12), x + 12, y + 56, style)

    def trunk(self, label: str) -> tuple[Dot | None, Dot | None]:
        """Return the median rate from a GPU to the others and back; slow if half of the pairs or more are."""
        ends = [[(label, other), (other, label)] for other in self.topology.gpus]
        out, back = ([self.rates[pair] for pair in pairs if pair in self.rates] for pairs in zip(*ends, strict=True))
        return _median(out), _median(back)

    def below(self) -> tuple[list[Element], float]:
        """Return the drawing of the NVLinks, and the total height of the picture."""
        links = node_text.nvlink_pairs(self.topology, self.gpus)
        if not links:
            return [], self.bottom + self.size.pad
        if any(link.through == "switch" for link in links.values()):
            slow = self.slow_pairs()
            high = _SWITCH + 12 + _ROW * (min(len(slow), _SLOW_DRAWN) + (len(slow) > _SLOW_DRAWN))
            return list(self.switched(links, slow, high)), self.bottom + _BELOW + high + self.size.pad
        if len(links) > _PAIRS_DRAWN:
            words = f"{len(links)} pairs joined by NVLink: too many to draw, see the table"
            return [_text(words, self.size.pad, self.bottom + 24, "dim")], self.bottom + 40
        return self.direct(links)

    def slow_pairs(self) -> list[tuple[str, str]]:
        """Return the slow pairs, the slowest first, without those of a GPU all of whose pairs are slow."""
        pairs = [pair for pair in self.rates if self.gpus.keys() >= set(pair)]
        well = [pair for pair in pairs if self.rates[pair].tone is not Tone.BAD]
        whole = [pair for pair in pairs if any(pair[side] not in {other[side] for other in well} for side in (0, 1))]
        return sorted(set(pairs) - {*well, *whole}, key=lambda pair: (self.rates[pair].value, pair))

    def switched(
        self, links: Mapping[tuple[str, str], Link], slow: Sequence[tuple[str, str]], high: float
    ) -> Iterator[Element]:
        bar = self.bottom + _BELOW
        for label, centre in self.centres.items():
            if not any(label in pair for pair in links):
                continue
            x, gpu = centre - self.size.column / 2 + self.size.left, self.topology.gpus[label]
            most, missing = node_text.own_nvlinks(self.topology, gpu)
            out, back = self.trunk(label)
            for place, rate in enumerate((out, back) if self.rates else (None,)):
                look = "link down" if missing and rate is None else self.look(rate)
                yield _line(look, (x + 7 * place, self.cards + _CARD), (x + 7 * place, bar))
            words = node_text.with_rate(f"NV{most}{missing}", gpu, most)
            nominal = tuple(words.split(" ", 1)) if self.size.narrow and not missing else (words,)
            yield from self.labels(nominal, {"↓": out, "↑": back}, x + 17, self.bottom + 24)
        pad = self.size.pad
        yield _box("switch", pad, bar, self.width - 2 * pad, high, radius=8)
        switches = node_text.switches_words(self.topology)
        yield _text(f"the same {switches} as above" if self.again else switches, pad + 12, bar + 22, "strong")
        y = bar + 34.0
        for source, destination in slow[:_SLOW_DRAWN]:
            rate, start, end = self.rates[source, destination], self.centres[source], self.centres[destination]
            way = 1 if end > start else -1
            yield _line("link bad", (start, y), (end - 7 * way, y))
            tip = f"{end:.1f},{y:.1f} {end - 11 * way:.1f},{y - 6:.1f} {end - 11 * way:.1f},{y + 6:.1f}"
            yield element("polygon", points=tip, class_="chip")
            words = f"{source} → {destination} {self.rate_words(rate)}"
            yield from _chip(words, Tone.BAD, (start + end) / 2 - _chip_width(words) / 2, y + 4)
            y += _ROW
        if more := len(slow[_SLOW_DRAWN:]):
            yield _text(f"and {more} more slow pairs", pad + 12, y + 4, "bad")

    def direct(self, links: Mapping[tuple[str, str], Link]) -> tuple[list[Element], float]:
        """Return one line per pair of GPUs, the nearest pairs first, and the total height of the picture."""
        order = list(self.centres)
        pairs = sorted(links, key=lambda pair: (abs(order.index(pair[0]) - order.index(pair[1])), order.index(pair[0])))
        ports = {label: [pair for pair in pairs if label in pair] for label in order}
        lines: list[Element] = []
        names: list[Element] = []
        y, cards = float(self.bottom), self.cards + _CARD

        def port(end: str, pair: tuple[str, str]) -> float:
            place, width = (ports[end].index(pair) + 0.5) / len(ports[end]), self.size.column - 24
            return self.centres[end] + width * (place - 0.5)

        columns = {pair: tuple(sorted(port(end, pair) for end in pair)) for pair in pairs}
        for place, pair in enumerate(pairs):
            y += _ROW
            link = links[pair]
            left, right = columns[pair]
            there, back = self.rates.get(pair), self.rates.get((pair[1], pair[0]))
            look = "link down" if link.nvlinks_expected and not self.rates else self.look(there, back)
            lines.append(_line(look, (left, cards), (left, y), (right, y), (right, cards)))
            words = f"{pair[0]}-{pair[1]} {link.symbol}"
            words = words if there or back else node_text.with_rate(words, self.gpus[pair[0]], link.nvlinks or 0)
            known = {"→": there, "←": back}
            measured = [f"{arrow} {self.rate_words(rate)}" for arrow, rate in known.items() if rate is not None]
            state = look.removeprefix("link ") if look in ("link bad", "link warn") else "dim"
            crossing = [x for later in pairs[place + 1 :] for x in columns[later] if left < x < right]
            middle = _widest(sorted((left, *crossing, right)))
            names.append(_text("  ".join((words, *measured)), middle, y - 6, f"{state} rate middle halo"))
        return [*lines, *names], y + 2 * self.size.pad


def _behind_switches(topology: Topology) -> dict[str, list[str]]:
    """Return the NICs below the same PCIe switch as a GPU, by the label of the nearest GPU."""
    nics: dict[str, list[str]] = {}
    for nic in topology.nics:
        near = [gpu for kind in NEAR for gpu in topology.gpus if topology.link(gpu, nic).kind is kind]
        if near:
            nics.setdefault(near[0], []).append(nic)
    return nics


def _sign(fault: Fault, x: float, y: float) -> Element:
    words = element("title", fault.words)
    return element("text", _FAULT_SIGNS[fault.tone], words, x=x, y=y, class_=f"{_STATES[fault.tone]} end")


def _median(rates: Sequence[Dot]) -> Dot | None:
    """Return the rate in the middle, the higher of two; a slow one if half of the rates or more are slow."""
    if not rates:
        return None
    ordered = sorted(rates, key=lambda rate: rate.value)
    bad = [rate for rate in ordered if rate.tone is Tone.BAD]
    slow = 2 * len(bad) >= len(ordered)
    return bad[len(bad) // 2] if slow else replace(ordered[len(ordered) // 2], tone=Tone.PLAIN)


def _chip(text: str, tone: Tone, x: float, y: float) -> Iterator[Element]:
    """Yield a measured rate as text, that of a slow link on a filled chip."""
    if tone is Tone.BAD:
        yield _box("chip", x - 4, y - 12, _chip_width(text), 16, radius=4)
    yield _text(text, x, y, f"rate {'on-chip' if tone is Tone.BAD else _STATES.get(tone, '')}".rstrip())


def _chip_width(text: str) -> float:
    return 7.4 * len(text) + 8


def _widest(places: Sequence[float]) -> float:
    """Return the centre of the widest gap between neighbours, where a label crosses no line."""
    left, right = max(pairwise(places), key=lambda gap: gap[1] - gap[0])
    return (left + right) / 2


def _sentences(topology: Topology, behind: Mapping[str, Sequence[str]]) -> Iterator[str]:
    """Yield the text alternative of the drawing, without the numbers, which the tables contain."""
    for node in node_text.devices_by_node(topology, {}):
        name = "NUMA node not known" if node.node is None else f"NUMA node {node.node}"
        yield f"{name} with {', '.join([*node.gpus, *node.nics]) or 'no GPU and no NIC'}"
    for gpu, nics in behind.items():
        yield f"{gpu} and {', '.join(nics)} on one PCIe switch"
    pairs = (topology.link(a, b) for a, b in combinations(topology.gpus, 2))
    yield from (f"{words} pairs of GPUs" for words in [counted(link.symbol for link in pairs)] if words)
