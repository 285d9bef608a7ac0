"""The NVLinks in the drawing of a node: trunks to the switches with a square for each link, or a line for each pair.

The shapes that the whole drawing is made of are at the end: boxes, lines, words, rates, and the signs of faults. The
style sheet ``figure.css`` defines their classes.
"""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import pairwise
from xml.etree.ElementTree import Element

from egmctl.dataclass import dataclass
from egmctl.model.gpu import Gpu
from egmctl.report.document import Dot, Tone, number
from egmctl.report.render.page import element
from egmctl.report.views import node_text
from egmctl.report.views.findings import FAULT_SIGNS, Fault
from egmctl.topology.links import Link
from egmctl.topology.topology import Topology

Rates = Mapping[tuple[str, str], Dot]
"""The measured GB/s by the labels of source and destination, ``("NUMA0", "GPU1")``, with the grades. Their
labels are the shares of the links' rates."""
PairLinks = Mapping[tuple[str, str], Link]
"""The pairs of GPUs that NVLinks join."""
STATES = {Tone.BAD: "bad", Tone.WARN: "warn"}
"""The classes of links and words that fail and warn."""
SMALL = 11.5
"""The size of small words in pixels, as in ``figure.css``."""
_EM = 0.592
"""The average width of a character, in sizes of its font."""
TRUNK, SWITCH = 82, 34
"""The height of the space between GPUs and switches, and the least height of the switches' box."""
_ROW = 24
"""The distance between two direct NVLink connections, and between slow pairs."""
_PAIRS_DRAWN = 28
"""The maximum number of pairs that are drawn: all pairs of eight GPUs."""
_SLOW_DRAWN = 6
"""The maximum number of slow pairs that are drawn in a switch."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Ports:
    """Where the GPUs of a drawing end, and what is known of their links."""

    topology: Topology
    rates: Rates
    centres: Mapping[str, float]
    """The x coordinate of the centre of each GPU."""
    column: float
    """The width of a GPU."""
    left: float
    """The distance from the left edge of a GPU to its links."""
    narrow: bool
    """Whether the drawing is for a phone."""

    def gpu(self, label: str) -> Gpu:
        """Return the GPU with a label."""
        return self.topology.gpus[label]

    def look(self, *rates: Dot | None) -> str:
        """Return the class of a link by its verdict; a run that did not measure it says so by dots."""
        tones = [rate.tone for rate in rates if rate is not None]
        states = [state for tone, state in STATES.items() if tone in tones]
        looks = ["link", *states[:1]]
        if self.rates and not tones:
            looks.append("unmeasured")
        return " ".join(looks)

    def words(self, rate: Dot) -> str:
        """Return the words for a measured rate, with its share of the nominal one where there is space."""
        return f"{rate.value:.0f}" if self.narrow else f"{number(rate.value)} {rate.label}".rstrip()

    def labels(self, nominal: Sequence[str], rates: Mapping[str, Dot | None], x: float, y: float) -> Iterator[Element]:
        """Yield the label of a link: its nominal values, and a line for the bandwidth measured in each direction."""
        for words in (nominal[-1].replace(" GB/s", ""),) if self.narrow and nominal else nominal:
            yield text_at(words, x, y, "dim")
            y += 16
        for arrow, rate in rates.items():
            if rate is not None:
                yield from chip(f"{arrow} {self.words(rate)}", rate.tone, x, y)
                y += 18

    def trunk(self, label: str) -> tuple[Dot | None, Dot | None]:
        """Return the median rate from a GPU to the others and back; slow if half of the pairs or more are."""
        ends = [[(label, other), (other, label)] for other in self.topology.gpus]
        out, back = ([self.rates[pair] for pair in pairs if pair in self.rates] for pairs in zip(*ends, strict=True))
        return _median(out), _median(back)

    def slow_pairs(self) -> list[tuple[str, str]]:
        """Return the slow pairs, the slowest first, without those of a GPU all of whose pairs are slow."""
        pairs = [pair for pair in self.rates if self.centres.keys() >= set(pair)]
        well = [pair for pair in pairs if self.rates[pair].tone is not Tone.BAD]
        whole = [pair for pair in pairs if any(pair[side] not in {other[side] for other in well} for side in (0, 1))]
        return sorted(set(pairs) - {*well, *whole}, key=lambda pair: (self.rates[pair].value, pair))


def trunk(ports: Ports, label: str, ends: tuple[float, float], top: float) -> Iterator[Element]:
    """Yield the links between a GPU and the switches.

    Parameters
    ----------
    ends
        The y coordinates of both ends.
    top
        The upper edge of the space of :data:`TRUNK` pixels for the words.
    """
    x, gpu = ports.centres[label] - ports.column / 2 + ports.left, ports.gpu(label)
    most, missing = node_text.own_nvlinks(ports.topology, gpu)
    out, back = ports.trunk(label)
    for place, rate in enumerate((out, back) if ports.rates else (None,)):
        look = "link bad" if missing and rate is None else ports.look(rate)
        yield line(look, (x + 7 * place, ends[0]), (x + 7 * place, ends[1]))
    words = node_text.with_rate(f"NV{most}{missing}", gpu, most)
    if ports.rates:
        nominal = tuple(words.split(" ", 1)) if ports.narrow and not missing else (words,)
        yield from ports.labels(nominal, {"↓": out, "↑": back}, x + 17, top + 24)
        return
    states = node_text.nvlink_states(gpu)
    count = f"{most} of {len(states)}" if len(states) >= most else f"{most}{missing}"
    look = "bad rate" if missing else "dim"
    yield text_at(count if ports.narrow else f"{count} NVLinks", x + 12, top + 22, look)
    rate_words = node_text.with_rate("", gpu, most).strip()
    yield text_at(rate_words.removesuffix(" GB/s") if ports.narrow else rate_words, x + 12, top + 38, look)
    if states:
        room = ports.column - ports.left - (12 if ports.narrow else 24)
        yield from squares(states, x + 12, top + 47, room, small=ports.narrow)


def switch_height(ports: Ports) -> float:
    """Return the height of the switches' box, which has the slow pairs."""
    slow = len(ports.slow_pairs())
    return SWITCH + _ROW * (min(slow, _SLOW_DRAWN) + (slow > _SLOW_DRAWN))


