"""The kinds of memory that measurements move data between; each is one class with an address and a ``close()``.

A class releases in reverse what its constructor took, also when the constructor fails half-way.
"""

from __future__ import annotations

import ctypes
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


class HostNumaMemory:
    """Memory of one host NUMA node, mapped for the host and for GPUs. Where the platform has EGM, this is EGM memory.

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

    def __init__(self, node: int, size_bytes: int, contexts: Sequence[Context]) -> None:
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
            access = [_access(host, node)] + [
                _access(cuda.CUmemLocationType.CU_MEM_LOCATION_TYPE_DEVICE, context.ordinal) for context in contexts
            ]
            call("cuMemSetAccess", pointer, padded, access, len(access))
            self._undo = undo.pop_all()
        self.node = node
        self.size_bytes = size_bytes
        self.address = int(pointer)

    def close(self) -> None:
        """Unmap, free the address range and release the memory."""
        self._undo.close()


class DeviceMemory:
    """Memory of one GPU, from cuMemAlloc.

    Parameters
    ----------
    context
        The GPU that owns it.
    """

    def __init__(self, context: Context, size_bytes: int) -> None:
        context.make_current()
        self._context = context
        self._pointer = call("cuMemAlloc", size_bytes)
        self.address = int(self._pointer)
        self.size_bytes = size_bytes

    def close(self) -> None:
        """Free the memory."""
        self._context.make_current()
        call("cuMemFree", self._pointer)


class PinnedWords:
    """A few 4-byte words of pinned host memory that the host and every GPU see: flags, not data.

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


def _access(kind: object, identity: int) -> object:
    cuda = bindings()
    descriptor = cuda.CUmemAccessDesc()
    descriptor.location.type = kind
    descriptor.location.id = identity
    descriptor.flags = cuda.CUmemAccess_flags.CU_MEM_ACCESS_FLAGS_PROT_READWRITE
    return descriptor
