"""Copies by a kernel that reads and writes."""

from __future__ import annotations

from dataclasses import dataclass

from egmctl.bench.case import End
from egmctl.bench.engines.transfer import COMPARE_DESTINATION, Move, Mover, TransferEngine
from egmctl.gpu.timing import FlowParts


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
