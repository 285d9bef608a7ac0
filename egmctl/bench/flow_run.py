"""One flow of a bandwidth measurement with what it is measured with: streams, buffers, and what moves the bytes.

Its three parts are apart because the memory at its two ends may be two processes': who owns the source fills it, who
issues the work moves it, who owns the destination looks at it.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence

from egmctl.bench.buffers import Buffer, FlowBuffers, Window
from egmctl.bench.rig import Held, Rig
from egmctl.gpu.clock import ms_since
from egmctl.gpu.engines import Move, copy_by_engine, copy_by_kernel, read_by_kernel, write_by_kernel
from egmctl.gpu.memory import BufferMemory
from egmctl.gpu.pattern import Check, Difference, Region, poison
from egmctl.gpu.timing import FlowParts, Stream
from egmctl.model.measurement import BufferCost, Engine, Flow, Task


class FlowRun:
    """A flow under way, all of it in this process.

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
        self._streams = streams
        initiator = streams[0].context.bus_id
        for end in (flow.source, flow.destination):
            rig.connect(initiator, end.bus_id)
        self._new: list[tuple[Buffer, Held]] = []
        source = self._hold(rig, buffers.source)
        destination = self._hold(rig, buffers.destination)
        held = source or destination
        if held is None:
            raise ValueError(f"{flow.path} has no memory at either end")
        self.seed = held.seed
        """Of what is moved."""
        # The GPU that memory belongs to fills it and looks at it: a check does not take the path under test.
        filler = rig.stream(flow.source.bus_id or initiator)
        checker = rig.stream(flow.destination.bus_id or initiator)
        self._source = Source(rig, source, filler) if source else None
        self._destination = Destination(rig, destination, checker, self.seed) if destination else None
        memories = [held.memory if held else None for held in (source, destination)]
        self._mover = Mover(rig, task.engine, memories[0], memories[1], self.seed, streams=streams, share=share)
        self.pageable = task.engine is Engine.COPY_ENGINE and any(m.pageable for m in memories if m is not None)
        """Whether the engine copies memory that is not pinned."""

    def first_touch(self, part: Window) -> None:
        """Fill as much of the source as a window needs, and see what writing to a new destination costs."""
        if self._source is not None:
            self._source.fill(part)
        if self._destination is not None and any(held is self._destination.held for _, held in self._new):
            self._destination.first_touch(part)

    def spoil(self, part: Window) -> None:
        """Begin to make sure that what a sample leaves is not there already."""
        if self._source is not None:
            self._source.fill(part)
        if self._destination is not None:
            self._destination.spoil(part)
        else:
            self._mover.clear()

    def parts(self, part: Window, passes: int) -> FlowParts:
        """Return the work of one sample."""
        return self._mover.parts(part, passes)

    def check(self, part: Window, passes: int) -> Check:
        """Begin to look at what a sample has left."""
        if self._destination is None:
            return self._mover.check_sum(part, passes)
        return self._destination.check(part)

    def synchronize(self) -> None:
        """Wait for everything that was begun."""
        streams = {*self._streams}
        streams |= {end.stream for end in (self._source, self._destination) if end is not None}
        for stream in streams:
            stream.synchronize()

    def costs(self) -> Iterator[BufferCost]:
        """Yield what the buffers cost that this flow was the first to use."""
        return (cost_of(buffer, held) for buffer, held in self._new)

    def _hold(self, rig: Rig, buffer: Buffer | None) -> Held | None:
        if buffer is None:
            return None
        known = rig.has(buffer)
        held = rig.held(buffer)
        if not known:
            self._new.append((buffer, held))
        return held


