"""The kinds of memory that measurements move data between; each is one class with an address and a ``close()``.

A class releases in reverse what its constructor took, also when the constructor fails half-way. More kinds of host
memory are in ``host_memory.py``.
"""

from __future__ import annotations

import ctypes
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from egmctl.driver.cuda import bindings, call
from egmctl.errors import DriverCallError
from egmctl.gpu.context import Context, ReleaseStack, ms_since
from egmctl.units import round_up


class Memory(Protocol):
    """What every kind has in common."""

    address: int
    """In the unified virtual address space: the same for the host and for every GPU that has access."""
    size_bytes: int
    """As asked for."""

    def close(self) -> None:
        """Give the memory back."""


@dataclass(frozen=True, slots=True)
class Granularity:
    """What the driver says of the sizes of memory from cuMemCreate (cuMemGetAllocationGranularity), in bytes."""

    minimum: int
    recommended: int


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
    granularity: Granularity | None
    """``None`` of memory for which the driver names none."""
    own_pages: bool
    """Whether the process has mapped it itself, so that the kernel knows its pages."""


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
    granularity: Granularity | None = None
    own_pages = False

    def __init__(self, context: Context, size_bytes: int) -> None:
        started = time.perf_counter()
        context.make_current()
        self._context = context
        self._pointer = call("cuMemAlloc", size_bytes)
        self.address = int(self._pointer)
        self.size_bytes = size_bytes
        self.allocate_ms = ms_since(started)

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
        The GPUs that get access, at least one. The first one's context is current when the memory is made: it can
        become the owner of EGM memory (:mod:`egmctl.topology.routes`).
    """

    pageable = False
    refused: str | None = None
    touch_ms: float | None = None
    granularity: Granularity | None = None
    own_pages = False

    def __init__(self, node: int, size_bytes: int, contexts: Sequence[Context]) -> None:
        contexts[0].make_current()
        self.granularity = granularity_of(on_node(node))
        started = time.perf_counter()
        with ReleaseStack() as undo:
            allocation, mapped_bytes = create_allocation(undo, on_node(node), size_bytes)
            places = [on_node(node), *map(on_gpu, contexts)]
            self.address = map_allocation(undo, allocation, mapped_bytes, places)
            self._undo = undo.pop_all()
        self.size_bytes = size_bytes
        self.allocate_ms = ms_since(started)

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


def on_gpu(context: Context) -> Any:
    """Return a GPU as the driver takes it where it asks for a place: of memory, or of who has access."""
    return _location("DEVICE", context.ordinal)


def on_node(node: int) -> Any:
    """Return a host NUMA node as the driver takes it, by the operating system's id."""
    return _location("HOST_NUMA", node)


def on_host() -> Any:
    """Return the host as the driver takes it, of which it chooses the node (CUDA 13.0)."""
    return _location("HOST", 0)


def access_from(places: Sequence[Any]) -> list[Any]:
    """Return what cuMemSetAccess and cuMemPoolSetAccess take to let GPUs, or a node's CPUs, read and write."""
    cuda = bindings()
    access = []
    for place in places:
        descriptor = cuda.CUmemAccessDesc()
        descriptor.location = place
        descriptor.flags = cuda.CUmemAccess_flags.CU_MEM_ACCESS_FLAGS_PROT_READWRITE
        access.append(descriptor)
    return access


def handle_type(name: str) -> Any:
    """Return a CUmemAllocationHandleType by its name without ``CU_MEM_HANDLE_TYPE_``."""
    return getattr(bindings().CUmemAllocationHandleType, f"CU_MEM_HANDLE_TYPE_{name}")


def granularity_of(place: Any) -> Granularity:
    """Return what the driver says of the sizes of memory at a place that is not shared."""
    properties = _allocation_properties(place, "NONE")
    flags = bindings().CUmemAllocationGranularity_flags
    return Granularity(
        minimum=call("cuMemGetAllocationGranularity", properties, flags.CU_MEM_ALLOC_GRANULARITY_MINIMUM),
        recommended=call("cuMemGetAllocationGranularity", properties, flags.CU_MEM_ALLOC_GRANULARITY_RECOMMENDED),
    )


def _allocation_properties(place: Any, shared_by: str) -> Any:
    cuda = bindings()
    properties = cuda.CUmemAllocationProp()
    properties.type = cuda.CUmemAllocationType.CU_MEM_ALLOCATION_TYPE_PINNED
    properties.requestedHandleTypes = handle_type(shared_by)
    properties.location = place
    return properties


