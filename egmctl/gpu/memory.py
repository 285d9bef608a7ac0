"""What every kind of memory has in common, memory of a GPU, and small memory for flags and results.

Each kind is one class with an address and a ``close()``; those of the host are in ``host_memory.py``. A class releases
in reverse what its constructor took, also when the constructor fails half-way.
"""

from __future__ import annotations

import ctypes
import time
from typing import Protocol

from egmctl.gpu.context import Context
from egmctl.gpu.driver import bindings, call


class Memory(Protocol):
    """What every kind has in common."""

    address: int
    """In the unified virtual address space: the same for the host and for every GPU that has access."""
    size_bytes: int
    """As asked for."""
    pageable: bool
    """Not pinned: a copy of it by a copy engine keeps the calling thread until it is done, and so would never end
    behind a closed gate."""
    allocate_ms: float
    """What it cost to get it, by the host's clock."""
    touch_ms: float | None
    """What it cost to write all of it for the first time, where that was done by the host; the driver has made the
    other kinds' pages when it hands them out."""
    refused: str | None
    """What of the binding to the NUMA node was refused: one phrase."""

    def close(self) -> None:
        """Give the memory back."""


class DeviceMemory:
    """Memory of one GPU, from cuMemAlloc.

    Parameters
    ----------
    context
        The GPU that owns it.
    """

    pageable = False
    refused: str | None = None
    touch_ms: float | None = None

    def __init__(self, context: Context, size_bytes: int) -> None:
        started = time.perf_counter()
        context.make_current()
        self._context = context
        self._pointer = call("cuMemAlloc", size_bytes)
        self.address = int(self._pointer)
        self.size_bytes = size_bytes
        self.allocate_ms = (time.perf_counter() - started) * 1e3

    def close(self) -> None:
        """Free the memory."""
        self._context.make_current()
        call("cuMemFree", self._pointer)


class PinnedWords:
    """A few 4-byte words of pinned host memory that the host and every GPU see: flags and results, not data.

    It must be portable: a kernel in any context polls it. The calling thread must have a context current.
    """

    def __init__(self, count: int) -> None:
        cuda = bindings()
        self._pointer = call(
            "cuMemHostAlloc", 4 * count, cuda.CU_MEMHOSTALLOC_PORTABLE | cuda.CU_MEMHOSTALLOC_DEVICEMAP
        )
        self.address = int(self._pointer)
        self.size_bytes = 4 * count
        self.words = (ctypes.c_uint32 * count).from_address(self.address)

    def close(self) -> None:
        """Free the memory."""
        call("cuMemFreeHost", self._pointer)
