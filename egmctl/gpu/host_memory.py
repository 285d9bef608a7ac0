"""Host memory of every kind, on the NUMA node that was chosen, and memory of default pools."""

from __future__ import annotations

import ctypes
import errno
import mmap
import os
import platform
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, TypeVar

from egmctl.driver import breadcrumb
from egmctl.driver.cuda import bindings, call
from egmctl.driver.system_calls import NUMBERS
from egmctl.errors import DriverTooOld
from egmctl.gpu.context import Context, ReleaseStack, ms_since
from egmctl.gpu.memory import DEFAULT_STREAM, Granularity, access_from, create_pool, on_gpu, settled
from egmctl.gpu.memory import on_node as memory_on_node
from egmctl.units import round_up

T = TypeVar("T")

TOUCH_THREADS = 8
"""Threads that write memory for the first time; the kernel zeroes a page at a few GB/s a thread."""

_MPOL_BIND = 2  # linux/mempolicy.h
_MADV_POPULATE_WRITE = 23  # asm-generic/mman-common.h

_libc = ctypes.CDLL(None, use_errno=True)
_libc.syscall.restype = ctypes.c_long


@dataclass(frozen=True, slots=True)
class Node:
    """A NUMA node of the host."""

    id: int
    cpus: tuple[int, ...] = ()
    """Its CPUs; none where it has memory only, or where they are not known."""


def on_node(node: Node, work: Callable[[], T]) -> tuple[T, str | None]:
    """Do something in a thread that runs on a node's CPUs and gets its new pages there.

    The thread ends with it, so nothing has to be set back.

    Returns
    -------
    tuple
        What the work returned, and what of the binding was refused: one phrase, ``None`` if nothing was.
    """
    found: list[T] = []
    refused: list[str] = []
    raised: list[BaseException] = []

    def run() -> None:
        refused.extend(_bind_thread(node))
        try:
            found.append(work())
        except BaseException as error:
            raised.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    if raised:
        raise raised[0]
    return found[0], "; ".join(refused) or None


def bind_pages(node: Node, address: int, size_bytes: int) -> str | None:
    """Have the pages of a mapping come from a node once they are touched; return what was refused."""
    mask, bits = _mask(node)
    return _call("mbind", ctypes.c_void_p(address), ctypes.c_ulong(size_bytes), _MPOL_BIND, mask, bits, 0)


