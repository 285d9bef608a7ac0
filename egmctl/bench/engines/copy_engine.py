"""Copies by a GPU's copy engines: cuMemcpyAsync."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

from egmctl.bench.case import End
from egmctl.bench.engines.transfer import COMPARE_DESTINATION, Move, Mover, TransferEngine
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
