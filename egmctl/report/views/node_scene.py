"""The words on the picture of a node: what a CPU, a NIC, a GPU and a route to host memory are called there."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import combinations, pairwise

from egmctl.model.machine import Gpu, Nic
from egmctl.model.route import LinkClass, LinkKind
from egmctl.report.document import Anchor, Box, Label, Line, Look, Scene, Shape
from egmctl.topology.access import obstacle
from egmctl.topology.links import Link, active_nvlinks, nvlink
from egmctl.topology.routes import HostRoute, RouteKind
from egmctl.topology.topology import Topology
from egmctl.units import format_size, gpu_name


def host_words(topology: Topology, node: int | None) -> list[str]:
    """Return the name of a NUMA node, and what is known of its CPUs and its memory."""
    if node is None:
        return ["NUMA node not known"]
    host = topology.machine.host
    found = next((one for one in (host.numa_nodes if host else None) or () if one.id == node), None)
    words = [f"CPU, NUMA {node}"]
    if found is not None and found.cpus:
        words.append(f"CPUs {found.cpus}" if len(found.cpus) <= 20 else f"CPUs {found.cpus[:19]}…")
    if found is not None and found.memory_total_bytes:
        words.append(format_size(found.memory_total_bytes))
    return words


def port_words(nic: Nic) -> str:
    """Return the rates of a NIC's ports."""
    rates = {port.rate_gbit_s for port in nic.ports if port.rate_gbit_s}
    return " and ".join(f"{rate:g} Gbit/s" for rate in sorted(rates))


def short_of(gpu: Gpu) -> str:
    """Say what a GPU has less of than it should; nothing where it has all."""
    active, count = active_nvlinks(gpu), gpu.nvml.nvlink_count if gpu.nvml else None
    if active is not None and count and active < count:
        return f"{active} of {count} NVLinks"
    link = (gpu.nvml and gpu.nvml.link) or (gpu.pci and gpu.pci.link)
    if link and link.width and link.max_width and link.width < link.max_width:
        return f"PCIe x{link.width} of x{link.max_width}"
    return ""


def route_words(route: HostRoute | None) -> tuple[str, ...]:
    """Return the lines beside a route to host memory: its links, its nominal rate, and whether it is EGM."""
    if route is None or not route.hops:
        return () if route is None else (route.symbol,)
    rate = f"{route.nominal_gb_s:.0f} GB/s" if route.nominal_gb_s is not None else ""
    return (route.symbol, " ".join(filter(None, (rate, "EGM" if route.egm else ""))))


def cut(text: str, width: float) -> str:
    """Return text that is no wider than that in the widest font that the style sheet names."""
    if sum(map(_letter, text)) <= width:
        return text
    kept = text
    while kept and sum(map(_letter, f"{kept}…")) > width:
        kept = kept[:-1]
    return f"{kept.rstrip()}…"


def _letter(letter: str) -> float:
    """Return the pixels that a letter takes at most: of DejaVu Sans at 13 px; other fonts are narrower."""
    if letter in "mwMW…":
        return 13
    if letter in " .,:'|ijlI":
        return 4.2
    return 9 if letter.isupper() else 8.3 if letter.isdigit() else 7.6


Rates = Mapping[tuple[str, str], float]
"""Measured GB/s by the labels of source and destination: ``("NUMA0", "GPU1")``, ``("GPU0", "GPU1")``."""

_COLUMN, _GAP, _PAD = 144, 14, 14
_BETWEEN = 76
"""Between two NUMA nodes, where the link of their CPUs has its name."""
_CARD, _HOST, _NIC, _SWITCH = 66, 36, 36, 22
"""Heights."""
_LINK = 74
"""From a CPU to its GPUs."""
_BELOW = 66
_ROW = 24
"""Between two direct NVLink connections."""
_PAIRS_DRAWN = 28
"""All pairs of eight GPUs."""
_LEFT = 22
"""From the left edge of a card to the link to its CPU."""


