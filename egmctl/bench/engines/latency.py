"""Latencies: the sequence of their steps, and walks of one thread through memory (``docs/measurement.md``).

A walk follows a chain of offsets, or adds to counters in turn. The process that owns the memory writes the chain; the
process that issues the work walks along it. The tasks of a step are measured at the same time: each walk is queued on
its own GPU before the engine waits for any of them.
"""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import asdict, replace
from functools import partial
from typing import Any

from egmctl.bench.buffers import assign_buffers
from egmctl.bench.engine import ENGINES
from egmctl.bench.processes.collective import (
    CollectiveStep,
    Item,
    ResourceScope,
    open_buffers,
    resource_scopes,
    with_evidence,
)
from egmctl.bench.processes.context import WorkerContext
from egmctl.bench.results import of_latency, summarize
from egmctl.gpu.chase import Chain, Counters, Reader, Walk
from egmctl.gpu.context import ms_since, possible_ms
from egmctl.gpu.memory import MappedMemory
from egmctl.gpu.timing import Mark
from egmctl.model.measurement import Measurement, Phase, Sample, Settings, Verification
from egmctl.model.task import Chase, ChaseOrder, Engine, Flow, Pattern, Task


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
        self.buffers = assign_buffers(collective.tasks)[place]
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
        return self.held.own.keep(Reader(stream, self.worker.kernels[stream.context.bus_id]))


