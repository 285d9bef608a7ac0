"""The facts of a machine that a reader of its numbers needs, as HTML."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from xml.etree.ElementTree import Element

from egmctl.model.machine import Machine
from egmctl.report.page import facts
from egmctl.report.topo_detail import numa_lines
from egmctl.units import format_size


def machine_facts(machine: Machine) -> Iterator[Element]:
    """Yield the parts of the section."""
    yield facts([(name, value) for name, value in _facts(machine) if value])


def _facts(machine: Machine) -> Iterator[tuple[str, str]]:
    names = Counter(gpu.name or "unnamed" for gpu in machine.gpus or ())
    yield "GPUs", ", ".join(f"{number} x {name}" for name, number in names.items())
    driver, host = machine.driver, machine.host
    if driver is not None:
        flavour = f" ({driver.module_flavour})" if driver.module_flavour else ""
        yield "Driver", f"{driver.driver_version or driver.module_version or 'not read'}{flavour}"
        if driver.cuda_driver_version:
            yield (
                "CUDA of the driver",
                f"{driver.cuda_driver_version // 1000}.{driver.cuda_driver_version % 1000 // 10}",
            )
    if host is not None:
        cpus = f"{host.cpu_count} x " if host.cpu_count else ""
        yield "CPUs", f"{cpus}{host.cpu_model or 'model not read'}, {host.architecture or 'architecture not read'}"
        yield "Memory", format_size(host.memory_total_bytes) if host.memory_total_bytes else ""
        yield "Kernel", host.kernel or ""
        yield "Page size", format_size(host.page_size_bytes) if host.page_size_bytes else ""
        yield "Name", host.hostname or ""
    yield from numa_lines(machine)
    nics = Counter(
        " and ".join(sorted({f"{p.rate_gbit_s:g} Gbit/s" for p in n.ports if p.rate_gbit_s}))
        for n in machine.nics or ()
    )
    yield "NICs", ", ".join(f"{number} x {rate}" if rate else f"{number}" for rate, number in nics.items())
    if machine.switches:
        yield "NVSwitches", str(len(machine.switches))
    for gpu in machine.gpus or ():
        nvml = gpu.nvml
        parts = [gpu.bus_id]
        if nvml is not None:
            parts += [f"VBIOS {nvml.vbios}"] if nvml.vbios else []
            parts += [f"{nvml.sm_clock_max_mhz} MHz at most"] if nvml.sm_clock_max_mhz else []
            parts += ["ECC on" if nvml.ecc_mode else "ECC off"] if nvml.ecc_mode is not None else []
            parts += ["MIG on"] if nvml.mig_mode else []
        yield f"GPU{gpu.index}", ", ".join(parts)
