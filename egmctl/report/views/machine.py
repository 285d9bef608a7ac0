"""The facts of a machine that readers of its results need, its diagram and its origin, and the names of routes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING

from egmctl.facts.redact import redact
from egmctl.model.answer import Cause
from egmctl.model.machine import Machine, Origin, OriginKind
from egmctl.model.route import HOST_NAMES, Carrier, Egm, LinkKind, MemoryKind, Route
from egmctl.report.document import Diagram, DocumentBlock, KeyValues, Level, Matrix, Section, table
from egmctl.report.views.findings import faults
from egmctl.report.views.node_text import gpu_memory, port_rates
from egmctl.units import counted, format_kernel_list, format_size, gpu_name, grouped, printable

if TYPE_CHECKING:
    from xml.etree.ElementTree import Element

    from egmctl.report.views.nvlink_drawing import Rates
    from egmctl.topology.topology import Topology


def banners(origin: Origin) -> tuple[str, ...]:
    """Return a banner for a modelled machine. For a recorded one the command prints a note on standard error."""
    if origin.kind is OriginKind.MODELLED:
        return (f"MODEL of {origin.name}, built from public documentation, not captured from hardware",)
    return ()


def confidential_banner(machine: Machine) -> tuple[str, ...]:
    """Return a banner if confidential computing is on: copies may be encrypted, and no reference applies."""
    mode = machine.driver.confidential_compute if machine.driver is not None else None
    if mode in (None, "off"):
        encrypted = any(gpu.nvml and gpu.nvml.nvlink_encryption for gpu in machine.gpus or ())
        return ("NVLINK ENCRYPTION is on: references are of GPUs without it",) if encrypted else ()
    how = "" if mode == "on" else f" ({printable(mode)})"
    return (f"CONFIDENTIAL COMPUTING is on{how}: copies may be encrypted; references are of GPUs without it",)


def subject(machine: Machine) -> str:
    """Return the title of a machine on a page: its host name if the machine has no pseudonyms, else ``this node``, so
    that pages of equal nodes are equal; the name of a model or a recording, with its time."""
    origin = machine.origin
    if origin.kind is OriginKind.RECORDED:
        when = f", recorded {origin.recorded_at}" if origin.recorded_at else ", recorded"
        return f"{origin.name}{when}"
    hostname = machine.host.hostname if machine.host and not origin.redacted else None
    return origin.name or hostname or "this node"


def page_facts(machine: Machine, *further: str, at: str = "", took_s: float | None = None) -> tuple[str, ...]:
    """Return when a result was made, on which GPUs, with which driver, by which version, and how long it took.

    Parameters
    ----------
    further
        What else identifies it, e.g. the platform.
    at
        When it was made, in UTC; empty for the time when the machine was read.
    """
    origin, driver = machine.origin, machine.driver
    version = driver and (driver.driver_version or driver.module_version)
    words = (
        time_words(at or (origin.recorded_at if origin.kind is not OriginKind.MODELLED else "")),
        counted(gpu_name(gpu.name) for gpu in machine.gpus or ()),
        *further,
        f"driver {version}" if version else "",
        f"took {took_s:.0f} s" if took_s is not None else "",
        origin.tool if origin.kind is not OriginKind.MODELLED else "",
    )
    return tuple(filter(None, words))


def time_words(at: str) -> str:
    """Return a time in UTC, ISO 8601, for people: ``2026-11-20 22:48 UTC``."""
    day, _, clock = at.partition("T")
    return f"{day} {clock[:5]} UTC" if clock else at


def machine_section(machine: Machine) -> Section:
    """Return a machine's facts, with pseudonyms for private values, because pages are shared."""
    note = "GPUs, driver, CPUs, memory"
    return Section("Machine", partial(_machine, machine), folded=True, printed=True, note=note, level=Level.PAGE)


def _machine(machine: Machine) -> Iterator[DocumentBlock]:
    machine = redact(machine)
    yield KeyValues(tuple((name, value) for name, value in _facts(machine) if value))
    yield _gpus(machine)


def node_diagram(
    topology: Callable[[], Topology],
    rates: Callable[[], Rates] = dict,
    note: str = "",
    *,
    causes: Sequence[Cause] = (),
    large: bool = False,
) -> Diagram:
    """Return the diagram of a node.

    Parameters
    ----------
    rates
        Returns the bandwidths measured over the links. Neither function is called unless the diagram is shown.
    causes
        The causes of the answer, which mark the devices that they are about.
    large
        Whether the diagram has the full width of a page.
    """

    def draw(*, narrow: bool = False) -> Element:
        from egmctl.report.views.node_drawing import node_drawing, phone_drawings

        node = topology()
        wrong = faults(node, causes)
        return phone_drawings(node, rates(), wrong) if narrow else node_drawing(node, rates(), wrong, large=large)

    return Diagram(draw, partial(draw, narrow=True), note)


