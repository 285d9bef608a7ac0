"""Fill memory with a pattern that a seed makes, overwrite it with poison, and check it against the pattern.

With kernels every byte is made and checked on the GPU; without them numpy does the same on the host, slowly. The
pattern is the one that ``kernels/pattern.cu`` defines; :func:`pattern_words` is its twin.
"""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Protocol

from egmctl.gpu.context import Context
from egmctl.gpu.driver import call
from egmctl.gpu.memory import DeviceMemory, Memory
from egmctl.gpu.program import Kernels
from egmctl.gpu.timing import Stream

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

WORD_BYTES = 8
POISON = 0xDEADBEEF
"""4-byte word that a destination is filled with before each sample, so that a copy that did not happen is seen."""

_CHUNK_BYTES = 32 << 20
_MASK = (1 << 64) - 1


@dataclass(frozen=True, slots=True)
class Difference:
    """How memory differs from the pattern."""

    words: int
    """How many 8-byte words differ."""
    first_offset_bytes: int
    expected: int
    found: int
    """The word at that offset, read again; equal to ``expected`` if only the check's own read went wrong."""


class Pattern(Protocol):
    """Fills and checks the memory that a GPU reaches."""

    def fill(self, stream: Stream, memory: Memory, seed: int) -> None:
        """Write the pattern of ``seed``."""

    def check(self, stream: Stream, memory: Memory, seed: int) -> Difference | None:
        """Compare with the pattern of ``seed``; ``None`` if every word is as it should be."""

    def close(self) -> None:
        """Give back what it holds."""


def poison(stream: Stream, memory: Memory) -> None:
    """Overwrite memory with :data:`POISON`."""
    stream.context.make_current()
    call("cuMemsetD32Async", memory.address, POISON, memory.size_bytes // 4, stream.handle)
    stream.synchronize()


class KernelPattern:
    """Makes and checks the pattern on the GPU, all of it."""

    def __init__(self, kernels: dict[str, Kernels], contexts: dict[str, Context]) -> None:
        import numpy as np

        self._kernels = kernels
        # {0, 2**64 - 1}: no difference, no first one (kernels/pattern.cu).
        self._nothing = np.array([0, _MASK], dtype=np.uint64)
        with ExitStack() as undo:
            self._results = {}
            for bus_id, context in contexts.items():
                self._results[bus_id] = DeviceMemory(context, 2 * WORD_BYTES)
                undo.callback(self._results[bus_id].close)
            self._undo = undo.pop_all()

    def fill(self, stream: Stream, memory: Memory, seed: int) -> None:
        self._launch("fill_pattern", stream, memory.address, memory.size_bytes // WORD_BYTES, seed)
        stream.synchronize()

    def check(self, stream: Stream, memory: Memory, seed: int) -> Difference | None:
        result = self._results[stream.context.bus_id]
        stream.context.make_current()
        seen = self._nothing.copy()
        stream.copy(result.address, seen.ctypes.data, seen.nbytes)
        words = memory.size_bytes // WORD_BYTES
        self._launch("verify_pattern", stream, memory.address, words, seed, result.address)
        stream.copy(seen.ctypes.data, result.address, seen.nbytes)
        stream.synchronize()
        count, first = int(seen[0]), int(seen[1])
        if count == 0:
            return None
        stream.copy(seen.ctypes.data, memory.address + first * WORD_BYTES, WORD_BYTES)
        stream.synchronize()
        return Difference(count, first * WORD_BYTES, int(pattern_words(seed, first, 1)[0]), int(seen[0]))

    def close(self) -> None:
        self._undo.close()

    def _launch(self, name: str, stream: Stream, *arguments: int) -> None:
        blocks = 8 * stream.context.multiprocessors
        self._kernels[stream.context.bus_id].launch(name, stream.handle, blocks, 256, *arguments)


class HostPattern:
    """Makes and checks the pattern on the host and moves it by synchronous copies: for machines without NVRTC."""

    def fill(self, stream: Stream, memory: Memory, seed: int) -> None:
        stream.context.make_current()
        for offset, words in _chunks(memory.size_bytes):
            chunk = pattern_words(seed, offset // WORD_BYTES, words)
            stream.copy(memory.address + offset, chunk.ctypes.data, chunk.nbytes)
            stream.synchronize()

    def check(self, stream: Stream, memory: Memory, seed: int) -> Difference | None:
        import numpy as np

        stream.context.make_current()
        difference = None
        for offset, words in _chunks(memory.size_bytes):
            found = np.empty(words, dtype=np.uint64)
            stream.copy(found.ctypes.data, memory.address + offset, found.nbytes)
            stream.synchronize()
            expected = pattern_words(seed, offset // WORD_BYTES, words)
            wrong = np.flatnonzero(found != expected)
            if not len(wrong):
                continue
            if difference is None:
                first = wrong[0]
                at = offset + int(first) * WORD_BYTES
                difference = Difference(len(wrong), at, int(expected[first]), int(found[first]))
            else:
                difference = replace(difference, words=difference.words + len(wrong))
        return difference

    def close(self) -> None:
        """Nothing is held."""


def pattern_words(seed: int, first: int, count: int) -> NDArray[np.uint64]:
    """Return ``count`` words of a seed's pattern from word ``first`` on, as ``kernels/pattern.cu`` defines it."""
    import numpy as np

    start = (seed + (first + 1) * 0x9E3779B97F4A7C15) & _MASK
    z = np.arange(count, dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15) + np.uint64(start)
    z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return z ^ (z >> np.uint64(31))


def _chunks(size_bytes: int) -> list[tuple[int, int]]:
    """Return (offset in bytes, number of words) of each part of a buffer."""
    return [
        (offset, min(_CHUNK_BYTES, size_bytes - offset) // WORD_BYTES) for offset in range(0, size_bytes, _CHUNK_BYTES)
    ]
