"""Latency kernels (pointer chases, ping-pong) and counters of atomic additions."""

from __future__ import annotations

import ctypes

from egmctl.dataclass import dataclass
from egmctl.gpu.memory import DeviceMemory, MappedMemory
from egmctl.gpu.pattern import read_words
from egmctl.gpu.program import Kernels
from egmctl.gpu.timing import Stream

TIMEOUT_NS = 5_000_000_000
"""The timeout of kernels that wait for others, by the GPU's clock. They normally take milliseconds."""

LOAD_THREADS = 128
"""Threads per block that loads a path. Each thread has 64 bytes in flight, 8 KiB per block."""

FLAG_BYTES = 64 * 128
"""The size of one side's ping-pong flags: 64 lines that the laps use in turn (``kernels/pingpong.cu``)."""

LAPS_LIMIT = 4096
"""The maximum number of round trips of one ping-pong, the time of each of which is stored."""

_RESULT_WORDS = 3 + LAPS_LIMIT
_MASK = (1 << 64) - 1


class Chain:
    """A pointer chain that visits each line of a buffer once per cycle, and the position that walks have reached.

    Parameters
    ----------
    address, size_bytes
        The buffer. Bytes after the last whole stride stay unused.
    stride_bytes
        The distance between lines, a multiple of 8.
    seed
        The seed of the order; 0 is sequential.
    """

    def __init__(self, address: int, size_bytes: int, stride_bytes: int, seed: int) -> None:
        self.address = address
        self.stride_bytes = stride_bytes
        self.lines = size_bytes // stride_bytes
        self.seed = seed
        self._steps = 0

    def make(self, stream: Stream, kernels: Kernels) -> None:
        """Write the chain with a kernel on the stream's GPU, which must have access to the buffer, and wait for it."""
        arguments = self.address, self.lines, self.stride_bytes, self.seed
        kernels.launch("make_chain", stream.handle, 8 * stream.context.multiprocessors, 256, *arguments)
        stream.synchronize()

    @property
    def offset_bytes(self) -> int:
        """The offset in the buffer that the walks have reached."""
        return place(self._steps % self.lines, self.lines, self.seed) * self.stride_bytes

    def advance(self, loads: int) -> int:
        """Record the start of a walk of ``loads`` loads and return the offset at which it starts."""
        offset_bytes = self.offset_bytes
        self._steps += loads
        return offset_bytes

    def rewind(self) -> None:
        """Start the next walk at the chain's first line."""
        self._steps = 0

    def wrong(self, offset_bytes: int) -> int | None:
        """Return ``offset_bytes``, where the last walk ended, if the chain does not lead there; else ``None``."""
        return None if offset_bytes == self.offset_bytes else offset_bytes


@dataclass(frozen=True, slots=True)
class Walk:
    """The result of a pointer chase, or of one thread's atomic additions in turn."""

    elapsed_ns: float
    loads: int
    """The number of timed loads or additions."""
    wrong_offset: int | None
    """The offset at which the walk ended, if its chain does not lead there: a load returned a wrong value. For
    additions, the offset of the first wrong counter."""
    load_bytes: int = 0
    """The bytes that the other blocks of the launch read while the walk was timed."""
    load_ns: int = 0
    """The time from their first read to their last. It differs from ``elapsed_ns`` by at most one poll."""
    load_beside: int = 0
    """The number of their warps that ran on the same multiprocessor as the chase."""
    expired: bool = False
    """Whether a block timed out, so that the other fields are invalid."""

    @property
    def latency_ns(self) -> float:
        """The mean latency of a load."""
        return self.elapsed_ns / self.loads

    @property
    def load_gb_s(self) -> float:
        """The bandwidth of the other blocks; 0 if there was no load."""
        return self.load_bytes / self.load_ns if self.load_ns else 0.0


