"""A node as a picture: NUMA nodes with their GPUs and NICs, what joins them, and what was measured over each wire.

From top to bottom: NICs, host memory, the wires to the GPUs, the GPUs, and NVLink, as a switch or pair by pair.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import combinations
from xml.etree.ElementTree import Element

from egmctl.model.machine import Gpu, Nic
from egmctl.model.route import LinkClass, LinkKind
from egmctl.report.markup import element
from egmctl.topology.access import obstacle
from egmctl.topology.links import Link, active_nvlinks
from egmctl.topology.rates import nvlink
from egmctl.topology.routes import HostRoute, RouteKind
from egmctl.topology.topology import Topology
from egmctl.units import format_size

Rates = Mapping[tuple[str, str], float]
"""Measured GB/s by the labels of source and destination: ``("NUMA0", "GPU1")``, ``("GPU0", "GPU1")``."""

_COLUMN, _GAP, _PAD = 144, 14, 14
_CARD_HEIGHT, _HOST_HEIGHT, _NIC_HEIGHT = 66, 44, 36
_LINK_HEIGHT = 58
_SWITCH_GAP, _SWITCH_HEIGHT = 66, 34
_ROW = 24
"""Between two direct NVLink connections."""
_PAIRS_DRAWN = 28
"""All pairs of eight GPUs."""


@dataclass(slots=True)
class _Node:
    """One NUMA node on the page."""

    node: int | None
    gpus: list[str] = field(default_factory=list)
    nics: list[str] = field(default_factory=list)
    x: float = 0

    @property
    def columns(self) -> int:
        return max(len(self.gpus), min(len(self.nics), 2), 2)

    @property
    def width(self) -> float:
        return self.columns * (_COLUMN + _GAP) - _GAP + 2 * _PAD

    def centre(self, place: int) -> float:
        """Return the middle of a GPU, those of a node being in the node's middle."""
        left = (self.columns - len(self.gpus)) * (_COLUMN + _GAP) / 2
        return self.x + _PAD + left + place * (_COLUMN + _GAP) + _COLUMN / 2

    @property
    def nic_rows(self) -> int:
        return -(-len(self.nics) // self.columns)


def drawing(topology: Topology, rates: Rates | None = None) -> Element:
    """Return the picture.

    Parameters
    ----------
    rates
        What was measured; without it each wire has its nominal rate only.
    """
    rates = rates or {}
    nodes = _nodes(topology)
    x = float(_PAD)
    for node in nodes:
        node.x = x
        x += node.width + _GAP
    width = max(x - _GAP + _PAD, 360)
    top = _PAD + max((node.nic_rows for node in nodes), default=0) * (_NIC_HEIGHT + 8)
    cards = top + _HOST_HEIGHT + _LINK_HEIGHT
    bottom = cards + _CARD_HEIGHT + _PAD
    centres = {label: node.centre(place) for node in nodes for place, label in enumerate(node.gpus)}
    parts = [_node(topology, node, rates, top, bottom) for node in nodes]
    parts += [_card(topology, label, gpu, centres[label] - _COLUMN / 2, cards) for label, gpu in topology.gpus.items()]
    below, height = _below(topology, centres, rates, cards + _CARD_HEIGHT, bottom, width)
    told = list(_sentences(topology))
    return element(
        "svg",
        element("title", f"Topology: {topology.platform.line}"),
        element("desc", "; ".join(told)),
        element("rect", x=0, y=0, width=width, height=height, class_="sheet"),
        parts,
        below,
        class_="figure topology",
        role="img",
        viewBox=f"0 0 {width:g} {height:g}",
        width=width,
        height=height,
    )


def _nodes(topology: Topology) -> list[_Node]:
    """Return the NUMA nodes that are shown, each with the GPUs and NICs beside it; last those that have none."""
    nodes: dict[int | None, _Node] = {node: _Node(node) for node in topology.nodes}
    for label, gpu in topology.gpus.items():
        nodes.setdefault(gpu.host_numa_id, _Node(gpu.host_numa_id)).gpus.append(label)
    for label, nic in topology.nics.items():
        place = nic.pci.numa_node if nic.pci and nic.pci.numa_node is not None and nic.pci.numa_node >= 0 else None
        nodes.setdefault(place, _Node(place)).nics.append(label)
    return sorted(nodes.values(), key=lambda node: (node.node is None, node.node or 0))


def _node(topology: Topology, node: _Node, rates: Rates, top: float, bottom: float) -> Element:
    inner = node.x + _PAD
    parts = [
        element("rect", x=node.x, y=_PAD / 2, width=node.width, height=bottom - _PAD / 2, rx=10, class_="box"),
        element("rect", x=inner, y=top, width=node.width - 2 * _PAD, height=_HOST_HEIGHT - 8, rx=6, class_="host"),
    ]
    name, *told = _host_words(topology, node.node)
    parts.append(element("text", name, x=inner + 12, y=top + 23, class_="strong"))
    parts.append(element("text", " · ".join(told), x=inner + node.width - 2 * _PAD - 12, y=top + 23, class_="dim end"))
    for place, label in enumerate(node.nics):
        row, column = divmod(place, node.columns)
        parts.append(_nic(topology, label, inner + column * (_COLUMN + _GAP), _PAD + row * (_NIC_HEIGHT + 8)))
    for place, label in enumerate(node.gpus):
        parts.append(_host_link(topology, label, node.node, node.centre(place), top + _HOST_HEIGHT - 8, rates))
    return element("g", parts)


def _host_words(topology: Topology, node: int | None) -> list[str]:
    if node is None:
        return ["NUMA node not known"]
    host = topology.machine.host
    found = next((one for one in (host.numa_nodes if host else None) or () if one.id == node), None)
    words = [f"NUMA {node}"]
    if found is not None and found.cpus:
        words.append(f"CPUs {found.cpus}" if len(found.cpus) <= 20 else f"CPUs {found.cpus[:19]}…")
    if found is not None and found.memory_total_bytes:
        words.append(format_size(found.memory_total_bytes))
    return words


def _nic(topology: Topology, label: str, x: float, y: float) -> Element:
    nic = topology.nics[label]
    near = [gpu for gpu in topology.gpus if topology.link(gpu, label).kind in (LinkClass.PIX, LinkClass.PXB)]
    told = " · ".join(filter(None, (port_words(nic), *(f"near {gpu}" for gpu in near[:1]))))
    return element(
        "g",
        element("rect", x=x, y=y, width=_COLUMN, height=_NIC_HEIGHT, rx=6, class_="nic"),
        element("text", f"{label} ", element("tspan", nic.name, class_="dim"), x=x + 10, y=y + (15 if told else 22)),
        element("text", told, x=x + 10, y=y + 29, class_="dim") if told else None,
    )


def port_words(nic: Nic) -> str:
    """Return the rates of a NIC's ports."""
    rates = {port.rate_gbit_s for port in nic.ports if port.rate_gbit_s}
    return " and ".join(f"{rate:g} Gbit/s" for rate in sorted(rates))


def _host_link(topology: Topology, label: str, node: int | None, x: float, top: float, rates: Rates) -> Element:
    route = next((one for one in topology.routes if one.gpu == topology.gpus[label].bus_id and one.node == node), None)
    blocked = route is not None and route.kind is RouteKind.BLOCKED
    over_c2c = route is not None and bool(route.hops) and route.hops[0].link is LinkKind.C2C
    style = "wire down" if blocked else "wire c2c" if over_c2c else "wire"
    line = x - _COLUMN / 2 + 22
    down, up = rates.get((f"NUMA{node}", label)), rates.get((label, f"NUMA{node}"))
    return element(
        "g",
        element("line", x1=line, x2=line, y1=top, y2=top + _LINK_HEIGHT + 8, class_=style),
        _words(_route_words(route), down, up, line + 10, top + 26),
    )


def _route_words(route: HostRoute | None) -> str:
    if route is None or not route.hops:
        return "" if route is None else route.symbol
    rate = f" {route.nominal_gb_s:.0f}" if route.nominal_gb_s is not None else ""
    return f"{route.symbol}{rate}{' EGM' if route.egm else ''}"


def _words(nominal: str, down: float | None, up: float | None, x: float, y: float) -> list[Element]:
    """Return the two lines beside a wire: what it is, and what was measured in each of its directions."""
    found = [f"{arrow} {value:.1f}" for arrow, value in (("↓", down), ("↑", up)) if value is not None]
    return [
        element("text", nominal, x=x, y=y, class_="dim"),
        *([element("text", "  ".join(found), x=x, y=y + 16, class_="strong")] if found else []),
    ]


def _card(topology: Topology, label: str, gpu: Gpu, x: float, y: float) -> Element:
    stopped = obstacle(topology.machine, gpu)
    memory = (gpu.nvml and gpu.nvml.memory_total_bytes) or (gpu.cuda and gpu.cuda.memory_total_bytes)
    name = (gpu.name or "unnamed").removeprefix("NVIDIA ")
    return element(
        "g",
        element(
            "rect",
            x=x,
            y=y,
            width=_COLUMN,
            height=_CARD_HEIGHT,
            rx=8,
            class_="card blocked" if stopped else "card",
        ),
        element("text", label, x=x + 12, y=y + 21, class_="strong"),
        element("text", format_size(memory) if memory else "", x=x + _COLUMN - 12, y=y + 21, class_="dim end"),
        element("text", name if len(name) <= 18 else f"{name[:17]}…", x=x + 12, y=y + 39),
        element(
            "text",
            f"blocked: {stopped.block.value}" if stopped else gpu.bus_id,
            x=x + 12,
            y=y + 56,
            class_="bad" if stopped else "dim mono",
        ),
    )


def _below(
    topology: Topology, centres: Mapping[str, float], rates: Rates, cards: float, bottom: float, width: float
) -> tuple[list[Element], float]:
    """Return what is drawn of NVLink, and how far down the picture goes."""
    links = {
        (a, b): link
        for a, b in combinations(topology.gpus, 2)
        if (link := topology.link(a, b)).kind is LinkClass.NVLINK
    }
    if not links:
        return [], bottom + _PAD
    if any(link.through == "switch" for link in links.values()):
        return _switch(topology, links, centres, rates, cards, bottom, width)
    if len(links) > _PAIRS_DRAWN:
        words = f"{len(links)} pairs joined by NVLink: too many to draw, see the table"
        return [element("text", words, x=float(_PAD), y=bottom + 24, class_="dim")], bottom + 40
    return _direct(topology, links, centres, rates, cards, bottom)


def _switch(
    topology: Topology,
    links: Mapping[tuple[str, str], Link],
    centres: Mapping[str, float],
    rates: Rates,
    cards: float,
    bottom: float,
    width: float,
) -> tuple[list[Element], float]:
    bar = bottom + _SWITCH_GAP
    parts: list[Element] = []
    for label, centre in centres.items():
        own = [link for pair, link in links.items() if label in pair]
        if not own:
            continue
        line = centre - _COLUMN / 2 + 22
        gpu = topology.gpus[label]
        # Its own links: a pair is as short as the worse of its GPUs, and through a switch every pair of a bad GPU is.
        active, count = active_nvlinks(gpu), gpu.nvml.nvlink_count if gpu.nvml else None
        most = active or max(link.nvlinks or 0 for link in own)
        short = active < count if active is not None and count else any(link.nvlinks_expected for link in own)
        nominal = nvlink(gpu, most).nominal_gb_s
        of = f" of {count}" if short and count else "*" if short else ""
        words = f"NV{most}{of}" + (f" {nominal:.0f} GB/s" if nominal is not None else "")
        style = "wire down" if short else "wire nvlink"
        parts.append(element("line", x1=line, x2=line, y1=cards, y2=bar, class_=style))
        out = _middle([rates[label, other] for other in centres if (label, other) in rates])
        back = _middle([rates[other, label] for other in centres if (other, label) in rates])
        parts += _words(words, out, back, line + 10, bottom + 28)
    seen = len(topology.machine.switches or ())
    name = f"{seen} NVSwitch{'es' * (seen != 1)}" if seen else "NVLink switches"
    parts.append(element("rect", x=_PAD, y=bar, width=width - 2 * _PAD, height=_SWITCH_HEIGHT, rx=8, class_="switch"))
    parts.append(element("text", name, x=width / 2, y=bar + 22, class_="strong middle"))
    return parts, bar + _SWITCH_HEIGHT + _PAD


def _direct(
    topology: Topology,
    links: Mapping[tuple[str, str], Link],
    centres: Mapping[str, float],
    rates: Rates,
    cards: float,
    bottom: float,
) -> tuple[list[Element], float]:
    """Draw each pair as a line of its own, the nearest pairs first."""
    order = list(centres)
    pairs = sorted(links, key=lambda pair: (abs(order.index(pair[0]) - order.index(pair[1])), order.index(pair[0])))
    ports: dict[str, list[tuple[str, str]]] = {label: [] for label in order}
    for pair in pairs:
        for label in pair:
            ports[label].append(pair)
    wires: list[Element] = []
    names: list[Element] = []
    y = bottom
    for pair in pairs:
        y += _ROW
        link = links[pair]
        ends = [_port(centres[label], ports[label].index(pair), len(ports[label])) for label in pair]
        path = f"M{ends[0]:.1f} {cards:.1f}V{y:.1f}H{ends[1]:.1f}V{cards:.1f}"
        style = "wire down" if link.nvlinks_expected else "wire nvlink"
        wires.append(element("path", d=path, class_=style))
        nominal = nvlink(topology.gpus[pair[0]], link.nvlinks or 0).nominal_gb_s
        words = [f"{pair[0]}-{pair[1]} {link.symbol}" + (f" {nominal:.0f}" if nominal is not None else "")]
        arrows = (("→", rates.get(pair)), ("←", rates.get((pair[1], pair[0]))))
        words += [f"{arrow} {value:.1f}" for arrow, value in arrows if value is not None]
        names.append(element("text", "  ".join(words), x=sum(ends) / 2, y=y - 6, class_="dim middle halo"))
    return [*wires, *names], y + 2 * _PAD


def _port(centre: float, place: int, count: int) -> float:
    return centre + (_COLUMN - 24) * ((place + 0.5) / count - 0.5)


def _middle(values: Sequence[float]) -> float | None:
    return sorted(values)[len(values) // 2] if values else None


def _sentences(topology: Topology) -> Iterator[str]:
    """Yield what the picture shows for who does not see it; the tables beside it have the numbers."""
    for node in _nodes(topology):
        name = "NUMA node not known" if node.node is None else f"NUMA node {node.node}"
        yield f"{name} with {', '.join([*node.gpus, *node.nics]) or 'no GPU and no NIC'}"
    kinds: dict[str, list[str]] = {}
    for a, b in combinations(topology.gpus, 2):
        link = topology.link(a, b)
        way = f"{link.symbol} through switches" if link.through == "switch" else link.symbol
        kinds.setdefault(way, []).append(f"{a} and {b}")
    for way, pairs in kinds.items():
        yield f"{way} between {', '.join(pairs)}" if len(pairs) <= 6 else f"{way} between {len(pairs)} pairs of GPUs"
