"""Fill memory with a pattern that a seed makes, overwrite it with poison, and check it against the pattern.

Every byte is made and checked on the GPU. The pattern is the one that ``kernels/pattern.cu`` defines, with
:func:`pattern_words` as its twin. Filling, poisoning and checking are queued: several GPUs work at the same time.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from egmctl.gpu.chase import Result, Results, read_words
from egmctl.gpu.program import Kernels
from egmctl.gpu.timing import Stream

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

WORD_BYTES = 8
VECTOR_BYTES = 16
"""The kernels move so many at a time: sizes and offsets are multiples of it."""
POISON = 0xDEADBEEF
"""4-byte word that a destination is filled with before each sample, so that a copy that did not happen is seen."""

THREADS = 512
BLOCKS = 4
"""Blocks on each multiprocessor: it holds so many threads."""

_MASK = (1 << 64) - 1
_GAMMA = 0x9E3779B97F4A7C15


@dataclass(frozen=True, slots=True)
class Region:
    """Part of a buffer and what is to be in it."""

    address: int
    size_bytes: int
    seed: int
    """The buffer's."""
    offset_bytes: int = 0
    """This part's place in the buffer."""
    pageable: bool = False

    @property
    def own_seed(self) -> int:
        """The seed whose pattern, from its first word on, is this part of the buffer's pattern."""
        return (self.seed + self.offset_bytes // WORD_BYTES * _GAMMA) & _MASK


@dataclass(frozen=True, slots=True)
class Difference:
    """A difference of memory from the pattern."""

    words: int
    """The number of 8-byte words that differ; 0 where the check's result is wrong and no word was located."""
    first_offset_bytes: int
    """In the buffer."""
    expected: int
    found: int
    """The word at that offset, read again; equal to ``expected`` if only the check's own read went wrong."""


Check = Callable[[], Difference | None]
"""A check under way: waits for it and returns what differs, ``None`` if every word is as it should be."""


def poison(stream: Stream, region: Region) -> None:
    """Begin to overwrite memory with :data:`POISON`."""
    if region.pageable:
        # The driver's memset takes memory that it knows.
        import numpy as np

        words = (ctypes.c_uint32 * (region.size_bytes // 4)).from_address(region.address)
        np.ctypeslib.as_array(words).fill(POISON)
    else:
        stream.fill(region.address, region.size_bytes, POISON)


class Pattern:
    """Fills and checks the memory that a GPU reaches, all of it and on the GPU."""

    def __init__(self, kernels: dict[str, Kernels], results: Results) -> None:
        self._kernels = kernels
        self._results = results
        self._sums: dict[tuple[int, int], int] = {}

    def fill(self, stream: Stream, region: Region) -> None:
        """Begin to write the pattern."""
        vectors = region.size_bytes // VECTOR_BYTES
        self._launch("fill_pattern", stream, region.address, vectors, region.own_seed, 1, 1)

    def check(self, stream: Stream, region: Region) -> Check:
        """Begin to compare with the pattern."""
        result = self._results.take(stream)
        result.clear()
        vectors = region.size_bytes // VECTOR_BYTES
        self._launch("verify_pattern", stream, region.address, vectors, region.own_seed, result.address)
        result.fetch()

        return partial(
            first_difference, stream, result, region, lambda first: int(pattern_words(region.own_seed, first, 1)[0])
        )

    def sum(self, stream: Stream, region: Region) -> int:
        """Return the sum of the pattern's words, modulo 2^64, without reading the memory."""
        key = region.own_seed, region.size_bytes
        if key not in self._sums:
            result = self._results.take(stream)
            result.clear()
            self._launch("sum_pattern", stream, 0, region.size_bytes // WORD_BYTES, region.own_seed, result.address)
            result.fetch()
            self._sums[key] = result.words()[0]
        return self._sums[key]

    def _launch(self, name: str, stream: Stream, *arguments: int) -> None:
        blocks = BLOCKS * stream.context.multiprocessors
        self._kernels[stream.context.bus_id].launch(name, stream.handle, blocks, THREADS, *arguments)


def first_difference(
    stream: Stream, result: Result, region: Region, expected: Callable[[int], int]
) -> Difference | None:
    """Wait for a kernel that counts differing words, and return the first of them; ``None``: no word differs.

    Parameters
    ----------
    result
        The number of words that differ, and the complement of the first one's index; both are 0 where none does.
    expected
        Returns the word that should be at an index.
    """
    count, inverse = result.words()
    if count == inverse == 0:
        return None
    first = inverse ^ _MASK
    if not 0 < count <= region.size_bytes // WORD_BYTES - first:
        # No kernel gives such a pair: it was damaged on its way, as the data may have been.
        return Difference(0, region.offset_bytes, 0, count)
    (word,) = read_words(stream, region.address + first * WORD_BYTES, 1)
    return Difference(count, region.offset_bytes + first * WORD_BYTES, expected(first), word)


def pattern_words(seed: int, first: int, count: int) -> NDArray[np.uint64]:
    """Return ``count`` words of a seed's pattern from word ``first`` on, as ``kernels/pattern.cu`` defines it."""
    import numpy as np

    start = (seed + (first + 1) * _GAMMA) & _MASK
    z = np.arange(count, dtype=np.uint64) * np.uint64(_GAMMA) + np.uint64(start)
    z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    words: NDArray[np.uint64] = z ^ (z >> np.uint64(31))
    return words
