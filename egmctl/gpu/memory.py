"""The kinds of memory that measurements move data between: each is made by its constructor and freed by ``close()``.

Memory that processes share is in :mod:`egmctl.gpu.handles`.
"""

from __future__ import annotations

import ctypes
import mmap
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from egmctl.driver.cuda import bindings, call
from egmctl.errors import DriverCallError, DriverTooOld
from egmctl.gpu.context import Context, ReleaseStack, Resource, ms_since
from egmctl.gpu.numa import Node, bind_pages, on_node, touch
from egmctl.units import round_up


class Memory(Resource):
    """The base of all kinds.

    Attributes
    ----------
    address
        In the unified virtual address space: the same for the host and for every GPU that has access.
    size_bytes
        As the caller asked.
    allocate_ms, touch_ms
        How long making it took, and how long the host took to write all of it for the first time, by the host's clock;
        ``touch_ms`` is ``None`` where the driver has made the pages.
    pageable
        Whether it is not pinned: a copy engine's copy of it keeps the calling thread until it is done, and so would
        never end behind a closed gate.
    own_pages
        Whether the process has mapped it itself, so that the kernel knows its pages.
    refused
        The part of its binding to a NUMA node that was refused, as a phrase.
    granularity_bytes, recommended_granularity_bytes
        The driver's, of memory from cuMemCreate.
    """

    address: int
    touch_ms: float | None = None
    pageable = False
    own_pages = False
    refused: str | None = None
    granularity_bytes: int | None = None
    recommended_granularity_bytes: int | None = None

    @contextmanager
    def _making(self, size_bytes: int, context: Context | None = None) -> Iterator[ReleaseStack]:
        """Time the block that makes the memory, under the GPU's context."""
        self.size_bytes = size_bytes
        started = time.perf_counter()
        with self._made_on(context) as undo:
            yield undo
        self.allocate_ms = ms_since(started) - (self.touch_ms or 0)

    def _touch(self, node: Node, *, huge: bool = False) -> None:
        started = time.perf_counter()
        touch(node, self.address, self.size_bytes, huge=huge)
        self.touch_ms = ms_since(started)


class DeviceMemory(Memory):
    """Memory of one GPU, from cuMemAlloc."""

    def __init__(self, context: Context, size_bytes: int) -> None:
        with self._making(size_bytes, context) as undo:
            pointer = call("cuMemAlloc", size_bytes)
            undo.callback(call, "cuMemFree", pointer)
            self.address = int(pointer)


class HostNumaMemory(Memory):
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

    def __init__(self, node: int, size_bytes: int, contexts: Sequence[Context]) -> None:
        with self._making(size_bytes, contexts[0]) as undo:
            host = location("HOST_NUMA", node)
            properties = _allocation_properties(host, "NONE")
            self.granularity_bytes = _granularity(properties, "MINIMUM")
            self.recommended_granularity_bytes = _granularity(properties, "RECOMMENDED")
            allocation, mapped_bytes = create_allocation(undo, host, size_bytes)
            self.address = map_allocation(undo, allocation, mapped_bytes, [host, *map(on_gpu, contexts)])


class HostNumaPoolMemory(Memory):
    """One allocation from a memory pool of its own on a host NUMA node.

    Parameters
    ----------
    node
        The operating system's NUMA node id.
    contexts
        The GPUs that get access, at least one; the first one's default stream allocates and frees.
    """

    def __init__(self, node: int, size_bytes: int, contexts: Sequence[Context]) -> None:
        with self._making(size_bytes, contexts[0]) as undo:
            pool = create_pool(undo, location("HOST_NUMA", node), size_bytes, contexts)
            self.address = _allocate_from(undo, pool, size_bytes)


class PinnedMemory(Memory):
    """Host memory from cuMemHostAlloc, asked for by a thread that is bound to the node; every GPU reaches it.

    Parameters
    ----------
    context
        Any GPU of the process: the memory is portable.
    """

    def __init__(self, node: Node, size_bytes: int, context: Context) -> None:
        def allocate() -> Any:
            context.make_current()
            return _host_alloc(size_bytes)

        with self._making(size_bytes, context) as undo:
            pointer, self.refused = on_node(node, allocate)
            undo.callback(call, "cuMemFreeHost", pointer)
            self.address = int(pointer)


