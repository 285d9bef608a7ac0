"""What ``egmctl topo -v`` adds: of each GPU and NIC its ids, its place, its ports, and who knows it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from egmctl.model.machine import C2cLink, Gpu, Machine, Nic, NvLink, OriginKind, PcieLink, PciFunction, Reason, Record
from egmctl.model.route import Hop
from egmctl.report.document import Block, Details, KeyValues, Level, Paragraph, Section, Tone
from egmctl.report.views.machine import numa_rows
from egmctl.topology.topology import Topology
from egmctl.units import format_kernel_list, printable
from egmctl.wording import gpu_name

_FEW = 8
"""Names of unread values that are listed without asking for all."""


def details(topology: Topology) -> Iterator[Block]:
    """Yield whose indices are shown, then the NUMA nodes, each GPU, the NICs, and a modelled machine's sources."""
    numbers = "GPU indices are NVML's, as in nvidia-smi, whatever CUDA_VISIBLE_DEVICES says."
    yield Section(
        title="Devices", body=(Paragraph(words=numbers, tone=Tone.DIM), *_devices(topology)), level=Level.VERBOSE
    )


def _devices(topology: Topology) -> Iterator[Details]:
    if nodes := numa_rows(topology.machine):
        yield _part("NUMA nodes", nodes)
    for label, gpu in topology.gpus.items():
        rows = (*_gpu(gpu), *_atomics(topology, gpu), *_routes(topology, gpu), *_unread(gpu, Level.VERBOSE))
        yield _part(f"{label}  {gpu_name(gpu.name)}", rows, tuple(_unread(gpu, Level.ALL)))
    if topology.nics:
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


def _part(title: str, rows: tuple[tuple[str, str], ...], more: tuple[tuple[str, str], ...] = ()) -> Details:
    body = (KeyValues(rows=rows), *([KeyValues(rows=more, level=Level.ALL)] if more else []))
    return Details(title=title, body=body)


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
