"""Who manages the memory of GPUs with NVLink-C2C: the kernel, as NUMA nodes, or the driver."""

from __future__ import annotations

from egmctl.compat import StrEnum
from egmctl.model.machine import Driver, Gpu, Machine


class MemoryMode(StrEnum):
    """How the memory of coherent GPUs is managed."""

    NUMA = "numa"
    """Each GPU's memory is a NUMA node of the kernel: the driver's default."""
    CDMM = "cdmm"
    """Coherent Driver-based Memory Management: it is no node, the driver alone manages it."""
    UNKNOWN = "unknown"


PARAMETERS = ("CoherentGPUMemoryMode", "EnableUserNUMAManagement")
"""The module parameters that decide, as ``/proc/driver/nvidia/params`` names them."""


def memory_mode(machine: Machine) -> MemoryMode:
    """Return how the driver was told to manage coherent memory.

    ``CoherentGPUMemoryMode=driver`` turns CDMM on, from driver 580.65.06 on; ``EnableUserNUMAManagement=0`` does so by
    itself, in older drivers too (open-gpu-kernel-modules 595.45.04, ``os-registry.c``). Where the parameters cannot be
    read (a container may hide them), a GPU whose memory is a NUMA node still tells.
    """
    parameters = (machine.driver or Driver()).module_parameters
    if parameters is None:
        with_node = any(own_node(gpu) is not None for gpu in machine.gpus or ())
        return MemoryMode.NUMA if with_node else MemoryMode.UNKNOWN
    values = {name: parameters.get(name, "").strip('"') for name in PARAMETERS}
    by_driver = values["CoherentGPUMemoryMode"] == "driver" or values["EnableUserNUMAManagement"] == "0"
    return MemoryMode.CDMM if by_driver else MemoryMode.NUMA


def own_node(gpu: Gpu) -> int | None:
    """Return the NUMA node of a GPU's own memory, ``None`` where it is none or not known."""
    candidates = (gpu.nvml.numa_node if gpu.nvml else None, gpu.proc.numa_node if gpu.proc else None)
    return next((node for node in candidates if node is not None and node >= 0), None)