class PinnedWords(Memory):
    """A few 4-byte words of pinned host memory that the host and every GPU see: flags and results, not data.

    It must be portable: a kernel in any context polls it. The calling thread must have a context current.
    """

    def __init__(self, count: int) -> None:
        with self._making(4 * count) as undo:
            pointer = _host_alloc(self.size_bytes)
            undo.callback(call, "cuMemFreeHost", pointer)
            self.address = int(pointer)
        self.words = (ctypes.c_uint32 * count).from_address(self.address)


class SystemMemory(Memory):
    """Memory that the process maps on a node and writes once.

    Parameters
    ----------
    registered_with
        A GPU with which it is pinned by cuMemHostRegister, so that every GPU of the process reaches it. Without one
        only GPUs with access to pageable memory do.
    huge_page_bytes
        The size of one huge page of the kernel's pools; enough must be free. Before Linux 5.14 the first write to a
        missing one ends the process (SIGBUS). ``None``: the kernel's usual pages.
    transparent
        The kernel is advised to make transparent huge pages of it.

    Raises
    ------
    OSError
        If the kernel does not map such pages, or has too few.
    """

    own_pages = True

    def __init__(
        self,
        node: Node,
        size_bytes: int,
        registered_with: Context | None = None,
        *,
        huge_page_bytes: int | None = None,
        transparent: bool = False,
    ) -> None:
        self.pageable = registered_with is None
        with self._making(size_bytes, registered_with) as undo:
            mapping = _mapped(size_bytes, huge_page_bytes)
            undo.callback(mapping.close)
            if transparent:
                mapping.madvise(mmap.MADV_HUGEPAGE)
            self.address = ctypes.addressof(ctypes.c_char.from_buffer(mapping))
            self.refused = bind_pages(node, self.address, size_bytes)
            self._touch(node, huge=huge_page_bytes is not None)
            if registered_with is not None:
                cuda = bindings()
                flags = cuda.CU_MEMHOSTREGISTER_PORTABLE | cuda.CU_MEMHOSTREGISTER_DEVICEMAP
                call("cuMemHostRegister", self.address, size_bytes, flags)
                undo.callback(call, "cuMemHostUnregister", self.address)


class ManagedMemory(Memory):
    """Managed memory whose pages are to stay on a host node, and which GPUs reach there without moving it.

    Preferred location and access by each GPU are advice: what does not keep to it shows in where the pages lie.

    Parameters
    ----------
    contexts
        The GPUs that get access, at least one.
    """

    pageable = True
    """A copy of it may wait for pages to be mapped or moved."""

    def __init__(self, node: Node, size_bytes: int, contexts: Sequence[Context]) -> None:
        with self._making(size_bytes, contexts[0]) as undo:
            pointer = call("cuMemAllocManaged", size_bytes, bindings().CUmemAttach_flags.CU_MEM_ATTACH_GLOBAL.value)
            undo.callback(call, "cuMemFree", pointer)
            _advise(pointer, size_bytes, "SET_PREFERRED_LOCATION", location("HOST_NUMA", node.id))
            for context in contexts:
                _advise(pointer, size_bytes, "SET_ACCESSED_BY", on_gpu(context))
            self.address = int(pointer)
            self._touch(node)