def switch(ports: Ports, x: float, y: float, width: float, *, again: bool) -> Iterator[Element]:
    """Yield the switches as one box, with an arrow for each slow pair.

    Parameters
    ----------
    again
        Whether a drawing above has the same switches.
    """
    slow = ports.slow_pairs()
    yield box("switch", x, y, width, switch_height(ports), radius=8)
    switches = node_text.switches_words(ports.topology)
    yield text_at(f"the same {switches} as above" if again else switches, x + 12, y + 22, "strong")
    domain = ports.topology.platform.clique_id
    if domain is not None and not again:
        name = f"clique {domain}" if ports.narrow else f"on to other nodes of the NVLink domain, clique {domain}"
        yield text_at(name, x + width - 12, y + 22, "dim end")
    y += 34.0
    for source, destination in slow[:_SLOW_DRAWN]:
        rate, start, end = ports.rates[source, destination], ports.centres[source], ports.centres[destination]
        if start != end:
            way = 1 if end > start else -1
            yield line("link bad", (start, y), (end - 7 * way, y))
            tip = f"{end:.1f},{y:.1f} {end - 11 * way:.1f},{y - 6:.1f} {end - 11 * way:.1f},{y + 6:.1f}"
            yield element("polygon", points=tip, class_="chip")
        words = f"{source} → {destination} {ports.words(rate)}"
        yield from chip(words, Tone.BAD, max((start + end - chip_width(words)) / 2, x + 8), y + 4)
        y += _ROW
    if more := len(slow[_SLOW_DRAWN:]):
        yield text_at(f"and {more} more slow pairs", x + 12, y + 4, "bad")


def direct(ports: Ports, links: PairLinks, cards: float, bottom: float) -> tuple[list[Element], float]:
    """Return one line per pair of GPUs, the nearest pairs first, and the lower edge of the last.

    Parameters
    ----------
    cards, bottom
        The lower edges of the GPUs, and of the boxes around them.
    """
    if len(links) > _PAIRS_DRAWN:
        words = f"{len(links)} pairs joined by NVLink: too many to draw, see the table"
        return [text_at(words, 12, bottom + 24, "dim")], bottom + 40
    order = list(ports.centres)
    pairs = sorted(links, key=lambda pair: (abs(order.index(pair[0]) - order.index(pair[1])), order.index(pair[0])))
    own = {label: [pair for pair in pairs if label in pair] for label in order}
    lines: list[Element] = []
    names: list[Element] = []
    y = bottom

    def port(end: str, pair: tuple[str, str]) -> float:
        place, width = (own[end].index(pair) + 0.5) / len(own[end]), ports.column - 24
        return ports.centres[end] + width * (place - 0.5)

    columns = {pair: tuple(sorted(port(end, pair) for end in pair)) for pair in pairs}
    for place, pair in enumerate(pairs):
        y += _ROW
        link = links[pair]
        left, right = columns[pair]
        there, back = ports.rates.get(pair), ports.rates.get((pair[1], pair[0]))
        look = "link bad" if link.nvlinks_expected and not ports.rates else ports.look(there, back)
        lines.append(line(look, (left, cards), (left, y), (right, y), (right, cards)))
        words = f"{pair[0]}-{pair[1]} {link.symbol}"
        words = words if there or back else node_text.with_rate(words, ports.gpu(pair[0]), link.nvlinks or 0)
        known = {"→": there, "←": back}
        measured = [f"{arrow} {ports.words(rate)}" for arrow, rate in known.items() if rate is not None]
        state = look.removeprefix("link ") if look in ("link bad", "link warn") else "dim"
        crossing = [x for later in pairs[place + 1 :] for x in columns[later] if left < x < right]
        middle = _widest(sorted((left, *crossing, right)))
        names.append(text_at("  ".join((words, *measured)), middle, y - 6, f"{state} rate middle halo"))
    return [*lines, *names], y + 12


