"""One thread of one kernel follows a chain of offsets through memory: the latency of a load."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from egmctl.bench.engines.base import BenchEngine
from egmctl.bench.exchange import Exchange
from egmctl.bench.rig import Rig
from egmctl.model.measurement import Measurement, Settings, Task, Verification
from egmctl.model.rank import Rank


@dataclass(frozen=True, kw_only=True)
class PointerChase(BenchEngine):
    """Along random or sequential lines, idle or while other blocks load the same path: ``kernels/chase.cu``."""

    def verification(self, rig: Rig) -> Verification:  # noqa: ARG002
        return Verification.WALK_EVERY_SAMPLE

    def measure(
        self, exchange: Exchange, rig: Rig, ranks: Sequence[Rank], tasks: Sequence[Task], settings: Settings
    ) -> list[Measurement]:
        if not ranks:
            from egmctl.bench import latency

            return latency.measure(rig, tasks, settings)
        from egmctl.bench.ranks import latency as by_ranks

        return by_ranks.measure(exchange, rig, ranks, tasks, settings)


CHASE = PointerChase(caption="pointer chase", counted="", needs_kernels=True)
