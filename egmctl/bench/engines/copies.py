"""The engines that differ in what they do with the bytes: copy engines, and kernels that copy, read, write or add."""

from __future__ import annotations

from functools import partial

from egmctl.bench.buffers import Window
from egmctl.bench.engines.transfer import THREADS, FlowPart, Mover, Transfer, measure_transfers
from egmctl.gpu.pattern import VECTOR_BYTES, WORD_BYTES, Difference, PatternCheck, first_difference
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


def check_sum(flow: FlowPart, part: Window, passes: int) -> PatternCheck | None:
    """Queue a comparison of the checksum of all words that a sample's kernel read with that of the pattern."""
    if flow.mover is None:
        return None
    mover = flow.mover
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


def add_ones(mover: Mover, part: Window, passes: int) -> FlowParts:
    """Return work that adds 1 to each 8-byte word in each pass: ``kernels/atomic.cu``."""
    return mover.by_kernel("add_ones", part, part.slot_bytes // WORD_BYTES, passes, part.slots)


def clear_counts(flow: FlowPart, part: Window) -> None:
    """Queue a memset of every word to 0."""
    if flow.destination is not None:
        flow.destination.stream.fill(flow.destination.region(part).address, part.size_bytes)


def check_counts(flow: FlowPart, part: Window, passes: int) -> PatternCheck | None:
    """Queue a check that every word is the number of additions to it, so that none was lost."""
    if flow.destination is None:
        return None
    worker, stream, region = flow.destination.worker, flow.destination.stream, flow.destination.region(part)
    words = part.slot_bytes // WORD_BYTES
    result = worker.results.take(stream)
    result.clear()
    kernels = worker.kernels[stream.context.bus_id]
    arguments = (region.address, words, passes, part.slots, result.address)
    kernels.launch("verify_counts", stream.handle, stream.context.multiprocessors, THREADS, *arguments)
    whole, rest = divmod(passes, part.slots)
    return partial(first_difference, stream, result, region, lambda first: whole + (first // words < rest))


READ = Transfer(read_vectors, clear_sum, check_sum, Verification.CHECKSUM_EVERY_SAMPLE)
MEASURE = {
    Engine.COPY_ENGINE: partial(measure_transfers, Transfer(copy)),
    Engine.SM_COPY: partial(measure_transfers, Transfer(copy_vectors)),
    Engine.SM_READ: partial(measure_transfers, READ),
    Engine.SM_WRITE: partial(measure_transfers, Transfer(write_vectors)),
    Engine.BULK: partial(measure_transfers, Transfer(copy_bulk)),
    Engine.ATOMIC: partial(measure_transfers, Transfer(add_ones, clear_counts, check_counts)),
}
