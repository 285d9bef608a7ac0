"""CPU threads. Bound to a NUMA node they make and touch pages; bound to a CPU they read, write or follow a chain."""

from __future__ import annotations

import ctypes
import errno
import mmap
import os
import platform
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, TypeVar

from egmctl.dataclass import dataclass
from egmctl.driver import breadcrumb
from egmctl.driver.reading import NUMBERS
from egmctl.gpu.context import ms_since
from egmctl.gpu.machine_code import MachineFunction

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from egmctl.gpu.memory import MappedMemory

T = TypeVar("T")
W = TypeVar("W", bound="np.generic")

TOUCH_THREADS = 16
"""The number of threads for the first write to memory. The kernel zeroes pages at a few GB/s per thread: 512 MiB took
241, 87, 49 and 27 ms with 1, 4, 8 and 16 of them (docs/hardware-notes.md)."""

_MPOL_BIND = 2  # linux/mempolicy.h
_MADV_POPULATE_WRITE = 23  # asm-generic/mman-common.h

_libc = ctypes.CDLL(None, use_errno=True)
_libc.syscall.restype = ctypes.c_long


@dataclass(frozen=True, slots=True)
class Node:
    """A NUMA node of the host."""

    id: int
    cpus: tuple[int, ...] = ()
    """The node's CPUs; empty if it has only memory or if they are unknown."""


def on_node(node: Node, work: Callable[[], T]) -> tuple[T, str | None]:
    """Run ``work`` in a new thread bound to a node's CPUs and memory.

    Returns
    -------
    tuple
        The result of ``work``, and the part of the binding that was refused, as a phrase; ``None`` if none was.
    """
    with ThreadPoolExecutor(1) as thread:
        refused = thread.submit(_bind_thread, node).result()
        return thread.submit(work).result(), "; ".join(refused) or None


def bind_pages(node: Node, address: int, size_bytes: int) -> str | None:
    """Bind the future pages of a mapping to a node with mbind(2); return the error as text, or ``None``."""
    mask, bits = _mask(node)
    return _call("mbind", ctypes.c_void_p(address), ctypes.c_ulong(size_bytes), _MPOL_BIND, mask, bits, 0)