class DefaultPool:
    """One of the driver's own memory pools, which stays when its memory is given back.

    Parameters
    ----------
    context
        The GPU whose pool it is; of the host's pools any one: its default stream allocates and frees.
    place
        The :func:`location` of a pool of the host, which the driver has from CUDA 13.0 on.

    Raises
    ------
    DriverTooOld
        The driver has no cuMemGetDefaultMemPool, for a pool of the host.

    Notes
    -----
    "The accessibility of the default memory pool may be modified with cudaMemPoolSetAccess"; a GPU's access to its own
    cannot be revoked, and access does not follow cuCtxEnablePeerAccess (CUDA Programming Guide, "Stream-Ordered Memory
    Allocator").
    """

    def __init__(self, context: Context, place: Any | None = None) -> None:
        context.make_current()
        self.context = context
        self.handle = call("cuDeviceGetDefaultMemPool", context.device) if place is None else _pool_of_host(place)
        self._always_open_to = context.ordinal if place is None else None
        self._before: dict[int, Any] = {}
        self._users = 0

    def open_to(self, contexts: Sequence[Context]) -> None:
        """Let GPUs read and write all memory of the pool, until the last that was allocated here is given back.

        Where nothing comes to be allocated, :meth:`close_unused` takes the access away.
        """
        wanted = bindings().CUmemAccess_flags.CU_MEM_ACCESS_FLAGS_PROT_READWRITE
        changed: dict[int, Any] = {}
        for context in contexts:
            if context.ordinal != self._always_open_to and context.ordinal not in self._before:
                before = call("cuMemPoolGetAccess", self.handle, on_gpu(context))
                if before != wanted:
                    changed[context.ordinal] = before
        if changed:
            self._set_access(dict.fromkeys(changed, wanted))
            self._before |= changed

    def use(self, undo: ReleaseStack) -> None:
        """Count one more user of the pool; ``undo`` gets the way back, which closes it after the last."""
        self._users += 1
        undo.callback(self._release)

    def close_unused(self) -> None:
        """Close where there is no memory from the pool."""
        if not self._users:
            self.close()

    def close(self) -> None:
        """Give each GPU the access that it had before."""
        if self._before:
            before, self._before = self._before, {}
            self.context.make_current()
            self._set_access(before)

    def _set_access(self, flags: Mapping[int, Any]) -> None:
        access = [access_from(location("DEVICE", ordinal), flag) for ordinal, flag in flags.items()]
        call("cuMemPoolSetAccess", self.handle, access, len(access))

    def _release(self) -> None:
        self._users -= 1
        self.close_unused()


class DefaultPoolMemory(Memory):
    """One allocation from a default pool.

    Parameters
    ----------
    contexts
        The GPUs that get access.
    node
        The NUMA node that the allocating thread is bound to: the host's pool belongs to none.
    """

    def __init__(
        self, pool: DefaultPool, size_bytes: int, contexts: Sequence[Context] = (), node: Node | None = None
    ) -> None:
        with self._making(size_bytes, pool.context) as undo:
            pool.use(undo)
            pool.open_to(contexts)

            def allocate() -> int:
                pool.context.make_current()
                return _allocate_from(undo, pool.handle, size_bytes)

            self.address, self.refused = (allocate(), None) if node is None else on_node(node, allocate)


def location(kind: str, identity: int = 0) -> Any:
    """Return a place of memory, or of those who have access to it, as the driver takes it.

    Parameters
    ----------
    kind
        ``DEVICE``, ``HOST_NUMA``, or ``HOST``: the driver chooses the node (CUDA 13.0).
    identity
        CUDA's ordinal of the GPU, or the operating system's id of the NUMA node.
    """
    cuda = bindings()
    place = cuda.CUmemLocation()
    place.type = getattr(cuda.CUmemLocationType, f"CU_MEM_LOCATION_TYPE_{kind}")
    place.id = identity
    return place


def on_gpu(context: Context) -> Any:
    """Return a GPU's :func:`location`."""
    return location("DEVICE", context.ordinal)


def access_from(place: Any, flags: Any | None = None) -> Any:
    """Return the descriptor that lets a GPU, or a node's CPUs, read and write, or gives it other flags."""
    cuda = bindings()
    descriptor = cuda.CUmemAccessDesc()
    descriptor.location = place
    descriptor.flags = cuda.CUmemAccess_flags.CU_MEM_ACCESS_FLAGS_PROT_READWRITE if flags is None else flags
    return descriptor


def handle_type(name: str) -> Any:
    """Return a CUmemAllocationHandleType by its name without ``CU_MEM_HANDLE_TYPE_``."""
    return getattr(bindings().CUmemAllocationHandleType, f"CU_MEM_HANDLE_TYPE_{name}")


def create_allocation(undo: ReleaseStack, place: Any, size_bytes: int, shared_by: str = "NONE") -> tuple[Any, int]:
    """Make physical memory; return the driver's handle and the size, rounded up to the minimum granularity.

    Parameters
    ----------
    undo
        Gets the way back.
    shared_by
        The :func:`handle_type` that other processes are to open it by.
    """
    properties = _allocation_properties(place, shared_by)
    padded = round_up(size_bytes, _granularity(properties, "MINIMUM"))
    allocation = call("cuMemCreate", padded, properties, 0)
    undo.callback(call, "cuMemRelease", allocation)
    return allocation, padded


