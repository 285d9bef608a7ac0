"""One flow of a bandwidth measurement with what it is measured with: streams, buffers, and what moves the bytes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from egmctl.bench.buffers import Buffer, FlowBuffers, Window
from egmctl.bench.engines.transfer import Destination, Mover, Source, TransferEngine
from egmctl.bench.rig import Held, Rig
from egmctl.gpu.pattern import Check
from egmctl.gpu.timing import FlowParts, Stream
from egmctl.model.measurement import BufferCost, Flow


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
        self,
        rig: Rig,
        engine: TransferEngine,
        flow: Flow,
        buffers: FlowBuffers,
        *,
        streams: Sequence[Stream],
        share: int,
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
        self._mover = Mover(rig, engine, memories[0], memories[1], self.seed, streams=streams, share=share)
        self._verified_by = engine.verified_by
        self.pageable = self._mover.pageable

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
            self._verified_by.prepare_destination(self._destination, part)
        self._verified_by.prepare_mover(self._mover)

    def parts(self, part: Window, passes: int) -> FlowParts:
        """Return the work of one sample."""
        return self._mover.parts(part, passes)

    def checks(self, part: Window, passes: int) -> list[Check]:
        """Begin to look at what a sample has left."""
        begun = [self._verified_by.check_mover(self._mover, part, passes)]
        if self._destination is not None:
            begun.append(self._verified_by.check_destination(self._destination, part, passes))
        return [check for check in begun if check is not None]

    def synchronize(self) -> None:
        """Wait for everything that was begun."""
        ends = (end.stream for end in (self._source, self._destination) if end is not None)
        for stream in dict.fromkeys((*self._streams, *ends)):
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
