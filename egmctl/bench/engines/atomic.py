"""Atomic additions by a kernel: what the links and the memory's owner take of them."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from egmctl.bench.buffers import Window
from egmctl.bench.case import End
from egmctl.bench.engines.transfer import THREADS, Destination, Move, Mover, TransferEngine
from egmctl.driver.cuda import call
from egmctl.gpu.pattern import WORD_BYTES, Check, Region, first_difference
from egmctl.gpu.timing import FlowParts
from egmctl.model.measurement import Verification

if TYPE_CHECKING:
    pass


@dataclass(frozen=True, kw_only=True)
class Atomic(TransferEngine):
    """One addition to each word of 8 bytes in each pass: ``kernels/atomic.cu``."""

    def launch(self, mover: Mover, move: Move) -> FlowParts:
        return mover.by_kernel("add_ones", move.destination, move.slot_bytes // WORD_BYTES, move.passes, move.slots)


class CountAdditions:
    """Every word is 0 before a sample, and holds afterwards how many additions it was to get: none may be lost."""

    name = Verification.GPU_EVERY_SAMPLE

    def prepare_destination(self, destination: Destination, part: Window) -> None:
        stream = destination.stream
        stream.context.make_current()
        call("cuMemsetD32Async", destination.address(part), 0, part.size_bytes // 4, stream.handle)

    def prepare_mover(self, mover: Mover) -> None:
        """Nothing is kept there."""

    def check_destination(self, destination: Destination, part: Window, passes: int) -> Check:
        stream, address = destination.stream, destination.address(part)
        words = part.slot_bytes // WORD_BYTES
        result = destination.worker.results.take(stream)
        result.clear()
        kernels = destination.worker.kernels[stream.context.bus_id]
        grid = stream.context.multiprocessors
        arguments = (address, words, passes, part.slots, result.address)
        kernels.launch("verify_counts", stream.handle, grid, THREADS, *arguments)
        result.fetch()

        region = Region(address, part.size_bytes, seed=0, offset_bytes=part.offset_bytes)
        whole, rest = divmod(passes, part.slots)
        return partial(first_difference, stream, result, region, lambda first: whole + (first // words < rest))

    def check_mover(self, mover: Mover, part: Window, passes: int) -> None:  # noqa: ARG002
        return None


ATOMIC = Atomic(
    caption="atomic add",
    counted="8 bytes for each addition",
    needs_kernels=True,
    atomics=True,
    carries=frozenset({End.DESTINATION}),
    verified_by=CountAdditions(),
)
