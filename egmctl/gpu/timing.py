"""Time work on streams of one or more GPUs with events, behind a gate that blocks it until all of it is queued.

Without the gate, the time includes the host's queueing. Every result records whether there was a gate.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from enum import IntEnum

from egmctl.compat import StrEnum
from egmctl.dataclass import dataclass
from egmctl.driver.cuda import bindings, call
from egmctl.gpu.context import Context, Resource, ms_since, possible_ms
from egmctl.gpu.memory import PinnedWords
from egmctl.gpu.program import Kernels

GATE_TIMEOUT_NS = 10_000_000_000
"""The timeout of the gate kernel. Queueing takes microseconds, so a timeout means that the host stalled."""

_OPEN, _EXPIRED = 0, 1


class Gating(StrEnum):
    """The mechanism that blocks work until all of it is queued."""

    KERNEL = "kernel"
    NONE = "none"
    """No gate: the time includes the host's queueing of the first operation."""


@dataclass(frozen=True, slots=True)
class Timing:
    """One sample of a group of flows."""

    elapsed_ms: float
    """The GPU's time from the start of the first flow, before which no flow starts, to the end of the last flow."""
    flows_ms: tuple[float, ...]
    """The time of each flow, from its own start to its own end."""
    wall_ms: float
    """The host's time from opening the gate until the group has completed."""
    expired: bool
    """Whether the gate timed out before it was opened, so that the sample is invalid."""
    opened_s: float = 0.0
    """The time when the gate was opened, by :func:`time.perf_counter`, which all processes of a node share."""


StreamWork = tuple["Stream", Callable[[], None]]
"""A stream and the function that queues work on it. The stream's context is current during the call."""
FlowParts = Sequence[StreamWork]
"""The parts of one flow, each on a stream of its own."""


class Gate:
    """A single-thread kernel that blocks streams by polling a word in host memory, up to :data:`GATE_TIMEOUT_NS`.

    Parameters
    ----------
    words
        Two words of host memory. ``None``: nothing is blocked, and work runs as soon as it is queued.
    kernels
        The kernels of each GPU, by bus id.
    """

    def __init__(self, words: PinnedWords | None = None, kernels: Mapping[str, Kernels] | None = None) -> None:
        self.how = Gating.NONE if words is None else Gating.KERNEL
        self._words = words
        self._kernels = kernels or {}

    def hold(self, stream: Stream) -> None:
        """Block work queued on ``stream`` from now on until :meth:`open`."""
        if self._words is not None:
            self._words.words[_OPEN] = 0
            self._words.words[_EXPIRED] = 0
            address = self._words.address
            arguments = address + 4 * _OPEN, address + 4 * _EXPIRED, GATE_TIMEOUT_NS
            self._kernels[stream.context.bus_id].launch("gate", stream.handle, 1, 1, *arguments)

    def open(self) -> None:
        """Open the gate."""
        if self._words is not None:
            self._words.words[_OPEN] = 1

    def expired(self) -> bool:
        """Return whether the gate timed out before :meth:`open`."""
        return self._words is not None and bool(self._words.words[_EXPIRED])


class Mark(IntEnum):
    """The events of a stream."""

    START = 0
    END = 1
    """The end of the stream's own work."""
    FLOW_END = 2
    """The end of all parts of a flow, recorded on the flow's first stream."""
    GROUP_END = 3
    """The end of all flows of a group, recorded on the group's first stream."""


class Stream(Resource):
    """A stream of a GPU, with the events that time its work."""

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
        """Record one of the stream's events."""
        self.context.make_current()
        call("cuEventRecord", self._events[mark], self.handle)

    def wait_for(self, other: Stream, mark: Mark) -> None:
        """Make work queued from now on wait for the latest record of an event of another stream, of any GPU."""
        if other is not self:
            self.context.make_current()
            call("cuStreamWaitEvent", self.handle, other._events[mark], 0)

    def elapsed_ms(self, end: Mark = Mark.END, *, host_ms: float = math.inf) -> float:
        """Return the time from the start to another mark; both must have completed.

        Parameters
        ----------
        host_ms
            The time by the host's clock since before the start was queued, as an upper bound.

        Raises
        ------
        ImpossibleTime
            The driver's time is impossible for this work.
        """
        answer = float(call("cuEventElapsedTime", self._events[Mark.START], self._events[end]))
        return possible_ms("cuEventElapsedTime", answer, host_ms)

    def fill(self, address: int, size_bytes: int, word: int = 0) -> None:
        """Queue a memset of ``size_bytes`` bytes to a 4-byte word."""
        self.context.make_current()
        call("cuMemsetD32Async", address, word, size_bytes // 4, self.handle)

    def copy(self, destination: int, source: int, size_bytes: int) -> None:
        """Queue a copy between any two addresses by a copy engine of the stream's GPU; its context must be current."""
        call("cuMemcpyAsync", destination, source, size_bytes, self.handle)

    def synchronize(self) -> None:
        """Block until the stream is idle."""
        call("cuStreamSynchronize", self.handle)


class GatedWork:
    """Work on several streams, queued behind a gate by the constructor. The caller must call :meth:`run` next.

    The gate blocks the first stream of the first group. The first stream of each other group waits for the start of
    that stream, the first stream of each flow for the start of its group's first stream, and the other streams of a
    flow for the start of its first stream. Each stream records its own start after this wait. So no time includes the
    wait, and nothing of a group or flow runs before the start of its first stream. The ends are joined in the same way
    on the GPUs. Streams of several GPUs share no clock, so each time is between two events of one stream.

    Parameters
    ----------
    groups
        The groups that are timed, each a sequence of flows. No stream may occur twice.
    """

    def __init__(self, gate: Gate, groups: Sequence[Sequence[FlowParts]]) -> None:
        self._gate = gate
        self._groups = groups
        self._begun = time.perf_counter()
        try:
            self._queue()
        except BaseException:
            # Work behind a closed gate can neither complete nor be freed.
            gate.open()
            raise

    def run(self) -> tuple[Timing, ...]:
        """Open the gate, wait until all work has completed, and return the times of each group."""
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
                    if stream is first:
                        before = leader
                    elif stream is parts[0][0]:
                        before = first
                    else:
                        before = parts[0][0]
                    stream.wait_for(before, Mark.START)
                    stream.mark(Mark.START)
                    operation()
                    stream.mark(Mark.END)
        # After all the work: if streams share a hardware queue, a wait would block what is queued after it.
        for flows in self._groups:
            first = flows[0][0][0]
            for parts in flows:
                for stream, _ in parts:
                    parts[0][0].wait_for(stream, Mark.END)
                parts[0][0].mark(Mark.FLOW_END)
            for parts in flows:
                first.wait_for(parts[0][0], Mark.FLOW_END)
            first.mark(Mark.GROUP_END)
