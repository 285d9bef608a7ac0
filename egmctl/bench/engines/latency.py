"""The sequence of every latency step, and the base class of a process' part of one task."""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from egmctl.bench.buffers import assign
from egmctl.bench.engine import ENGINES
from egmctl.bench.processes.collective import CollectiveStep, Item, ResourceScope, resource_scopes, with_evidence
from egmctl.gpu.chase import Reader
from egmctl.model.measurement import Measurement, Phase, Sample, Settings
from egmctl.model.task import Flow, Task

if TYPE_CHECKING:
    from egmctl.bench.processes.context import WorkerContext


class TaskPart(ABC):
    """This process' part of one task of a step, which may be empty.

    Parameters
    ----------
    place
        The index of the task in the step.
    held
        The scope of this process' resources for the task.
    """

    def __init__(self, collective: CollectiveStep, worker: WorkerContext, place: int, held: ResourceScope) -> None:
        self.collective = collective
        self.worker = worker
        self.held = held
        self.task = collective.tasks[place]
        self.flow = self.task.flows[0]
        self.buffers = assign(collective.tasks)[place]
        self.samples: list[Sample] = []
        self.discarded = 0
        """The number of samples that are missing because one side timed out waiting for its peer."""
        self.started = 0.0

    @staticmethod
    @abstractmethod
    def prepare(collective: CollectiveStep, worker: WorkerContext, parts: Sequence[Any]) -> None:
        """Prepare the tasks of a step in all processes. ``parts`` are this process' parts, by task index."""

    def ready(self) -> None:  # noqa: B027 - most have nothing to prepare
        """Prepare one sample, before any process starts it."""

    def start(self) -> None:
        """Start this process' part of a sample."""
        self.started = time.perf_counter()

    @abstractmethod
    def take(self) -> Any:
        """Wait for the end of the sample; return this process' data as JSON."""

    @abstractmethod
    def keep(self, items: Sequence[Item]) -> None:
        """Add a sample from the data of all processes, which is ``None`` if the task has ended early."""

    @abstractmethod
    def conclude(self) -> Measurement:
        """Return the measurement."""

    def reader(self, flow: Flow) -> Reader:
        """Return a reader on the GPU that issues a flow's work, after enabling its access to this process' memory."""
        stream = self.worker.stream(flow.initiator or "")
        for end in (flow.source, flow.destination):
            if self.collective.owns(end):
                self.worker.connect(stream.context.bus_id, end)
        reader = Reader(stream, self.worker.kernels[stream.context.bus_id])
        self.held.own.append(reader)
        return reader


def measure(
    part_type: type[TaskPart], worker: WorkerContext, tasks: Sequence[Task], settings: Settings
) -> list[Measurement]:
    """Measure the latencies of a step at the same time in all processes; every process returns the same result."""
    collective = CollectiveStep(worker, tasks)
    # NVML queries would disturb latencies in which the host takes part.
    watched = () if ENGINES[tasks[0].engine].timed_by_host else tasks
    with resource_scopes(collective) as scopes:
        parts = [part_type(collective, worker, place, scope) for place, scope in enumerate(scopes)]
        part_type.prepare(collective, worker, parts)
        with worker.stopwatch.phase(Phase.MEASURING), worker.link_counters.watch(watched) as watch:
            for _ in range(settings.samples):
                collective.do(lambda place: parts[place].ready())
                taken = collective.do(lambda place: parts[place].take(), begin=lambda place: parts[place].start())
                for part, items in zip(parts, taken, strict=True):
                    part.keep(items)
    if watched:
        return with_evidence(collective, worker, watch, lambda place: parts[place].conclude())
    return [outcome or part.conclude() for outcome, part in zip(collective.outcomes, parts, strict=True)]
