"""More kinds of memory on a host NUMA node, each one class.

:class:`HostNumaPoolMemory` is the pool's way to HOST_NUMA memory (:class:`egmctl.gpu.memory.HostNumaMemory`); the
others are what to set beside it.
"""

from __future__ import annotations

import ctypes
import mmap
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from egmctl.driver.cuda import bindings, call
from egmctl.gpu import numa
from egmctl.gpu.clock import ms_since
from egmctl.gpu.context import Context
from egmctl.gpu.memory import DEFAULT_STREAM, Granularity, create_pool, on_gpu, on_node, settled
from egmctl.gpu.numa import Node
from egmctl.gpu.release import ReleaseStack
from egmctl.units import round_up


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
            pool = create_pool(undo, on_node(node), size_bytes, contexts)
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
        self._pointer, self.refused = numa.on_node(node, lambda: _host_alloc(context, size_bytes))
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
        self.refused = numa.bind_pages(node, self.address, size_bytes)
        self.allocate_ms = ms_since(started)
        started = time.perf_counter()
        try:
            numa.touch(node, self.address, size_bytes, huge=pages.hugetlb_bytes is not None)
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
            _advise(pointer, size_bytes, "SET_PREFERRED_LOCATION", on_node(node.id))
            for context in contexts:
                _advise(pointer, size_bytes, "SET_ACCESSED_BY", on_gpu(context))
            self._undo = undo.pop_all()
        self.address = int(pointer)
        self.size_bytes = size_bytes
        self.allocate_ms = ms_since(started)
        started = time.perf_counter()
        numa.touch(node, self.address, size_bytes)
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
