"""The kinds of memory that measurements use. Constructors allocate, ``close()`` frees.

Memory shared between processes is in :mod:`egmctl.gpu.handles`.
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
from egmctl.gpu.context import Context, ReleaseStack, Resource, ms_since, timed
from egmctl.gpu.cpu_threads import Node, bind_pages, on_node, touch
from egmctl.units import round_up


class MappedMemory(Resource):
    """The base class of all kinds of memory.

    Attributes
    ----------
    address
        The address in the unified virtual address space, the same for the host and for every GPU with access.
    size_bytes
        The requested size.
    allocate_ms, touch_ms
        The times of the allocation and of the host's first write to all of the memory, by the host's clock.
        ``touch_ms`` is ``None`` if the driver allocates the pages.
    pageable
        Whether the memory is not pinned. A copy of pageable memory blocks the calling thread until it completes, so it
        would deadlock behind a closed gate.
    cpu_reads
        Whether the CPUs may read it here without moving it: memory of the host that is mapped for them.
    own_pages
        Whether the process mapped the memory itself, so that the kernel can report its pages.
    refused
        The part of the binding to a NUMA node that was refused, as a phrase; ``None`` if none was.
    granularity_bytes, recommended_granularity_bytes
        The driver's granularities for memory from cuMemCreate.
    """

    address: int
    touch_ms: float | None = None
    pageable = False
    cpu_reads = False
    own_pages = False
    refused: str | None = None
    granularity_bytes: int | None = None
    recommended_granularity_bytes: int | None = None

    @contextmanager
    def _making(self, size_bytes: int, context: Context | None = None) -> Iterator[ReleaseStack]:
        """Time the ``with`` block that allocates the memory, with the GPU's context current."""
        self.size_bytes = size_bytes
        started = time.perf_counter()
        with self._made_on(context) as undo:
            yield undo
        self.allocate_ms = ms_since(started) - (self.touch_ms or 0)

    def offer(self) -> tuple[dict[str, Any], list[int]]:
        """Return what an importer needs, as :class:`egmctl.gpu.handles.SharedMemory` does: nothing by default."""
        return {}, []

    def _touch(self, node: Node, *, huge: bool = False) -> None:
        started = time.perf_counter()
        touch(node, self.address, self.size_bytes, huge=huge)
        self.touch_ms = ms_since(started)


class DeviceMemory(MappedMemory):
    """Memory of one GPU, from cuMemAlloc."""

    def __init__(self, context: Context, size_bytes: int) -> None:
        with self._making(size_bytes, context) as undo:
            pointer = call("cuMemAlloc", size_bytes)
            undo.callback(call, "cuMemFree", pointer)
            self.address = int(pointer)


class HostNumaMemory(MappedMemory):
    """Memory of one host NUMA node from cuMemCreate, mapped for the host and for GPUs.

    The calls and their order follow the chapter on Extended GPU Memory in the CUDA Programming Guide: pinned HOST_NUMA
    memory with the node's own id, padded to the granularity, and access for the host node and each GPU. No handle type
    is requested, because the memory is not exported.

    Parameters
    ----------
    node
        The operating system's NUMA node id.
    size_bytes
        The size. The allocation is rounded up to the minimum granularity.
    contexts
        The GPUs that get access, at least one. The first GPU's context is current during the allocation; this GPU can
        become the owner of EGM memory (:mod:`egmctl.topology.routes`).
    """

    cpu_reads = True

    def __init__(self, node: int, size_bytes: int, contexts: Sequence[Context]) -> None:
        with self._making(size_bytes, contexts[0]) as undo:
            host = location("HOST_NUMA", node)
            properties = _allocation_properties(host, "NONE")
            self.granularity_bytes = _granularity(properties, "MINIMUM")
            self.recommended_granularity_bytes = _granularity(properties, "RECOMMENDED")
            allocation, mapped_bytes = create_allocation(undo, host, size_bytes)
            self.address = map_allocation(undo, allocation, mapped_bytes, [host, *map(on_gpu, contexts)])


class HostNumaPoolMemory(MappedMemory):
    """The only allocation from a new memory pool on a host NUMA node.

    Parameters
    ----------
    node
        The operating system's NUMA node id.
    contexts
        The GPUs that get access, at least one. The default stream of the first GPU allocates and frees.
    """

    def __init__(self, node: int, size_bytes: int, contexts: Sequence[Context]) -> None:
        with self._making(size_bytes, contexts[0]) as undo:
            pool = create_pool(undo, location("HOST_NUMA", node), size_bytes, contexts)
            self.address = _allocate_from(undo, pool, size_bytes)


