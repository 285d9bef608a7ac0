"""Kernels that measure latency by a chain of addresses, and kernels that add atomically."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import cycle

from egmctl.gpu.context import Context, ReleaseStack
from egmctl.gpu.memory import DeviceMemory, Memory, PinnedWords
from egmctl.gpu.program import Kernels
from egmctl.gpu.timing import Stream

_PAIR_BYTES = 16
_PAIRS = 256
"""The pairs of one GPU: more than a step has under way. After the last one the first is used again."""


class Result:
    """One pair of words in a GPU's memory, for a kernel to write to.

    Parameters
    ----------
    address, host_address
        The pair on the GPU, and the one of pinned host memory to which it is fetched.
    """

    def __init__(self, stream: Stream, address: int, host_address: int) -> None:
        self.address = address
        self._stream = stream
        self._host_address = host_address

    def clear(self) -> None:
        """Queue: set both words to 0."""
        self._stream.fill(self.address, _PAIR_BYTES)

    def fetch(self) -> None:
        """Queue: let the host see the words."""
        self._stream.context.make_current()
        self._stream.copy(self._host_address, self.address, _PAIR_BYTES)

    def words(self) -> tuple[int, int]:
        """Wait for the stream and return the words as they were fetched."""
        self._stream.synchronize()
        first, second = (ctypes.c_uint64 * 2).from_address(self._host_address)
        return first, second


class Results:
    """The results of all GPUs."""

    def __init__(self, contexts: dict[str, Context]) -> None:
        self._pairs: dict[str, Iterator[tuple[int, int]]] = {}
        with ReleaseStack() as undo:
            for bus_id, context in contexts.items():
                on_gpu = DeviceMemory(context, _PAIR_BYTES * _PAIRS)
                undo.callback(on_gpu.close)
                on_host = PinnedWords(_PAIR_BYTES // 4 * _PAIRS)
                undo.callback(on_host.close)
                offsets = range(0, _PAIR_BYTES * _PAIRS, _PAIR_BYTES)
                self._pairs[bus_id] = cycle([(on_gpu.address + at, on_host.address + at) for at in offsets])
            self.close = undo.pop_all().close

    def take(self, stream: Stream) -> Result:
        """Return a pair of words for a kernel on a stream."""
        return Result(stream, *next(self._pairs[stream.context.bus_id]))


def read_words(stream: Stream, address: int, count: int) -> list[int]:
    """Return 8-byte words of memory that a stream's GPU reaches; waits for the stream."""
    stream.context.make_current()
    words = (ctypes.c_uint64 * count)()
    stream.copy(ctypes.addressof(words), address, ctypes.sizeof(words))
    stream.synchronize()
    return list(words)


TIMEOUT_NS = 5_000_000_000
"""When kernels that wait for others give up, by the GPU's clock. What they do takes milliseconds."""

LOAD_THREADS = 128
"""Threads of a block that loads a path: each has 64 bytes under way, 8 KiB a block."""

FLAG_BYTES = 64 * 128
"""The size of a ping-pong's flag: lines that its laps take in turn (``kernels/pingpong.cu``)."""

LAPS_LIMIT = 4096
"""Round trips of one ping-pong whose times can be kept."""

_RESULT_WORDS = 3 + LAPS_LIMIT
_MASK = (1 << 64) - 1


