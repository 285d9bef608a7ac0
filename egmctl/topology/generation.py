"""Which flavour of the driver's kernel modules a GPU's generation works with."""

from __future__ import annotations

from egmctl.model.gpu import Gpu
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
        return OPEN if capability >= _BLACKWELL else PROPRIETARY if capability < _TURING else ""
    device_id = gpu.pci.device_id if gpu.pci else None
    if device_id is not None:
        return OPEN if device_id >= _BLACKWELL_ID else PROPRIETARY if device_id < _TURING_ID else ""
    return None