class Source:
    """Memory that a flow reads, as its owner has it.

    Parameters
    ----------
    stream
        Of the GPU that fills it.
    """

    def __init__(self, rig: Rig, held: Held, stream: Stream) -> None:
        self.held = held
        self.stream = stream
        self._rig = rig

    def fill(self, part: Window) -> None:
        """Write the pattern as far as a window reaches, beyond what is filled already."""
        held = self.held
        start, end = held.filled_bytes, part.offset_bytes + part.size_bytes
        if end <= start:
            return
        started = time.perf_counter()
        self._rig.pattern.fill(self.stream, _region(held.memory, Window(start, 1, end - start), held.seed))
        # Other flows of the step may read the same source, by streams that do not wait for this one.
        self.stream.synchronize()
        if (start, end) == (0, held.memory.size_bytes):
            held.first_touch_ms = ms_since(started)
        held.filled_bytes = end


class Destination:
    """Memory that a flow writes, as its owner has it.

    Parameters
    ----------
    stream
        Of the GPU that looks at it.
    seed
        Of what is moved there.
    """

    def __init__(self, rig: Rig, held: Held, stream: Stream, seed: int) -> None:
        self.held = held
        self.stream = stream
        self._rig = rig
        self._seed = seed

    def first_touch(self, part: Window) -> None:
        """See what it costs to write all of it for the first time, if the window is all of it."""
        if part.size_bytes == self.held.memory.size_bytes:
            started = time.perf_counter()
            self.spoil(part)
            self.stream.synchronize()
            self.held.first_touch_ms = ms_since(started)

    def spoil(self, part: Window) -> None:
        """Begin to overwrite it with what no flow brings."""
        poison(self.stream, _region(self.held.memory, part, self._seed))

    def check(self, part: Window) -> Check:
        """Begin to compare all of a window with what is to be there."""
        return self._rig.pattern.check(self.stream, _region(self.held.memory, part, self._seed))


class Mover:
    """What moves the bytes of a flow, in the process that issues the work.

    Parameters
    ----------
    source, destination
        Memory that its GPU reaches; ``None`` at an end without memory.
    seed
        Of what is moved.
    streams, share
        As of :class:`FlowRun`.
    """

    def __init__(
        self,
        rig: Rig,
        engine: Engine,
        source: BufferMemory | None,
        destination: BufferMemory | None,
        seed: int,
        *,
        streams: Sequence[Stream],
        share: int,
    ) -> None:
        self._rig = rig
        self._source = source
        self._destination = destination
        self._seed = seed
        self._streams = streams
        self._share = share
        self._kernels = None if engine is Engine.COPY_ENGINE else rig.kernels_of(streams[0].context.bus_id)
        if engine is Engine.SM_READ:
            self._result = rig.results.take(streams[0])

    def clear(self) -> None:
        """Begin to clear the sum of what is only read."""
        self._result.clear()

    def parts(self, part: Window, passes: int) -> FlowParts:
        """Return the work of one sample."""
        move = Move(
            source=self._source.address + part.offset_bytes if self._source else 0,
            destination=self._destination.address + part.offset_bytes if self._destination else 0,
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

    def check_sum(self, part: Window, passes: int) -> Check:
        """Begin to compare the sum of what was read with what it is to be."""
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

    def _expected(self, part: Window) -> Region:
        """Return the part of the buffer that is read, or written by a kernel alone, with what is in it."""
        memory = self._source or self._destination
        assert memory is not None  # noqa: S101 - a flow has memory at one end at least
        return _region(memory, part, self._seed)


def cost_of(buffer: Buffer, held: Held) -> BufferCost:
    """Return what a buffer cost."""
    memory = held.memory
    return BufferCost(
        label=buffer.end.label,
        memory=buffer.end.memory,
        size_bytes=memory.size_bytes,
        allocate_ms=memory.allocate_ms,
        first_touch_ms=held.first_touch_ms if memory.touch_ms is None else memory.touch_ms,
    )


def _region(memory: BufferMemory, part: Window, seed: int) -> Region:
    return Region(memory.address + part.offset_bytes, part.size_bytes, seed, part.offset_bytes, memory.pageable)
