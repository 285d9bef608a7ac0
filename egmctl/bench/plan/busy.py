"""Whether others use a GPU: what is measured beside them is neither the link's rate nor fair to them. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from egmctl.model.machine import Gpu
from egmctl.model.waiver import Waiver, WaiverKind
from egmctl.units import GIB, format_size

IDLE_MEMORY_BYTES = GIB
"""More memory than this in use, with no process to be seen, is another container's. The driver itself was seen to hold
some 600 MiB on H200. Where a GPU's memory is a NUMA node, the operating system puts its own pages there too."""

_SHOWN = 3


@dataclass(frozen=True, slots=True)
class Use:
    """Who uses a GPU."""

    gpu: Gpu
    pids: tuple[int, ...] = ()
    """Of the processes that NVML lists; none where only their memory is seen."""
    used_bytes: int = 0
    """Memory in use, where nobody that is seen has it."""

    def __str__(self) -> str:
        label = f"GPU{self.gpu.index}"
        if self.pids:
            return f"{label} is in use by process {listed(self.pids)}"
        return f"{format_size(self.used_bytes)} of {label} are in use, by no process that is visible from here"


def in_use(gpu: Gpu) -> Use | None:
    """Return who uses a GPU; ``None`` if nobody that NVML shows."""
    if gpu.nvml is None:
        return None
    if processes := gpu.nvml.processes:
        # NVML's name of a process is its command line, which is its owner's.
        return Use(gpu, tuple(process.pid for process in processes))
    used = gpu.nvml.memory_used_bytes or 0
    return Use(gpu, used_bytes=used) if used > IDLE_MEMORY_BYTES and gpu.nvml.numa_node is None else None


def busy_waiver(gpu: Gpu) -> Waiver | None:
    """Say that others use a GPU, and how it is measured all the same; ``None`` if nobody does."""
    use = in_use(gpu)
    if use is None:
        return None
    return Waiver(
        kind=WaiverKind.GPU_BUSY, reason=f"{use}; 'egmctl bench --allow-busy' measures it anyway", gpus=(gpu.bus_id,)
    )


def listed(pids: tuple[int, ...]) -> str:
    """Return the numbers of processes for people, the first ones of many."""
    more = f" and {len(pids) - _SHOWN} more" if len(pids) > _SHOWN else ""
    return ", ".join(map(str, pids[:_SHOWN])) + more
