"""Draw a node for a terminal: the CPUs, GPUs and their links as box characters. Other views share its words:
the memory of a GPU, the rates of a NIC's ports.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import field
from itertools import combinations, zip_longest

from egmctl.dataclass import dataclass
from egmctl.model.gpu import Gpu
from egmctl.model.host import Nic
from egmctl.model.machine import Machine
from egmctl.model.route import LinkClass, LinkKind, symbol_of
from egmctl.report.document import Span, Tone, Words
from egmctl.report.views.findings import FAULT_SIGNS, Faults
from egmctl.topology.access import gpu_memory_bytes, memory_limit, obstacle
from egmctl.topology.links import Link, active_nvlinks, nvlink_hop
from egmctl.topology.routes import HostRoute, RouteKind
from egmctl.topology.topology import Topology, fewer_nvlinks, narrow_pcie
from egmctl.units import counted, format_size, gpu_name

_WIDEST, _NARROWEST = 36, 9
"""The limits of the width of a GPU in text, in characters, with the space after it."""
_IN_SHORT = {"blocked": "blocked", "degraded": "reduced", "": ""}
_WITHOUT_FAULT = {"blocked": Tone.UNKNOWN, "degraded": Tone.WARN}
"""The tones of GPUs with these states about which no cause of the answer is."""
_MARKS = {"nvlink": ("║", Tone.STRONG), "c2c": ("║", Tone.GOOD), "down": ("╳", Tone.BAD), "": ("│", Tone.PLAIN)}  # noqa: RUF001


@dataclass(slots=True)
class Devices:
    """The devices of a NUMA node by label. ``node`` is ``None`` if their NUMA node is unknown."""

    node: int | None
    gpus: list[str] = field(default_factory=list)
    nics: list[str] = field(default_factory=list)


_NO_FAULTS: Faults = {}


def node_text(topology: Topology, width: int, faults: Faults = _NO_FAULTS) -> Iterator[Words]:
    """Yield the lines of the drawing for a terminal; none if its GPUs need more than ``width`` characters.

    Parameters
    ----------
    faults
        What is wrong with the devices; GPUs are marked by it.
    """
    nodes = [node for node in devices_by_node(topology, {}) if node.gpus or node.node is not None]
    slots = [(node, label) for node in nodes for label in node.gpus or ("",)]
    size = min(_WIDEST, width // max(len(slots), 1))
    if size < _NARROWEST or not topology.gpus:
        return
    nvlinks = nvlink_pairs(topology, topology.gpus)
    boxes = [list(_cpu_lines(topology, node, size)) for node in nodes]
    lines = [list(_gpu_lines(topology, label, node, size, nvlinks, faults)) if label else [] for node, label in slots]
    linked = all(node.node is not None for node in nodes)
    for row in zip(*boxes, strict=True):
        yield " ".join(row).replace("│ │", "├─┤" if linked else "│ │")
    rows = list(zip_longest(*lines, fillvalue=("", Tone.PLAIN)))
    yield from (tuple(Span(text.ljust(size), tone) for text, tone in row) for row in rows)
    if nvlinks:
        ports = [place * size + 2 for place, column in enumerate(lines) if len(column) == len(rows)]
        total = len(slots) * size - 1
        direct = counted(link.symbol for link in nvlinks.values() if link.through != "switch")
        name = f"NVLink without switches, by pair: {direct}" if direct else switches_words(topology)
        yield _edge("╔═╗", total, ports, "╩")
        yield f"║ {name[: total - 4].ljust(total - 4)} ║"
        yield _edge("╚═╝", total)
    signs = dict.fromkeys(FAULT_SIGNS[faults[label].tone] for label in topology.gpus if label in faults)
    faulty = f"  {' '.join(signs)} see above" if signs else ""
    yield Span(f"nominal GB/s  ║ NVLink, C2C  │ PCIe  ╳ missing or blocked{faulty}", Tone.DIM)  # noqa: RUF001


def _edge(corners: str, width: int, ports: Sequence[int] = (), port: str = "") -> str:
    line = [corners[0], *corners[1] * (width - 2), corners[2]]
    return "".join(port if place in ports else char for place, char in enumerate(line))


def _cpu_lines(topology: Topology, node: Devices, size: int) -> Iterator[str]:
    """Yield the three lines of a CPU's box, with as many of its values as fit."""
    width = (len(node.gpus) or 1) * size - 1
    name, *further = host_words(topology, node.node)
    while further and len("  ".join((name, *further))) > width - 4:
        further.pop()
    yield _edge("╭─╮", width)
    yield f"│ {name[: width - 4]}{'  '.join(further).rjust(width - 4 - len(name[: width - 4]))} │"
    yield _edge("╰─╯", width, [place * size + 2 for place in range(len(node.gpus))], "┬")