class Reader:
    """The launcher of a GPU's latency kernels, in which one thread loads, adds or sends flags.

    Parameters
    ----------
    stream
        A stream of the GPU, in whose memory the results are.
    """

    def __init__(self, stream: Stream, kernels: Kernels) -> None:
        self.stream = stream
        self._kernels = kernels
        self._results = DeviceMemory(stream.context, 8 * _RESULT_WORDS)
        self.close = self._results.close

    def launch(self, name: str, *arguments: int, blocks: int = 1, threads: int = 1) -> None:
        """Queue a kernel, with the address of its results as an additional last argument."""
        self._kernels.launch(name, self.stream.handle, blocks, threads, *arguments, self._results.address)

    def words(self, count: int) -> list[int]:
        """Wait for the last queued kernel and return the first ``count`` words of its results."""
        return read_words(self.stream, self._results.address, count)

    def start_walk(
        self, chain: Chain, loads: int, *, warm: int, block: int = 0, blocks: int = 1, kernel: str = "chase"
    ) -> None:
        """Queue a walk along a chain, from where the last walk ended.

        Parameters
        ----------
        loads
            The number of timed loads.
        warm
            The number of loads before those, for warm-up.
        block, blocks
            The index of the walking block and the number of blocks, each on a different multiprocessor.
        kernel
            ``chase``, or ``chase_bulk`` on a GPU with bulk copies.
        """
        self.launch(kernel, chain.address, chain.advance(warm + loads), warm, loads, block, blocks=blocks)

    def end_walk(self, chain: Chain, loads: int) -> Walk:
        """Wait for the last queued walk and return its result."""
        start, end, offset, _sm = self.words(4)
        return Walk(end - start, loads, chain.wrong(offset))

    def start_loaded_walk(self, chain: Chain, loads: int, *, warm: int, data: MappedMemory, load_blocks: int) -> None:
        """Queue a walk while other blocks of the same launch read a buffer (loaded latency).

        Parameters
        ----------
        data
            The buffer that the other blocks read.
        load_blocks
            The number of other blocks, at most the number of other multiprocessors, so that all run at once.
        """
        self.stream.context.make_current()
        results = (ctypes.c_uint64 * 11)(0, 0, 0, 0, 0, 0, 0, 0, _MASK, 0, 0)
        self.stream.copy(self._results.address, ctypes.addressof(results), ctypes.sizeof(results))
        self.stream.synchronize()
        arguments = chain.address, chain.advance(warm + loads), warm, loads, data.address, data.size_bytes, TIMEOUT_NS
        self.launch("chase_loaded", *arguments, blocks=1 + load_blocks, threads=LOAD_THREADS)

    def end_loaded_walk(self, chain: Chain, loads: int) -> Walk:
        """Wait for the last queued walk under load and return its result."""
        start, end, offset, _sm, expired, _begun, _phase, moved, first, last, beside = self.words(11)
        load_ns = last - first if moved else 0
        return Walk(end - start, loads, chain.wrong(offset), moved, load_ns, beside, bool(expired))

    def start_laps(self, poll: int, send: int, laps: int, *, serves: bool) -> None:
        """Queue this GPU's side of a ping-pong of at most :data:`LAPS_LIMIT` laps.

        Parameters
        ----------
        poll, send
            Addresses of the flags that this GPU polls and of the flags that it writes. Both must be 0.
        serves
            Whether this GPU sends first and times the round trips.
        """
        self.launch("ping_pong", poll, send, laps, int(serves), TIMEOUT_NS)

    def end_laps(self, laps: int) -> list[float]:
        """Wait for this GPU's side and return the nanoseconds of each lap (if it serves), fewer after a timeout."""
        done, elapsed_ns, cycles, *times = self.words(3 + laps)
        # Each lap is timed in clock cycles because %globaltimer is too coarse; the totals of both give the scale.
        scale = elapsed_ns / cycles if cycles else 0.0
        return [scale * time for time in times[:done]]


def clear(stream: Stream, address: int, size_bytes: int) -> None:
    """Set memory to 0 with a stream's GPU and wait for it."""
    stream.fill(address, size_bytes)
    stream.synchronize()


def place(step: int, lines: int, seed: int) -> int:
    """Return the line that a walk visits at ``step``, from 0 to ``lines - 1``: ``place`` of ``kernels/chase.cu``."""
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
"""The size of all counters. Each counter has its own line, because the time of an addition depends on where in the L2
caches its line is."""


class Counters:
    """Counters in memory of any kind, to which one GPU adds.

    Parameters
    ----------
    address
        The address of :data:`COUNTERS_BYTES` bytes.
    owner
        A stream of the GPU that clears and checks the counters, so that the check does not use the path under test.
    """

    def __init__(self, address: int, owner: Stream) -> None:
        self.address = address
        self.made = 0
        """The number of additions that the counters must contain."""
        self._owner = owner
        clear(owner, address, COUNTERS_BYTES)

    def wrong_offset(self) -> int | None:
        """Return the offset of the first 8-byte word with a wrong value; ``None`` if the counters are correct."""
        for word, value in enumerate(read_words(self._owner, self.address, COUNTERS_BYTES // 8)):
            number, rest = divmod(8 * word, COUNTER_STRIDE_BYTES)
            if value != (0 if rest else self.made // COUNTERS + (number < self.made % COUNTERS)):
                return 8 * word
        return None
