"""Threads on the CPUs of one NUMA node that read and write memory with numpy.

numpy lets other threads run while it sums or fills an array, so the threads work side by side. What they reach is a
lower bound of what the CPUs can do: numpy's loops are not tuned for bandwidth, and no more than
:data:`egmctl.facts.cpus.THREADS_LIMIT` threads run.
"""

from __future__ import annotations

import ctypes
import os
import threading
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from egmctl.gpu.clock import ms_since
from egmctl.gpu.memory import Memory

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

WORD_BYTES = 8
_MASK = (1 << 64) - 1


class CpuThreads:
    """As many threads as CPUs, each bound to one of them while it works.

    Parameters
    ----------
    cpus
        At least one.
    """

    def __init__(self, cpus: Sequence[int]) -> None:
        self._cpus = tuple(cpus)

    def read(self, memory: Memory, passes: int) -> tuple[float, int]:
        """Read all of the memory, several times over.

        Returns
        -------
        tuple[float, int]
            Milliseconds, and the sum of the 8-byte words of one pass, modulo 2^64.
        """
        sums = [0] * len(self._cpus)

        def work(place: int, part: NDArray[np.uint64]) -> None:
            for _ in range(passes):
                sums[place] = int(part.sum())

        return self._together(memory, work), sum(sums) & _MASK

    def write(self, memory: Memory, passes: int, word: int) -> float:
        """Write a word everywhere, several times over; return milliseconds."""

        def work(_place: int, part: NDArray[np.uint64]) -> None:
            for _ in range(passes):
                part.fill(word)

        return self._together(memory, work)

    def _together(self, memory: Memory, work: Callable[[int, NDArray[np.uint64]], None]) -> float:
        """Have each thread work on its part of the memory; return the milliseconds of all, without their starting."""
        words = words_of(memory)
        bounds = [len(words) * place // len(self._cpus) for place in range(len(self._cpus) + 1)]
        ready = threading.Barrier(len(self._cpus) + 1)

        def body(place: int) -> None:
            # 0 is the calling thread (sched_setaffinity(2)).
            os.sched_setaffinity(0, {self._cpus[place]})
            part = words[bounds[place] : bounds[place + 1]]
            ready.wait()
            work(place, part)
            ready.wait()

        threads = [threading.Thread(target=body, args=(place,), daemon=True) for place in range(len(self._cpus))]
        for thread in threads:
            thread.start()
        ready.wait()
        started = time.perf_counter()
        ready.wait()
        elapsed_ms = ms_since(started)
        for thread in threads:
            thread.join()
        return elapsed_ms


def words_of(memory: Memory) -> NDArray[np.uint64]:
    """Return memory that the host reaches as an array of its 8-byte words."""
    import numpy as np

    count = memory.size_bytes // WORD_BYTES
    return np.ctypeslib.as_array((ctypes.c_uint64 * count).from_address(memory.address))
