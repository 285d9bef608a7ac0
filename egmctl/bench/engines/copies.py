"""The engines that differ only in how they move the bytes: the copy engine, and kernels that copy, read or write."""

from __future__ import annotations

from functools import partial

from egmctl.bench.buffers import Window
from egmctl.bench.engines.transfer import FlowPart, Mover, Transfer, measure
from egmctl.gpu.pattern import VECTOR_BYTES, Check, Difference
from egmctl.gpu.timing import FlowParts, Stream
from egmctl.model.measurement import Verification
from egmctl.model.task import Engine

_SPLIT_BYTES = 4096
"""The unit in which a copy is split over streams."""
_BULK_THREADS = 32
"""The threads per block, one warp, of which one issues the copies."""


def copy(mover: Mover, part: Window, passes: int) -> FlowParts:
    """Return copies by copy engines, each split over all streams."""
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
    """Return a kernel that copies 16-byte vectors: ``kernels/copy.cu``."""
    return mover.by_kernel("copy_vectors", part, part.slot_bytes // VECTOR_BYTES, passes, part.slots)


def read_vectors(mover: Mover, part: Window, passes: int) -> FlowParts:
    """Return a kernel that sums 16-byte vectors: ``kernels/copy.cu``."""
    result = mover.result.address
    return mover.by_kernel("sum_vectors", part, part.slot_bytes // VECTOR_BYTES, passes, part.slots, result)


def write_vectors(mover: Mover, part: Window, passes: int) -> FlowParts:
    """Return a kernel that writes 16-byte vectors: ``kernels/pattern.cu``."""
    return mover.by_kernel(
        "fill_pattern", part, part.slot_bytes // VECTOR_BYTES, mover.expected(part).own_seed, passes, part.slots
    )


def copy_bulk(mover: Mover, part: Window, passes: int) -> FlowParts:
    """Return a kernel of bulk copies of 16 KiB, up to six in flight per block: ``kernels/bulk.cu``."""
    arguments = (part, part.slot_bytes // VECTOR_BYTES, passes, part.slots)
    # One block per multiprocessor: its chunks in flight take almost half of the shared memory.
    return mover.by_kernel("copy_bulk", *arguments, blocks=1, threads=_BULK_THREADS)


def clear_sum(flow: FlowPart, _part: Window) -> None:
    """Queue a memset of the checksum of a kernel that only reads."""
    if flow.mover is not None:
        flow.mover.result.clear()


def check_sum(flow: FlowPart, part: Window, passes: int) -> Check | None:
    """Queue a comparison of the checksum of all words that a sample's kernel read with that of the pattern."""
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
        # A check over the same path may locate the error.
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
