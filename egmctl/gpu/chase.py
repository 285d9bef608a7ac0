"""Latency on the GPU: one thread follows a chain of lines, alone or under load, or sends another GPU a flag and back.

What a kernel has measured it leaves in memory of its own GPU. Where a walk ends proves that every load of it gave the
right line. See ``kernels/chase.cu`` and ``kernels/pingpong.cu``.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from dataclasses import dataclass

from egmctl.driver.cuda import call
from egmctl.gpu.memory import DeviceMemory
from egmctl.gpu.program import Kernels
from egmctl.gpu.results import read_words
from egmctl.gpu.timing import Stream

TIMEOUT_NS = 5_000_000_000
"""When kernels that wait for others give up, by the GPU's clock. What they do takes milliseconds."""

LOAD_THREADS = 128
"""Threads of a block that loads a path: each has 64 bytes under way, 8 KiB a block."""

FLAG_BYTES = 64 * 128
"""What a flag of a ping-pong has to itself: lines that its laps take in turn (``kernels/pingpong.cu``)."""

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
        kernels.launch(
            "make_chain",
            stream.handle,
            8 * stream.context.multiprocessors,
            256,
            self.address,
            self.lines,
            self.stride_bytes,
            self.seed,
        )
        stream.synchronize()

    @property
    def offset_bytes(self) -> int:
        """Where walks have come to, from the buffer's start."""
        return place(self._steps % self.lines, self.lines, self.seed) * self.stride_bytes

    def advance(self, loads: int) -> None:
        """Note that a walk of so many loads begins at :attr:`offset_bytes`."""
        self._steps += loads

    def rewind(self) -> None:
        """Note that the next walk begins at the chain's first line."""
        self._steps = 0


@dataclass(frozen=True, slots=True)
class Walk:
    """What a chase has measured."""

    elapsed_ns: int
    loads: int
    wrong_offset: int | None
    """Where it ended, if that is not where its chain leads: some load gave a wrong line."""
    load_bytes: int = 0
    """What the other blocks of the launch read while it was timed."""
    load_ns: int = 0
    """How long they did, from the first to the last; it is within a poll of ``elapsed_ns``."""
    load_beside: int = 0
    """How many of their warps ran on the multiprocessor of the chase."""
    expired: bool = False
    """A block gave up: the other numbers mean nothing."""

    @property
    def latency_ns(self) -> float:
        """Mean of the loads."""
        return self.elapsed_ns / self.loads

    @property
    def load_gb_s(self) -> float:
        """What the other blocks really moved."""
        return self.load_bytes / self.load_ns if self.load_ns else 0.0


class Reader:
    """The GPU that measures latencies: one thread of it loads, or sends flags.

    Parameters
    ----------
    stream
        Of the GPU; results lie in its memory.
    """

    def __init__(self, stream: Stream, kernels: Kernels) -> None:
        self.stream = stream
        self._kernels = kernels
        self._results = DeviceMemory(stream.context, 8 * _RESULT_WORDS)
        self._walks: list[tuple[int, int]] = []

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
        arguments = chain.address, chain.offset_bytes, warm, loads, block, self._results.address
        chain.advance(warm + loads)
        self._expected = chain.offset_bytes, loads
        self._kernels.launch("chase", self.stream.handle, blocks, 1, *arguments)

    def end_walk(self) -> Walk:
        """Wait for the walk that was queued last, and return what it has measured."""
        start, end, offset, _sm = self._read(4)
        expected, loads = self._expected
        return Walk(end - start, loads, None if offset == expected else offset)

    def start_loaded_walk(
        self, chain: Chain, loads: int, *, warm: int, data: int, data_bytes: int, load_blocks: int
    ) -> None:
        """Queue a walk under load.

        Parameters
        ----------
        data, data_bytes
            The buffer that other blocks of the launch read meanwhile.
        load_blocks
            How many do; not more than there are other multiprocessors, so that all run at once.
        """
        self._write([0, 0, 0, 0, 0, 0, 0, 0, _MASK, 0, 0])
        arguments = chain.address, chain.offset_bytes, warm, loads, data, data_bytes, TIMEOUT_NS, self._results.address
        chain.advance(warm + loads)
        self._expected = chain.offset_bytes, loads
        self._kernels.launch("chase_loaded", self.stream.handle, 1 + load_blocks, LOAD_THREADS, *arguments)

    def end_loaded_walk(self) -> Walk:
        """Wait for the walk under load that was queued last, and return what it has measured."""
        start, end, offset, _sm, expired, _begun, _phase, moved, first, last, beside = self._read(11)
        expected, loads = self._expected
        return Walk(
            end - start,
            loads,
            None if offset == expected else offset,
            load_bytes=moved,
            load_ns=last - first if moved else 0,
            load_beside=beside,
            expired=bool(expired),
        )

    def start_laps(self, poll: int, send: int, laps: int, *, serves: bool) -> None:
        """Queue this GPU's side of a ping-pong of at most :data:`LAPS_LIMIT` laps.

        Parameters
        ----------
        poll, send
            Addresses of the flag that it waits for and of the one that it writes, both cleared.
        serves
            Whether it sends first, and times the round trips.
        """
        self._kernels.launch(
            "ping_pong", self.stream.handle, 1, 1, poll, send, laps, int(serves), TIMEOUT_NS, self._results.address
        )

    def end_laps(self, laps: int) -> Laps:
        """Wait for the side that serves, and return what it has measured."""
        done, elapsed_ns, cycles, *times = self._read(3 + laps)
        # Laps are timed in clock cycles, which %globaltimer is too coarse for; both were taken over all of them.
        scale = elapsed_ns / cycles if cycles else 0.0
        return Laps(elapsed_ns, tuple(scale * time for time in times[:done]), expired=done < laps)

    def close(self) -> None:
        """Free the memory of the results."""
        self._results.close()

    def _write(self, words: Sequence[int]) -> None:
        self.stream.context.make_current()
        values = (ctypes.c_uint64 * len(words))(*words)
        self.stream.copy(self._results.address, ctypes.addressof(values), ctypes.sizeof(values))
        self.stream.synchronize()

    def _read(self, count: int) -> list[int]:
        return read_words(self.stream, self._results.address, count)


@dataclass(frozen=True, slots=True)
class Laps:
    """What a ping-pong has measured."""

    elapsed_ns: int
    """Of all laps."""
    laps_ns: tuple[float, ...]
    """Of each lap."""
    expired: bool
    """A side gave up."""


def clear_flag(stream: Stream, address: int) -> None:
    """Set a flag of a ping-pong to 0, and wait until it is."""
    stream.context.make_current()
    call("cuMemsetD32Async", address, 0, FLAG_BYTES // 4, stream.handle)
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
