"""Whether HOST_NUMA memory comes from a pool that the driver uses by itself, as the guide's chapter on EGM has it.

The chapter makes a pool of HOST_NUMA memory the GPU's current pool with cudaDeviceSetMemPool, for cudaMallocAsync
(CUDA Programming Guide, "Extended GPU Memory"). On H200, driver 580, cuDeviceSetMemPool takes only a pool of the GPU
itself (CUDA_ERROR_INVALID_VALUE); allocations that name the pool work everywhere.
"""

from __future__ import annotations

from typing import Any

from egmctl.driver.cuda import bindings, call
from egmctl.gpu import trials
from egmctl.gpu.context import Context, ReleaseStack
from egmctl.gpu.memory import MappedMemory, create_pool, location


def current_pool(context: Context, node: int, seed: int) -> None:
    """Make a pool of a NUMA node the GPU's current one, allocate without naming it, and write and read the memory.

    The GPU's pool from before is its current one again at the end.

    Raises
    ------
    DriverCallError
        A call failed; ``cuDeviceSetMemPool`` if the driver takes no pool of host memory.
    Corrupt
        Bytes are wrong.
    """
    with ReleaseStack() as undo:
        context.make_current()
        pool = create_pool(undo, location("HOST_NUMA", node), trials.SIZE_BYTES, [context])
        before = call("cuDeviceGetMemPool", context.device)
        call("cuDeviceSetMemPool", context.device, pool)
        undo.callback(call, "cuDeviceSetMemPool", context.device, before)
        _round_trip(context, undo.keep(_FromPool(context)), seed)


def location_pool(context: Context, node: int, seed: int) -> None:
    """Set a pool for a NUMA node and ask for it, allocate from what is answered, and write and read the memory.

    The node's pool from before is set again at the end. Both calls come with CUDA 13.0.

    Raises
    ------
    DriverCallError
        A call failed.
    Corrupt
        Another pool is answered than was set, or bytes are wrong.
    """
    pinned = bindings().CUmemAllocationType.CU_MEM_ALLOCATION_TYPE_PINNED
    place = location("HOST_NUMA", node)
    with ReleaseStack() as undo:
        context.make_current()
        pool = create_pool(undo, place, trials.SIZE_BYTES, [context])
        before = call("cuMemGetMemPool", place, pinned)
        call("cuMemSetMemPool", place, pinned, pool)
        undo.callback(call, "cuMemSetMemPool", place, pinned, before)
        answered = call("cuMemGetMemPool", place, pinned)
        if int(answered) != int(pool):
            raise trials.Corrupt("cuMemGetMemPool does not return the pool that cuMemSetMemPool has set")
        _round_trip(context, undo.keep(_FromPool(context, answered)), seed)


class _FromPool(MappedMemory):
    """An allocation from a pool, or without one from the GPU's current pool."""

    def __init__(self, context: Context, pool: Any | None = None) -> None:
        with self._making(trials.SIZE_BYTES, context) as undo:
            if pool is None:
                pointer = call("cuMemAllocAsync", trials.SIZE_BYTES, 0)
            else:
                pointer = call("cuMemAllocFromPoolAsync", trials.SIZE_BYTES, pool, 0)
            undo.callback(call, "cuCtxSynchronize")
            undo.callback(call, "cuMemFreeAsync", pointer, 0)
            call("cuCtxSynchronize")
            self.address = int(pointer)


def _round_trip(context: Context, memory: MappedMemory, seed: int) -> None:
    trials.put(context, memory, seed)
    trials.check_bytes(context, memory, seed, "written and read by the GPU")