def numa_rows(machine: Machine) -> tuple[tuple[str, str], ...]:
    """Return the ids and the description of the NUMA nodes; equal nodes share a row."""
    nodes = (machine.host.numa_nodes if machine.host else None) or ()
    alike = grouped(((node.kind.value, node.cpus, node.memory_total_bytes), node.id) for node in nodes)
    lines = []
    for (kind, cpus, memory), ids in alike.items():
        each = " each" if len(ids) > 1 else ""
        parts = [kind, cpus and f"CPUs {cpus}", memory and f"{format_size(memory)}{each}"]
        lines.append((f"NUMA {format_kernel_list(ids)}", ", ".join(part for part in parts if part)))
    return tuple(lines)


def _facts(machine: Machine) -> Iterator[tuple[str, str]]:
    yield "GPUs", counted(gpu_name(gpu.name) for gpu in machine.gpus or ())
    driver, host = machine.driver, machine.host
    if driver is not None:
        flavour = f" ({driver.module_flavour})" if driver.module_flavour else ""
        yield "Driver", f"{driver.driver_version or driver.module_version or 'not read'}{flavour}"
        if driver.cuda_driver_version:
            version = driver.cuda_driver_version
            yield "CUDA of the driver", f"{version // 1000}.{version % 1000 // 10}"
    if host is not None:
        cpus = f"{host.cpu_count} x " if host.cpu_count else ""
        yield "CPUs", f"{cpus}{host.cpu_model or 'model not read'}, {host.architecture or 'architecture not read'}"
        yield "Memory", format_size(host.memory_total_bytes) if host.memory_total_bytes else ""
        yield "Kernel", host.kernel or ""
        yield "Page size", format_size(host.page_size_bytes) if host.page_size_bytes else ""
        yield "SMT", host.smt or ""
    read = [gpu.nvml for gpu in machine.gpus or () if gpu.nvml]
    yield "Power profiles", counted(", ".join(nvml.power_profiles) for nvml in read if nvml.power_profiles)
    yield from numa_rows(machine)
    nics = Counter(map(port_rates, machine.nics or ()))
    yield "NICs", ", ".join(f"{number} x {rate}" if rate else f"{number}" for rate, number in nics.items())
    ofed = machine.system.ofed_version if machine.system and machine.nics else None
    yield "OFED", "" if ofed is None else ofed or "none: mlx5 is the kernel's own"
    if machine.switches:
        yield "NVSwitches", str(len(machine.switches))


def _gpus(machine: Machine) -> Matrix:
    rows = []
    for gpu in machine.gpus or ():
        nvml, link = gpu.nvml, (gpu.nvml and gpu.nvml.link) or (gpu.pci and gpu.pci.link)
        speed, width = (link.max_speed_gt_s, link.width or link.max_width) if link else (None, None)
        modes = [] if nvml is None else [("ECC", nvml.ecc_mode), ("MIG", nvml.mig_mode)]
        rows.append(
            (
                f"GPU{gpu.index}",
                gpu_name(gpu.name),
                gpu.bus_id,
                gpu_memory(machine, gpu) or "-",
                f"{speed:g} GT/s x{width}" if speed and width else "-",
                (nvml and nvml.vbios) or "-",
                f"{nvml.sm_clock_max_mhz} MHz" if nvml and nvml.sm_clock_max_mhz else "-",
                ", ".join(f"{name} {'on' if on else 'off'}" for name, on in modes if on is not None) or "-",
            )
        )
    heads = ("", "name", "bus id", "memory", "PCIe", "VBIOS", "max. SM clock", "modes")
    return table(heads, rows, caption="GPUs")


def route_words(route: Route) -> str:
    """Return the name of a route in output: ``NV18``, ``EGM over NV18>C2C``, ``HOST_NUMA over PCIe, not EGM``."""
    match route.carrier:
        case Carrier.SOCKET:
            return "messages between the processes"
        case Carrier.UCX:
            return printable(route.symbol)
        case Carrier.CPU if any(hop.link is LinkKind.C2C for hop in route.hops):
            return printable(f"GPU memory over {route.symbol}")
        case Carrier.CPU:
            return "between NUMA nodes" if route.hops else "the node's own memory"
        case Carrier.NONE:
            return "blocked" if route.memory is None else f"{HOST_NAMES[route.memory]}, blocked"
        case Carrier.LINKS:
            if route.staged:
                return f"{printable(route.symbol)}, staged through host memory"
            return printable(route.symbol if route.memory is None else _to_host(route, HOST_NAMES[route.memory]))


_POOLS: Mapping[MemoryKind | None, str] = {
    MemoryKind.HOST_NUMA_DEFAULT_POOL: "default pool ",
    MemoryKind.HOST_NUMA_POOL: "pool ",
}


def _to_host(route: Route, name: str) -> str:
    if route.egm is Egm.YES:
        return f"EGM {_POOLS.get(route.memory, '')}over {route.symbol}"
    known = bool(route.hops) and route.hops[0].link is not LinkKind.UNKNOWN
    over = f"{name} over {route.symbol}" if known else name
    if route.egm is Egm.UNKNOWN:
        return f"{over}, unknown whether EGM{f': {route.egm_reason}' if route.egm_reason else ''}"
    return f"{over}, degraded: {route.egm_reason}" if route.degraded else f"{over}, not EGM"
