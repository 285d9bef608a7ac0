"""What ``egmctl topo -v`` adds: of each GPU and NIC its ids, its place, its ports, and who knows it."""

from __future__ import annotations

from collections.abc import Iterator

from rich.text import Text

from egmctl.model.machine import C2cLink, Gpu, Machine, Nic, NvLink, OriginKind, PcieLink, Record
from egmctl.model.route import Hop
from egmctl.report.table import DIM, HEADING, wrap
from egmctl.topology.topology import Topology
from egmctl.units import format_kernel_list, format_size, printable

_LABEL_WIDTH = 10
_FEW = 8
"""Names of unread values that are listed without asking for all."""


def details(topology: Topology, *, everything: bool) -> Iterator[Text]:
    """Yield whose indices are shown, then the NUMA nodes, each GPU, the NICs, and a modelled machine's sources.

    Parameters
    ----------
    everything
        Name all unread values; otherwise they are counted where they are many.
    """
    yield Text("GPU indices are NVML's, as in nvidia-smi, whatever CUDA_VISIBLE_DEVICES says.\n", DIM)
    nodes = numa_lines(topology.machine)
    if nodes:
        yield _block("NUMA nodes", nodes)
    for label, gpu in topology.gpus.items():
        lines = [*_gpu(gpu), *_routes(topology, gpu), *_unread(gpu, everything)]
        yield _block(f"{label}  {gpu.name or 'unnamed'}", lines)
    if topology.nics:
        yield _block("NICs", [(label, _nic(nic)) for label, nic in topology.nics.items()])
    origin = topology.machine.origin
    if origin.kind is OriginKind.MODELLED:
        lines = [("about", origin.description), *(("source", source) for source in origin.sources)]
        yield _block(f"Model {origin.name}", [line for line in lines if line[1]])


def numa_lines(machine: Machine) -> list[tuple[str, str]]:
    """Return the ids and the description of the NUMA nodes, those that are alike in one line."""
    alike: dict[tuple[str, str, int | None], list[int]] = {}
    for node in (machine.host.numa_nodes if machine.host else None) or ():
        alike.setdefault((node.kind.value, node.cpus, node.memory_total_bytes), []).append(node.id)
    lines = []
    for (kind, cpus, memory), ids in alike.items():
        each = " each" if len(ids) > 1 else ""
        parts = [kind, cpus and f"CPUs {cpus}", memory and f"{format_size(memory)}{each}"]
        lines.append((f"NUMA {format_kernel_list(ids)}", ", ".join(part for part in parts if part)))
    return lines


def _block(title: str, lines: list[tuple[str, str]]) -> Text:
    text = Text.assemble((f"{printable(title)}\n", HEADING))
    width = max(_LABEL_WIDTH, *(len(label) for label, _ in lines), 0)
    for label, value in lines:
        text.append(f"  {label.ljust(width)}", DIM)
        text.append(wrap(printable(value), indent=" " * (width + 4))[width + 2 :] or "\n")
    return text


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
    """Spell out each wire of the GPU's routes, and over which GPUs a remote one can lead."""
    for route in topology.routes:
        if route.gpu != gpu.bus_id:
            continue
        hops = [f"{hop.link.value}{_times(hop.nvlinks)} {_gb_s(hop)}" for hop in route.hops]
        if route.via:
            hops[-1] = f"{hops[-1]} of {' or '.join(map(topology.label, route.via))}"
        yield f"to NUMA {route.node}", ", then ".join(hops) or route.reason
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


def _unread(gpu: Gpu, everything: bool) -> Iterator[tuple[str, str]]:
    """List what could not be read of a GPU, fields with one reason together."""
    reasons: dict[str, list[str]] = {}
    sources: list[tuple[str, Record | None]] = [("", gpu), ("nvml.", gpu.nvml), ("cuda.", gpu.cuda), ("pci.", gpu.pci)]
    for prefix, record in sources:
        for name, unread in (record.unread if record else {}).items():
            reasons.setdefault(unread.reason.value, []).append(f"{prefix}{name}")
    for reason, names in reasons.items():
        listed = ", ".join(names) if everything or len(names) <= _FEW else f"{len(names)} values (-vv names them)"
        yield "unread", f"{reason}: {listed}"


def _known(value: object) -> object:
    return "?" if value is None else value