class PinnedMemory(MappedMemory):
    """Host memory from cuMemHostAlloc, allocated by a thread bound to the node and accessible to every GPU.

    Parameters
    ----------
    context
        Any GPU of the process, because the memory is portable.
    """

    cpu_reads = True

    def __init__(self, node: Node, size_bytes: int, context: Context) -> None:
        def allocate() -> Any:
            context.make_current()
            return _host_alloc(size_bytes)

        with self._making(size_bytes, context) as undo:
            pointer, self.refused = on_node(node, allocate)
            undo.callback(call, "cuMemFreeHost", pointer)
            self.address = int(pointer)


class PinnedWords(MappedMemory):
    """A few 4-byte words of pinned host memory for flags and results, accessible to the host and every GPU.

    The memory is portable because kernels in any context poll it. The calling thread must have a current context.
    """

    def __init__(self, count: int) -> None:
        with self._making(4 * count) as undo:
            pointer = _host_alloc(self.size_bytes)
            undo.callback(call, "cuMemFreeHost", pointer)
            self.address = int(pointer)
        self.words = (ctypes.c_uint32 * count).from_address(self.address)


class SystemMemory(MappedMemory):
    """Memory that the process maps with mmap, binds to a NUMA node and writes once.

    Parameters
    ----------
    registered_with
        The GPU whose context is current for cuMemHostRegister, which pins the memory for every GPU of the process.
        Without one, only GPUs with access to pageable memory can use it.
    huge_page_bytes
        The size of the kernel's huge pages, enough of which must be free. Before Linux 5.14 the first write to a
        missing page kills the process (SIGBUS). ``None``: pages of the default size.
    transparent
        Whether to advise the kernel to use transparent huge pages.

    Raises
    ------
    OSError
        The kernel cannot map such pages or has too few.
    """

    own_pages = True
    cpu_reads = True

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


class ManagedMemory(MappedMemory):
    """Managed memory with a host node as its preferred location, which GPUs access without migrating it.

    Preferred location and access by each GPU are only advice. Where the pages are shows whether the driver followed it.

    Parameters
    ----------
    contexts
        The GPUs that get access, at least one.
    """

    pageable = True
    """A copy may wait until pages are mapped or migrated."""

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
    """One of the driver's default memory pools, which are never destroyed.

    Parameters
    ----------
    context
        The GPU that owns the pool; any GPU for a pool of the host. Its default stream allocates and frees.
    place
        The :func:`location` of a pool of the host (CUDA 13.0 or newer); ``None`` for the GPU's pool.

    Raises
    ------
    DriverTooOld
        A pool of the host was requested, and the driver has no cuMemGetDefaultMemPool.

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
        """Give GPUs read and write access to the pool until the last :class:`DefaultPoolMemory` from it is freed.

        If nothing is allocated, :meth:`close_unused` restores the previous access.
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
        """Count one more user of the pool. A callback on ``undo`` removes it; removing the last one closes the pool."""
        self._users += 1
        undo.callback(self._release)

    def close_unused(self) -> None:
        """Call :meth:`close` if the pool has no users."""
        if not self._users:
            self.close()

    def close(self) -> None:
        """Restore each GPU's access from before :meth:`open_to`."""
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


class DefaultPoolMemory(MappedMemory):
    """An allocation from a default pool.

    Parameters
    ----------
    contexts
        The GPUs that get access.
    node
        The NUMA node to which the allocating thread is bound, because the host's pool belongs to no node.
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
    """Return a CUmemLocation, which names where memory is or who gets access to it.

    Parameters
    ----------
    kind
        ``DEVICE``, ``HOST_NUMA``, or ``HOST``, for which the driver chooses the node (CUDA 13.0).
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
    """Return a CUmemAccessDesc for a location, with read and write access unless ``flags`` are given."""
    cuda = bindings()
    descriptor = cuda.CUmemAccessDesc()
    descriptor.location = place
    descriptor.flags = cuda.CUmemAccess_flags.CU_MEM_ACCESS_FLAGS_PROT_READWRITE if flags is None else flags
    return descriptor


def handle_type(name: str) -> Any:
    """Return a CUmemAllocationHandleType by its name without ``CU_MEM_HANDLE_TYPE_``."""
    return getattr(bindings().CUmemAllocationHandleType, f"CU_MEM_HANDLE_TYPE_{name}")


