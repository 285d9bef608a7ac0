"""Small copies that verify every byte, to check that a path works, not how fast it is.

The GPU's copy engine moves the data, and the host generates and compares the pattern. No kernel has to be compiled.
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
"""The size of every buffer, the granularity of cuMemCreate on H200."""


class Corrupt(Exception):
    """The received data differ from the data sent, although every call succeeded. The message gives the location."""


def peer_round_trip(context: Context, peer: Context, seed: int) -> None:
    """Write a peer's memory from a GPU and read it, with direct access, and compare every byte.

    Raises
    ------
    Corrupt
        The data are wrong or did not arrive. Every destination is overwritten first.
    """
    context.enable_access_to(peer)
    with closing(DeviceMemory(peer, SIZE_BYTES)) as other:
        _poison(peer, other)
        put(context, other, seed)
        _compare(_to_host(peer, other), seed, "written to the peer")
        _from_host(peer, other, seed + 1)
        check(context, other, seed + 1, "read from the peer")


def host_round_trip(context: Context, memory: HostNumaMemory, seed: int) -> None:
    """Write host memory from a GPU and read it with the GPU, and compare every byte.

    Raises
    ------
    Corrupt
        The data are wrong. The message names the direction.
    """
    words = words_of(memory, SIZE_BYTES)
    words[:] = POISON
    put(context, memory, seed)
    _compare(words, seed, "written by the GPU")
    words[:] = _pattern(seed + 1)
    check(context, memory, seed + 1, "read by the GPU")


def put(context: Context, memory: Memory, seed: int) -> None:
    """Write a seed's pattern to memory by a GPU, from a buffer in the GPU's own memory."""
    with closing(DeviceMemory(context, SIZE_BYTES)) as near:
        _from_host(context, near, seed)
        _copy(context, memory, near)


def check(context: Context, memory: Memory, seed: int, what: str) -> None:
    """Read memory by a GPU into its own, and compare every byte with a seed's pattern.

    Raises
    ------
    Corrupt
        The data differ. The message names ``what`` and the first difference.
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
    """Copy with this GPU's copy engine and wait."""
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
