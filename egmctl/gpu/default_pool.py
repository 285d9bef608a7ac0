"""Memory from the driver's own pools: of a GPU, of a host NUMA node, and of the host.

Such a pool is there without being made, and whoever else allocates in the process shares it: what access a GPU had to
it before is given back with the last of our memory there.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

from egmctl.driver.cuda import bindings, call
from egmctl.errors import DriverTooOld
from egmctl.gpu import numa
from egmctl.gpu.clock import ms_since
from egmctl.gpu.context import Context
from egmctl.gpu.memory import DEFAULT_STREAM, Granularity, access_from, on_gpu, settled
from egmctl.gpu.numa import Node
from egmctl.gpu.release import ReleaseStack


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
                self.address, self.refused = numa.on_node(node, lambda: pool.allocate(undo, size_bytes))
            self._undo = undo.pop_all()
        self.size_bytes = size_bytes
        self.allocate_ms = ms_since(started)

    def close(self) -> None:
        """Free the memory and trim the pool, which stays."""
        self._context.make_current()
        self._undo.close()