def create_allocation(undo: ReleaseStack, place: Any, size_bytes: int, shared_by: str = "NONE") -> tuple[Any, int]:
    """Allocate physical memory; return the driver's handle and the size, rounded up to the minimum granularity.

    Parameters
    ----------
    undo
        The stack for the callback that frees it.
    shared_by
        The :func:`handle_type` by which other processes import it.
    """
    properties = _allocation_properties(place, shared_by)
    padded = round_up(size_bytes, _granularity(properties, "MINIMUM"))
    allocation = call("cuMemCreate", padded, properties, 0)
    undo.callback(call, "cuMemRelease", allocation)
    return allocation, padded


def map_allocation(
    undo: ReleaseStack,
    allocation: Any,
    mapped_bytes: int,
    places: Sequence[Any],
    stages_ms: dict[str, float] | None = None,
) -> int:
    """Map an allocation with access for ``places``; return the address. Retry if the driver calls it already mapped.

    The time of cuMemSetAccess is put into ``stages_ms`` as ``set-access``.
    """
    access = [access_from(place) for place in places]
    for attempt in range(SPOILT_LIMIT + 1):
        with ReleaseStack() as taken:
            pointer = call("cuMemAddressReserve", mapped_bytes, 0, 0, 0)
            taken.callback(call, "cuMemAddressFree", pointer, mapped_bytes)
            call("cuMemMap", pointer, mapped_bytes, 0, allocation, 0)
            taken.callback(call, "cuMemUnmap", pointer, mapped_bytes)
            try:
                with timed({} if stages_ms is None else stages_ms, "set-access"):
                    call("cuMemSetAccess", pointer, mapped_bytes, access, len(access))
            except DriverCallError as error:
                if error.name != "CUDA_ERROR_ALREADY_MAPPED" or attempt == SPOILT_LIMIT:
                    raise
                # The addresses stay reserved until the process ends, so that the driver does not return them again.
                taken.pop_all()
                call("cuMemUnmap", pointer, mapped_bytes)
                continue
            undo.push(taken.pop_all())
            return int(pointer)
    raise AssertionError("the last attempt returns or raises")


def create_pool(
    undo: ReleaseStack, place: Any, size_bytes: int, contexts: Sequence[Context], shared_by: str = "NONE"
) -> Any:
    """Create a memory pool and give GPUs access to it.

    Parameters
    ----------
    size_bytes
        The maximum size of the pool before rounding up. A pool without a maximum reserves as much address space as
        there is memory.
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

H200, driver 580: after a process has closed an imported pool of host memory, the pool's addresses are still mapped in
the driver. The driver returns them again and then refuses them: cuMemSetAccess fails with CUDA_ERROR_ALREADY_MAPPED, an
allocation from an exportable pool with CUDA_ERROR_OUT_OF_MEMORY (docs/hardware-notes.md)."""

_POOL_UNIT_BYTES = 32 << 20
"""The unit of a pool's maximum size. A pool takes memory in units larger than the request (2 MiB on H200)."""

_DEFAULT_STREAM = 0


def _allocate_from(undo: ReleaseStack, pool: Any, size_bytes: int) -> int:
    """Allocate from a pool on the default stream, wait for it, and return the address.

    Callbacks on ``undo`` free the memory on the same stream and trim the pool.
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
    """Advise the driver about managed memory, with the variant of cuMemAdvise that takes a location (CUDA 12.2)."""
    cuda = bindings()
    name = "cuMemAdvise_v2" if hasattr(cuda, "cuMemAdvise_v2") else "cuMemAdvise"
    call(name, pointer, size_bytes, getattr(cuda.CUmem_advise, f"CU_MEM_ADVISE_{advice}"), place)


_MAP_HUGETLB, _MAP_HUGE_SHIFT = 0x40000, 26  # asm-generic/mman-common.h, linux/mman.h: the same on x86-64 and arm64


def _mapped(size_bytes: int, huge_page_bytes: int | None) -> mmap.mmap:
    flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS
    if huge_page_bytes is not None:
        flags |= _MAP_HUGETLB | huge_page_bytes.bit_length() - 1 << _MAP_HUGE_SHIFT
        # The size of a huge page mapping must be a multiple of the page size.
        size_bytes = round_up(size_bytes, huge_page_bytes)
    return mmap.mmap(-1, size_bytes, flags=flags)
