"""One flow of a bandwidth measurement with what it is measured with: streams, buffers, and what moves the bytes."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence

from egmctl.bench.buffers import Buffer, FlowBuffers, Window
from egmctl.bench.rig import Held, Rig
from egmctl.gpu.engines import Move, copy_by_engine, copy_by_kernel, read_by_kernel, write_by_kernel
from egmctl.gpu.pattern import Check, Difference, Region, poison
from egmctl.gpu.timing import FlowParts, Stream
from egmctl.model.measurement import BufferCost, Engine, Flow, Task


class FlowRun:
    """A flow under way.

    Parameters
    ----------
    streams
        Of the GPU that issues the work, for this flow alone: as many as the task has.
    share
        How many kernels work on that GPU at the same time.
    """

    def __init__(
        self, rig: Rig, task: Task, flow: Flow, buffers: FlowBuffers, *, streams: Sequence[Stream], share: int
    ) -> None:
        self._rig = rig
        self._engine = task.engine
        self._streams = streams
        self._share = share
        initiator = streams[0].context.bus_id
        for end in (flow.source, flow.destination):
            rig.connect(initiator, end.bus_id)
        self._kernels = None if task.engine is Engine.COPY_ENGINE else rig.kernels_of(initiator)
        self._new: list[tuple[Buffer, Held]] = []
        self._source = self._hold(buffers.source)
        self._destination = self._hold(buffers.destination)
        # The GPU that memory belongs to fills it and looks at it: a check does not take the path under test.
        self._filler = rig.stream(flow.source.bus_id or initiator)
        self._checker = rig.stream(flow.destination.bus_id or initiator)
        if task.engine is Engine.SM_READ:
            self._result = rig.results.take(streams[0])
        held = self._source or self._destination
        if held is None:
            raise ValueError(f"{flow.path} has no memory at either end")
        self.seed = held.seed
        """Of what is moved."""
        memories = [held.memory for held in (self._source, self._destination) if held]
        self.pageable = task.engine is Engine.COPY_ENGINE and any(memory.pageable for memory in memories)
        """Whether the engine copies memory that is not pinned."""

    def first_touch(self, part: Window) -> None:
        """Fill as much of the source as a window needs, and see what writing to a new destination costs."""
        if self._source is not None:
            self._fill(self._source, part)
        for _, held in self._new:
            if held is self._destination and part.size_bytes == held.memory.size_bytes:
                started = time.perf_counter()
                poison(self._checker, _region(held, part, held.seed))
                self._checker.synchronize()
                held.first_touch_ms = _ms_since(started)

    def spoil(self, part: Window) -> None:
        """Begin to make sure that what a sample leaves is not there already."""
        if self._source is not None:
            self._fill(self._source, part)
        if self._destination is not None:
            poison(self._checker, _region(self._destination, part, self.seed))
        else:
            self._result.clear()

    def parts(self, part: Window, passes: int) -> FlowParts:
        """Return the work of one sample."""
        move = Move(
            source=self._source.memory.address + part.offset_bytes if self._source else 0,
            destination=self._destination.memory.address + part.offset_bytes if self._destination else 0,
            slot_bytes=part.slot_bytes,
            slots=part.slots,
            passes=passes,
        )
        stream, kernels = self._streams[0], self._kernels
        if kernels is None:
            return copy_by_engine(self._streams, move)
        if self._source is None:
            return write_by_kernel(kernels, stream, move, self._share, self._expected(part).own_seed)
        if self._destination is None:
            return read_by_kernel(kernels, stream, move, self._share, self._result.address)
        return copy_by_kernel(kernels, stream, move, self._share)

    def check(self, part: Window, passes: int) -> Check:
        """Begin to look at what a sample has left."""
        if self._destination is None:
            return self._check_sum(part, passes)
        region = _region(self._destination, part, self.seed)
        return self._rig.pattern.check(self._checker, region)

    def synchronize(self) -> None:
        """Wait for everything that was begun."""
        for stream in {*self._streams, self._filler, self._checker}:
            stream.synchronize()

    def costs(self) -> Iterator[BufferCost]:
        """Yield what the buffers cost that this flow was the first to use."""
        for buffer, held in self._new:
            memory = held.memory
            yield BufferCost(
                label=buffer.end.label,
                memory=buffer.end.memory,
                size_bytes=memory.size_bytes,
                allocate_ms=memory.allocate_ms,
                first_touch_ms=held.first_touch_ms if memory.touch_ms is None else memory.touch_ms,
            )

    def _hold(self, buffer: Buffer | None) -> Held | None:
        if buffer is None:
            return None
        known = self._rig.has(buffer)
        held = self._rig.held(buffer)
        if not known:
            self._new.append((buffer, held))
        return held

    def _fill(self, held: Held, part: Window) -> None:
        """Write the pattern as far as a window reaches, beyond what is filled already."""
        start, end = held.filled_bytes, part.offset_bytes + part.size_bytes
        if end <= start:
            return
        started = time.perf_counter()
        self._rig.pattern.fill(self._filler, _region(held, Window(start, 1, end - start), held.seed))
        # Other flows of the step may read the same source, by streams that do not wait for this one.
        self._filler.synchronize()
        if (start, end) == (0, held.memory.size_bytes):
            held.first_touch_ms = _ms_since(started)
        held.filled_bytes = end

    def _expected(self, part: Window) -> Region:
        """Return the part of the buffer that is read, or written by a kernel alone, with what is in it."""
        held = self._source or self._destination
        assert held is not None  # noqa: S101 - __init__ has seen to it
        return _region(held, part, self.seed)

    def _check_sum(self, part: Window, passes: int) -> Check:
        self._result.fetch()
        pattern, stream = self._rig.kernel_pattern, self._streams[0]
        whole, rest = divmod(passes, part.slots)
        region = self._expected(part)
        expected = whole * pattern.sum(stream, region)
        if rest:
            expected += pattern.sum(stream, self._expected(Window(part.offset_bytes, rest, part.slot_bytes)))
        expected %= 1 << 64

        def finish() -> Difference | None:
            found = self._result.words()[0]
            if found == expected:
                return None
            # The same way again: it may show where.
            difference = pattern.check(stream, region)()
            return difference or Difference(0, part.offset_bytes, expected, found)

        return finish


def _region(held: Held, part: Window, seed: int) -> Region:
    memory = held.memory
    return Region(memory.address + part.offset_bytes, part.size_bytes, seed, part.offset_bytes, memory.pageable)


def _ms_since(started: float) -> float:
    return (time.perf_counter() - started) * 1e3