def create_allocation(undo: ReleaseStack, place: Any, size_bytes: int, shared_by: str = "NONE") -> tuple[Any, int]:
    """Make physical memory; return the driver's handle and the size, rounded up to the minimum granularity.

    Parameters
    ----------
    undo
        Gets the way back.
    shared_by
        The :func:`handle_type` that other processes are to open it by.
    """
    cuda = bindings()
    properties = _allocation_properties(place, shared_by)
    minimum = cuda.CUmemAllocationGranularity_flags.CU_MEM_ALLOC_GRANULARITY_MINIMUM
    granularity: int = call("cuMemGetAllocationGranularity", properties, minimum)
    padded = round_up(size_bytes, granularity)
    allocation = call("cuMemCreate", padded, properties, 0)
    undo.callback(call, "cuMemRelease", allocation)
    return allocation, padded


def map_allocation(undo: ReleaseStack, allocation: Any, mapped_bytes: int, places: Sequence[Any]) -> int:
    """Map all of an allocation at an address of this process, for those who get access; return the address."""
    access = access_from(places)
    for attempt in range(SPOILT_LIMIT + 1):
        with ReleaseStack() as taken:
            pointer = call("cuMemAddressReserve", mapped_bytes, 0, 0, 0)
            taken.callback(call, "cuMemAddressFree", pointer, mapped_bytes)
            call("cuMemMap", pointer, mapped_bytes, 0, allocation, 0)
            taken.callback(call, "cuMemUnmap", pointer, mapped_bytes)
            try:
                call("cuMemSetAccess", pointer, mapped_bytes, access, len(access))
            except DriverCallError as error:
                if error.name != "CUDA_ERROR_ALREADY_MAPPED" or attempt == SPOILT_LIMIT:
                    raise
                # The addresses stay reserved until the process ends: nobody is to be given them again.
                taken.pop_all()
                call("cuMemUnmap", pointer, mapped_bytes)
                continue
            undo.push(taken.pop_all())
            return int(pointer)
    raise AssertionError("the last attempt returns or raises")


def create_pool(
    undo: ReleaseStack, place: Any, size_bytes: int, contexts: Sequence[Context], shared_by: str = "NONE"
) -> Any:
    """Make a memory pool that GPUs have access to.

    Parameters
    ----------
    size_bytes
        Rounded up, the most that the pool may grow to: one without a limit reserves as much address space as there is
        memory.
    shared_by
        As for :func:`create_allocation`.
    """
    cuda = bindings()
    properties = cuda.CUmemPoolProps()
    properties.allocType = cuda.CUmemAllocationType.CU_MEM_ALLOCATION_TYPE_PINNED
    properties.handleTypes = handle_type(shared_by)
    properties.location = place
    properties.maxSize = round_up(size_bytes, _POOL_UNIT_BYTES)
    pool = call("cuMemPoolCreate", properties)
    undo.callback(call, "cuMemPoolDestroy", pool)
    access = access_from([on_gpu(context) for context in contexts])
    call("cuMemPoolSetAccess", pool, access, len(access))
    return pool


DEFAULT_STREAM = 0


def settled(undo: ReleaseStack, pool: Any, pointer: Any) -> int:
    """Wait for memory that the default stream has allocated from a pool, and return its address.

    ``undo`` gets the way back: the same stream frees it, and the pool is trimmed.
    """
    undo.callback(call, "cuMemPoolTrimTo", pool, 0)
    undo.callback(call, "cuStreamSynchronize", DEFAULT_STREAM)
    undo.callback(call, "cuMemFreeAsync", pointer, DEFAULT_STREAM)
    call("cuStreamSynchronize", DEFAULT_STREAM)
    return int(pointer)


SPOILT_LIMIT = 16
"""How many ranges of addresses are tried after the first.

H200, driver 580: when a process has closed another one's pool of host memory, its addresses are still mapped somewhere
in the driver, which gives them out again and then refuses them: with CUDA_ERROR_ALREADY_MAPPED to cuMemSetAccess, with
CUDA_ERROR_OUT_OF_MEMORY to an allocation from a pool that can be exported (docs/hardware-notes.md)."""


_POOL_UNIT_BYTES = 32 << 20
"""A pool takes its memory in larger pieces than it is asked for (2 MiB on H200)."""


def _location(kind: str, identity: int) -> Any:
    cuda = bindings()
    location = cuda.CUmemLocation()
    location.type = getattr(cuda.CUmemLocationType, f"CU_MEM_LOCATION_TYPE_{kind}")
    location.id = identity
    return location
