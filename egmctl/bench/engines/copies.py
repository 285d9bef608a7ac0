"""The engines that only differ in what moves the bytes: the copy engine, and kernels that copy, read or write."""

from __future__ import annotations

from functools import partial

from egmctl.bench.buffers import Window
from egmctl.bench.engines.transfer import FlowPart, Mover, Transfer, measure
from egmctl.gpu.pattern import VECTOR_BYTES, Check, Difference
from egmctl.gpu.timing import FlowParts, Stream
from egmctl.model.measurement import Verification
from egmctl.model.task import Engine

_SPLIT_BYTES = 4096
"""A copy is split over streams at multiples of this."""
_BULK_THREADS = 32
"""Threads of a block of which one works: a block needs a warp."""


def copy(mover: Mover, part: Window, passes: int) -> FlowParts:
    """Split each copy over all the streams."""
    streams = mover.streams
    destination, source = mover.addresses(part)
    unit = -(-part.slot_bytes // len(streams) // _SPLIT_BYTES) * _SPLIT_BYTES
    edges = [min(part.slot_bytes, unit * number) for number in range(len(streams))] + [part.slot_bytes]

    def queue(stream: Stream, start: int, end: int) -> None:
        for number in range(passes if end > start else 0):
            offset = number % part.slots * part.slot_bytes + start
            stream.copy(destination + offset, source + offset, end - start)

    return [
        (stream, partial(queue, stream, start, end))
        for stream, start, end in zip(streams, edges, edges[1:], strict=False)
    ]


def copy_vectors(mover: Mover, part: Window, passes: int) -> FlowParts:
    """Copy vectors of 16 bytes: ``kernels/copy.cu``."""
    return mover.by_kernel("copy_vectors", part, part.slot_bytes // VECTOR_BYTES, passes, part.slots)


def read_vectors(mover: Mover, part: Window, passes: int) -> FlowParts:
    """Read vectors of 16 bytes: ``kernels/copy.cu``."""
    result = mover.result.address
    return mover.by_kernel("sum_vectors", part, part.slot_bytes // VECTOR_BYTES, passes, part.slots, result)


def write_vectors(mover: Mover, part: Window, passes: int) -> FlowParts:
    """Write vectors of 16 bytes: ``kernels/pattern.cu``."""
    return mover.by_kernel(
        "fill_pattern", part, part.slot_bytes // VECTOR_BYTES, mover.expected(part).own_seed, passes, part.slots
    )


def copy_bulk(mover: Mover, part: Window, passes: int) -> FlowParts:
    """Copy chunks of 16 KiB, six of them under way in each block: ``kernels/bulk.cu``."""
    arguments = (part, part.slot_bytes // VECTOR_BYTES, passes, part.slots)
    # One block on each multiprocessor: its chunks under way take almost half of the shared memory.
    return mover.by_kernel("copy_bulk", *arguments, blocks=1, threads=_BULK_THREADS)


def clear_sum(flow: FlowPart, _part: Window) -> None:
    """Begin to clear the checksum of a kernel that only reads."""
    if flow.mover is not None:
        flow.mover.result.clear()


def check_sum(flow: FlowPart, part: Window, passes: int) -> Check | None:
    """Begin to compare the checksum of all bytes that the kernel of a sample read with that of the pattern."""
    if flow.mover is None:
        return None
    mover = flow.mover
    mover.result.fetch()
    pattern, stream = mover.worker.pattern, mover.streams[0]
    whole, rest = divmod(passes, part.slots)
    region = mover.expected(part)
    expected = whole * pattern.sum(stream, region)
    if rest:
        expected += pattern.sum(stream, mover.expected(Window(part.offset_bytes, rest, part.slot_bytes)))
    expected %= 1 << 64

    def finish() -> Difference | None:
        total = mover.result.words()[0]
        if total == expected:
            return None
        # The same way again: it may show where.
        difference = pattern.check(stream, region)()
        return difference or Difference(0, part.offset_bytes, expected, total)

    return finish


READ = Transfer(read_vectors, clear_sum, check_sum, Verification.CHECKSUM_EVERY_SAMPLE)
MEASURE = {
    Engine.COPY_ENGINE: partial(measure, Transfer(copy)),
    Engine.SM_COPY: partial(measure, Transfer(copy_vectors)),
    Engine.SM_READ: partial(measure, READ),
    Engine.SM_WRITE: partial(measure, Transfer(write_vectors)),
    Engine.BULK: partial(measure, Transfer(copy_bulk)),
}