def _median(rates: Sequence[Dot]) -> Dot | None:
    """Return the rate in the middle, the higher of two; a slow one if half of the rates or more are slow."""
    if not rates:
        return None
    ordered = sorted(rates, key=lambda rate: rate.value)
    bad = [rate for rate in ordered if rate.tone is Tone.BAD]
    slow = 2 * len(bad) >= len(ordered)
    return bad[len(bad) // 2] if slow else replace(ordered[len(ordered) // 2], tone=Tone.PLAIN)


def _widest(places: Sequence[float]) -> float:
    """Return the centre of the widest gap between neighbours, where a label crosses no line."""
    left, right = max(pairwise(places), key=lambda gap: gap[1] - gap[0])
    return (left + right) / 2


# --- shapes -----------------------------------------------------------------------------------------------------------


def box(look: str, x: float, y: float, width: float, height: float, radius: float = 0) -> Element:
    """Return a box; ``x`` and ``y`` are its upper left corner."""
    return element("rect", x=x, y=y, width=width, height=height, rx=radius or None, class_=look)


def line(look: str, *points: tuple[float, float]) -> Element:
    """Return a line through points."""
    path = "L".join(f"{x:.1f} {y:.1f}" for x, y in points)
    return element("path", d=f"M{path}", class_=look)


def text_at(words: str, x: float, y: float, look: str = "") -> Element:
    """Return a line of text; ``y`` is its baseline."""
    return element("text", words, x=x, y=y, class_=look or None)


def wrapped(words: str, width: float, size: float = 13) -> list[str]:
    """Return words in lines that fit a width in pixels; a word that is wider is broken, never cut off."""
    return textwrap.wrap(words, max(int(width / (_EM * size)), 1))


def width_of(words: str, size: float = 13) -> float:
    """Return the width of words in pixels, about."""
    return _EM * size * len(words)


def sign(fault: Fault, x: float, y: float) -> Element:
    """Return the sign of a fault, which ends at ``x``."""
    words = element("title", fault.words)
    return element("text", FAULT_SIGNS[fault.tone], words, x=x, y=y, class_=f"{STATES[fault.tone]} end")


def chip(words: str, tone: Tone, x: float, y: float) -> Iterator[Element]:
    """Yield a measured rate as text, that of a slow link on a filled chip."""
    if tone is Tone.BAD:
        yield box("chip", x - 4, y - 12, chip_width(words), 16, radius=4)
    yield text_at(words, x, y, f"rate {'on-chip' if tone is Tone.BAD else STATES.get(tone, '')}".rstrip())


def chip_width(words: str) -> float:
    """Return the width of a chip in pixels."""
    return 7.4 * len(words) + 8


def squares(states: Sequence[bool], x: float, y: float, width: float, *, small: bool = False) -> Iterator[Element]:
    """Yield a square for each NVLink of a GPU, in as few rows as fit; one that is down is red and has a cross.

    Parameters
    ----------
    states
        Whether each link is active.
    y
        The upper edge.
    """
    side, step = (4.0, 5.5) if small else (6.0, 8.0)
    rows = next(rows for rows in range(1, len(states) + 1) if -(-len(states) // rows) * step <= width + step)
    columns = -(-len(states) // rows)
    places = [(x + step * (n % columns), y + (step + 1) * (n // columns)) for n in range(len(states))]
    starts = [(left, top, min(columns, len(states) - n)) for n, (left, top) in enumerate(places) if n % columns == 0]
    row_paths = (f"M{left:g} {top + side / 2:g}h{step * count:g}" for left, top, count in starts)
    yield element("path", d="".join(row_paths), class_="nvlinks small" if small else "nvlinks")
    for place, (active, (left, top)) in enumerate(zip(states, places, strict=True)):
        if not active:
            cross = f"M{left:g} {top:g}l{side:g} {side:g}m0 {-side:g}l{-side:g} {side:g}"
            lost = box("lost", left, top, side, side)
            yield element("g", element("title", f"NVLink {place} is down"), lost, element("path", d=cross))
