"""Reads by a kernel that writes nothing: it adds what it reads to one word."""

from __future__ import annotations

from dataclasses import dataclass

from egmctl.bench.case import End
from egmctl.bench.engines.transfer import CHECKSUM_OF_READS, Move, Mover, TransferEngine
from egmctl.gpu.timing import FlowParts


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