def _gpu_lines(
    topology: Topology, label: str, node: Devices, size: int, nvlinks: Mapping[tuple[str, str], Link], faults: Faults
) -> Iterator[tuple[str, Tone]]:
    """Yield the lines of a GPU, each with its tone: the link to its CPU, its card, its NVLinks."""
    room, gpu = size - 5, topology.gpus[label]
    route, look = host_route(topology, label, node.node)
    own = any(label in pair for pair in nvlinks)
    most, missing = own_nvlinks(topology, gpu) if own else (0, "")
    symbol, rate = (*route_lines(route), "", "")[:2]
    yield from _link_lines(look, symbol or "?", rate, room)
    state, words = gpu_state(topology, gpu)
    fault = faults.get(label)
    # A GPU that is denied on purpose is blocked without a fault.
    tone = fault.tone if fault else _WITHOUT_FAULT.get(state, Tone.PLAIN)
    sign = FAULT_SIGNS[fault.tone] if fault else ""
    name = gpu_name(gpu.name).removeprefix("NVIDIA ")
    yield _edge("╭─╮", size - 1, (2,), "┴"), tone
    yield f"│ {label.ljust(room - len(sign))}{sign} │", tone
    yield f"│ {name[:room].ljust(room)} │", tone
    if len(words) <= room + 1:
        yield f"│ {words.ljust(room + 1)}│", tone
    elif any(gpu_state(topology, other)[0] for other in topology.gpus.values()):
        yield f"│{_IN_SHORT[state].ljust(room + 2)}│", tone
    yield _edge("╰─╯", size - 1, (2,) if own else (), "╥"), tone
    if own:
        yield from _link_lines("down" if missing else "nvlink", f"NV{most}{missing}", with_rate("", gpu, most), room)


def _link_lines(look: str, symbol: str, rate: str, room: int) -> Iterator[tuple[str, Tone]]:
    mark, tone = _MARKS[look]
    for text in (symbol, rate.strip()):
        yield f"  {mark} {next((words for words in (text, *text.split()[:1]) if len(words) <= room), '')}", tone


def host_words(topology: Topology, node: int | None) -> list[str]:
    """Return the name of a NUMA node, with its CPUs and memory if they are known."""
    if node is None:
        return ["NUMA unknown"]
    host = topology.machine.host
    for numa in (host.numa_nodes if host else None) or ():
        if numa.id == node:
            cpus = numa.cpus if len(numa.cpus) <= 20 else f"{numa.cpus[:19]}…"
            size = format_size(numa.memory_total_bytes) if numa.memory_total_bytes else ""
            return list(filter(None, (f"CPU, NUMA {node}", cpus and f"CPUs {cpus}", size)))
    return [f"CPU, NUMA {node}"]


def route_lines(route: HostRoute | None) -> tuple[str, ...]:
    """Return the label lines of a route to host memory: its links, its nominal rate, and whether it is EGM."""
    if route is None or not route.hops:
        return () if route is None else (route.symbol,)
    rate = f"{route.nominal_gb_s:.0f} GB/s" if route.nominal_gb_s is not None else ""
    symbol = symbol_of(route.hops) if route.kind is RouteKind.LOCAL else route.symbol
    return (symbol, " ".join(filter(None, (rate, "EGM" if route.egm else ""))))


def host_route(topology: Topology, label: str, node: int | None) -> tuple[HostRoute | None, str]:
    """Return the route from a GPU to its own CPU, and the look of its line."""
    ends = (topology.gpus[label].bus_id, node)
    route = next((route for route in topology.routes if (route.gpu, route.numa_node) == ends), None)
    if route is not None and route.kind is RouteKind.BLOCKED:
        return route, "down"
    return route, "c2c" if route is not None and route.hops and route.hops[0].link is LinkKind.C2C else ""


