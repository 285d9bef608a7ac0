"""Time work on a stream between two events, behind a gate that holds it until all of it has been queued.

Without the gate the host's queueing is part of the time. The gate is a kernel that polls a word in host memory; where
kernels cannot be compiled it is a wait that the driver queues; where that is not to be had either there is none. Which
one it was is part of every result.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol

from egmctl.gpu.context import Context
from egmctl.gpu.driver import bindings, call
from egmctl.gpu.memory import PinnedWords
from egmctl.gpu.program import Kernels

GATE_TIMEOUT_NS = 10_000_000_000
"""How long the gate kernel waits. Queueing takes microseconds: a gate that gives up means a stalled host."""

_OPEN, _EXPIRED = 0, 1


class Gating(StrEnum):
    """What held the work back until all of it was queued."""

    KERNEL = "kernel"
    STREAM_WAIT = "stream-wait"
    """``cuStreamWaitValue32``: no kernel needed; it has no deadline of its own."""
    NONE = "none"
    """Nothing: the time holds the host's queueing of the first operation."""


@dataclass(frozen=True, slots=True)
class Timing:
    """One sample."""

    elapsed_ms: float
    """Between the two events, by the GPU."""
    wall_ms: float
    """From the opening of the gate until the host saw the stream idle, by the host."""
    expired: bool
    """The gate gave up before it was opened: the sample is worth nothing."""


class Gate(Protocol):
    """Holds streams back."""

    how: Gating

    def hold(self, stream: Stream) -> None:
        """Let nothing that is queued on ``stream`` from now on run before :meth:`open`."""

    def open(self) -> None:
        """Let everything held run."""

    def expired(self) -> bool:
        """Say whether a stream went ahead before :meth:`open`."""


class Stream:
    """A stream of a GPU, with the two events that time what is queued on it."""

    def __init__(self, context: Context) -> None:
        cuda = bindings()
        context.make_current()
        self.context = context
        with ExitStack() as undo:
            self.handle = call("cuStreamCreate", cuda.CUstream_flags.CU_STREAM_NON_BLOCKING)
            undo.callback(call, "cuStreamDestroy", self.handle)
            self._events = []
            for _ in range(2):
                event = call("cuEventCreate", cuda.CUevent_flags.CU_EVENT_DEFAULT)
                undo.callback(call, "cuEventDestroy", event)
                self._events.append(event)
            self._undo = undo.pop_all()

    def start(self) -> None:
        """Have the first event mark this place in the stream."""
        call("cuEventRecord", self._events[0], self.handle)

    def end(self) -> None:
        """Have the second event mark this place in the stream."""
        call("cuEventRecord", self._events[1], self.handle)

    def elapsed_ms(self) -> float:
        """Return the time between the two events, both of which have happened."""
        return float(call("cuEventElapsedTime", *self._events))

    def copy(self, destination: int, source: int, size_bytes: int) -> None:
        """Queue a copy between two addresses of any kind, by a copy engine of this stream's GPU."""
        call("cuMemcpyAsync", destination, source, size_bytes, self.handle)

    def synchronize(self) -> None:
        """Wait until the stream is idle."""
        call("cuStreamSynchronize", self.handle)

    def close(self) -> None:
        """Destroy the events and the stream."""
        self.context.make_current()
        self._undo.close()


def time_together(gate: Gate, work: Sequence[tuple[Stream, Callable[[], None]]]) -> tuple[Timing, ...]:
    """Queue work on several streams behind one gate, each between its two events, let all of it run at once.

    Parameters
    ----------
    work
        Streams, no two the same, and what queues work on each and returns.

    Returns
    -------
    tuple[Timing, ...]
        Of each stream; the host's time is that of all.
    """
    try:
        for stream, _ in work:
            stream.context.make_current()
            gate.hold(stream)
        for stream, operation in work:
            stream.context.make_current()
            stream.start()
            operation()
            stream.end()
    finally:
        # Also when queueing failed: whatever waits behind a closed gate can be neither finished nor freed.
        gate.open()
    opened = time.perf_counter()
    for stream, _ in work:
        stream.synchronize()
    wall_ms = (time.perf_counter() - opened) * 1e3
    return tuple(Timing(stream.elapsed_ms(), wall_ms, gate.expired()) for stream, _ in work)


class KernelGate:
    """One thread polls a word in host memory, for at most :data:`GATE_TIMEOUT_NS`."""

    how = Gating.KERNEL

    def __init__(self, words: PinnedWords, kernels: dict[str, Kernels]) -> None:
        self._words = words
        self._kernels = kernels

    def hold(self, stream: Stream) -> None:
        self._words.words[_OPEN] = 0
        self._words.words[_EXPIRED] = 0
        address = self._words.address
        self._kernels[stream.context.bus_id].launch(
            "gate", stream.handle, 1, 1, address + 4 * _OPEN, address + 4 * _EXPIRED, GATE_TIMEOUT_NS
        )

    def open(self) -> None:
        self._words.words[_OPEN] = 1

    def expired(self) -> bool:
        return bool(self._words.words[_EXPIRED])


class StreamWaitGate:
    """The stream itself waits for the word."""

    how = Gating.STREAM_WAIT

    def __init__(self, words: PinnedWords) -> None:
        self._words = words

    def hold(self, stream: Stream) -> None:
        self._words.words[_OPEN] = 0
        flags = bindings().CUstreamWaitValue_flags.CU_STREAM_WAIT_VALUE_EQ
        call("cuStreamWaitValue32", stream.handle, self._words.address + 4 * _OPEN, 1, flags)

    def open(self) -> None:
        self._words.words[_OPEN] = 1

    def expired(self) -> bool:
        return False


class NoGate:
    """Work runs as it is queued."""

    how = Gating.NONE

    def hold(self, stream: Stream) -> None:
        """Hold nothing."""

    def open(self) -> None:
        """Nothing was held."""

    def expired(self) -> bool:
        return False


def choose_gate(words: PinnedWords, contexts: Sequence[Context], kernels: dict[str, Kernels] | None) -> Gate:
    """Return the best gate there is for these GPUs.

    Stream memory operations are an attribute of each GPU: CAN_USE_64_BIT_STREAM_MEM_OPS stands for the version of the
    interface that is always enabled (CUDA 12 and newer).
    """
    if kernels is not None:
        return KernelGate(words, kernels)
    if all(context.attribute("CAN_USE_64_BIT_STREAM_MEM_OPS") for context in contexts):
        return StreamWaitGate(words)
    return NoGate()
