"""Time work on streams of one or more GPUs between events, behind a gate that holds it until all of it has been queued.

Without the gate the host's queueing is part of the time. Whether there was one is part of every result.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import IntEnum

from egmctl.compat import StrEnum
from egmctl.driver.cuda import bindings, call
from egmctl.gpu.context import Context, Resource, ms_since, possible_ms
from egmctl.gpu.memory import PinnedWords
from egmctl.gpu.program import Kernels

GATE_TIMEOUT_NS = 10_000_000_000
"""The time that the gate kernel waits. Queueing takes microseconds: a gate that gives up means a stalled host."""

_OPEN, _EXPIRED = 0, 1


class Gating(StrEnum):
    """The means that held the work back until all of it was queued."""

    KERNEL = "kernel"
    NONE = "none"
    """Nothing: the time holds the host's queueing of the first operation."""


@dataclass(frozen=True, slots=True)
class Timing:
    """One sample of work that is measured as one."""

    elapsed_ms: float
    """The GPU's time from the first flow's start, before which none starts, to the end of the last one."""
    flows_ms: tuple[float, ...]
    """The time of each flow, from its own start to its own end."""
    wall_ms: float
    """The host's time from the opening of the gate until all of it was done."""
    expired: bool
    """The gate gave up before it was opened: the sample is worth nothing."""
    opened_s: float = 0.0
    """When the gate was opened, by :func:`time.perf_counter`, which all processes of a node share."""


Part = tuple["Stream", Callable[[], None]]
"""A stream, and what queues work on it and returns; the stream's context is current then."""
FlowParts = Sequence[Part]
"""The parts of one flow, each on a stream of its own."""


class Gate:
    """A kernel of one thread that polls a word in host memory, for at most :data:`GATE_TIMEOUT_NS`, holds streams back.

    Parameters
    ----------
    words
        Two; without them nothing is held, and work runs as it is queued.
    kernels
        By the bus ids of their GPUs.
    """

    def __init__(self, words: PinnedWords | None = None, kernels: Mapping[str, Kernels] | None = None) -> None:
        self.how = Gating.NONE if words is None else Gating.KERNEL
        self._words = words
        self._kernels = kernels or {}

    def hold(self, stream: Stream) -> None:
        """Let nothing that is queued on ``stream`` from now on run before :meth:`open`."""
        if self._words is not None:
            self._words.words[_OPEN] = 0
            self._words.words[_EXPIRED] = 0
            address = self._words.address
            arguments = address + 4 * _OPEN, address + 4 * _EXPIRED, GATE_TIMEOUT_NS
            self._kernels[stream.context.bus_id].launch("gate", stream.handle, 1, 1, *arguments)

    def open(self) -> None:
        """Let everything held run."""
        if self._words is not None:
            self._words.words[_OPEN] = 1

    def expired(self) -> bool:
        """Say whether a stream went ahead before :meth:`open`."""
        return self._words is not None and bool(self._words.words[_EXPIRED])


class Mark(IntEnum):
    """A stream's events."""

    START = 0
    END = 1
    """The end of the stream's own work."""
    FLOW_END = 2
    """The end of all parts of a flow, on its first stream."""
    GROUP_END = 3
    """The end of all flows of a group, on its first stream."""


