"""Fill memory with a pattern generated from a seed, overwrite it with poison, and check it against the pattern.

The GPU generates and checks every byte. ``kernels/pattern.cu`` defines the pattern; :func:`pattern_words` computes the
same on the host. Fills and checks are queued, so that several GPUs work at the same time. A check leaves its result, a
pair of words, in its GPU's memory, and the host reads it later.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterator
from functools import partial
from itertools import cycle
from typing import TYPE_CHECKING, NamedTuple

from egmctl.dataclass import dataclass
from egmctl.gpu.context import Context, ReleaseStack
from egmctl.gpu.memory import DeviceMemory
from egmctl.gpu.program import Kernels
from egmctl.gpu.timing import Stream

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

WORD_BYTES = 8
VECTOR_BYTES = 16
"""The number of bytes that the kernels move at a time. Sizes and offsets are multiples of it."""
POISON = 0xDEADBEEF
"""The 4-byte word written to a destination before each sample, so that a missing copy is detected."""

_PAIR_BYTES = 16
_PAIRS = 256
"""The number of pairs per GPU, used in rotation: more than one step has in use at a time."""

THREADS = 512
BLOCKS = 4
"""The number of blocks per multiprocessor: 4 x 512 threads fill it."""

_MASK = (1 << 64) - 1
_GAMMA = 0x9E3779B97F4A7C15


@dataclass(frozen=True, slots=True)
class Region:
    """A part of a buffer and its expected pattern."""

    address: int
    size_bytes: int
    seed: int
    """The seed of the buffer's pattern."""
    offset_bytes: int = 0
    """The offset of this part in the buffer."""
    pageable: bool = False

    @property
    def own_seed(self) -> int:
        """The seed whose pattern starts with this part of the buffer's pattern."""
        return (self.seed + self.offset_bytes // WORD_BYTES * _GAMMA) & _MASK


class Difference(NamedTuple):
    """A difference between memory and its expected pattern."""

    words: int
    """The number of 8-byte words that differ; 0 if the check's own result is corrupt, so that no word is located."""
    first_offset_bytes: int
    """The offset of the first differing word in the buffer."""
    expected: int
    found: int
    """The word at that offset, read again. It equals ``expected`` if only the check's own read was wrong."""


PatternCheck = Callable[[], Difference | None]
"""A function that waits for a queued check and returns the difference; ``None`` if all words are correct."""


def poison(stream: Stream, region: Region) -> None:
    """Queue a memset of a region to :data:`POISON`. Pageable memory is overwritten by the host before the return."""
    if region.pageable:
        # The driver's memset accepts only memory that is known to the driver.
        import numpy as np

        words = (ctypes.c_uint32 * (region.size_bytes // 4)).from_address(region.address)
        np.ctypeslib.as_array(words).fill(POISON)
    else:
        stream.fill(region.address, region.size_bytes, POISON)


class PatternKernels:
    """The kernels, by bus id, that fill and check memory on each GPU."""

    def __init__(self, kernels: dict[str, Kernels], results: WordPairs) -> None:
        self._kernels = kernels
        self._results = results
        self._sums: dict[tuple[int, int], int] = {}

    def fill(self, stream: Stream, region: Region) -> None:
        """Queue a kernel that writes the region's pattern."""
        vectors = region.size_bytes // VECTOR_BYTES
        self._launch("fill_pattern", stream, region.address, vectors, region.own_seed, 1, 1)

    def check(self, stream: Stream, region: Region) -> PatternCheck:
        """Queue a kernel that compares the region with its pattern, and return the check."""
        result = self._results.take(stream)
        result.clear()
        vectors = region.size_bytes // VECTOR_BYTES
        self._launch("verify_pattern", stream, region.address, vectors, region.own_seed, result.address)
        return partial(
            first_difference, stream, result, region, lambda first: int(pattern_words(region.own_seed, first, 1)[0])
        )

    def sum(self, stream: Stream, region: Region) -> int:
        """Return the sum of the pattern's words, modulo 2^64, computed on the GPU without reading the region."""
        key = region.own_seed, region.size_bytes
        if key not in self._sums:
            result = self._results.take(stream)
            result.clear()
            self._launch("sum_pattern", stream, 0, region.size_bytes // WORD_BYTES, region.own_seed, result.address)
            self._sums[key] = result.words()[0]
        return self._sums[key]

    def _launch(self, name: str, stream: Stream, *arguments: int) -> None:
        blocks = BLOCKS * stream.context.multiprocessors
        self._kernels[stream.context.bus_id].launch(name, stream.handle, blocks, THREADS, *arguments)


class WordPair:
    """A pair of 8-byte words in a GPU's memory that a kernel writes.

    Parameters
    ----------
    address
        The address of the pair.
    """

    def __init__(self, stream: Stream, address: int) -> None:
        self.address = address
        self._stream = stream

    def clear(self) -> None:
        """Queue a memset of both words to 0."""
        self._stream.fill(self.address, _PAIR_BYTES)

    def words(self) -> tuple[int, int]:
        """Wait for the stream and return the words."""
        first, second = read_words(self._stream, self.address, 2)
        return first, second


class WordPairs:
    """The result pairs of all GPUs, whose contexts are given by bus id."""

    def __init__(self, contexts: dict[str, Context]) -> None:
        self._pairs: dict[str, Iterator[int]] = {}
        with ReleaseStack() as undo:
            for bus_id, context in contexts.items():
                pairs = undo.keep(DeviceMemory(context, _PAIR_BYTES * _PAIRS))
                self._pairs[bus_id] = cycle(range(pairs.address, pairs.address + pairs.size_bytes, _PAIR_BYTES))
            self.close = undo.pop_all().close

    def take(self, stream: Stream) -> WordPair:
        """Return the next pair of words of the stream's GPU."""
        return WordPair(stream, next(self._pairs[stream.context.bus_id]))


def read_words(stream: Stream, address: int, count: int) -> list[int]:
    """Copy ``count`` 8-byte words to the host through a stream, wait for the stream, and return them."""
    stream.context.make_current()
    words = (ctypes.c_uint64 * count)()
    stream.copy(ctypes.addressof(words), address, ctypes.sizeof(words))
    stream.synchronize()
    return list(words)


def first_difference(
    stream: Stream, result: WordPair, region: Region, expected: Callable[[int], int]
) -> Difference | None:
    """Wait for a kernel that counts differing words and return the difference; ``None`` if no word differs.

    Parameters
    ----------
    result
        The number of differing words and the complement of the first one's index; both are 0 if none differs.
    expected
        The function that returns the expected word at an index.
    """
    count, inverse = result.words()
    if count == inverse == 0:
        return None
    first = inverse ^ _MASK
    if not 0 < count <= region.size_bytes // WORD_BYTES - first:
        # No kernel writes such a pair: it was corrupted on its way, as the data may be.
        return Difference(0, region.offset_bytes, 0, count)
    (word,) = read_words(stream, region.address + first * WORD_BYTES, 1)
    return Difference(count, region.offset_bytes + first * WORD_BYTES, expected(first), word)


CPU_PIECE_BYTES, CPU_PIECES = 4096, 512
"""The pieces that the CPU compares, spread over a region: all of 256 MiB would take it a second."""


def difference_by_cpu(region: Region) -> Difference | None:
    """Compare pieces all over a region of host memory with its pattern by the CPU; the GPU's work must have completed.

    It finds what the GPU's own comparison cannot: that the GPU reads other bytes there than the CPUs.
    """
    import numpy as np

    whole = (ctypes.c_uint64 * (region.size_bytes // WORD_BYTES)).from_address(region.address)
    # The first piece begins where the region does, and the last one ends where it does.
    count = min(CPU_PIECES, -(-region.size_bytes // CPU_PIECE_BYTES))
    last = max(0, region.size_bytes - CPU_PIECE_BYTES) // WORD_BYTES
    starts = np.linspace(0, last, count, dtype=np.uint64)
    piece = np.arange(min(CPU_PIECE_BYTES, region.size_bytes) // WORD_BYTES, dtype=np.uint64)
    indices = (starts[:, np.newaxis] + piece).ravel()
    held = np.ctypeslib.as_array(whole)
    # Pieces of a small region overlap.
    wrong = np.unique(indices[held[indices] != _words_at(region.own_seed, indices)])
    if not len(wrong):
        return None
    first = int(wrong[0])
    expected, word = int(pattern_words(region.own_seed, first, 1)[0]), int(held[first])
    return Difference(len(wrong), region.offset_bytes + first * WORD_BYTES, expected, word)


def pattern_words(seed: int, first: int, count: int) -> NDArray[np.uint64]:
    """Return ``count`` words of a seed's pattern, starting at word ``first``."""
    import numpy as np

    return _words_at((seed + first * _GAMMA) & _MASK, np.arange(count, dtype=np.uint64))


def _words_at(seed: int, indices: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """Return the words of a seed's pattern at some indices, as ``kernels/pattern.cu`` defines it."""
    import numpy as np

    words: NDArray[np.uint64] = indices * np.uint64(_GAMMA)
    words += np.uint64((seed + _GAMMA) & _MASK)
    words ^= words >> np.uint64(30)
    words *= np.uint64(0xBF58476D1CE4E5B9)
    words ^= words >> np.uint64(27)
    words *= np.uint64(0x94D049BB133111EB)
    words ^= words >> np.uint64(31)
    return words
