"""The engines that only differ in what moves the bytes: the copy engine, and kernels that copy, read or write."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

from egmctl.bench.case import End
from egmctl.bench.engines.transfer import CHECKSUM_OF_READS, COMPARE_DESTINATION, Move, Mover, TransferEngine
from egmctl.gpu.timing import FlowParts, Stream

_SPLIT_BYTES = 4096
"""Where a copy is split over streams, at a multiple of this."""


@dataclass(frozen=True, kw_only=True)
class CopyEngine(TransferEngine):
    """Each copy is split over all the streams."""

    def launch(self, mover: Mover, move: Move) -> FlowParts:
        streams = mover.streams
        unit = -(-move.slot_bytes // len(streams) // _SPLIT_BYTES) * _SPLIT_BYTES
        edges = [min(move.slot_bytes, unit * number) for number in range(len(streams))] + [move.slot_bytes]

        def copy(stream: Stream, start: int, end: int) -> None:
            for number in range(move.passes if end > start else 0):
                offset = number % move.slots * move.slot_bytes + start
                stream.copy(move.destination + offset, move.source + offset, end - start)

        return [
            (stream, partial(copy, stream, start, end))
            for stream, start, end in zip(streams, edges, edges[1:], strict=False)
        ]


COPY_ENGINE = CopyEngine(
    caption="memcpy CE",
    counted="each byte copied, once",
    needs_kernels=False,
    carries=frozenset({End.SOURCE, End.DESTINATION}),
    verified_by=COMPARE_DESTINATION,
    blocks_on_pageable=True,
)


@dataclass(frozen=True, kw_only=True)
class CopyKernel(TransferEngine):
    """Vectors of 16 bytes: ``kernels/copy.cu``."""

    def launch(self, mover: Mover, move: Move) -> FlowParts:
        return mover.by_kernel("copy_vectors", move.destination, move.source, move.vectors, move.passes, move.slots)


COPY_KERNEL = CopyKernel(
    caption="memcpy SM",
    counted="each byte copied, once",
    needs_kernels=True,
    carries=frozenset({End.SOURCE, End.DESTINATION}),
    verified_by=COMPARE_DESTINATION,
)


@dataclass(frozen=True, kw_only=True)
class ReadKernel(TransferEngine):
    """Vectors of 16 bytes: ``kernels/copy.cu``."""

    def launch(self, mover: Mover, move: Move) -> FlowParts:
        result = mover.result.address
        return mover.by_kernel("sum_vectors", move.source, move.vectors, move.passes, move.slots, result)


READ_KERNEL = ReadKernel(
    caption="read SM",
    counted="each byte read",
    needs_kernels=True,
    carries=frozenset({End.SOURCE}),
    verified_by=CHECKSUM_OF_READS,
)


@dataclass(frozen=True, kw_only=True)
class WriteKernel(TransferEngine):
    """Vectors of 16 bytes: ``kernels/pattern.cu``."""

    def launch(self, mover: Mover, move: Move) -> FlowParts:
        return mover.by_kernel("fill_pattern", move.destination, move.vectors, move.seed, move.passes, move.slots)


WRITE_KERNEL = WriteKernel(
    caption="write SM",
    counted="each byte written",
    needs_kernels=True,
    carries=frozenset({End.DESTINATION}),
    verified_by=COMPARE_DESTINATION,
)


THREADS = 32
"""One of them works: a block needs a warp."""


@dataclass(frozen=True, kw_only=True)
class Bulk(TransferEngine):
    """Chunks of 16 KiB, six of them under way in each block: ``kernels/bulk.cu``."""

    def launch(self, mover: Mover, move: Move) -> FlowParts:
        stream = mover.streams[0]
        # One block on each multiprocessor: its chunks under way take almost half of the shared memory.
        grid = mover.blocks_of(1)
        arguments = (move.destination, move.source, move.vectors, move.passes, move.slots)
        return [(stream, partial(mover.kernels.launch, "copy_bulk", stream.handle, grid, THREADS, *arguments))]


BULK = Bulk(
    caption="memcpy bulk",
    counted="each byte copied, once",
    needs_kernels=True,
    needs_capability=(9, 0),
    carries=frozenset({End.SOURCE, End.DESTINATION}),
    verified_by=COMPARE_DESTINATION,
)