def gpu_state(topology: Topology, gpu: Gpu) -> tuple[str, str]:
    """Return the look of a GPU's card, and what is wrong with the GPU, or else its bus id."""
    if stopped := obstacle(topology.machine, gpu):
        return "blocked", f"blocked: {stopped.block.value}"
    fewer = fewer_nvlinks(topology.machine, gpu, topology.links)
    short = f"{fewer[0]} of {fewer[1]} NVLinks" if fewer else narrow_pcie(gpu)
    return ("degraded", short) if short else ("", gpu.bus_id)


def nvlink_pairs(topology: Topology, gpus: Iterable[str]) -> dict[tuple[str, str], Link]:
    """Return the pairs of these GPUs that NVLinks join."""
    pairs = {pair: topology.link(*pair) for pair in combinations(gpus, 2)}
    return {pair: link for pair, link in pairs.items() if link.kind is LinkClass.NVLINK}


def own_nvlinks(topology: Topology, gpu: Gpu) -> tuple[int, str]:
    """Return the number of a GPU's active NVLinks, and words on missing ones.

    The GPU's own links count: a pair has only as many links as the GPU that has fewer of them.
    """
    active, fewer = active_nvlinks(gpu), fewer_nvlinks(topology.machine, gpu, topology.links)
    links = [link for link in topology.links if f"GPU{gpu.index}" in (link.source, link.target)]
    short = active is None and any(link.nvlinks_expected for link in links)
    most = active or max(link.nvlinks or 0 for link in links)
    if fewer:
        return most, f" of {fewer[1]}"
    return most, "*" if short else ""


def nvlink_states(gpu: Gpu) -> list[bool]:
    """Return whether each NVLink of a GPU is active; nothing if that is not known of each."""
    links = (gpu.nvml and gpu.nvml.nvlinks) or ()
    states = [link.active for link in links]
    return [] if None in states else [bool(state) for state in states]


def switches_words(topology: Topology) -> str:
    count = len(topology.machine.switches or ())
    if not count:
        return "NVLink switches"
    return "1 NVSwitch" if count == 1 else f"{count} NVSwitches"


def with_rate(words: str, gpu: Gpu, nvlinks: int) -> str:
    """Return words followed by the nominal rate of a number of a GPU's NVLinks, if it is known."""
    nominal = nvlink_hop(gpu, nvlinks).nominal_gb_s
    return words if nominal is None else f"{words} {nominal:.0f} GB/s"


def devices_by_node(topology: Topology, behind: Mapping[str, Sequence[str]]) -> list[Devices]:
    """Return the NUMA nodes with their GPUs and NICs, and last the devices whose NUMA node is unknown."""
    nodes: dict[int | None, Devices] = {node: Devices(node) for node in topology.numa_nodes}
    for label, gpu in topology.gpus.items():
        nodes.setdefault(gpu.host_numa_id, Devices(gpu.host_numa_id)).gpus.append(label)
    hanging = {nic for nics in behind.values() for nic in nics}
    for label, nic in topology.nics.items():
        place = nic.host_numa_id
        if label not in hanging:
            nodes.setdefault(place, Devices(place)).nics.append(label)
    return sorted(nodes.values(), key=lambda node: (node.node is None, node.node or 0))


def gpu_memory(machine: Machine, gpu: Gpu) -> str:
    """Return the size of a GPU's memory, or the limit of this process on it; empty if unknown."""
    if (limit := memory_limit(machine, gpu)) is not None:
        return f"limit {format_size(limit.max_bytes)}"
    size = gpu_memory_bytes(machine, gpu) or (gpu.cuda and gpu.cuda.memory_total_bytes)
    return format_size(size) if size else ""


def port_rates(nic: Nic) -> str:
    """Return the rates of a NIC's ports in words."""
    rates = {port.rate_gbit_s for port in nic.ports if port.rate_gbit_s}
    return " and ".join(f"{rate:g} Gbit/s" for rate in sorted(rates))
