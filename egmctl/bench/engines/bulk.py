"""Bulk copies: the multiprocessors' copy unit (TMA), through shared memory."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

from egmctl.bench.case import End
from egmctl.bench.engines.transfer import COMPARE_DESTINATION, Move, Mover, TransferEngine
from egmctl.gpu.timing import FlowParts

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
