"""CPU threads that read and write memory or follow a pointer chain."""

from __future__ import annotations

import ctypes
import mmap
import os
import platform
import struct
import threading
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from egmctl.gpu.context import ms_since
from egmctl.gpu.memory import Memory

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray


WORD_BYTES = 8
_MASK = (1 << 64) - 1


class CpuThreads:
    """A set of threads, each bound to one CPU while it works.

    Parameters
    ----------
    cpus
        The CPUs, at least one.
    """

    def __init__(self, cpus: Sequence[int]) -> None:
        self._cpus = tuple(cpus)

    def read(self, words: NDArray[np.uint64], passes: int) -> tuple[float, int]:
        """Read all words ``passes`` times.

        Returns
        -------
        tuple[float, int]
            The elapsed milliseconds, and the sum of the words in one pass, modulo 2^64.
        """
        sums = [0] * len(self._cpus)

        def work(place: int, part: NDArray[np.uint64]) -> None:
            for _ in range(passes):
                sums[place] = int(part.sum())

        return self._together(words, work), sum(sums) & _MASK

    def write(self, words: NDArray[np.uint64], passes: int, word: int) -> float:
        """Write ``word`` to all words ``passes`` times and return the elapsed milliseconds."""

        def work(_place: int, part: NDArray[np.uint64]) -> None:
            for _ in range(passes):
                part.fill(word)

        return self._together(words, work)

    def _together(self, words: NDArray[np.uint64], work: Callable[[int, NDArray[np.uint64]], None]) -> float:
        """Run ``work`` on each thread's part of the words; return the elapsed milliseconds without thread start."""
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


def words_of(memory: Memory, size_bytes: int | None = None) -> NDArray[np.uint64]:
    """Return host-accessible memory, or its first ``size_bytes``, as an array of 8-byte words without copying."""
    import numpy as np

    count = (size_bytes or memory.size_bytes) // WORD_BYTES
    return np.ctypeslib.as_array((ctypes.c_uint64 * count).from_address(memory.address))


CODE = {
    # loop: mov rdi, [rdx + rdi]; and rdi, rcx; dec rsi; jnz loop; mov rax, rdi; ret
    "x86_64": bytes.fromhex("488b3c3a 4821cf 48ffce 75f4 4889f8 c3"),
    # loop: ldr x0, [x2, x0]; and x0, x0, x3; subs x1, x1, #1; b.ne loop; ret
    "aarch64": struct.pack("<5I", 0xF8606840, 0x8A030000, 0xF1000421, 0x54FFFFA1, 0xD65F03C0),
}
"""The machine code, by architecture, of a function of an offset, a number of loads (at least one), the memory's address
and a mask. It returns the offset that the last load read. The mask keeps corrupt offsets within the memory, for one
cycle per load."""

_libc = ctypes.CDLL(None, use_errno=True)
_libc.mmap.restype = ctypes.c_void_p
_libc.mmap.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long)
_libc.munmap.argtypes = (ctypes.c_void_p, ctypes.c_size_t)


class CpuWalk:
    """A pointer chain through all lines of a buffer in pseudo-random order, and the position of walks along it.

    Parameters
    ----------
    memory
        Host-accessible memory, a power of two of bytes. The chain overwrites it.
    stride_bytes
        The distance between lines, a multiple of 8.
    cpu
        The CPU of the walking thread.

    Raises
    ------
    OSError
        The process cannot map code, or there is no code for this architecture.
    ValueError
        The size is not a power of two.
    """

    def __init__(self, memory: Memory, stride_bytes: int, seed: int, cpu: int) -> None:
        import numpy as np

        if memory.size_bytes & memory.size_bytes - 1:
            raise ValueError(f"{memory.size_bytes} bytes are no power of two")
        self._code, self._function = _function()
        self._cpu = cpu
        self._memory = memory
        self.lines = memory.size_bytes // stride_bytes
        order = np.random.default_rng(seed).permutation(self.lines)
        self._offsets = order.astype(np.uint64) * np.uint64(stride_bytes)
        words_of(memory)[order * (stride_bytes // WORD_BYTES)] = np.roll(self._offsets, -1)
        self._at = 0

    def walk(self, loads: int) -> tuple[float, int | None]:
        """Follow the chain from where the last walk ended.

        Returns
        -------
        tuple[float, int | None]
            The elapsed milliseconds, and the offset at which the walk ended if that is wrong, else ``None``.
        """
        results: list[tuple[float, int]] = []
        start, mask = int(self._offsets[self._at]), self._memory.size_bytes - WORD_BYTES

        def body() -> None:
            # 0 is the calling thread (sched_setaffinity(2)).
            os.sched_setaffinity(0, {self._cpu})
            started = time.perf_counter()
            end = self._function(start, loads, self._memory.address, mask)
            results.append((ms_since(started), end))

        thread = threading.Thread(target=body, daemon=True)
        thread.start()
        thread.join()
        ((elapsed_ms, end),) = results
        self._at = (self._at + loads) % self.lines
        return elapsed_ms, None if end == int(self._offsets[self._at]) else end

    def close(self) -> None:
        """Unmap the code."""
        _libc.munmap(self._code, mmap.PAGESIZE)


def _function() -> tuple[int, Callable[[int, int, int, int], int]]:
    code = CODE.get(platform.machine())
    if code is None:
        raise OSError(0, f"no machine code for {platform.machine()}")
    if not hasattr(os, "memfd_create"):
        raise OSError(0, "this Python has no memfd_create")
    fd = os.memfd_create("egmctl-chase")
    try:
        os.write(fd, code.ljust(mmap.PAGESIZE, b"\0"))
        # For a file mapping, the kernel keeps the instruction caches coherent with what was written.
        address = _libc.mmap(None, mmap.PAGESIZE, mmap.PROT_READ | mmap.PROT_EXEC, mmap.MAP_PRIVATE, fd, 0)
    finally:
        os.close(fd)
    if address in (None, ctypes.c_void_p(-1).value):
        raise OSError(ctypes.get_errno(), f"mmap of code: {os.strerror(ctypes.get_errno())}")
    return address, ctypes.CFUNCTYPE(*[ctypes.c_uint64] * 5)(address)
