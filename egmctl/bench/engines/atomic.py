"""Atomic additions by a kernel: their bandwidth, and the latency of one addition."""

from __future__ import annotations

from functools import partial

from egmctl.bench.buffers import Window
from egmctl.bench.engines import latency, transfer
from egmctl.bench.engines.chase import WARM_UP_LOADS, Walker
from egmctl.bench.engines.transfer import THREADS, FlowPart, Mover, Transfer
from egmctl.gpu.chase import Counters, Walk
from egmctl.gpu.pattern import WORD_BYTES, Check, first_difference
from egmctl.gpu.timing import FlowParts
from egmctl.model.measurement import Verification
from egmctl.model.task import Engine


def add_ones(mover: Mover, part: Window, passes: int) -> FlowParts:
    """Return work that adds 1 to each 8-byte word in each pass: ``kernels/atomic.cu``."""
    return mover.by_kernel("add_ones", part, part.slot_bytes // WORD_BYTES, passes, part.slots)


def clear_counts(flow: FlowPart, part: Window) -> None:
    """Queue a memset of every word to 0."""
    if flow.destination is not None:
        flow.destination.stream.fill(flow.destination.region(part).address, part.size_bytes)


def check_counts(flow: FlowPart, part: Window, passes: int) -> Check | None:
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
    result.fetch()
    whole, rest = divmod(passes, part.slots)
    return partial(first_difference, stream, result, region, lambda first: whole + (first // words < rest))


class Additions(Walker):
    """A latency measurement like a pointer chase, but with atomic additions to counters in turn.

    Each sample continues the last one: ``kernels/atomic_latency.cu``.
    """

    verification = Verification.COUNTERS_EVERY_SAMPLE
    kernel = "add_in_turn"

    def write_chain(self) -> int | None:
        """Clear the counters with the GPU that owns them."""
        if not self._owns:
            return None
        self.counters = Counters(self.memory(0).address, self.worker.near(self.flow.source, self.flow))
        return 0

    def get_ready(self) -> None:
        """Do nothing: there is no chain."""

    def queue(self) -> None:
        self.gpu.launch(self.kernel, self.counters.address, self.counters.made, WARM_UP_LOADS, self.chase.loads)
        self.counters.made += WARM_UP_LOADS + self.chase.loads

    def wait(self) -> Walk:
        start, end, wrong_answers, _sm = self.gpu.words(4)
        wrong_offset = self.counters.wrong_offset()
        return Walk(end - start, self.chase.loads, 0 if wrong_offset is None and wrong_answers else wrong_offset)

    @staticmethod
    def error(sample: int, offset: int | None) -> str | None:
        if offset is None:
            return None
        lost = "additions were lost or answered wrongly; the first wrong counter is at offset"
        return f"sample {sample}: {lost} {offset}"


MEASURE = {
    Engine.ATOMIC: partial(transfer.measure, Transfer(add_ones, clear_counts, check_counts)),
    Engine.ATOMIC_LATENCY: partial(latency.measure, Additions),
}
