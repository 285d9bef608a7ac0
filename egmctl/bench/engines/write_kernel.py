"""Writes by a kernel that reads nothing: it makes the pattern that it writes."""

from __future__ import annotations

from dataclasses import dataclass

from egmctl.bench.case import End
from egmctl.bench.engines.transfer import COMPARE_DESTINATION, Move, Mover, TransferEngine
from egmctl.gpu.timing import FlowParts


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
