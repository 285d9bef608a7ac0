"""Programs that a process of its own runs on a node: ``python -m tests.gpu.programs NAME ARGUMENT...``.

They call what the bench is made of; as modules they are read by the type checker, as texts in tests they once were not.
"""

from __future__ import annotations

import sys
from collections.abc import Callable

import numpy as np

from egmctl.driver.cuda import call, initialise
from egmctl.gpu.chase import Chain, Reader, place
from egmctl.gpu.context import Context
from egmctl.gpu.memory import DeviceMemory
from egmctl.gpu.pattern import PatternKernels, Region, WordPairs, pattern_words
from egmctl.gpu.program import Kernels
from egmctl.gpu.timing import Stream


def kernels(bus_id: str) -> None:
    """Run the kernels of a pattern, and find bytes that are changed."""
    initialise()
    context = Context(bus_id)
    own, results, stream = Kernels(context), WordPairs({bus_id: context}), Stream(context)
    pattern = PatternKernels({bus_id: own}, results)
    count = 2 * (5 * 132 * 2 * 512 * 8 + 12345)
    memory = DeviceMemory(context, 8 * count)
    region = Region(memory.address, 8 * count, seed=7)
    pattern.fill(stream, region)
    words = np.empty(count, dtype=np.uint64)
    stream.copy(words.ctypes.data, memory.address, words.nbytes)
    stream.synchronize()
    assert (words == pattern_words(7, 0, count)).all()
    assert pattern.sum(stream, region) == int(words.sum(dtype=np.uint64))
    assert pattern.check(stream, region)() is None
    result = results.take(stream)
    result.clear()
    own.launch("sum_vectors", stream.handle, 264, 512, memory.address, count // 2, 3, 1, result.address)
    assert result.words()[0] == 3 * int(words.sum(dtype=np.uint64)) % 2**64
    for index in (count - 1, 12345, 12344):
        call("cuMemsetD8Async", memory.address + 8 * index + 3, 0x5A, 1, stream.handle)
    difference = pattern.check(stream, region)()
    assert difference is not None
    assert (difference.words, difference.first_offset_bytes) == (3, 8 * 12344), difference
    assert difference.expected == int(words[12344]) != difference.found


def walks(bus_id: str) -> None:
    """Walk chains by loads and by TMA, and find a line that is changed."""
    initialise()
    context = Context(bus_id)
    own, stream = Kernels(context), Stream(context)
    memory, reader = DeviceMemory(context, 2 << 20), Reader(stream, own)
    for seed in (0, 3):
        for kernel in ("chase", "chase_bulk"):
            chain = Chain(memory.address, memory.size_bytes, 128, seed)
            chain.make(stream, own)
            for loads, blocks, block in ((1, 1, 0), (10_001, context.multiprocessors, 5), (40_000, 1, 0)):
                reader.start_walk(chain, loads, warm=1001, block=block, blocks=blocks, kernel=kernel)
                walk = reader.end_walk(chain, loads)
                assert walk.wrong_offset is None, (seed, kernel, loads)
                assert walk.elapsed_ns > 0 or loads == 1
            call("cuMemsetD8", memory.address + place(500, chain.lines, seed) * 128, 0, 8)
            chain.rewind()
            reader.start_walk(chain, 900, warm=0, kernel=kernel)
            assert reader.end_walk(chain, 900).wrong_offset is not None, (seed, kernel)


def unaligned() -> None:
    """Ask for memory of a size that the driver refuses."""
    from tests.gpu import failing

    initialise()
    call("cuCtxSetCurrent", call("cuDevicePrimaryCtxRetain", call("cuDeviceGet", 0)))
    call("cuMemCreate", 1000, failing.properties(), 0)


PROGRAMS: dict[str, Callable[..., None]] = {"kernels": kernels, "walks": walks, "unaligned": unaligned}

if __name__ == "__main__":
    PROGRAMS[sys.argv[1]](*sys.argv[2:])