@dataclass(slots=True)
class _Node:
    """One NUMA node on the page."""

    node: int | None
    gpus: list[str] = field(default_factory=list)
    nics: list[str] = field(default_factory=list)
    """Those that hang on the CPU itself."""
    x: float = 0

    @property
    def columns(self) -> int:
        return max(len(self.gpus), min(len(self.nics), 2), 2)

    @property
    def width(self) -> float:
        return self.columns * (_COLUMN + _GAP) - _GAP + 2 * _PAD

    @property
    def rows(self) -> int:
        """Rows of NICs."""
        return -(-len(self.nics) // self.columns)

    def centre(self, place: int) -> float:
        """Return the middle of a GPU, those of a node being in the node's middle."""
        left = (self.columns - len(self.gpus)) * (_COLUMN + _GAP) / 2
        return self.x + _PAD + left + place * (_COLUMN + _GAP) + _COLUMN / 2


def node_scene(topology: Topology, rates: Rates | None = None) -> Scene:
    """Return the picture.

    Parameters
    ----------
    rates
        What was measured; without it each link has its nominal rate only.
    """
    return _Drawing(topology, rates or {}).scene()


class _Drawing:
    """What the parts of a picture share: who hangs where, and how high each row is."""

    def __init__(self, topology: Topology, rates: Rates) -> None:
        self.topology, self.rates = topology, rates
        self.behind = _behind_switches(topology)
        self.nodes = _nodes(topology, self.behind)
        x = float(_PAD)
        for node in self.nodes:
            node.x = x
            x += node.width + _BETWEEN
        self.width = max(x - _BETWEEN + _PAD, 360)
        self.top = _PAD + max((node.rows for node in self.nodes), default=0) * (_NIC + 8)
        most = max(map(len, self.behind.values()), default=0)
        self.link = _LINK + (_SWITCH + most * (_NIC + 6) if most else 0)
        self.cards = self.top + _HOST + self.link
        self.bottom = self.cards + _CARD + _PAD
        self.centres = {label: node.centre(place) for node in self.nodes for place, label in enumerate(node.gpus)}

    def scene(self) -> Scene:
        shapes: list[Shape] = [shape for node in self.nodes for shape in self.node(node)]
        shapes += self.between_cpus()
        for label, gpu in self.topology.gpus.items():
            shapes += self.card(label, gpu)
        below, height = self.below()
        ground = Box(x=0, y=0, width=self.width, height=height, look=Look.SHEET)
        return Scene(
            title=f"Topology: {self.topology.platform.line}",
            sentences=tuple(_sentences(self.topology, self.behind)),
            width=self.width,
            height=height,
            shapes=(ground, *shapes, *below),
        )

    def node(self, node: _Node) -> Iterator[Shape]:
        inner, wide = node.x + _PAD, node.width - 2 * _PAD
        height = self.bottom - _PAD / 2
        yield Box(x=node.x, y=_PAD / 2, width=node.width, height=height, look=Look.FRAME, radius=10)
        yield Box(x=inner, y=self.top, width=wide, height=_HOST, look=Look.HOST, radius=6)
        name, *told = host_words(self.topology, node.node)
        yield Label(text=name, x=inner + 12, y=self.top + 23, look=Look.STRONG)
        more = " · ".join(told)
        yield Label(text=more, x=inner + wide - 12, y=self.top + 23, look=Look.DIM, anchor=Anchor.END)
        for place, label in enumerate(node.nics):
            row, column = divmod(place, node.columns)
            yield from self.nic(label, inner + column * (_COLUMN + _GAP), _PAD + row * (_NIC + 8), _COLUMN)
        for place, label in enumerate(node.gpus):
            yield from self.host_link(label, node, node.centre(place) - _COLUMN / 2 + _LEFT)

    def nic(self, label: str, x: float, y: float, width: float) -> Iterator[Shape]:
        nic = self.topology.nics[label]
        told = port_words(nic)
        yield Box(x=x, y=y, width=width, height=_NIC, look=Look.NIC, radius=6)
        yield Label(text=cut(f"{label} {nic.name}", width - 7), x=x + 6, y=y + (15 if told else 22))
        if told:
            yield Label(text=told, x=x + 6, y=y + 29, look=Look.DIM)

    def host_link(self, label: str, node: _Node, x: float) -> Iterator[Shape]:
        of = self.topology.gpus[label].bus_id
        route = next((one for one in self.topology.routes if one.gpu == of and one.numa_node == node.node), None)
        blocked = route is not None and route.kind is RouteKind.BLOCKED
        over_c2c = route is not None and bool(route.hops) and route.hops[0].link is LinkKind.C2C
        look = Look.DOWN if blocked else Look.C2C if over_c2c else Look.LINK
        start = self.top + _HOST
        yield Line(points=((x, start), (x, self.cards)), look=look)
        nics = self.behind.get(label, ())
        if nics:
            y = self.cards - len(nics) * (_NIC + 6) - _SWITCH - 8
            card = x - _LEFT
            yield Box(x=card + 8, y=y, width=_COLUMN - 8, height=_SWITCH, look=Look.PCIE_SWITCH, radius=4)
            yield Label(text="PCIe switch", x=card + 18, y=y + 15, look=Look.DIM)
            for place, nic in enumerate(nics):
                at = y + _SWITCH + 4 + place * (_NIC + 6)
                middle = at + _NIC / 2
                yield Line(points=((x + 8, y + _SWITCH), (x + 8, middle), (x + 14, middle)), look=Look.LINK)
                yield from self.nic(nic, x + 14, at, _COLUMN - 14 - _LEFT)
        down, up = self.rates.get((f"NUMA{node.node}", label)), self.rates.get((label, f"NUMA{node.node}"))
        yield from _words(route_words(route), down, up, x + 10, start + 20)

    def between_cpus(self) -> Iterator[Shape]:
        """Yield the link between the CPUs of neighbours, of which nothing reports the rate."""
        known = [node for node in self.nodes if node.node is not None]
        for first, second in pairwise(known):
            y, left, right = self.top + _HOST / 2, first.x + first.width - _PAD, second.x + _PAD
            yield Line(points=((left, y), (right, y)), look=Look.LINK)
            middle = (left + right) / 2
            yield Label(text="CPU to CPU", x=middle, y=y - 7, look=Look.DIM, anchor=Anchor.MIDDLE, halo=True)

    def card(self, label: str, gpu: Gpu) -> Iterator[Shape]:
        x, y = self.centres[label] - _COLUMN / 2, self.cards
        stopped = obstacle(self.topology.machine, gpu)
        short = short_of(gpu)
        memory = (gpu.nvml and gpu.nvml.memory_total_bytes) or (gpu.cuda and gpu.cuda.memory_total_bytes)
        look = Look.GPU_BLOCKED if stopped else Look.GPU_DEGRADED if short else Look.GPU
        yield Box(x=x, y=y, width=_COLUMN, height=_CARD, look=look, radius=8)
        yield Label(text=label, x=x + 12, y=y + 21, look=Look.STRONG)
        if memory:
            size = format_size(memory)
            yield Label(text=size, x=x + _COLUMN - 12, y=y + 21, look=Look.DIM, anchor=Anchor.END)
        yield Label(text=cut(gpu_name(gpu.name).removeprefix("NVIDIA "), _COLUMN - 20), x=x + 12, y=y + 39)
        told, style = (f"blocked: {stopped.block.value}", Look.BAD) if stopped else (short, Look.WARN)
        if not told:
            told, style = gpu.bus_id, Look.MONO
        yield Label(text=told, x=x + 12, y=y + 56, look=style)

    def below(self) -> tuple[list[Shape], float]:
        """Return what is drawn of NVLink, and how far down the picture goes."""
        links = {
            (a, b): link
            for a, b in combinations(self.topology.gpus, 2)
            if (link := self.topology.link(a, b)).kind is LinkClass.NVLINK
        }
        if not links:
            return [], self.bottom + _PAD
        if any(link.through == "switch" for link in links.values()):
            return list(self.switched(links)), self.bottom + _BELOW + _SWITCH + 12 + _PAD
        if len(links) > _PAIRS_DRAWN:
            words = f"{len(links)} pairs joined by NVLink: too many to draw, see the table"
            return [Label(text=words, x=float(_PAD), y=self.bottom + 24, look=Look.DIM)], self.bottom + 40
        return self.direct(links)

    def switched(self, links: Mapping[tuple[str, str], Link]) -> Iterator[Shape]:
        bar, height = self.bottom + _BELOW, _SWITCH + 12
        for label, centre in self.centres.items():
            own = [link for pair, link in links.items() if label in pair]
            if not own:
                continue
            x, gpu = centre - _COLUMN / 2 + _LEFT, self.topology.gpus[label]
            # Its own links: a pair is as short as the worse of its GPUs, and through a switch every pair of a bad GPU.
            active, count = active_nvlinks(gpu), gpu.nvml.nvlink_count if gpu.nvml else None
            most = active or max(link.nvlinks or 0 for link in own)
            short = active < count if active is not None and count else any(link.nvlinks_expected for link in own)
            of = f" of {count}" if short and count else "*" if short else ""
            nominal = nvlink(gpu, most).nominal_gb_s
            words = (f"NV{most}{of}" + (f" {nominal:.0f} GB/s" if nominal is not None else ""),)
            yield Line(points=((x, self.cards + _CARD), (x, bar)), look=Look.DOWN if short else Look.NVLINK)
            out = _middle([self.rates[label, other] for other in self.centres if (label, other) in self.rates])
            back = _middle([self.rates[other, label] for other in self.centres if (other, label) in self.rates])
            yield from _words(words, out, back, x + 10, self.bottom + 24)
        seen = len(self.topology.machine.switches or ())
        name = f"{seen} NVSwitch{'es' * (seen != 1)}" if seen else "NVLink switches"
        yield Box(x=_PAD, y=bar, width=self.width - 2 * _PAD, height=height, look=Look.NVSWITCH, radius=8)
        yield Label(text=name, x=self.width / 2, y=bar + 22, look=Look.STRONG, anchor=Anchor.MIDDLE)

    def direct(self, links: Mapping[tuple[str, str], Link]) -> tuple[list[Shape], float]:
        """Draw each pair as a line of its own, the nearest pairs first."""
        order = list(self.centres)
        pairs = sorted(links, key=lambda pair: (abs(order.index(pair[0]) - order.index(pair[1])), order.index(pair[0])))
        ports = {label: [pair for pair in pairs if label in pair] for label in order}
        lines: list[Shape] = []
        names: list[Shape] = []
        y, cards = float(self.bottom), self.cards + _CARD
        at = {
            pair: tuple(sorted(_port(self.centres[end], ports[end].index(pair), len(ports[end])) for end in pair))
            for pair in pairs
        }
        for place, pair in enumerate(pairs):
            y += _ROW
            link = links[pair]
            one, other = at[pair]
            look = Look.DOWN if link.nvlinks_expected else Look.NVLINK
            lines.append(Line(points=((one, cards), (one, y), (other, y), (other, cards)), look=look))
            nominal = nvlink(self.topology.gpus[pair[0]], link.nvlinks or 0).nominal_gb_s
            words = [f"{pair[0]}-{pair[1]} {link.symbol}" + (f" {nominal:.0f} GB/s" if nominal is not None else "")]
            arrows = (("→", self.rates.get(pair)), ("←", self.rates.get((pair[1], pair[0]))))
            words += [f"{arrow} {value:.1f}" for arrow, value in arrows if value is not None]
            crossing = [x for later in pairs[place + 1 :] for x in at[later] if one < x < other]
            middle = _widest(sorted((one, *crossing, other)))
            names.append(
                Label(text="  ".join(words), x=middle, y=y - 6, look=Look.DIM, anchor=Anchor.MIDDLE, halo=True)
            )
        return [*lines, *names], y + 2 * _PAD


def _behind_switches(topology: Topology) -> dict[str, list[str]]:
    """Return the NICs below the same PCIe switch as a GPU, each with the nearest such GPU."""
    found: dict[str, list[str]] = {}
    for nic in topology.nics:
        for kind in (LinkClass.PIX, LinkClass.PXB):
            gpu = next((one for one in topology.gpus if topology.link(one, nic).kind is kind), None)
            if gpu is not None:
                found.setdefault(gpu, []).append(nic)
                break
    return found


def _nodes(topology: Topology, behind: Mapping[str, Sequence[str]]) -> list[_Node]:
    """Return the NUMA nodes that are shown, each with the GPUs and NICs beside it; last those that have none."""
    nodes: dict[int | None, _Node] = {node: _Node(node) for node in topology.numa_nodes}
    for label, gpu in topology.gpus.items():
        nodes.setdefault(gpu.host_numa_id, _Node(gpu.host_numa_id)).gpus.append(label)
    hanging = {nic for nics in behind.values() for nic in nics}
    for label, nic in topology.nics.items():
        place = nic.pci.numa_node if nic.pci and nic.pci.numa_node is not None and nic.pci.numa_node >= 0 else None
        if label not in hanging:
            nodes.setdefault(place, _Node(place)).nics.append(label)
    return sorted(nodes.values(), key=lambda node: (node.node is None, node.node or 0))


def _words(nominal: Sequence[str], down: float | None, up: float | None, x: float, y: float) -> Iterator[Shape]:
    """Yield the lines beside a link: what it is, and what was measured in each of its directions."""
    for place, text in enumerate(nominal):
        yield Label(text=text, x=x, y=y + 16 * place, look=Look.DIM)
    found = [f"{arrow} {value:.1f}" for arrow, value in (("↓", down), ("↑", up)) if value is not None]
    if found:
        yield Label(text="  ".join(found), x=x, y=y + 16 * len(nominal), look=Look.STRONG)


def _port(centre: float, place: int, count: int) -> float:
    return centre + (_COLUMN - 24) * ((place + 0.5) / count - 0.5)


def _widest(places: Sequence[float]) -> float:
    """Return the middle of the widest gap between neighbours: where words touch no line."""
    left, right = max(pairwise(places), key=lambda gap: gap[1] - gap[0])
    return (left + right) / 2


def _middle(values: Sequence[float]) -> float | None:
    return sorted(values)[len(values) // 2] if values else None


def _sentences(topology: Topology, behind: Mapping[str, Sequence[str]]) -> Iterator[str]:
    """Yield what the picture shows for who does not see it; the tables beside it have the numbers."""
    for node in _nodes(topology, {}):
        name = "NUMA node not known" if node.node is None else f"NUMA node {node.node}"
        yield f"{name} with {', '.join([*node.gpus, *node.nics]) or 'no GPU and no NIC'}"
    for gpu, nics in behind.items():
        yield f"{gpu} and {', '.join(nics)} on one PCIe switch"
    kinds: dict[str, list[str]] = {}
    for a, b in combinations(topology.gpus, 2):
        link = topology.link(a, b)
        way = f"{link.symbol} through switches" if link.through == "switch" else link.symbol
        kinds.setdefault(way, []).append(f"{a} and {b}")
    for way, pairs in kinds.items():
        yield f"{way} between {', '.join(pairs)}" if len(pairs) <= 6 else f"{way} between {len(pairs)} pairs of GPUs"
