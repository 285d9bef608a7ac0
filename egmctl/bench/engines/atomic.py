"""Atomic additions by a kernel: what the links and the memory's owner take of them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from egmctl.bench.buffers import Window
from egmctl.bench.case import End
from egmctl.bench.engines.transfer import THREADS, Destination, Move, Mover, TransferEngine
from egmctl.driver.cuda import call
from egmctl.gpu.pattern import WORD_BYTES, Check, Difference
from egmctl.gpu.results import read_words
from egmctl.gpu.timing import FlowParts
from egmctl.model.measurement import Verification

if TYPE_CHECKING:
    pass

_MASK = (1 << 64) - 1


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

        def finish() -> Difference | None:
            count, inverse = result.words()
            if count == 0:
                return None
            first = inverse ^ _MASK
            (found,) = read_words(stream, address + first * WORD_BYTES, 1)
            expected = passes // part.slots + (first // words < passes % part.slots)
            return Difference(count, part.offset_bytes + first * WORD_BYTES, expected, found)

        return finish

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