def measure_latencies(
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
                collective.each(parts, lambda part: part.ready())
                taken = collective.each(parts, lambda part: part.take(), begin=lambda part: part.start())
                for part, items in zip(parts, taken, strict=True):
                    part.keep(items)
    if watched:
        return with_evidence(collective, worker, watch, lambda place: parts[place].conclude())
    return [outcome or part.conclude() for outcome, part in zip(collective.outcomes, parts, strict=True)]


WARM_UP_LOADS = 2000
"""The number of untimed loads before each sample. On H200 the first thousand loads over an idle NVLink take three times
as long as later ones."""

NVBANDWIDTH_LOADS = 1_000_000
"""The number of loads of one nvbandwidth measurement, divided evenly among the multiprocessors."""


def measure_chase(worker: WorkerContext, tasks: Sequence[Task], settings: Settings) -> list[Measurement]:
    """Measure latencies of random or sequential lines, idle or while other blocks load the same path."""
    (task, *_) = tasks
    walker = Walker
    if task.pattern is Pattern.LOADED:
        walker = Loaded
    elif task.chase is not None and task.chase.order is ChaseOrder.SEQUENTIAL:
        walker = Nvbandwidth if task.engine is Engine.CHASE else BulkNvbandwidth
    return measure_latencies(walker, worker, tasks, settings)


class Walker(TaskPart):
    """The walk of one thread along a chain of random lines. Each sample continues the walk."""

    verification = Verification.WALK_EVERY_SAMPLE
    kernel = "chase"
    wrong_at = "the pointer chase ended at the wrong offset"
    """What a sample says that is wrong, before the offset."""

    def __init__(self, collective: CollectiveStep, worker: WorkerContext, place: int, held: ResourceScope) -> None:
        super().__init__(collective, worker, place, held)
        self._walks = collective.issues(self.flow)
        self._owns = collective.owns(self.flow.source)
        self._beside = 0
        self._wrong: str | None = None

    @staticmethod
    def prepare(collective: CollectiveStep, worker: WorkerContext, parts: Sequence[Walker]) -> None:
        """Make the owners of memory write their chains and send the seeds to the walkers."""
        open_buffers(
            collective, worker, assign_buffers(collective.tasks), before=lambda place: parts[place].take_reader()
        )
        for part, items in zip(parts, collective.each(parts, lambda part: part.write_chain()), strict=True):
            part.seed = next((item.data for item in items if item.data is not None), 0)
        collective.each(parts, lambda part: part.get_ready())

    def take_reader(self) -> None:
        """Allocate the reader if this process walks; choose a seed if it owns the memory."""
        if self._walks:
            self.gpu = self.reader(self.flow)
        if self._owns:
            self.seed = 0 if self.chase.order is ChaseOrder.SEQUENTIAL else self.worker.new_seed()

    def write_chain(self) -> int | None:
        """Write the chain with the owner's GPU and return its seed; ``None`` if another process owns the memory."""
        if not self._owns:
            return None
        stream = self.worker.near(self.flow.source, self.flow)
        self._chain().make(stream, self.worker.kernels[stream.context.bus_id])
        return self.seed

    def get_ready(self) -> None:
        """Prepare the first walk."""
        if self._walks:
            self.chain = self._chain()
            self.warm_up()

    def warm_up(self) -> None:
        """Set the number of untimed loads before the next sample."""
        self.warm = WARM_UP_LOADS + (self.chain.lines if self.chase.warm else 0)

    def start(self) -> None:
        super().start()
        if self._walks:
            self.queue()

    def queue(self) -> None:
        """Queue a walk."""
        self.gpu.start_walk(self.chain, self.chase.loads, warm=self.warm)
        self.warm = WARM_UP_LOADS

    def wait(self) -> Walk:
        """Wait for the walk and return its result."""
        return self.gpu.end_walk(self.chain, self.chase.loads)

    def take(self) -> dict[str, Any] | None:
        if not self._walks:
            return None
        walk = self.wait()
        if not walk.expired:
            possible_ms(f"the kernel {self.kernel}", walk.elapsed_ns / 1e6)
        return {"walk": asdict(walk), "wall_ms": ms_since(self.started)}

    def keep(self, items: Sequence[Item]) -> None:
        for data in (item.data for item in items if item.data is not None):
            walk = Walk(**data["walk"])
            if walk.expired:
                self.discarded += 1
                continue
            self._beside = max(self._beside, walk.load_beside)
            if walk.wrong_offset is not None and self._wrong is None:
                self._wrong = f"sample {len(self.samples)}: {self.wrong_at} {walk.wrong_offset}"
            self.samples.append(
                Sample(
                    bandwidth_gb_s=walk.load_gb_s if self.task.pattern is Pattern.LOADED else None,
                    latency_ns=walk.latency_ns,
                    elapsed_ms=walk.elapsed_ns / 1e6,
                    wall_ms=data["wall_ms"],
                )
            )

    def conclude(self) -> Measurement:
        loads = [sample.bandwidth_gb_s for sample in self.samples if sample.bandwidth_gb_s is not None]
        return of_latency(
            self.task,
            self.samples,
            self._wrong,
            f"{self._beside} warps of the load ran on the chase's multiprocessor" if self._beside else None,
            discarded=self.discarded,
            bandwidth_gb_s=summarize(loads) if loads else None,
            verification=self.verification,
            seeds=(self.seed,),
        )

    @property
    def chase(self) -> Chase:
        """The chase of the task."""
        if self.task.chase is None:
            raise ValueError(f"{self.task.case} does not say how a latency is measured")
        return self.task.chase

    def memory(self, flow: int) -> MappedMemory:
        """Return the memory that a flow reads."""
        (buffer,) = self.buffers[flow].there
        return self.worker.held(buffer).memory

    def _chain(self) -> Chain:
        """Return the chain at this process' address of the memory, which may differ from the owner's."""
        return Chain(self.memory(0).address, self.task.size_bytes, self.chase.stride_bytes, self.seed)


class Nvbandwidth(Walker):
    """The walk as nvbandwidth defines it: one multiprocessor after another follows a sequential chain from its start.

    A sample has as many launches as the task's number of loads needs, on evenly spaced multiprocessors. Its time is
    between events before the first launch and after the last, so it includes launch overhead.
    """

    def warm_up(self) -> None:
        self.blocks = self.gpu.stream.context.multiprocessors
        self.loads = NVBANDWIDTH_LOADS // self.blocks
        self.launches = -(-self.chase.loads // self.loads)
        self.gpu.start_walk(self.chain, 1, warm=self.chain.lines, kernel=self.kernel)
        self.gpu.words(4)

    def queue(self) -> None:
        stream = self.gpu.stream
        stream.context.make_current()
        stream.mark(Mark.START)
        for number in range(self.launches):
            self.chain.rewind()
            block = number * self.blocks // self.launches
            self.gpu.start_walk(self.chain, self.loads, warm=0, block=block, blocks=self.blocks, kernel=self.kernel)
        stream.mark(Mark.END)

    def wait(self) -> Walk:
        walk = self.gpu.end_walk(self.chain, self.launches * self.loads)
        return replace(walk, elapsed_ns=self.gpu.stream.elapsed_ms() * 1e6)


class BulkNvbandwidth(Nvbandwidth):
    """The same walk by bulk loads (TMA)."""

    kernel = "chase_bulk"


class Loaded(Walker):
    """A walk while other blocks of the same launch read a second buffer at the same end."""

    kernel = "chase_loaded"

    def warm_up(self) -> None:
        super().warm_up()
        self.load_blocks = min(self.task.point.load or 0, self.gpu.stream.context.multiprocessors - 1)

    def queue(self) -> None:
        loads, data = self.chase.loads, self.memory(1)
        self.gpu.start_loaded_walk(self.chain, loads, warm=self.warm, data=data, load_blocks=self.load_blocks)

    def wait(self) -> Walk:
        return self.gpu.end_loaded_walk(self.chain, self.chase.loads)


class Additions(Walker):
    """A latency measurement like a pointer chase, but with atomic additions to counters in turn.

    Each sample continues the last one: ``kernels/atomic_latency.cu``.
    """

    verification = Verification.COUNTERS_EVERY_SAMPLE
    kernel = "add_in_turn"
    wrong_at = "additions were lost or answered wrongly; the first wrong counter is at offset"

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


MEASURE = {
    Engine.CHASE: measure_chase,
    Engine.CHASE_BULK: measure_chase,
    Engine.ATOMIC_LATENCY: partial(measure_latencies, Additions),
}
