"""Whether others use a GPU: what is measured beside them is neither the wire's rate nor fair to them. Pure."""

from __future__ import annotations

from egmctl.model.machine import Gpu
from egmctl.units import GIB, format_size

IDLE_MEMORY_BYTES = GIB
"""More memory than this in use, with no process to be seen, is another container's. The driver itself was seen to hold
some 600 MiB on H200. Where a GPU's memory is a NUMA node, the operating system puts its own pages there too."""

_SHOWN = 3


def in_use(gpu: Gpu) -> str | None:
    """Say by whom a GPU is used; ``None`` if by nobody that NVML shows."""
    if gpu.nvml is None:
        return None
    label = f"GPU{gpu.index}"
    if processes := gpu.nvml.processes:
        # NVML's name of a process is its command line, which is its owner's.
        who = [str(process.pid) for process in processes[:_SHOWN]]
        more = f" and {len(processes) - _SHOWN} more" if len(processes) > _SHOWN else ""
        return f"{label} is in use by process {', '.join(who)}{more}"
    used = gpu.nvml.memory_used_bytes or 0
    if used > IDLE_MEMORY_BYTES and gpu.nvml.numa_node is None:
        return f"{format_size(used)} of {label} are in use, by no process that is visible from here"
    return None
