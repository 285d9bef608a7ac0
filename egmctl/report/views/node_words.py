"""The words on the picture of a node: what a CPU, a NIC, a GPU and a route to host memory are called there."""

from __future__ import annotations

from egmctl.model.machine import Gpu, Nic
from egmctl.topology.links import active_nvlinks
from egmctl.topology.routes import HostRoute
from egmctl.topology.topology import Topology
from egmctl.units import format_size


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
