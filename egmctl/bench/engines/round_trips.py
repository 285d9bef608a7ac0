"""How long one side takes to tell another one something and hear back: what round trips of all kinds share."""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from egmctl.bench.conclusion import of_latency, round_trips
from egmctl.bench.engines.base import BenchEngine
from egmctl.bench.processes import evidence
from egmctl.bench.processes.collective import CollectiveStep, close_all
from egmctl.bench.processes.exchange import Item
from egmctl.bench.processes.resources import ResourceScope, resource_scopes
from egmctl.gpu.clock import ms_since
from egmctl.gpu.timing import Stream
from egmctl.model.codec import from_json, to_json
from egmctl.model.measurement import Measurement, Sample, Settings, Task
from egmctl.model.timing import Phase

if TYPE_CHECKING:
    from egmctl.bench.processes.context import WorkerContext

WARM_UP_LAPS = 200
"""Untimed round trips before those of each sample: the side that serves begins a little before the other."""


@dataclass(frozen=True, kw_only=True)
class RoundTripEngine(BenchEngine):
    """An engine by which two GPUs, or two processes, answer each other: a latency."""

    round_trip: bool = True
    pair: type[Pair]
    """What two sides are made of. The first flow's initiator sends first and takes the times; the other side is the
    second flow's initiator, or the first flow's destination. No process is in two tasks of a step, but the one that
    works all GPUs."""

    @property
    def verification(self) -> None:
        """A flag or a message that is wrong ends no round trip: there is nothing to compare."""
        return None

    def measure(self, worker: WorkerContext, tasks: Sequence[Task], settings: Settings) -> list[Measurement]:
        collective = CollectiveStep(worker, tasks)
        # Where the host has a part in the round trips, what asks NVML meanwhile is in their way.
        watched = () if self.timed_by_host else tasks
        with resource_scopes(collective) as held:
            pairs = [self.pair(collective, worker, task, one) for task, one in zip(tasks, held, strict=True)]
            connect(collective, pairs)
            with worker.stopwatch.phase(Phase.MEASURING), worker.link_counters.watch(watched) as watch:
                samples = [sample(collective, pairs) for _ in range(settings.samples)]
        gathered = collective.do(lambda _place: evidence.told(watch, worker)) if watched else [()] * len(tasks)
        found = []
        for place, (task, outcome) in enumerate(zip(tasks, collective.outcomes, strict=True)):
            made = outcome or _conclude(task, [taken[place] for taken in samples])
            if made.samples and gathered[place]:
                made = replace(made, evidence=evidence.gathered(made, len(made.samples), worker.ranks, gathered[place]))
            found.append(made)
        return found


def connect(collective: CollectiveStep, pairs: Sequence[Pair]) -> None:
    """Have each pair make what it needs, and send it to each other."""
    offered = collective.do(lambda place: pairs[place].make())
    try:
        collective.do(lambda place: pairs[place].open(offered[place]))
    finally:
        close_all(offered)


def sample(collective: CollectiveStep, pairs: Sequence[Pair]) -> list[Sample | None]:
    """Take one sample of each task; ``None`` where a side timed out waiting for its peer."""
    collective.do(lambda place: pairs[place].ready())
    told = collective.do(lambda place: pairs[place].take(), begin=lambda place: pairs[place].start())
    return [pair.joined(items) if items else None for pair, items in zip(pairs, told, strict=True)]


def _conclude(task: Task, taken: Sequence[Sample | None]) -> Measurement:
    samples = [sample for sample in taken if sample is not None]
    return of_latency(task, samples, discarded=len(taken) - len(samples))


class Pair(ABC):
    """Two sides that answer each other, as one process sees them: it may be one of them, or both, or none."""

    def __init__(self, collective: CollectiveStep, worker: WorkerContext, task: Task, held: ResourceScope) -> None:
        first = task.flows[0]
        other = task.flows[1].initiator_rank if len(task.flows) > 1 else first.destination.rank
        self.me = collective.exchange.rank
        self.worker = worker
        self.collective = collective
        self.task = task
        self.flows = task.flows
        self.held = held
        self.serving, self.answering = first.initiator_rank or 0, other or 0
        self.serves = self.me == self.serving
        self.takes_part = self.me in (self.serving, self.answering)
        self.laps = WARM_UP_LAPS + (task.chase.loads if task.chase else 0)
        self._started = 0.0

    @property
    def stream(self) -> Stream:
        """The stream that this process works on, where it is one side."""
        return self.worker.stream(self.collective.ranks[self.me].bus_id)

    @abstractmethod
    def make(self) -> Item:
        """Make what this side has to give to the other one."""

    @abstractmethod
    def open(self, offered: Sequence[Item]) -> None:
        """Open what the other side has given; of its descriptors what is kept is a copy."""

    @abstractmethod
    def ready(self) -> None:
        """Prepare one sample, before either side begins."""

    def start(self) -> None:
        """Begin this process' part of a sample."""
        self._started = time.perf_counter()

    @abstractmethod
    def run(self) -> Sequence[float] | None:
        """Do this process' part of a sample; return the nanoseconds of each lap, ``None`` if it timed out waiting."""

    def take(self) -> Any:
        """Return this side's part of a sample as JSON data, ``None`` where it has none or timed out."""
        if not self.takes_part:
            return None
        laps_ns = self.run()
        if laps_ns is None:
            return None
        wall_ms = ms_since(self._started)
        return to_json(self.summed_up(round_trips(laps_ns[WARM_UP_LAPS:], wall_ms))) if self.serves else {}

    def summed_up(self, sample: Sample) -> Sample:
        """Return a sample with the latency that stands for its laps: their mean."""
        return sample

    def joined(self, told: Sequence[Item]) -> Sample | None:
        """Return the sample of which each process has told its part."""
        sides = [told[number].data for number in (self.serving, self.answering)]
        return None if None in sides else from_json(Sample, sides[0])