def map_allocation(undo: ReleaseStack, allocation: Any, mapped_bytes: int, places: Sequence[Any]) -> int:
    """Map all of an allocation at an address of this process, for those who get access; return the address."""
    access = [access_from(place) for place in places]
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
    access = [access_from(on_gpu(context)) for context in contexts]
    call("cuMemPoolSetAccess", pool, access, len(access))
    return pool


SPOILT_LIMIT = 16
"""The number of address ranges to try after the first.

H200, driver 580: when a process has closed another one's pool of host memory, its addresses are still mapped somewhere
in the driver, which gives them out again and then refuses them: with CUDA_ERROR_ALREADY_MAPPED to cuMemSetAccess, with
CUDA_ERROR_OUT_OF_MEMORY to an allocation from a pool that can be exported (docs/hardware-notes.md)."""

_POOL_UNIT_BYTES = 32 << 20
"""A pool takes its memory in larger pieces than it is asked for (2 MiB on H200)."""

_DEFAULT_STREAM = 0


def _allocate_from(undo: ReleaseStack, pool: Any, size_bytes: int) -> int:
    """Return the address of memory that the default stream allocates from a pool, once it is there.

    ``undo`` gets the way back: the same stream frees it, and the pool is trimmed.
    """
    pointer = call("cuMemAllocFromPoolAsync", size_bytes, pool, _DEFAULT_STREAM)
    undo.callback(call, "cuMemPoolTrimTo", pool, 0)
    undo.callback(call, "cuStreamSynchronize", _DEFAULT_STREAM)
    undo.callback(call, "cuMemFreeAsync", pointer, _DEFAULT_STREAM)
    call("cuStreamSynchronize", _DEFAULT_STREAM)
    return int(pointer)


def _allocation_properties(place: Any, shared_by: str) -> Any:
    cuda = bindings()
    properties = cuda.CUmemAllocationProp()
    properties.type = cuda.CUmemAllocationType.CU_MEM_ALLOCATION_TYPE_PINNED
    properties.requestedHandleTypes = handle_type(shared_by)
    properties.location = place
    return properties


def _granularity(properties: Any, kind: str) -> int:
    flag = getattr(bindings().CUmemAllocationGranularity_flags, f"CU_MEM_ALLOC_GRANULARITY_{kind}")
    size_bytes: int = call("cuMemGetAllocationGranularity", properties, flag)
    return size_bytes


def _pool_of_host(place: Any) -> Any:
    pinned = bindings().CUmemAllocationType.CU_MEM_ALLOCATION_TYPE_PINNED
    try:
        return call("cuMemGetDefaultMemPool", place, pinned)
    except DriverTooOld as error:
        detail = f"{error.name}; default pools of the host come with CUDA 13.0 (driver 580)"
        raise DriverTooOld(error.call, error.number, detail) from error


def _host_alloc(size_bytes: int) -> Any:
    cuda = bindings()
    return call("cuMemHostAlloc", size_bytes, cuda.CU_MEMHOSTALLOC_PORTABLE | cuda.CU_MEMHOSTALLOC_DEVICEMAP)


def _advise(pointer: Any, size_bytes: int, advice: str, place: Any) -> None:
    """Advise the driver about managed memory, by the form of the call that takes a location (CUDA 12.2)."""
    cuda = bindings()
    name = "cuMemAdvise_v2" if hasattr(cuda, "cuMemAdvise_v2") else "cuMemAdvise"
    call(name, pointer, size_bytes, getattr(cuda.CUmem_advise, f"CU_MEM_ADVISE_{advice}"), place)


_MAP_HUGETLB, _MAP_HUGE_SHIFT = 0x40000, 26  # asm-generic/mman-common.h, linux/mman.h: the same on x86-64 and arm64


def _mapped(size_bytes: int, huge_page_bytes: int | None) -> mmap.mmap:
    flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS
    if huge_page_bytes is not None:
        flags |= _MAP_HUGETLB | huge_page_bytes.bit_length() - 1 << _MAP_HUGE_SHIFT
        # A mapping of huge pages is a whole number of them.
        size_bytes = round_up(size_bytes, huge_page_bytes)
    return mmap.mmap(-1, size_bytes, flags=flags)