class Stream(Resource):
    """A stream of a GPU, with the events that time what is queued on it."""

    def __init__(self, context: Context) -> None:
        cuda = bindings()
        self.context = context
        with self._made_on(context) as undo:
            self.handle = call("cuStreamCreate", cuda.CUstream_flags.CU_STREAM_NON_BLOCKING)
            undo.callback(call, "cuStreamDestroy", self.handle)
            self._events = []
            for _ in Mark:
                event = call("cuEventCreate", cuda.CUevent_flags.CU_EVENT_DEFAULT)
                undo.callback(call, "cuEventDestroy", event)
                self._events.append(event)

    def mark(self, mark: Mark) -> None:
        """Have an event remember when the stream comes to this place."""
        self.context.make_current()
        call("cuEventRecord", self._events[mark], self.handle)

    def wait_for(self, other: Stream, mark: Mark) -> None:
        """Let nothing queued from now on run before another stream, of any GPU, has come to its latest mark."""
        if other is not self:
            self.context.make_current()
            call("cuStreamWaitEvent", self.handle, other._events[mark], 0)

    def elapsed_ms(self, end: Mark = Mark.END, *, host_ms: float = math.inf) -> float:
        """Return the time from the start to another mark, both of which have been reached.

        Parameters
        ----------
        host_ms
            What has gone by on the host's clock since before the start was queued: the GPU cannot have taken longer.

        Raises
        ------
        ImpossibleTime
            If the driver's answer cannot be a time of this work.
        """
        answer = float(call("cuEventElapsedTime", self._events[Mark.START], self._events[end]))
        return possible_ms("cuEventElapsedTime", answer, host_ms)

    def fill(self, address: int, size_bytes: int, word: int = 0) -> None:
        """Queue: set all 4-byte words of some memory."""
        self.context.make_current()
        call("cuMemsetD32Async", address, word, size_bytes // 4, self.handle)

    def copy(self, destination: int, source: int, size_bytes: int) -> None:
        """Queue a copy between two addresses of any kind, by a copy engine of this stream's GPU."""
        call("cuMemcpyAsync", destination, source, size_bytes, self.handle)

    def synchronize(self) -> None:
        """Wait until the stream is idle."""
        call("cuStreamSynchronize", self.handle)


class GatedWork:
    """Work on several streams that waits behind a gate.

    The gate holds the very first stream. Every other one waits for that one's start, the first stream of a group
    before the group's others, the first one of a flow before the flow's others, and marks its own start then: nothing
    is timed from before it could run, and nothing of a group or a flow runs before its first stream's start. The
    ends are joined the same way, on the GPUs: streams of several GPUs share no clock, and each time here is between
    two events of one stream.

    Parameters
    ----------
    groups
        What is measured as one: its flows, each with its parts. No stream twice. The work is queued when this is made,
        and :meth:`run` has to follow.
    """

    def __init__(self, gate: Gate, groups: Sequence[Sequence[FlowParts]]) -> None:
        self._gate = gate
        self._groups = groups
        self._begun = time.perf_counter()
        try:
            self._queue()
        except BaseException:
            # Whatever waits behind a closed gate can be neither finished nor freed.
            gate.open()
            raise

    def run(self) -> tuple[Timing, ...]:
        """Open the gate, wait for the end, and return the times of each group."""
        self._gate.open()
        opened = time.perf_counter()
        walls_ms = []
        for flows in self._groups:
            flows[0][0][0].synchronize()
            walls_ms.append(ms_since(opened))
        host_ms = ms_since(self._begun)
        return tuple(
            Timing(
                elapsed_ms=flows[0][0][0].elapsed_ms(Mark.GROUP_END, host_ms=host_ms),
                flows_ms=tuple(parts[0][0].elapsed_ms(Mark.FLOW_END, host_ms=host_ms) for parts in flows),
                wall_ms=wall_ms,
                expired=self._gate.expired(),
                opened_s=opened,
            )
            for flows, wall_ms in zip(self._groups, walls_ms, strict=True)
        )

    def _queue(self) -> None:
        leader = self._groups[0][0][0][0]
        leader.context.make_current()
        self._gate.hold(leader)
        for flows in self._groups:
            first = flows[0][0][0]
            for parts in flows:
                for stream, operation in parts:
                    before = leader if stream is first else first if stream is parts[0][0] else parts[0][0]
                    stream.wait_for(before, Mark.START)
                    stream.mark(Mark.START)
                    operation()
                    stream.mark(Mark.END)
        # Only now, behind all the work: where streams share a hardware queue, a wait would hold up what comes after it.
        for flows in self._groups:
            first = flows[0][0][0]
            for parts in flows:
                for stream, _ in parts:
                    parts[0][0].wait_for(stream, Mark.END)
                parts[0][0].mark(Mark.FLOW_END)
            for parts in flows:
                first.wait_for(parts[0][0], Mark.FLOW_END)
            first.mark(Mark.GROUP_END)
