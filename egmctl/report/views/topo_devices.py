"""The devices of a topology, one by one: the NUMA nodes, each GPU with its links and routes, and the NICs."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

from egmctl.model.gpu import C2cLink, Gpu, NvLink
from egmctl.model.host import Nic, PcieLink, PciFunction
from egmctl.model.machine import Machine, OriginKind
from egmctl.model.record import Reason, Record
from egmctl.model.route import Hop
from egmctl.report import document as doc
from egmctl.report.document import Level, Tone
from egmctl.report.views.machine import numa_rows
from egmctl.topology.topology import Topology
from egmctl.units import format_kernel_list, gpu_name, grouped, printable, shortened

_FEW = 8
"""The number of unread values that are named; JSON contains all of them."""


def devices(topology: Topology) -> Iterator[doc.DocumentBlock]:
    """Yield a note on GPU indices, the NUMA nodes, each GPU, the NICs, and the sources of a modelled machine."""
    numbers = "GPU indices are NVML's, as in nvidia-smi, whatever CUDA_VISIBLE_DEVICES says."
    yield doc.Paragraph(numbers, tone=Tone.DIM)
    yield _part("NUMA nodes", numa_rows(topology.machine))
    for label, gpu in topology.gpus.items():
        rows = (*_gpu(gpu), *_atomics(topology, gpu), *_routes(topology, gpu), *_unread(gpu))
        yield _part(f"{label}  {gpu_name(gpu.name)}", rows)
    yield _part("NICs", ((label, _nic(nic)) for label, nic in topology.nics.items()))
    origin = topology.machine.origin
    if origin.kind is OriginKind.MODELLED:
        sources = (("source", source) for source in origin.sources)
        yield _part(f"Model {origin.name}", (("about", origin.description), *sources))


def found_anyway(machine: Machine) -> tuple[tuple[str, str], ...]:
    """Return the NUMA nodes and PCI devices of a machine whose topology cannot be determined."""
    return (
        *numa_rows(machine),
        *((f"GPU{gpu.index}", _pci(gpu.bus_id, gpu.pci)) for gpu in machine.gpus or ()),
        *((f"NVSwitch{n}", _pci(switch.pci.bus_id, switch.pci)) for n, switch in enumerate(machine.switches or ())),
        *(
            (f"NIC{n}", nic.name if nic.pci is None else f"{nic.name}, {_pci(nic.pci.bus_id, nic.pci)}")
            for n, nic in enumerate(machine.nics or ())
        ),
    )


def _pci(bus_id: str, pci: PciFunction | None) -> str:
    if pci is None:
        return bus_id
    numa = f"NUMA {pci.numa_node}" if pci.numa_node is not None and pci.numa_node >= 0 else ""
    driver = f"driver {pci.driver or 'none'}" if pci.driver is not None else ""
    return ", ".join(filter(None, (bus_id, pci.pci_id, numa, driver)))


def _part(title: str, rows: Iterable[tuple[str, str]]) -> doc.Section:
    body = (doc.KeyValues(tuple(row for row in rows if row[1])),)
    return doc.Section(title, body, folded=True, level=Level.VERBOSE)


def _gpu(gpu: Gpu) -> Iterator[tuple[str, str]]:
    yield "bus id", gpu.bus_id
    yield "UUID", gpu.uuid or "not read"
    nvml = gpu.nvml
    platform = nvml and nvml.platform
    if platform:
        places = {"module": platform.module_id, "slot": platform.slot, "tray": platform.tray}
        yield "place", ", ".join(f"{name} {number}" for name, number in places.items() if number is not None)
    if gpu.node is not None:
        yield "node", f"{gpu.node.path}: {gpu.node.access or 'access not read'}"
    if link := (nvml and nvml.link) or (gpu.pci and gpu.pci.link):
        yield "PCIe", _pcie(link)
    if nvml is not None:
        yield "NVLink", _nvlinks(nvml.nvlinks, nvml.nvlink_count)
        yield "C2C", _c2c(nvml.c2c_links)
        yield "EGM bit", {None: "", True: "set", False: "clear"}[nvml.egm_capable]
        yield "addressing", nvml.addressing_mode or ""
    fabric = nvml and nvml.fabric
    if fabric and fabric.state:
        cluster = f"cluster {fabric.cluster_uuid}" if fabric.cluster_uuid else ""
        clique = f"clique {fabric.clique_id}" if fabric.clique_id is not None else ""
        yield "fabric", ", ".join(filter(None, (fabric.state, cluster, clique)))
    yield "known to", ", ".join(gpu.sources) or "nothing"


def _atomics(topology: Topology, gpu: Gpu) -> Iterator[tuple[str, str]]:
    """Yield the native atomic operations on host memory and on peers; peers with the same ones share a row."""
    if gpu.cuda is not None:
        yield "host atomics", _atomics_words(gpu.cuda, "host_atomics", gpu.cuda.host_atomics)
    others = ((label, peer.bus_id) for label, peer in topology.gpus.items() if peer is not gpu)
    pairs = ((label, topology.machine.pair(gpu.bus_id, bus_id)) for label, bus_id in others)
    peers = grouped((_atomics_words(pair, "atomics", pair.atomics), label) for label, pair in pairs if pair is not None)
    yield from (("peer atomics", f"{' '.join(labels)}: {words}") for words, labels in peers.items() if words)


def _atomics_words(record: Record, field: str, atomics: Mapping[str, tuple[str, ...]] | None) -> str:
    """Return the operations grouped by their capabilities, why they are unknown, or "" if they are not stated."""
    if atomics is None:
        unread = record.unread.get(field)
        if unread is None or unread.reason is Reason.NOT_STATED:
            return ""
        return f"unknown, {unread.reason}: {printable(unread.detail)}"
    alike = grouped((words, operation) for operation, words in atomics.items())
    return "; ".join(f"{' '.join(names)}: {' '.join(words) or 'none'}" for words, names in alike.items())


def _pcie(link: PcieLink) -> str:
    speed, width = link.max_speed_gt_s or link.speed_gt_s, link.width or link.max_width
    narrow = f" of x{link.max_width}" if link.width and link.max_width and link.width < link.max_width else ""
    return f"{f'{speed:g}' if speed else '?'} GT/s x{width or '?'}{narrow}"


def _nvlinks(links: tuple[NvLink, ...] | None, count: int | None) -> str:
    if not links:
        return ""
    active = [link for link in links if link.active]
    speeds = sorted({link.speed_mb_s for link in active if link.speed_mb_s is not None})
    parts = [f"{len(active)} of {max(count or 0, len(links))} active", *(f"{speed} MB/s each" for speed in speeds)]
    remotes = grouped(
        (f"{link.remote_type or 'unknown'} {link.remote_bus_id or ''}".strip(), link.link) for link in active
    )
    return ", ".join((*parts, *(f"{format_kernel_list(numbers)} to {remote}" for remote, numbers in remotes.items())))


def _c2c(links: tuple[C2cLink, ...] | None) -> str:
    if not links:
        return ""
    active = [link for link in links if link.active]
    rates = sorted({link.max_rate_mb_s for link in active if link.max_rate_mb_s is not None})
    return ", ".join([f"{len(active)} of {len(links)} active", *(f"{rate} MB/s each" for rate in rates)])


def _nic(nic: Nic) -> str:
    parts = [nic.name]
    if nic.pci is not None:
        parts.append(nic.pci.bus_id if nic.host_numa_id is None else f"{nic.pci.bus_id}, NUMA {nic.host_numa_id}")
    parts += [f"PCIe reads of {nic.max_read_request_bytes} B"] if nic.max_read_request_bytes else []
    for port in nic.ports:
        rate = "" if port.rate_gbit_s is None else f" {port.rate_gbit_s:g} Gbit/s"
        parts.append(f"port {port.number} {port.link_layer or 'unknown'} {port.state or 'state unknown'}{rate}")
    return ", ".join(parts)


def _routes(topology: Topology, gpu: Gpu) -> Iterator[tuple[str, str]]:
    """Yield the links of each route from a GPU to host memory, with the GPUs that a remote route can pass."""
    for route in topology.routes:
        if route.gpu != gpu.bus_id:
            continue
        hops = list(map(_hop, route.hops))
        if route.via:
            hops[-1] += f" of {' or '.join(map(topology.label, route.via))}"
        yield f"to NUMA {route.numa_node}", ", then ".join(hops) or route.reason
        if route.to_sibling is not None:
            owner = " or ".join(map(topology.label, route.siblings))
            source = "read in the driver's source, not measured"
            yield "", f"where {owner} owns the memory: {_hop(route.to_sibling)}, then its c2c ({source})"


def _hop(hop: Hop) -> str:
    times = "" if hop.nvlinks is None else f" x{hop.nvlinks}"
    rate = f"({hop.reason})" if hop.nominal_gb_s is None else f"{hop.nominal_gb_s:.1f} GB/s"
    return f"{hop.link.value}{times} {rate}"


def _unread(gpu: Gpu) -> Iterator[tuple[str, str]]:
    """Yield the names of a GPU's unread values, by reason.

    What a machine's file leaves out is not named: that is most of a model, and all facts that are newer than a file.
    """
    records: list[tuple[str, Record | None]] = [("", gpu), ("nvml.", gpu.nvml), ("cuda.", gpu.cuda), ("pci.", gpu.pci)]
    gaps = ((prefix + name, gap) for prefix, record in records if record for name, gap in record.unread.items())
    reasons = grouped((gap.reason.value, name) for name, gap in gaps)
    for reason, names in reasons.items():
        words = "what the file leaves out" if reason == Reason.NOT_STATED else shortened(names, _FEW)
        yield "unread", f"{reason}: {words}"
