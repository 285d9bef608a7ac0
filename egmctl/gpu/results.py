"""Small results of kernels: 8-byte words in GPU memory, and how the host sees them."""

from __future__ import annotations

import ctypes
from itertools import cycle

from egmctl.driver.cuda import call
from egmctl.gpu.context import Context
from egmctl.gpu.memory import DeviceMemory, PinnedWords
from egmctl.gpu.release import ReleaseStack
from egmctl.gpu.timing import Stream

_PAIR_BYTES = 16
_PAIRS = 256
"""More than one step can have under way on one GPU; after so many they are used again."""


class Result:
    """One pair of words in a GPU's memory, for a kernel to write to."""

    def __init__(self, stream: Stream, address: int, seen: ctypes.Array[ctypes.c_uint64], seen_address: int) -> None:
        self.address = address
        self._stream = stream
        self._seen = seen
        self._seen_address = seen_address

    def clear(self) -> None:
        """Queue: set both words to 0."""
        self._stream.context.make_current()
        call("cuMemsetD32Async", self.address, 0, _PAIR_BYTES // 4, self._stream.handle)

    def fetch(self) -> None:
        """Queue: let the host see the words."""
        self._stream.context.make_current()
        self._stream.copy(self._seen_address, self.address, _PAIR_BYTES)

    def words(self) -> tuple[int, int]:
        """Wait for the stream and return the words as they were fetched."""
        self._stream.synchronize()
        return self._seen[0], self._seen[1]


class Results:
    """The results of all GPUs."""

    def __init__(self, contexts: dict[str, Context]) -> None:
        self._memory = {}
        self._seen = {}
        with ReleaseStack() as undo:
            for bus_id, context in contexts.items():
                self._memory[bus_id] = DeviceMemory(context, _PAIR_BYTES * _PAIRS)
                undo.callback(self._memory[bus_id].close)
                self._seen[bus_id] = PinnedWords(_PAIR_BYTES // 4 * _PAIRS)
                undo.callback(self._seen[bus_id].close)
            self._undo = undo.pop_all()
        self._places = {bus_id: cycle(range(0, _PAIR_BYTES * _PAIRS, _PAIR_BYTES)) for bus_id in contexts}

    def take(self, stream: Stream) -> Result:
        """Return a pair of words for a kernel on a stream."""
        bus_id = stream.context.bus_id
        place = next(self._places[bus_id])
        seen = self._seen[bus_id].address + place
        return Result(stream, self._memory[bus_id].address + place, (ctypes.c_uint64 * 2).from_address(seen), seen)

    def close(self) -> None:
        """Free the memory."""
        self._undo.close()


def read_words(stream: Stream, address: int, count: int) -> list[int]:
    """Return 8-byte words of memory that a stream's GPU reaches; waits for the stream."""
    stream.context.make_current()
    words = (ctypes.c_uint64 * count)()
    stream.copy(ctypes.addressof(words), address, ctypes.sizeof(words))
    stream.synchronize()
    return list(words)