class Chain:
    """Lines of a buffer that lead to one another in one cycle, and how far along it walks have come.

    Parameters
    ----------
    address, size_bytes
        The buffer; what is beyond the last whole stride stays unused.
    stride_bytes
        From one line to the next, a multiple of 8.
    seed
        Of the order; 0 is sequential.
    """

    def __init__(self, address: int, size_bytes: int, stride_bytes: int, seed: int) -> None:
        self.address = address
        self.stride_bytes = stride_bytes
        self.lines = size_bytes // stride_bytes
        self.seed = seed
        self._steps = 0

    def make(self, stream: Stream, kernels: Kernels) -> None:
        """Write the chain by a GPU that reaches the buffer, and wait until that is done."""
        arguments = self.address, self.lines, self.stride_bytes, self.seed
        kernels.launch("make_chain", stream.handle, 8 * stream.context.multiprocessors, 256, *arguments)
        stream.synchronize()

    @property
    def offset_bytes(self) -> int:
        """The place that walks have come to, from the buffer's start."""
        return place(self._steps % self.lines, self.lines, self.seed) * self.stride_bytes

    def advance(self, loads: int) -> int:
        """Note that a walk of so many loads begins; return the offset at which it does."""
        offset_bytes = self.offset_bytes
        self._steps += loads
        return offset_bytes

    def rewind(self) -> None:
        """Note that the next walk begins at the chain's first line."""
        self._steps = 0

    def wrong(self, offset_bytes: int) -> int | None:
        """Return the offset at which the last walk ended, if the chain does not lead there."""
        return None if offset_bytes == self.offset_bytes else offset_bytes


@dataclass(frozen=True, slots=True)
class Walk:
    """The result of a chase, or of one thread that adds in turn."""

    elapsed_ns: float
    loads: int
    """Or additions."""
    wrong_offset: int | None
    """The place where it ended, if its chain does not lead there: some load gave a wrong line. For additions, the first
    wrong counter."""
    load_bytes: int = 0
    """The bytes that the other blocks of the launch read while it was timed."""
    load_ns: int = 0
    """The time from their first read to the last; it is within a poll of ``elapsed_ns``."""
    load_beside: int = 0
    """The number of their warps that ran on the multiprocessor of the chase."""
    expired: bool = False
    """A block gave up: the other numbers mean nothing."""

    @property
    def latency_ns(self) -> float:
        """Mean of the loads."""
        return self.elapsed_ns / self.loads

    @property
    def load_gb_s(self) -> float:
        """The bandwidth that the other blocks reached."""
        return self.load_bytes / self.load_ns if self.load_ns else 0.0


