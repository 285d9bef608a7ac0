"""The limit that a cgroup sets on a GPU's memory, which NVML and CUDA then report as its total."""

from __future__ import annotations

from egmctl.dataclass import dataclass
from egmctl.model.gpu import Gpu
from egmctl.model.host import Process
from egmctl.model.machine import Machine


@dataclass(frozen=True, slots=True)
class MemoryLimit:
    """The lowest limit in force for a process on a GPU's memory."""

    max_bytes: int
    held_bytes: int = 0
    """What the cgroup holds already; 0 if unknown."""
    cgroup: str | None = None
    """The path of the cgroup that sets it; ``None`` if only NVML reports the limit."""

    @property
    def left_bytes(self) -> int:
        """What the process can still allocate under the limit."""
        return max(0, self.max_bytes - self.held_bytes)


def memory_limit(machine: Machine, gpu: Gpu) -> MemoryLimit | None:
    """Return the limit that leaves the least memory; ``None`` if no limit is known.

    The limits of all cgroups above a process apply to it (Linux, Documentation/admin-guide/cgroup-v2.rst). In a
    container those above its own are invisible, and without the controller ``dmem`` the driver keeps the limits
    itself: then only NVML reports one.
    """
    limits = [
        MemoryLimit(entry.max_bytes, entry.current_bytes or 0, entry.cgroup)
        for entry in (machine.process or Process()).device_memory or ()
        if entry.bus_id == gpu.bus_id and entry.max_bytes is not None and entry.max_bytes >= 0
    ]
    by_nvml = gpu.nvml.memory_limit_bytes if gpu.nvml is not None else None
    if by_nvml is not None and by_nvml >= 0 and all(by_nvml < limit.max_bytes for limit in limits):
        held = (gpu.nvml and gpu.nvml.memory_limit_used_bytes) or 0
        limits.append(MemoryLimit(by_nvml, held))
    capacity = ((machine.process or Process()).device_memory_capacity or {}).get(gpu.bus_id)
    limits = [limit for limit in limits if capacity is None or limit.max_bytes < capacity]
    return min(limits, key=lambda limit: limit.left_bytes, default=None)


def gpu_memory_bytes(machine: Machine, gpu: Gpu) -> int | None:
    """Return the size of a GPU's own memory in bytes; ``None`` if unknown, as where a limit hides it."""
    capacity = ((machine.process or Process()).device_memory_capacity or {}).get(gpu.bus_id)
    if capacity is not None:
        return capacity
    reported = gpu.nvml.memory_total_bytes if gpu.nvml is not None else None
    limit = memory_limit(machine, gpu)
    # A total above the limit is the GPU's: this driver does not report the limit as the total.
    return reported if limit is None or (reported is not None and reported > limit.max_bytes) else None
