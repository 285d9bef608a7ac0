"""One thread of one kernel follows a chain of offsets through memory: the latency of a load (``docs/measurement.md``).

The process that owns the memory writes the chain into it, the one that issues the work walks along it. The tasks of a
step are measured at the same time: the walk of each is queued on its own GPU before any is waited for.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from egmctl.bench.buffers import Buffer, FlowBuffers, assign
from egmctl.bench.processes.collective import (
    CollectiveStep,
    Item,
    ResourceScope,
    open_buffers,
    resource_scopes,
    with_evidence,
)
from egmctl.bench.results import chain_error, of_latency, summarize
from egmctl.gpu.chase import Chain, Reader, Walk
from egmctl.gpu.context import ms_since, possible_ms
from egmctl.model.measurement import (
    Chase,
    ChaseOrder,
    Engine,
    Flow,
    Measurement,
    Pattern,
    Phase,
    Sample,
    Settings,
    Task,
    Verification,
)

if TYPE_CHECKING:
    from egmctl.bench.processes.context import WorkerContext

WARM_UP_LOADS = 2000
"""Untimed loads before those of each sample. On H200 the first thousand loads over an idle NVLink took three times as
long as all later ones."""

NVBANDWIDTH_LOADS = 1_000_000
"""What nvbandwidth does in one measurement, an equal part on each multiprocessor."""


def walker_of(task: Task) -> type[Walker]:
    """Return what goes along the memory of a task."""
    if task.pattern is Pattern.LOADED:
        return Loaded
    return Nvbandwidth if task.chase is not None and task.chase.order is ChaseOrder.SEQUENTIAL else Walker


def measure(
    worker: WorkerContext,
    tasks: Sequence[Task],
    settings: Settings,
    walker_of: Callable[[Task], type[Walker]] = walker_of,
) -> list[Measurement]:
    """Measure latencies along random or sequential lines, idle or while other blocks load the same path."""
    collective = CollectiveStep(worker, tasks)
    with resource_scopes(collective) as scopes:
        walkers = [
            walker_of(task)(collective, worker, task, buffers, scope)
            for task, buffers, scope in zip(tasks, assign(tasks), scopes, strict=True)
        ]
        open_buffers(collective, worker, assign(tasks), before=lambda place: walkers[place].take_reader())
        for walker, items in zip(walkers, collective.do(lambda place: walkers[place].write_chain()), strict=True):
            walker.hear_seed(items)
        collective.do(lambda place: walkers[place].get_ready())
        with worker.stopwatch.phase(Phase.MEASURING), worker.link_counters.watch(tasks) as watch:
            for _ in range(settings.samples):
                timed = collective.do(lambda place: walkers[place].end(), begin=lambda place: walkers[place].start())
                for walker, items in zip(walkers, timed, strict=True):
                    walker.keep(items)
    return with_evidence(collective, worker, watch, lambda place: walkers[place].conclude())


class Walker:
    """One task under way: one thread follows a chain of random lines, from sample to sample further along it."""

    verification = Verification.WALK_EVERY_SAMPLE

    def __init__(
        self,
        collective: CollectiveStep,
        worker: WorkerContext,
        task: Task,
        buffers: Sequence[FlowBuffers],
        held: ResourceScope,
    ) -> None:
        flow = task.flows[0]
        self.task = task
        self.flow = flow
        self.worker = worker
        self.samples: list[Sample] = []
        self._collective = collective
        self._buffers = buffers
        self._held = held
        self._walks = collective.issues(flow)
        self._owns = collective.owns(flow.source)
        self._expired = 0
        self._beside = 0
        self._chain_error: str | None = None
        self._started = 0.0

    def take_reader(self) -> None:
        """Get what walks, if that is this process; choose a seed, if it owns the memory."""
        if self._walks:
            self.reader = take_reader(self._collective, self.worker, self.flow)
            self._held.own.append(self.reader)
        if self._owns:
            self.seed = 0 if self.chase.order is ChaseOrder.SEQUENTIAL else self.worker.new_seed()

    def write_chain(self) -> int | None:
        """Write the chain, if this process owns the memory, by the GPU that does; return its seed."""
        if not self._owns:
            return None
        stream = self.worker.near(self.flow.source, self.flow)
        self._chain().make(stream, self.worker.kernels[stream.context.bus_id])
        return self.seed

    def hear_seed(self, items: Sequence[Item]) -> None:
        """Take the seed that the owner has told."""
        self.seed = next((item.data for item in items if item.data is not None), 0)

    def get_ready(self) -> None:
        """Prepare the first walk."""
        if self._walks:
            self.chain = self._chain()
            self.warm_up()

    def start(self) -> None:
        """Queue what makes one sample."""
        self._started = time.perf_counter()
        if self._walks:
            self.queue()

    def end(self) -> dict[str, Any] | None:
        """Wait for it; return what was measured as JSON data."""
        if not self._walks:
            return None
        walk, elapsed_ms, latency_ns = self.wait()
        return {
            "latency_ns": latency_ns,
            "elapsed_ms": elapsed_ms,
            "wall_ms": ms_since(self._started),
            "wrong_offset": walk.wrong_offset,
            "load_gb_s": walk.load_gb_s,
            "beside": walk.load_beside,
            "expired": walk.expired,
        }

    def keep(self, items: Sequence[Item]) -> None:
        """Keep what a process has told of a sample."""
        timed = next((item.data for item in items if item.data is not None), None)
        if timed is None:
            return
        if timed["expired"]:
            self._expired += 1
            return
        self._beside = max(self._beside, timed["beside"])
        self._chain_error = self._chain_error or self.error(len(self.samples), timed["wrong_offset"])
        self.samples.append(
            Sample(
                bandwidth_gb_s=timed["load_gb_s"] if self.task.pattern is Pattern.LOADED else None,
                latency_ns=timed["latency_ns"],
                elapsed_ms=timed["elapsed_ms"],
                wall_ms=timed["wall_ms"],
            )
        )

    def conclude(self) -> Measurement:
        """Return the measurement."""
        loads = [sample.bandwidth_gb_s for sample in self.samples if sample.bandwidth_gb_s is not None]
        return of_latency(
            self.task,
            self.samples,
            self._chain_error,
            f"{self._beside} warps of the load ran on the chase's multiprocessor" if self._beside else None,
            discarded=self._expired,
            bandwidth_gb_s=summarize(loads) if loads else None,
            verification=self.verification,
            seeds=(self.seed,),
        )

    def error(self, sample: int, offset: int | None) -> str | None:
        """Say in one sentence that a sample has gone wrong; ``None`` if it has not."""
        return chain_error(sample, offset)

    @property
    def chase(self) -> Chase:
        """How the latency is measured."""
        if self.task.chase is None:
            raise ValueError(f"{self.task.case} does not say how a latency is measured")
        return self.task.chase

    def warm_up(self) -> None:
        """Note how many loads come before those that the next sample times."""
        self.warm = WARM_UP_LOADS + (self.chain.lines if self.chase.warm else 0)

    def queue(self) -> None:
        """Queue a walk."""
        self.reader.start_walk(self.chain, self.chase.loads, warm=self.warm)
        self.warm = WARM_UP_LOADS

    def wait(self) -> tuple[Walk, float, float]:
        """Wait for the walk; return it, its milliseconds and the nanoseconds of a load."""
        walk = self.reader.end_walk()
        return walk, possible_ms("the kernel chase", walk.elapsed_ns / 1e6), walk.latency_ns

    def buffer(self, flow: int) -> Buffer:
        """Return what a flow reads."""
        source = self._buffers[flow].source
        if source is None:
            raise ValueError("a latency needs memory to read")
        return source

    def _chain(self) -> Chain:
        """Return the chain as this process sees it: its owner and who walks along it have addresses of their own."""
        memory = self.worker.destination(self.buffer(0))
        return Chain(memory.address, self.task.size_bytes, self.chase.stride_bytes, self.seed)


class Nvbandwidth(Walker):
    """nvbandwidth's definition: one multiprocessor after the other walks from the start of a sequential chain.

    Each sample has so many launches that all their loads are at least the task's, on multiprocessors that lie
    evenly apart. Events before the first and after the last give the time, which so holds the launches too.
    """

    def warm_up(self) -> None:
        self.blocks = self.reader.stream.context.multiprocessors
        self.loads = NVBANDWIDTH_LOADS // self.blocks
        self.launches = -(-self.chase.loads // self.loads)
        self.reader.start_walk(self.chain, 1, warm=self.chain.lines)
        self.reader.end_walk()

    def queue(self) -> None:
        stream = self.reader.stream
        stream.context.make_current()
        stream.start()
        for number in range(self.launches):
            self.chain.rewind()
            block = number * self.blocks // self.launches
            self.reader.start_walk(self.chain, self.loads, warm=0, block=block, blocks=self.blocks)
        stream.end()

    def wait(self) -> tuple[Walk, float, float]:
        walk = self.reader.end_walk()
        elapsed_ms = self.reader.stream.elapsed_ms()
        return walk, elapsed_ms, elapsed_ms * 1e6 / (self.launches * self.loads)


class Loaded(Walker):
    """As the chase, while other blocks of the same launch read a second buffer at the same end."""

    def warm_up(self) -> None:
        super().warm_up()
        self.data = self.worker.destination(self.buffer(1))
        self.load_blocks = min(self.task.point.load or 0, self.reader.stream.context.multiprocessors - 1)

    def queue(self) -> None:
        self.reader.start_loaded_walk(
            self.chain,
            self.chase.loads,
            warm=self.warm,
            data=self.data.address,
            data_bytes=self.data.size_bytes,
            load_blocks=self.load_blocks,
        )

    def wait(self) -> tuple[Walk, float, float]:
        walk = self.reader.end_loaded_walk()
        if walk.expired:
            return walk, 0.0, 0.0
        return walk, possible_ms("the kernel chase_loaded", walk.elapsed_ns / 1e6), walk.latency_ns


def take_reader(collective: CollectiveStep, worker: WorkerContext, flow: Flow) -> Reader:
    """Return what measures latencies on the GPU that issues a flow's work, which reaches what this process owns."""
    stream = worker.stream(flow.initiator or "")
    for end in (flow.source, flow.destination):
        if collective.owns(end):
            worker.connect(stream.context.bus_id, end)
    return Reader(stream, worker.kernels[stream.context.bus_id])


MEASURE = {Engine.CHASE: measure}
