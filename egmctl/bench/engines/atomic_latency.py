"""Atomic additions one after the other, each waiting for its answer: the round trip to whoever owns the memory."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from egmctl.bench.engines.chase import WARM_UP_LOADS, PointerChase, Walker
from egmctl.gpu.atomics import Adder, Counters
from egmctl.gpu.chase import Walk
from egmctl.gpu.clock import possible_ms
from egmctl.model.measurement import Task, Verification

if TYPE_CHECKING:
    pass


@dataclass(frozen=True, kw_only=True)
class AtomicRoundTrip(PointerChase):
    """Additions to counters in memory, where a pointer chase has loads: ``kernels/atomic_latency.cu``."""

    @property
    def verification(self) -> Verification:
        return Verification.COUNTERS_EVERY_SAMPLE

    def walker(self, task: Task) -> type[Walker]:  # noqa: ARG002
        return Additions


ATOMIC_LATENCY = AtomicRoundTrip(caption="atomic addition and its answer", counted="", needs_kernels=True, atomics=True)


class Additions(Walker):
    """One task under way: one thread adds to counters in turn, from sample to sample further on."""

    def take_reader(self) -> None:
        if self._walks:
            stream = self.worker.stream(self.flow.initiator or "")
            self.worker.connect(stream.context.bus_id, self.flow.source)
            self.adder = Adder(stream, self.worker.kernels[stream.context.bus_id])
            self._held.own.append(self.adder)

    def write_chain(self) -> int | None:
        """Clear the counters, by the GPU that owns them."""
        if not self._owns:
            return None
        memory = self.worker.destination(self.buffer(0))
        self.counters = Counters(memory.address, self.worker.near(self.flow.source, self.flow))
        self.counters.clear()
        return 0

    def get_ready(self) -> None:
        """Nothing has to be known of a chain."""

    def queue(self) -> None:
        """Queue additions."""
        self.adder.start(self.counters, self.chase.loads, warm=WARM_UP_LOADS)

    def wait(self) -> tuple[Walk, float, float]:
        """Wait for them, and look at all counters."""
        made = self.adder.end()
        wrong = self.counters.wrong_offset()
        if wrong is None and made.wrong_answers:
            wrong = 0
        elapsed_ms = possible_ms("the kernel add_in_turn", made.elapsed_ns / 1e6)
        return Walk(made.elapsed_ns, made.adds, wrong), elapsed_ms, made.latency_ns

    def error(self, sample: int, offset: int | None) -> str | None:
        if offset is None:
            return None
        return (
            f"sample {sample}: additions were lost or answered wrongly; the first wrong counter is at offset {offset}"
        )