def touch(node: Node, address: int, size_bytes: int, *, huge: bool = False) -> None:
    """Write memory for the first time, by threads that run on the node.

    Parameters
    ----------
    huge
        It is of the kernel's huge pages: where one is missing (a hugetlb cgroup's limit, others took it), a write ends
        the process with SIGBUS. So the kernel is told to make them first, where it can be (Linux 5.14).

    Raises
    ------
    OSError
        If the kernel has no such pages for it: EFAULT or ENOMEM (madvise(2), MADV_POPULATE_WRITE).
    """
    count = max(1, min(TOUCH_THREADS, len(_usable(node))))
    edges = [size_bytes * number // count for number in range(count + 1)]

    failed: list[OSError] = []

    def write(start: int, end: int) -> None:
        _bind_thread(node)
        if huge and (code := _populate(address + start, address + end)):
            failed.append(
                OSError(code, f"the kernel gave no page on NUMA node {node.id} (madvise: {os.strerror(code)})")
            )
            return
        ctypes.memset(address + start, 0, end - start)

    threads = [threading.Thread(target=write, args=part) for part in pairwise(edges)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if failed:
        raise failed[0]


def _populate(start: int, end: int) -> int:
    """Have the kernel make the pages of a mapping; return why not, as errno, and 0 where the kernel is too old."""
    start -= start % mmap.PAGESIZE
    breadcrumb.enter("madvise")
    result = _libc.madvise(ctypes.c_void_p(start), ctypes.c_size_t(end - start), _MADV_POPULATE_WRITE)
    breadcrumb.leave()
    code = 0 if result == 0 else ctypes.get_errno()
    return 0 if code == errno.EINVAL else code


def _bind_thread(node: Node) -> Sequence[str]:
    refused = []
    if cpus := _usable(node):
        os.sched_setaffinity(0, cpus)
    elif node.cpus:
        refused.append(f"no CPU of NUMA node {node.id} may be used")
    mask, bits = _mask(node)
    if failed := _call("set_mempolicy", _MPOL_BIND, mask, bits):
        refused.append(failed)
    return refused


def _usable(node: Node) -> set[int]:
    return set(node.cpus) & os.sched_getaffinity(0)


def _mask(node: Node) -> tuple[ctypes.Array[ctypes.c_ulong], ctypes.c_ulong]:
    """Return a set of nodes as the kernel takes it, and its size in bits plus the one that the kernel takes off."""
    width = 8 * ctypes.sizeof(ctypes.c_ulong)
    words = (ctypes.c_ulong * (node.id // width + 1))()
    words[node.id // width] = 1 << node.id % width
    return words, ctypes.c_ulong(len(words) * width + 1)


def _call(name: str, *arguments: object) -> str | None:
    number = NUMBERS.get(platform.machine(), {}).get(name)
    if number is None:
        return f"{name} is not known on {platform.machine()}"
    # An int would leave half of its register to chance.
    words = [ctypes.c_long(argument) if isinstance(argument, int) else argument for argument in arguments]
    breadcrumb.enter(name)
    result = _libc.syscall(ctypes.c_long(number), *words)
    breadcrumb.leave()
    return None if result == 0 else f"{name}: {os.strerror(ctypes.get_errno())}"


class HostNumaPoolMemory:
    """One allocation from a memory pool of its own on a host NUMA node.

    Parameters
    ----------
    node
        The operating system's NUMA node id.
    size_bytes
        Also, rounded up, the most that the pool may grow to.
    contexts
        The GPUs that get access, at least one; the first one's default stream allocates and frees.
    """

    pageable = False
    refused: str | None = None
    touch_ms: float | None = None
    granularity: Granularity | None = None
    own_pages = False

    def __init__(self, node: int, size_bytes: int, contexts: Sequence[Context]) -> None:
        started = time.perf_counter()
        self._context = contexts[0]
        self._context.make_current()
        with ReleaseStack() as undo:
            pool = create_pool(undo, memory_on_node(node), size_bytes, contexts)
            pointer = call("cuMemAllocFromPoolAsync", size_bytes, pool, DEFAULT_STREAM)
            self.address = settled(undo, pool, pointer)
            self._undo = undo.pop_all()
        self.size_bytes = size_bytes
        self.allocate_ms = ms_since(started)

    def close(self) -> None:
        """Free the memory and destroy the pool."""
        self._context.make_current()
        self._undo.close()


class PinnedMemory:
    """Host memory from cuMemHostAlloc, asked for by a thread that is bound to the node; every GPU reaches it.

    Parameters
    ----------
    context
        Any GPU of the process: the memory is portable.
    """

    pageable = False
    touch_ms: float | None = None
    granularity: Granularity | None = None
    own_pages = False

    def __init__(self, node: Node, size_bytes: int, context: Context) -> None:
        started = time.perf_counter()
        self._context = context
        self._pointer, self.refused = on_node(node, lambda: _host_alloc(context, size_bytes))
        self.address = int(self._pointer)
        self.size_bytes = size_bytes
        self.allocate_ms = ms_since(started)

    def close(self) -> None:
        """Free the memory."""
        self._context.make_current()
        call("cuMemFreeHost", self._pointer)


@dataclass(frozen=True, slots=True)
class Pages:
    """What pages memory of the process is made of: the kernel's usual ones by default."""

    hugetlb_bytes: int | None = None
    """Of one huge page of the kernel's pools; there must be enough free ones. Before Linux 5.14 the first write to a
    missing one ends the process (SIGBUS)."""
    transparent: bool = False
    """The kernel is advised to make transparent huge pages of it."""


class SystemMemory:
    """Plain memory of the process on a node, written once; only GPUs with access to pageable memory reach it.

    Raises
    ------
    OSError
        If the kernel does not map such pages, or has too few.
    """

    pageable = True
    granularity: Granularity | None = None
    own_pages = True

    def __init__(self, node: Node, size_bytes: int, pages: Pages = Pages()) -> None:
        started = time.perf_counter()
        self._map = _mapped(size_bytes, pages)
        self._start = ctypes.c_char.from_buffer(self._map)
        self.address = ctypes.addressof(self._start)
        self.size_bytes = size_bytes
        self.refused = bind_pages(node, self.address, size_bytes)
        self.allocate_ms = ms_since(started)
        started = time.perf_counter()
        try:
            touch(node, self.address, size_bytes, huge=pages.hugetlb_bytes is not None)
        except OSError:
            self.close()
            raise
        self.touch_ms: float | None = ms_since(started)

    def close(self) -> None:
        """Unmap the memory."""
        # Python keeps a mapping whose memory is exported.
        del self._start
        self._map.close()


class RegisteredMemory:
    """Memory of the process on a node, written once and then pinned by cuMemHostRegister; every GPU reaches it.

    Parameters
    ----------
    context
        Any GPU of the process: the memory is portable.
    """

    pageable = False
    granularity: Granularity | None = None
    own_pages = True

    def __init__(self, node: Node, size_bytes: int, context: Context, pages: Pages = Pages()) -> None:
        cuda = bindings()
        self._context = context
        with ReleaseStack() as undo:
            self._memory = SystemMemory(node, size_bytes, pages)
            undo.callback(self._memory.close)
            context.make_current()
            started = time.perf_counter()
            call(
                "cuMemHostRegister",
                self._memory.address,
                size_bytes,
                cuda.CU_MEMHOSTREGISTER_PORTABLE | cuda.CU_MEMHOSTREGISTER_DEVICEMAP,
            )
            undo.callback(call, "cuMemHostUnregister", self._memory.address)
            self._undo = undo.pop_all()
        self.address = self._memory.address
        self.size_bytes = size_bytes
        self.refused = self._memory.refused
        self.allocate_ms = self._memory.allocate_ms + ms_since(started)
        self.touch_ms = self._memory.touch_ms

    def close(self) -> None:
        """Unpin the memory and unmap it."""
        self._context.make_current()
        self._undo.close()


class ManagedMemory:
    """Managed memory whose pages are to stay on a host node, and which GPUs reach there without moving it.

    Preferred location and access by each GPU are advice: what does not keep to it shows in where the pages lie.

    Parameters
    ----------
    contexts
        The GPUs that get access, at least one.
    """

    pageable = True
    """A copy of it may wait for pages to be mapped or moved."""
    refused: str | None = None
    granularity: Granularity | None = None
    own_pages = False

    def __init__(self, node: Node, size_bytes: int, contexts: Sequence[Context]) -> None:
        started = time.perf_counter()
        self._context = contexts[0]
        self._context.make_current()
        with ReleaseStack() as undo:
            pointer = call("cuMemAllocManaged", size_bytes, bindings().CUmemAttach_flags.CU_MEM_ATTACH_GLOBAL.value)
            undo.callback(call, "cuMemFree", pointer)
            _advise(pointer, size_bytes, "SET_PREFERRED_LOCATION", memory_on_node(node.id))
            for context in contexts:
                _advise(pointer, size_bytes, "SET_ACCESSED_BY", on_gpu(context))
            self._undo = undo.pop_all()
        self.address = int(pointer)
        self.size_bytes = size_bytes
        self.allocate_ms = ms_since(started)
        started = time.perf_counter()
        touch(node, self.address, size_bytes)
        self.touch_ms: float | None = ms_since(started)

    def close(self) -> None:
        """Free the memory."""
        self._context.make_current()
        self._undo.close()


_MAP_HUGETLB, _MAP_HUGE_SHIFT = 0x40000, 26  # asm-generic/mman-common.h, linux/mman.h: the same on x86-64 and arm64


def _mapped(size_bytes: int, pages: Pages) -> mmap.mmap:
    flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS
    if pages.hugetlb_bytes is not None:
        order = pages.hugetlb_bytes.bit_length() - 1
        # A mapping of huge pages is a whole number of them.
        whole = round_up(size_bytes, pages.hugetlb_bytes)
        return mmap.mmap(-1, whole, flags=flags | _MAP_HUGETLB | order << _MAP_HUGE_SHIFT)
    found = mmap.mmap(-1, size_bytes, flags=flags)
    if pages.transparent:
        try:
            found.madvise(mmap.MADV_HUGEPAGE)
        except OSError:
            found.close()
            raise
    return found


def _advise(pointer: Any, size_bytes: int, advice: str, place: Any) -> None:
    """Advise the driver about managed memory, by the form of the call that takes a location (CUDA 12.2)."""
    cuda = bindings()
    name = "cuMemAdvise_v2" if hasattr(cuda, "cuMemAdvise_v2") else "cuMemAdvise"
    call(name, pointer, size_bytes, getattr(cuda.CUmem_advise, f"CU_MEM_ADVISE_{advice}"), place)


def _host_alloc(context: Context, size_bytes: int) -> Any:
    cuda = bindings()
    context.make_current()
    return call("cuMemHostAlloc", size_bytes, cuda.CU_MEMHOSTALLOC_PORTABLE | cuda.CU_MEMHOSTALLOC_DEVICEMAP)


class DefaultPool:
    """One of these pools.

    Parameters
    ----------
    context
        The GPU whose pool it is; of the host's pools any one: its default stream allocates and frees.
    place
        Of a pool of the host (``on_node``, ``on_host``), which the driver has from CUDA 13.0 on.

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
        self._on_host = place is not None
        if place is None:
            self._pool = call("cuDeviceGetDefaultMemPool", context.device)
        else:
            self._pool = _of_host(place)
        self._before: dict[int, tuple[Any, Any]] = {}
        self._used = 0

    def open_to(self, contexts: Sequence[Context]) -> None:
        """Let GPUs read and write all memory of the pool, until the last that was allocated here is given back.

        Where nothing comes to be allocated, :meth:`close_unused` takes the access away.
        """
        wanted = bindings().CUmemAccess_flags.CU_MEM_ACCESS_FLAGS_PROT_READWRITE
        changed: dict[int, tuple[Any, Any]] = {}
        for context in contexts:
            own = context is self.context and not self._on_host
            if own or context.ordinal in self._before:
                continue
            place = on_gpu(context)
            before = call("cuMemPoolGetAccess", self._pool, place)
            if before != wanted:
                changed[context.ordinal] = place, before
        if changed:
            self._set([place for place, _ in changed.values()])
            self._before |= changed

    def use(self, undo: ReleaseStack) -> None:
        """Count one more that uses the pool; ``undo`` gets the way back, which closes it after the last."""
        self._used += 1
        undo.callback(self._let_go)

    def allocate(self, undo: ReleaseStack, size_bytes: int) -> int:
        """Return the address of new memory; ``undo`` gets the way back."""
        self.context.make_current()
        pointer = call("cuMemAllocFromPoolAsync", size_bytes, self._pool, DEFAULT_STREAM)
        return settled(undo, self._pool, pointer)

    def close_unused(self) -> None:
        """Close where there is no memory from the pool."""
        if not self._used:
            self.close()

    def close(self) -> None:
        """Give each GPU the access that it had before; the pool stays."""
        if self._before:
            places, flags = zip(*self._before.values(), strict=True)
            self._before = {}
            self.context.make_current()
            self._set(places, flags)

    def _set(self, places: Sequence[Any], flags: Sequence[Any] | None = None) -> None:
        access = access_from(places)
        for descriptor, had in zip(access, flags or (), strict=flags is not None):
            descriptor.flags = had
        call("cuMemPoolSetAccess", self._pool, access, len(access))

    def _let_go(self) -> None:
        self._used -= 1
        self.close_unused()


def _of_host(place: Any) -> Any:
    pinned = bindings().CUmemAllocationType.CU_MEM_ALLOCATION_TYPE_PINNED
    try:
        return call("cuMemGetDefaultMemPool", place, pinned)
    except DriverTooOld as error:
        why = f"{error.name}; default pools of the host come with CUDA 13.0 (driver 580)"
        raise DriverTooOld(error.call, error.number, why) from error


class DefaultPoolMemory:
    """One allocation from a default pool.

    Parameters
    ----------
    contexts
        The GPUs that get access.
    node
        That a thread which allocates is bound to: the host's pool is of no NUMA node.
    """

    pageable = False
    touch_ms: float | None = None
    granularity: Granularity | None = None
    own_pages = False

    def __init__(
        self, pool: DefaultPool, size_bytes: int, contexts: Sequence[Context] = (), node: Node | None = None
    ) -> None:
        started = time.perf_counter()
        self._context = pool.context
        self.refused: str | None = None
        with ReleaseStack() as undo:
            pool.use(undo)
            pool.open_to(contexts)
            if node is None:
                self.address = pool.allocate(undo, size_bytes)
            else:
                self.address, self.refused = on_node(node, lambda: pool.allocate(undo, size_bytes))
            self._undo = undo.pop_all()
        self.size_bytes = size_bytes
        self.allocate_ms = ms_since(started)

    def close(self) -> None:
        """Free the memory and trim the pool, which stays."""
        self._context.make_current()
        self._undo.close()
