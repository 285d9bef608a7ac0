"""The kinds of memory that measurements move data between; each is one class with an address and a ``close()``.

A class releases in reverse what its constructor took, also when the constructor fails half-way. More kinds of host
memory are in ``host_memory.py``.
"""

from __future__ import annotations

import ctypes
import time
from collections.abc import Sequence
from contextlib import ExitStack
from typing import Protocol

from egmctl.gpu.context import Context
from egmctl.gpu.driver import bindings, call


class Memory(Protocol):
    """What every kind has in common."""

    address: int
    """In the unified virtual address space: the same for the host and for every GPU that has access."""
    size_bytes: int
    """As asked for."""

    def close(self) -> None:
        """Give the memory back."""


class BufferMemory(Memory, Protocol):
    """What the bench has to know of memory that it moves bytes between."""

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


class HostNumaMemory:
    """Memory of one host NUMA node, mapped for the host and for GPUs.

    The calls and their order are those of the CUDA Programming Guide's chapter on Extended GPU Memory: pinned
    HOST_NUMA memory with the node's own id, padded to the granularity, with access given to the host node and to each
    GPU. No handle type is asked for: handles that can be exported need an IMEX channel or a file descriptor, and
    nothing here leaves the process.

    Parameters
    ----------
    node
        The operating system's NUMA node id.
    size_bytes
        Rounded up to the minimum granularity for the allocation.
    contexts
        The GPUs that get access, at least one.
    """

    pageable = False
    refused: str | None = None
    touch_ms: float | None = None

    def __init__(self, node: int, size_bytes: int, contexts: Sequence[Context]) -> None:
        started = time.perf_counter()
        contexts[0].make_current()
        cuda = bindings()
        host = cuda.CUmemLocationType.CU_MEM_LOCATION_TYPE_HOST_NUMA
        properties = cuda.CUmemAllocationProp()
        properties.type = cuda.CUmemAllocationType.CU_MEM_ALLOCATION_TYPE_PINNED
        properties.requestedHandleTypes = cuda.CUmemAllocationHandleType.CU_MEM_HANDLE_TYPE_NONE
        properties.location.type = host
        properties.location.id = node
        granularity: int = call(
            "cuMemGetAllocationGranularity",
            properties,
            cuda.CUmemAllocationGranularity_flags.CU_MEM_ALLOC_GRANULARITY_MINIMUM,
        )
        padded = -(-size_bytes // granularity) * granularity
        with ExitStack() as undo:
            handle = call("cuMemCreate", padded, properties, 0)
            undo.callback(call, "cuMemRelease", handle)
            pointer = call("cuMemAddressReserve", padded, 0, 0, 0)
            undo.callback(call, "cuMemAddressFree", pointer, padded)
            call("cuMemMap", pointer, padded, 0, handle, 0)
            undo.callback(call, "cuMemUnmap", pointer, padded)
            access = [_access(host, node), *access_of_gpus(contexts)]
            call("cuMemSetAccess", pointer, padded, access, len(access))
            self._undo = undo.pop_all()
        self.size_bytes = size_bytes
        self.address = int(pointer)
        self.allocate_ms = (time.perf_counter() - started) * 1e3

    def close(self) -> None:
        """Unmap, free the address range and release the memory."""
        self._undo.close()


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


def access_of_gpus(contexts: Sequence[Context]) -> list[object]:
    """Return what cuMemSetAccess and cuMemPoolSetAccess take to let GPUs read and write."""
    device = bindings().CUmemLocationType.CU_MEM_LOCATION_TYPE_DEVICE
    return [_access(device, context.ordinal) for context in contexts]


def _access(kind: object, identity: int) -> object:
    cuda = bindings()
    descriptor = cuda.CUmemAccessDesc()
    descriptor.location.type = kind
    descriptor.location.id = identity
    descriptor.flags = cuda.CUmemAccess_flags.CU_MEM_ACCESS_FLAGS_PROT_READWRITE
    return descriptor
