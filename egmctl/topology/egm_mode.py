"""The modes of EGM: off, for this system, or carved out for virtual machines.

NVIDIA's firmware has these three (edk2-nvidia, TH500ResourceConfig.c, ``TH500GetMemoryMode``). It declares EGM memory
in the ACPI tables if EGM is for this system or carved out. If it is carved out, this system has only the rest of the
memory, and none of that is EGM. None of this was seen on hardware.
"""

from __future__ import annotations

import re

from egmctl.compat import StrEnum
from egmctl.dataclass import dataclass
from egmctl.facts.egm import EGM_CLASS, GUEST_DRIVER, HYPERVISOR_DOMAIN
from egmctl.model.finding import on_gpus
from egmctl.model.gpu import Gpu
from egmctl.model.host import Host, System
from egmctl.model.machine import Machine
from egmctl.model.record import Reason
from egmctl.units import format_size


class EgmMode(StrEnum):
    """To whom the firmware gives EGM memory."""

    OFF = "off"
    SYSTEM = "system"
    """To this system: its own memory is EGM. In a virtual machine: to this virtual machine."""
    CARVED_OUT = "carved-out"
    """To virtual machines: a part of the memory that this system does not have."""


@dataclass(frozen=True, slots=True)
class EgmModeVerdict:
    """The mode, with the sizes that it is judged by."""

    mode: EgmMode | None
    reason: str = ""
    """Why the mode is unknown."""
    egm_bytes: int | None = None
    """The size of all EGM areas; ``None`` if that of one is unknown."""
    host_bytes: int | None = None
    """The memory that this system has (MemTotal of its NUMA nodes with CPUs)."""


_LEAST_OF_AREA = 0.5
"""The share of an EGM area that the kernel has as memory if the area is this system's. Our choice: the kernel and the
firmware keep a few percent, and a carve-out leaves none of the area."""


_NOT_ALL_READ = "the firmware declares EGM memory, and for whom was not read (nvidia,egm-pxm)"


def egm_mode(machine: Machine) -> EgmModeVerdict:
    """Return the mode of EGM, from the proximity domains and sizes that firmware and drivers state.

    A domain from ``HYPERVISOR_DOMAIN`` on is carved out, unless the driver says that a GPU can use EGM or this system
    has enough memory for the area to be its own: that number was only read in the firmware's source. A virtual machine
    has its own numbers of domains, so there the sizes alone decide.
    """
    system = machine.system or System()
    domains, egm_bytes, host_bytes = _domains(system), _egm_bytes(system), _host_bytes(machine)
    if not domains:
        reason = _why_unknown(system)
        return EgmModeVerdict(EgmMode.OFF if reason is None else None, reason or "", egm_bytes, host_bytes)
    reason = _contradiction(machine, domains, egm_bytes, host_bytes)
    mode = EgmMode.SYSTEM if in_guest(machine) or min(domains) < HYPERVISOR_DOMAIN else EgmMode.CARVED_OUT
    return EgmModeVerdict(None if reason else mode, reason, egm_bytes, host_bytes)


def _contradiction(machine: Machine, domains: set[int], egm_bytes: int | None, host_bytes: int | None) -> str:
    """Return why the mode that the domains state is not to be believed; empty if it is."""
    if any(area.proximity_domain is None for area in (machine.system or System()).firmware_egm or ()):
        return _NOT_ALL_READ
    is_guest, carved_out = in_guest(machine), {domain >= HYPERVISOR_DOMAIN for domain in domains}
    if is_guest is None:
        return "NVML does not report whether this is a virtual machine, whose domains have other numbers"
    if carved_out == {True} and not is_guest:
        return _against_carve_out(machine, egm_bytes, host_bytes)
    if len(carved_out) > 1 and not is_guest:
        return "the firmware carves out the EGM of some CPUs only"
    if (machine.system or System()).egm_regions:
        return f"a driver offers EGM to virtual machines ({EGM_CLASS}) that the firmware gives to this system"
    if egm_bytes is None or host_bytes is None:
        return "in a virtual machine only the sizes of EGM and of its memory tell" if is_guest else ""
    if host_bytes < _LEAST_OF_AREA * egm_bytes:
        sizes = f"{format_size(egm_bytes)} of EGM as this system's, which has {format_size(host_bytes)}"
        return f"the firmware declares {sizes}"
    return ""


def _against_carve_out(machine: Machine, egm_bytes: int | None, host_bytes: int | None) -> str:
    """Return what contradicts the numbers of a carve-out; empty if nothing does."""
    declared = "the firmware's domains are those of a carve-out"
    if able := [gpu for gpu in machine.gpus or () if gpu.nvml is not None and gpu.nvml.egm_capable]:
        return f"{declared}, but the driver says that {on_gpus(able).label} can use EGM"
    offered = bool((machine.system or System()).egm_regions)
    if offered or egm_bytes is None or host_bytes is None or host_bytes < _LEAST_OF_AREA * egm_bytes:
        return ""
    return f"{declared}, but the {format_size(host_bytes)} of this system may be its {format_size(egm_bytes)} of EGM"


def in_guest(machine: Machine) -> bool | None:
    """Return whether this is a virtual machine, to which GPUs are passed or which has vGPUs; ``None`` if unknown.

    NVML says so. A system that gives a GPU to a virtual machine is a host.
    """
    modes = {gpu.nvml.virtualization for gpu in machine.gpus or () if gpu.nvml is not None}
    if modes & {"passthrough", "vgpu"}:
        return True
    return False if modes or any(handed_over(gpu) for gpu in machine.gpus or ()) else None


def handed_over(gpu: Gpu) -> bool:
    """Return whether a GPU is bound to a kernel driver that gives it to a virtual machine."""
    return gpu.pci is not None and GUEST_DRIVER in (gpu.pci.driver or "")


def all_handed_over(machine: Machine) -> bool:
    """Return whether this is a virtualization host: it gives each of its GPUs to a virtual machine."""
    return bool(machine.gpus) and all(handed_over(gpu) for gpu in machine.gpus or ())


def _domains(system: System) -> set[int]:
    """Return the proximity domains of EGM that firmware and drivers state."""
    declared = (area.proximity_domain for area in system.firmware_egm or ())
    offered = (re.fullmatch("egm([0-9]{1,4})", name, re.ASCII) for name in system.egm_regions or ())
    return {domain for domain in declared if domain is not None} | {int(match[1]) for match in offered if match}


def _egm_bytes(system: System) -> int | None:
    sizes = [area.size_bytes for area in system.firmware_egm or ()]
    if not sizes:
        offered = system.egm_region_bytes or {}
        sizes = [offered.get(name) for name in system.egm_regions or ()]
    known = [size for size in sizes if size is not None]
    return sum(known) if known and len(known) == len(sizes) else None


def _host_bytes(machine: Machine) -> int | None:
    nodes = [node for node in (machine.host or Host()).numa_nodes or () if node.cpus]
    sizes = [node.memory_total_bytes for node in nodes if node.memory_total_bytes is not None]
    return sum(sizes) if sizes and len(sizes) == len(nodes) else None


def _why_unknown(system: System) -> str | None:
    """Return why no domain is known; ``None`` if that is because the firmware declares no EGM."""
    if system.firmware_egm or (system.firmware_egm is None and system.acpi_egm):
        return _NOT_ALL_READ
    if system.acpi_egm is False:
        return None
    if system.reason_of("acpi_egm") is Reason.NO_PERMISSION:
        return "only root may read the firmware's tables"
    return "the firmware's tables were not read"
