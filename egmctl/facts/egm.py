"""EGM as the firmware and a hypervisor's drivers state it, and the one place of their names.

The names below ``EGM_CLASS`` and of the modules are those of NVIDIA's kernels (NVIDIA/NV-Kernels, pull requests 119 and
559) and of an RFC that Linux has not merged (vfio/nvgrace-egm, v2 of 2026-02-23), so they may change.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Iterator

from egmctl.driver.reading import Reasons, Unreadable, read_or
from egmctl.facts.root import Root
from egmctl.model.host import FirmwareEgm
from egmctl.model.record import Reason

ACPI_TABLES = "/sys/firmware/acpi/tables"
EGM_CLASS = "/sys/class/egm"
"""The devices that pass EGM memory to virtual machines, ``egmN`` for the proximity domain N."""
EGM_MODULE, GPU_MODULES = "nvgrace_egm", ("nvgrace_gpu_vfio_pci", "nvidia_vgpu_vfio")
"""The module of the devices in :data:`EGM_CLASS`, and those that give the GPUs of a Grace CPU to virtual machines."""

GUEST_DRIVER = "vfio"
"""What the names of the kernel drivers have in common that give a GPU to a virtual machine (vfio-pci,
nvgrace_gpu_vfio_pci, nvidia_vgpu_vfio)."""
HYPERVISOR_DOMAIN = 4
"""The first proximity domain of EGM that NVIDIA's firmware keeps for a hypervisor; those below are sockets
(edk2-nvidia, ``TH500_HV_EGM_PXM_DOMAIN_START``)."""

_PROPERTY = re.compile(rb"nvidia,egm-(base-pa|size|pxm)\0", re.DOTALL)
"""A device property by which the firmware passes EGM memory to drivers (open-gpu-kernel-modules, nv.c,
nv_get_egm_info; NVIDIA/edk2-nvidia, GpuDsdAmlGeneration.c; for virtual machines QEMU's ``acpi-egm-memory``)."""
_CONSTANTS = {0x00: 0, 0x01: 1}
_PREFIXES = {0x0A: 1, 0x0B: 2, 0x0C: 4, 0x0E: 8}
"""The sizes of an AML integer by its prefix (ACPI specification, 20.2.3 "Data Objects Encoding")."""


def firmware_egm(root: Root, architecture: str) -> tuple[FirmwareEgm, ...]:
    """Return the EGM areas that the ACPI tables declare, one per proximity domain; empty if EGM is off.

    The GPUs of one CPU have the same area.

    Parameters
    ----------
    architecture
        The machine's, as uname(2) names it.

    Raises
    ------
    Unreadable
        This is no Grace machine, or the tables cannot be read: only root may.
    """
    if architecture != "aarch64":
        raise Unreadable(Reason.NOT_SUPPORTED, f"{architecture}: only Grace has EGM")
    tables = [name for name in root.names(ACPI_TABLES) if re.fullmatch("DSDT|SSDT[0-9]{0,3}", name)]
    if not tables:
        raise Unreadable(Reason.NOT_PRESENT, f"{ACPI_TABLES}: neither DSDT nor SSDT")
    areas: list[FirmwareEgm] = []
    for name in tables:
        for area in _areas(root.read_bytes(f"{ACPI_TABLES}/{name}")):
            if area not in areas:
                areas.append(area)
    return tuple(areas)


def _areas(table: bytes) -> Iterator[FirmwareEgm]:
    """Yield the area of each device: its properties follow each other, and a repeated name begins the next device."""
    values: dict[bytes, int | None] = {}
    for match in _PROPERTY.finditer(table):
        if match[1] in values:
            yield _area(values)
            values = {}
        values[match[1]] = _integer(table, match.end())
    if values:
        yield _area(values)


def _area(values: dict[bytes, int | None]) -> FirmwareEgm:
    properties = {"proximity_domain": b"pxm", "size_bytes": b"size"}
    absent = {name: _without(word) for name, word in properties.items() if values.get(word) is None}
    known = {name: values[word] for name, word in properties.items() if name not in absent}
    return Reasons().record(FirmwareEgm, **known, **absent)


def _without(word: bytes) -> Unreadable:
    return Unreadable(Reason.FAILED, f"nvidia,egm-{word.decode()}: no integer in the tables")


def _integer(table: bytes, offset: int) -> int | None:
    """Return the AML integer at an offset; ``None`` if another object is there."""
    prefix = table[offset : offset + 1]
    if not prefix:
        return None
    if prefix[0] in _CONSTANTS:
        return _CONSTANTS[prefix[0]]
    size = _PREFIXES.get(prefix[0])
    digits = table[offset + 1 : offset + 1 + (size or 0)]
    return int.from_bytes(digits, "little") if size is not None and len(digits) == size else None


def region_sizes(root: Root) -> dict[str, int]:
    """Return the size in bytes of each EGM region that drivers of this host offer to virtual machines.

    ``/dev/egmN`` is never opened: the first open clears the region's memory. Its list of retired pages is therefore
    not read.
    """
    sizes = {name: read_or(None, functools.partial(_size, root, name)) for name in root.names_if_any(EGM_CLASS)}
    return {name: size for name, size in sizes.items() if size is not None}


def _size(root: Root, name: str) -> int:
    match = root.search(f"{EGM_CLASS}/{name}/egm_size", r"\A(?:0x)?([0-9a-fA-F]{1,16})\Z", "no hexadecimal number")
    return int(match[1], 16)