class Reader:
    """The GPU that measures latencies: one thread of it loads, adds, or sends flags.

    Parameters
    ----------
    stream
        Of the GPU; results lie in its memory.
    """

    def __init__(self, stream: Stream, kernels: Kernels) -> None:
        self.stream = stream
        self._kernels = kernels
        self._results = DeviceMemory(stream.context, 8 * _RESULT_WORDS)
        self.close = self._results.close

    def launch(self, name: str, *arguments: int, blocks: int = 1, threads: int = 1) -> None:
        """Queue a kernel, whose last argument is the address of its results."""
        self._kernels.launch(name, self.stream.handle, blocks, threads, *arguments, self._results.address)

    def words(self, count: int) -> list[int]:
        """Wait for the kernel that was queued last, and return so many words of its results."""
        return read_words(self.stream, self._results.address, count)

    def start_walk(self, chain: Chain, loads: int, *, warm: int, block: int = 0, blocks: int = 1) -> None:
        """Queue a walk along a chain, from where the last one ended.

        Parameters
        ----------
        loads
            To be timed.
        warm
            Loads before those: what was idle wakes up.
        block, blocks
            Which of how many blocks walks: another one is on another multiprocessor.
        """
        self.launch("chase", chain.address, chain.advance(warm + loads), warm, loads, block, blocks=blocks)

    def end_walk(self, chain: Chain, loads: int) -> Walk:
        """Wait for the walk that was queued last, and return what it has measured."""
        start, end, offset, _sm = self.words(4)
        return Walk(end - start, loads, chain.wrong(offset))

    def start_loaded_walk(self, chain: Chain, loads: int, *, warm: int, data: Memory, load_blocks: int) -> None:
        """Queue a walk under load.

        Parameters
        ----------
        data
            Read by other blocks of the launch meanwhile.
        load_blocks
            How many do; not more than there are other multiprocessors, so that all run at once.
        """
        self.stream.context.make_current()
        results = (ctypes.c_uint64 * 11)(0, 0, 0, 0, 0, 0, 0, 0, _MASK, 0, 0)
        self.stream.copy(self._results.address, ctypes.addressof(results), ctypes.sizeof(results))
        self.stream.synchronize()
        arguments = chain.address, chain.advance(warm + loads), warm, loads, data.address, data.size_bytes, TIMEOUT_NS
        self.launch("chase_loaded", *arguments, blocks=1 + load_blocks, threads=LOAD_THREADS)

    def end_loaded_walk(self, chain: Chain, loads: int) -> Walk:
        """Wait for the walk under load that was queued last, and return what it has measured."""
        start, end, offset, _sm, expired, _begun, _phase, moved, first, last, beside = self.words(11)
        load_ns = last - first if moved else 0
        return Walk(end - start, loads, chain.wrong(offset), moved, load_ns, beside, bool(expired))

    def start_laps(self, poll: int, send: int, laps: int, *, serves: bool) -> None:
        """Queue this GPU's side of a ping-pong of at most :data:`LAPS_LIMIT` laps.

        Parameters
        ----------
        poll, send
            Addresses of the flag that it waits for and of the one that it writes, both cleared.
        serves
            Whether it sends first, and times the round trips.
        """
        self.launch("ping_pong", poll, send, laps, int(serves), TIMEOUT_NS)

    def end_laps(self, laps: int) -> list[float]:
        """Wait for this GPU's side; return the nanoseconds of each lap, of fewer than asked where one gave up."""
        done, elapsed_ns, cycles, *times = self.words(3 + laps)
        # Laps are timed in clock cycles, which %globaltimer is too coarse for; both were taken over all of them.
        scale = elapsed_ns / cycles if cycles else 0.0
        return [scale * time for time in times[:done]]


def clear(stream: Stream, address: int, size_bytes: int) -> None:
    """Set memory to 0 by a GPU, and wait until it is."""
    stream.fill(address, size_bytes)
    stream.synchronize()


def place(step: int, lines: int, seed: int) -> int:
    """Return which line a walk visits at a step from 0 to ``lines - 1``: ``place`` of ``kernels/chase.cu``."""
    if seed == 0:
        return step
    bits = (lines - 1).bit_length()
    half = (bits + 1) // 2
    mask = (1 << bits) - 1
    key = seed * 0x9E3779B97F4A7C15 & _MASK
    while True:
        for turn in range(3):
            step = ((step ^ key >> 16 * turn) & mask) * 0xBF58476D1CE4E5B9 & mask
            step ^= step >> half
        if step < lines:
            return step


COUNTERS = 64
COUNTER_STRIDE_BYTES = 128
COUNTERS_BYTES = COUNTERS * COUNTER_STRIDE_BYTES
"""The size of all counters. Each has a line of its own: the line's place in the L2 caches is in the time of each
addition."""


class Counters:
    """Counters in memory of any kind, which one GPU adds to.

    Parameters
    ----------
    address
        Of :data:`COUNTERS_BYTES`.
    owner
        A stream of the GPU that clears them and looks at them: a check does not take the path under test.
    """

    def __init__(self, address: int, owner: Stream) -> None:
        self.address = address
        self.made = 0
        """Additions that there must be in them."""
        self._owner = owner
        clear(owner, address, COUNTERS_BYTES)

    def wrong_offset(self) -> int | None:
        """Return the offset of the first word that does not hold what all additions make; ``None`` if each does."""
        for word, value in enumerate(read_words(self._owner, self.address, COUNTERS_BYTES // 8)):
            number, rest = divmod(8 * word, COUNTER_STRIDE_BYTES)
            if value != (0 if rest else self.made // COUNTERS + (number < self.made % COUNTERS)):
                return 8 * word
        return None
