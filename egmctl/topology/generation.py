"""Which flavour of the driver's kernel modules, and which branch of the driver, a GPU's generation works with."""

from __future__ import annotations

import re

from egmctl.model.gpu import Gpu
from egmctl.model.host import Driver
from egmctl.model.machine import Machine
from egmctl.topology.platform import C2c, c2c

OPEN, PROPRIETARY = "open", "proprietary"

_TURING, _BLACKWELL = (7, 5), (10, 0)
"""The compute capabilities of the first generation with a GPU System Processor, which the open modules need, and of
the first that works with the open modules only."""
_TURING_ID, _BLACKWELL_ID = 0x1E00, 0x2900
"""The PCI device ids from which GPUs are of these generations: the table of open-gpu-kernel-modules' README begins with
TU102 at 1E02; Ada ends below 2900, and Blackwell begins with B200 at 2901."""


def only_flavour(machine: Machine, gpu: Gpu) -> str | None:
    """Return the one flavour of kernel modules that works with a GPU; ``""`` if both do, ``None`` if unknown.

    The open modules need Turing or newer; Blackwell and newer, and Grace Hopper, need the open modules (NVIDIA driver
    installation guide, "NVIDIA Kernel Modules"; https://developer.nvidia.com/blog/nvidia-transitions-fully-towards-open-source-gpu-kernel-modules).
    """
    if c2c(machine, gpu) in (C2c.UP, C2c.DOWN):
        return OPEN
    capability = gpu.nvml.compute_capability if gpu.nvml else None
    if capability is not None:
        if capability >= _BLACKWELL:
            return OPEN
        return PROPRIETARY if capability < _TURING else ""
    device_id = gpu.pci.device_id if gpu.pci else None
    if device_id is not None:
        if device_id >= _BLACKWELL_ID:
            return OPEN
        return PROPRIETARY if device_id < _TURING_ID else ""
    return None


_MAXWELL, _MAXWELL_ID = (5, 0), 0x1340
"""The first compute capability and PCI device id of Maxwell (GM108 at 1340; https://pci-ids.ucw.cz)."""
_LAST_OF_KEPLER, _LAST_OF_VOLTA = 470, 580
"""The last driver branches with Kepler, and with Maxwell, Pascal and Volta (NVIDIA, "Unix drivers": legacy GPUs). Newer
drivers ignore such a GPU and name its branch in the kernel log (https://github.com/NixOS/nixos-hardware/issues/1880)."""


def last_branch(gpu: Gpu) -> int | None:
    """Return the last driver branch that has a GPU's generation; ``None`` if it has no last one, or is unknown."""
    capability = gpu.nvml.compute_capability if gpu.nvml else None
    device_id = gpu.pci.device_id if gpu.pci else None
    if capability is not None:
        if capability < _MAXWELL:
            return _LAST_OF_KEPLER
        return _LAST_OF_VOLTA if capability < _TURING else None
    if device_id is not None:
        if device_id < _MAXWELL_ID:
            return _LAST_OF_KEPLER
        return _LAST_OF_VOLTA if device_id < _TURING_ID else None
    return None


def installed_branch(machine: Machine) -> int | None:
    """Return the branch of the driver that is loaded or, if none is, installed: ``580`` of 580.95.05."""
    driver = machine.driver or Driver()
    # NVML's own version is that of CUDA's major version and the driver's: 13.580.95.05.
    library = (driver.nvml_version or "").partition(".")[2]
    libcuda = None if driver.libcuda_compat else driver.libcuda_version
    versions = (driver.module_version, driver.driver_version, libcuda, library)
    branches = (re.match(r"([0-9]{3})\.", version, re.ASCII) for version in versions if version)
    return next((int(branch[1]) for branch in branches if branch), None)
