"""How ranks measure the latency of memory that they share: the owner writes the chain, who opened it walks along it."""

from __future__ import annotations

import time
from collections.abc import Sequence
from contextlib import ExitStack, closing
from dataclasses import replace
from typing import Any

from egmctl.bench.buffers import assign
from egmctl.bench.case import End
from egmctl.bench.conclusion import of_latency, went_astray
from egmctl.bench.exchange import Exchange
from egmctl.bench.latency import WARM_UP_LOADS
from egmctl.bench.ranks import evidence
from egmctl.bench.ranks.sharing import open_buffers
from egmctl.bench.ranks.team import Team
from egmctl.bench.rig import Rig
from egmctl.gpu.chase import Chain, Reader
from egmctl.gpu.clock import ms_since
from egmctl.model.measurement import Measurement, Sample, Settings, Task, Verification
from egmctl.model.rank import Rank


def measure(
    exchange: Exchange, rig: Rig, ranks: Sequence[Rank], tasks: Sequence[Task], settings: Settings
) -> list[Measurement]:
    """Measure the latencies of a step at the same time, in all ranks; every rank returns the same."""
    team = Team(exchange, ranks, tasks)
    with ExitStack() as undo:
        step = _Step(team, rig, ranks[exchange.rank].bus_id, undo)
        step.prepare()
        with rig.witness.watch(tasks) as watch:
            for number in range(settings.samples):
                step.sample(number)
        gathered = team.do(lambda _place: evidence.told(watch))
    found = []
    for place, (task, outcome) in enumerate(zip(tasks, team.outcomes, strict=True)):
        if outcome is None:
            samples, seed = step.samples[place], step.seeds[place, 0, End.SOURCE]
            outcome = of_latency(
                task, samples, step.astray[place], verification=Verification.WALK_EVERY_SAMPLE, seeds=(seed,)
            )
            outcome = replace(outcome, evidence=evidence.gathered(task, len(samples), ranks, gathered[place]))
        found.append(outcome)
    return found


class _Step:
    """Tasks that are measured at the same time, as one rank sees them."""

    def __init__(self, team: Team, rig: Rig, bus_id: str, undo: ExitStack) -> None:
        self._team = team
        self._rig = rig
        self._bus_id = bus_id
        self._undo = undo
        self._buffers = assign(team.tasks)
        self._walkers: dict[int, tuple[Reader, Chain]] = {}
        """By the place of the task whose chain this rank walks along."""
        self.samples: list[list[Sample]] = [[] for _ in team.tasks]
        self.astray: list[str | None] = [None for _ in team.tasks]

    def prepare(self) -> None:
        """Make, offer and open the memory, and write the chains into it."""
        self.seeds = open_buffers(self._team, self._rig, self._bus_id, self._buffers)
        self._team.do(self._write)
        self._team.do(self._get_ready)

    def sample(self, number: int) -> None:
        """Take one sample of each task."""
        walked = self._team.do(self._walk)
        for place, items in enumerate(walked):
            found = next((item.data for item in items if item.data is not None), None)
            if found is not None and self._team.outcomes[place] is None:
                self.samples[place].append(
                    Sample(latency_ns=found["latency_ns"], elapsed_ms=found["elapsed_ms"], wall_ms=found["wall_ms"])
                )
                self.astray[place] = self.astray[place] or went_astray(number, found["wrong_offset"])

    def _write(self, place: int) -> None:
        if self._team.tasks[place].flows[0].source.rank == self._team.exchange.rank:
            stream = self._rig.stream(self._bus_id)
            self._chain(place).make(stream, self._rig.kernels_of(self._bus_id))

    def _get_ready(self, place: int) -> None:
        if self._team.tasks[place].flows[0].initiator_rank == self._team.exchange.rank:
            stream, kernels = self._rig.stream(self._bus_id), self._rig.kernels_of(self._bus_id)
            reader = self._undo.enter_context(closing(Reader(stream, kernels)))
            self._walkers[place] = reader, self._chain(place)

    def _walk(self, place: int) -> dict[str, Any] | None:
        if place not in self._walkers:
            return None
        reader, chain = self._walkers[place]
        chase = self._team.tasks[place].chase
        started = time.perf_counter()
        reader.start_walk(chain, chase.loads if chase else 1, warm=WARM_UP_LOADS)
        walk = reader.end_walk()
        return {
            "latency_ns": walk.latency_ns,
            "elapsed_ms": walk.elapsed_ns / 1e6,
            "wall_ms": ms_since(started),
            "wrong_offset": walk.wrong_offset,
        }

    def _chain(self, place: int) -> Chain:
        """Return the chain as this rank sees it: its owner and who walks along it have addresses of their own."""
        task, buffer = self._team.tasks[place], self._buffers[place][0].source
        if buffer is None or task.chase is None:
            raise ValueError(f"{task.case} has no chain")
        address = self._rig.held(buffer).memory.address
        return Chain(address, task.size_bytes, task.chase.stride_bytes, self.seeds[place, 0, End.SOURCE])