def touch(node: Node, address: int, size_bytes: int, *, huge: bool = False) -> None:
    """Write zeros to all of a mapping, with threads bound to the node.

    Parameters
    ----------
    huge
        Whether the mapping has huge pages of the kernel's pools. If one is missing (limit of a hugetlb cgroup, taken by
        others), a write kills the process with SIGBUS. So the kernel populates them first (Linux 5.14 or newer).

    Raises
    ------
    OSError
        The kernel has too few huge pages: EFAULT or ENOMEM (madvise(2), MADV_POPULATE_WRITE).
    """
    count = max(1, min(TOUCH_THREADS, len(_usable(node))))
    edges = [size_bytes * number // count for number in range(count + 1)]

    def write(start: int, end: int) -> None:
        _bind_thread(node)
        if huge and (code := _populate(address + start, address + end)):
            raise OSError(code, f"the kernel gave no page on NUMA node {node.id} (madvise: {os.strerror(code)})")
        ctypes.memset(address + start, 0, end - start)

    with ThreadPoolExecutor(count) as threads:
        list(threads.map(write, edges, edges[1:]))


def _populate(start: int, end: int) -> int:
    """Populate the pages of a mapping; return 0 or the errno. A kernel without MADV_POPULATE_WRITE gives 0, too."""
    start -= start % mmap.PAGESIZE
    breadcrumb.enter("madvise")
    result = _libc.madvise(ctypes.c_void_p(start), ctypes.c_size_t(end - start), _MADV_POPULATE_WRITE)
    breadcrumb.leave()
    code = 0 if result == 0 else ctypes.get_errno()
    return 0 if code == errno.EINVAL else code


def _bind_thread(node: Node) -> Sequence[str]:
    refused = []
    if cpus := _usable(node):
        os.sched_setaffinity(0, cpus)
    elif node.cpus:
        refused.append(f"no CPU of NUMA node {node.id} may be used")
    mask, bits = _mask(node)
    if failed := _call("set_mempolicy", _MPOL_BIND, mask, bits):
        refused.append(failed)
    return refused


def _usable(node: Node) -> set[int]:
    return set(node.cpus) & os.sched_getaffinity(0)


def _mask(node: Node) -> tuple[ctypes.Array[ctypes.c_ulong], ctypes.c_ulong]:
    """Return a node mask and its size in bits plus 1, because the kernel subtracts 1 (``maxnode``)."""
    width = 8 * ctypes.sizeof(ctypes.c_ulong)
    words = (ctypes.c_ulong * (node.id // width + 1))()
    words[node.id // width] = 1 << node.id % width
    return words, ctypes.c_ulong(len(words) * width + 1)


def _call(name: str, *arguments: object) -> str | None:
    number = NUMBERS.get(platform.machine(), {}).get(name)
    if number is None:
        return f"{name} is not known on {platform.machine()}"
    # ctypes passes an int as 32 bits, which would leave the upper half of the register undefined.
    words = [ctypes.c_long(argument) if isinstance(argument, int) else argument for argument in arguments]
    breadcrumb.enter(name)
    result = _libc.syscall(ctypes.c_long(number), *words)
    breadcrumb.leave()
    return None if result == 0 else f"{name}: {os.strerror(ctypes.get_errno())}"


WORD_BYTES = 8
LINE_WORDS = 8
"""The number of words that threads divide arrays by: a cache line."""
_START_S = 0.005
"""The time from when all threads are ready to when they start. A barrier wakes them one after the other."""
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

        return self.together(words, work), sum(sums) & _MASK

    def write(self, words: NDArray[np.uint64], passes: int, word: int) -> float:
        """Write ``word`` to all words ``passes`` times and return the elapsed milliseconds."""

        def work(_place: int, part: NDArray[np.uint64]) -> None:
            for _ in range(passes):
                part.fill(word)

        return self.together(words, work)

    def together(self, words: NDArray[W], work: Callable[[int, NDArray[W]], None]) -> float:
        """Run ``work`` on each thread's part of the first axis; return the milliseconds until the last one has ended.

        The threads start at a time that they agree on.
        """
        count = len(self._cpus)
        bounds = [len(words) * place // count for place in range(count + 1)]
        start_s, ends_s = [0.0], [0.0] * count

        def agree() -> None:
            start_s[0] = time.perf_counter() + _START_S

        ready = threading.Barrier(count, agree)

        def body(place: int) -> None:
            # 0 is the calling thread (sched_setaffinity(2)).
            os.sched_setaffinity(0, {self._cpus[place]})
            part = words[bounds[place] : bounds[place + 1]]
            ready.wait()
            time.sleep(max(0, start_s[0] - time.perf_counter()))
            work(place, part)
            ends_s[place] = time.perf_counter()

        threads = [threading.Thread(target=body, args=(place,), daemon=True) for place in range(count)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        return (max(ends_s) - start_s[0]) * 1e3


def words_of(memory: MappedMemory, size_bytes: int | None = None) -> NDArray[np.uint64]:
    """Return host-accessible memory, or its first ``size_bytes``, as an array of 8-byte words without copying."""
    import numpy as np

    count = (size_bytes or memory.size_bytes) // WORD_BYTES
    return np.ctypeslib.as_array((ctypes.c_uint64 * count).from_address(memory.address))


class CpuTriad:
    """STREAM's triad over three equal arrays of doubles that lie one after the other: ``a = b + factor * c``.

    Parameters
    ----------
    arrays
        Three arrays of whole cache lines: their shape is (3, lines, :data:`LINE_WORDS`).

    Raises
    ------
    OSError
        The process cannot map code, or there is no code for this architecture.
    """

    def __init__(self, threads: CpuThreads, arrays: NDArray[np.float64]) -> None:
        self._code = MachineFunction("triad", None, *[ctypes.c_uint64] * 4, ctypes.c_double)
        self._threads = threads
        self._arrays = arrays

    def run(self, passes: int, factor: float) -> float:
        """Compute the triad ``passes`` times and return the elapsed milliseconds."""
        distance = self._arrays.strides[0]

        def work(_place: int, part: NDArray[np.float64]) -> None:
            a = part.ctypes.data
            for _ in range(passes if part.nbytes else 0):
                self._code.call(a, a + distance, a + 2 * distance, part.nbytes, factor)

        return self._threads.together(self._arrays[0], work)

    def close(self) -> None:
        """Unmap the code."""
        self._code.close()


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

    def __init__(self, memory: MappedMemory, stride_bytes: int, seed: int, cpu: int) -> None:
        import numpy as np

        if memory.size_bytes & memory.size_bytes - 1:
            raise ValueError(f"{memory.size_bytes} bytes are no power of two")
        self._code = MachineFunction("chase", ctypes.c_uint64, *[ctypes.c_uint64] * 4)
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
            end = self._code.call(start, loads, self._memory.address, mask)
            results.append((ms_since(started), end))

        thread = threading.Thread(target=body, daemon=True)
        thread.start()
        thread.join()
        ((elapsed_ms, end),) = results
        self._at = (self._at + loads) % self.lines
        return elapsed_ms, None if end == int(self._offsets[self._at]) else end

    def close(self) -> None:
        """Unmap the code."""
        self._code.close()
