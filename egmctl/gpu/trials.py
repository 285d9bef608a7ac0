"""Small copies whose every byte is compared: does a path carry data, not how fast.

The GPU's copy engine moves the data, the pattern is made and compared on the host: no kernel, so nothing is compiled.
"""

from __future__ import annotations

from contextlib import closing
from typing import TYPE_CHECKING

from egmctl.driver.cuda import call
from egmctl.gpu.context import Context
from egmctl.gpu.cpu_threads import words_of
from egmctl.gpu.memory import DeviceMemory, HostNumaMemory, Memory
from egmctl.gpu.pattern import POISON, WORD_BYTES, pattern_words

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

SIZE_BYTES = 2 << 20
"""The size of every buffer: the granularity of cuMemCreate on H200, so the least there is."""


class Corrupt(Exception):
    """Every call succeeded, and what arrived is not what was sent; the message says where."""


def peer_round_trip(context: Context, peer: Context, seed: int) -> None:
    """Have a GPU write a peer's memory and read it, directly; compare every byte.

    Raises
    ------
    Corrupt
        Also where nothing arrived at all: every destination is overwritten first.
    """
    context.enable_access_to(peer)
    with closing(DeviceMemory(peer, SIZE_BYTES)) as other:
        _poison(peer, other)
        put(context, other, seed)
        _compare(_to_host(peer, other), seed, "written to the peer")
        _from_host(peer, other, seed + 1)
        check(context, other, seed + 1, "read from the peer")


def host_round_trip(context: Context, memory: HostNumaMemory, seed: int) -> None:
    """Have a GPU write host memory and the CPU compare every byte, then the other way round.

    Raises
    ------
    Corrupt
        The message says which way.
    """
    words = words_of(memory, SIZE_BYTES)
    words[:] = POISON
    put(context, memory, seed)
    _compare(words, seed, "written by the GPU")
    words[:] = _pattern(seed + 1)
    check(context, memory, seed + 1, "read by the GPU")


def put(context: Context, memory: Memory, seed: int) -> None:
    """Write a seed's pattern into memory by a GPU: from its own memory, so that the host has no part in it."""
    with closing(DeviceMemory(context, SIZE_BYTES)) as near:
        _from_host(context, near, seed)
        _copy(context, memory, near)


def check(context: Context, memory: Memory, seed: int, what: str) -> None:
    """Read memory by a GPU into its own, and compare every byte.

    Raises
    ------
    Corrupt
        Naming ``what`` and the first difference.
    """
    with closing(DeviceMemory(context, SIZE_BYTES)) as near:
        _poison(context, near)
        _copy(context, near, memory)
        _compare(_to_host(context, near), seed, what)


def _from_host(context: Context, memory: Memory, seed: int) -> None:
    words = _pattern(seed)
    context.make_current()
    call("cuMemcpyHtoD", memory.address, words.ctypes.data, SIZE_BYTES)


def _to_host(context: Context, memory: Memory) -> NDArray[np.uint64]:
    import numpy as np

    words = np.empty(SIZE_BYTES // WORD_BYTES, dtype=np.uint64)
    context.make_current()
    call("cuMemcpyDtoH", words.ctypes.data, memory.address, SIZE_BYTES)
    return words


def _copy(context: Context, destination: Memory, source: Memory) -> None:
    """Copy by this GPU's copy engine, and wait."""
    context.make_current()
    call("cuMemcpyAsync", destination.address, source.address, SIZE_BYTES, 0)
    call("cuCtxSynchronize")


def _poison(context: Context, memory: Memory) -> None:
    context.make_current()
    call("cuMemsetD32", memory.address, POISON, SIZE_BYTES // 4)
    call("cuCtxSynchronize")


def _pattern(seed: int) -> NDArray[np.uint64]:
    return pattern_words(seed, 0, SIZE_BYTES // WORD_BYTES)


def _compare(words: NDArray[np.uint64], seed: int, what: str) -> None:
    expected = _pattern(seed)
    (wrong,) = (words != expected).nonzero()
    if len(wrong):
        first = int(wrong[0])
        raise Corrupt(
            f"{what}: {len(wrong)} of {len(expected)} words differ, the first at offset {first * WORD_BYTES}: "
            f"expected {int(expected[first]):#018x}, found {int(words[first]):#018x}"
        )
