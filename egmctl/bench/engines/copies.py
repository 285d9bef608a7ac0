"""The engines that only differ in what moves the bytes: the copy engine, and kernels that copy, read or write."""

from __future__ import annotations

from functools import partial

from egmctl.bench.engines.transfer import ChecksumOfReads, Move, Mover, Transfer
from egmctl.bench.engines.transfer_step import measure
from egmctl.gpu.timing import FlowParts, Stream
from egmctl.model.task import Engine

_SPLIT_BYTES = 4096
"""Where a copy is split over streams, at a multiple of this."""
_BULK_THREADS = 32
"""One of them works: a block needs a warp."""


def copy(mover: Mover, move: Move) -> FlowParts:
    """Split each copy over all the streams."""
    streams = mover.streams
    unit = -(-move.slot_bytes // len(streams) // _SPLIT_BYTES) * _SPLIT_BYTES
    edges = [min(move.slot_bytes, unit * number) for number in range(len(streams))] + [move.slot_bytes]

    def queue(stream: Stream, start: int, end: int) -> None:
        for number in range(move.passes if end > start else 0):
            offset = number % move.slots * move.slot_bytes + start
            stream.copy(move.destination + offset, move.source + offset, end - start)

    return [
        (stream, partial(queue, stream, start, end))
        for stream, start, end in zip(streams, edges, edges[1:], strict=False)
    ]


def copy_vectors(mover: Mover, move: Move) -> FlowParts:
    """Copy vectors of 16 bytes: ``kernels/copy.cu``."""
    return mover.by_kernel("copy_vectors", move.destination, move.source, move.vectors, move.passes, move.slots)


def read_vectors(mover: Mover, move: Move) -> FlowParts:
    """Read vectors of 16 bytes: ``kernels/copy.cu``."""
    result = mover.result.address
    return mover.by_kernel("sum_vectors", move.source, move.vectors, move.passes, move.slots, result)


def write_vectors(mover: Mover, move: Move) -> FlowParts:
    """Write vectors of 16 bytes: ``kernels/pattern.cu``."""
    return mover.by_kernel("fill_pattern", move.destination, move.vectors, move.seed, move.passes, move.slots)


def copy_bulk(mover: Mover, move: Move) -> FlowParts:
    """Copy chunks of 16 KiB, six of them under way in each block: ``kernels/bulk.cu``."""
    stream = mover.streams[0]
    # One block on each multiprocessor: its chunks under way take almost half of the shared memory.
    grid = mover.blocks_of(1)
    arguments = (move.destination, move.source, move.vectors, move.passes, move.slots)
    return [(stream, partial(mover.kernels.launch, "copy_bulk", stream.handle, grid, _BULK_THREADS, *arguments))]


MEASURE = {
    Engine.COPY_ENGINE: partial(measure, Transfer(copy)),
    Engine.SM_COPY: partial(measure, Transfer(copy_vectors)),
    Engine.SM_READ: partial(measure, Transfer(read_vectors, ChecksumOfReads())),
    Engine.SM_WRITE: partial(measure, Transfer(write_vectors)),
    Engine.BULK: partial(measure, Transfer(copy_bulk)),
}
