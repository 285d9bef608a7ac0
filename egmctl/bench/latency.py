"""How a latency is measured: walks along chains of lines, and flags that go to and fro (``docs/measurement.md``).

The tasks of a step are measured at the same time: what each of them does is queued on its own GPU before any is waited
for.
"""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from contextlib import ExitStack, closing
from dataclasses import replace

from egmctl.bench.buffers import Buffer, FlowBuffers, assign
from egmctl.bench.conclusion import of_latency, round_trips, went_astray
from egmctl.bench.engines.round_trips import WARM_UP_LAPS
from egmctl.bench.outcomes import failure
from egmctl.bench.rig import Rig
from egmctl.bench.statistics import summarize
from egmctl.errors import DriverCallError
from egmctl.gpu.chase import Chain, Reader, Walk, clear_flag
from egmctl.gpu.clock import ms_since
from egmctl.gpu.program import Kernels
from egmctl.gpu.timing import Stream
from egmctl.model.measurement import (
    Chase,
    ChaseOrder,
    Engine,
    Flow,
    Measurement,
    Pattern,
    Sample,
    Settings,
    Status,
    Task,
    Verification,
    finish,
)

WARM_UP_LOADS = 2000
"""Untimed loads before those of each sample. On H200 the first thousand loads over an idle NVLink took three times as
long as all later ones."""

NVBANDWIDTH_LOADS = 1_000_000
"""What nvbandwidth does in one measurement, an equal part on each multiprocessor."""


def measure(rig: Rig, tasks: Sequence[Task], settings: Settings) -> list[Measurement]:
    """Measure the latencies of a step, all at the same time."""
    if rig.kernels is None:
        return [_without_kernels(rig, task) for task in tasks]
    with rig.witness.watch(tasks) as watch:
        measured = _measure(rig, rig.kernels, tasks, settings)
    return [replace(m, evidence=watch.of(m, len(m.samples)) if m.samples else None) for m in measured]


def _measure(rig: Rig, kernels: dict[str, Kernels], tasks: Sequence[Task], settings: Settings) -> list[Measurement]:
    step = _Step()
    try:
        with ExitStack() as undo:
            for task, buffers in zip(tasks, assign(tasks), strict=True):
                probe = _probe(task)(rig, kernels, task, undo)
                step.attempt(probe, lambda probe=probe, buffers=buffers: probe.prepare(buffers))  # type: ignore[misc]
            for _ in range(settings.samples):
                step.sample()
    except DriverCallError as error:
        step.fail(error)
    return step.outcomes()


def _without_kernels(rig: Rig, task: Task) -> Measurement:
    try:
        rig.stream(task.flows[0].initiator or "")
    except DriverCallError as error:
        return failure(task, error)
    return finish(task, Status.WAIVED, reason=f"a latency can only be measured with kernels; {rig.note}")


class _Step:
    """Tasks that are measured at the same time; one that fails does not cost the others."""

    def __init__(self) -> None:
        self._probes: dict[Probe, Measurement | None] = {}
        """With the outcome of those that have failed."""

    def attempt(self, probe: Probe, action: Callable[[], None]) -> None:
        """Do something for a task that has not failed yet."""
        if self._probes.setdefault(probe, None) is None:
            try:
                action()
            except DriverCallError as error:
                self._probes[probe] = failure(probe.task, error)

    def sample(self) -> None:
        """Take one sample of each."""
        started = time.perf_counter()
        for probe in self._probes:
            self.attempt(probe, probe.start)
        for probe in self._probes:
            self.attempt(probe, lambda probe=probe: probe.end(started))  # type: ignore[misc]

    def fail(self, error: DriverCallError) -> None:
        """Give all that have not failed an error as their outcome: memory could not be given back."""
        for probe, outcome in self._probes.items():
            self._probes[probe] = outcome or failure(probe.task, error)

    def outcomes(self) -> list[Measurement]:
        """Return what became of each task."""
        return [outcome or probe.conclude() for probe, outcome in self._probes.items()]


class Probe(ABC):
    """One task under way."""

    verification: Verification | None = Verification.WALK_EVERY_SAMPLE

    def __init__(self, rig: Rig, kernels: dict[str, Kernels], task: Task, undo: ExitStack) -> None:
        self.task = task
        self._rig = rig
        self._kernels = kernels
        self._undo = undo
        self._samples: list[Sample] = []
        self._seeds: list[int] = []
        self._expired = 0
        self._beside = 0
        self._astray: str | None = None

    @abstractmethod
    def prepare(self, buffers: Sequence[FlowBuffers]) -> None:
        """Get the memory that the task works on."""

    @abstractmethod
    def start(self) -> None:
        """Queue what makes one sample."""

    @abstractmethod
    def end(self, started: float) -> None:
        """Wait for it and keep it; ``started`` is when it was queued by :func:`time.perf_counter`."""

    def conclude(self) -> Measurement:
        """Return the outcome."""
        loads = [sample.bandwidth_gb_s for sample in self._samples if sample.bandwidth_gb_s is not None]
        return of_latency(
            self.task,
            self._samples,
            self._astray,
            f"{self._beside} warps of the load ran on the multiprocessor of the chase" if self._beside else None,
            thrown_away=self._expired,
            bandwidth_gb_s=summarize(loads) if loads else None,
            verification=self.verification,
            seeds=tuple(self._seeds),
        )

    @property
    def _chase(self) -> Chase:
        if self.task.chase is None:
            raise ValueError(f"{self.task.case} does not say how a latency is measured")
        return self.task.chase

    def _stream(self, flow: Flow) -> Stream:
        return self._rig.stream(flow.initiator or "")

    def _reader(self, flow: Flow) -> Reader:
        stream = self._stream(flow)
        for end in (flow.source, flow.destination):
            self._rig.connect(stream.context.bus_id, end.bus_id)
        return self._undo.enter_context(closing(Reader(stream, self._kernels[stream.context.bus_id])))

    def _chain(self, flow: Flow, buffer: Buffer | None, seed: int) -> Chain:
        """Write a chain into a buffer, by the GPU that owns it or, in host memory, the one that reads it."""
        memory = self._rig.destination(_there(buffer))
        chain = Chain(memory.address, self.task.size_bytes, self._chase.stride_bytes, seed)
        stream = self._rig.stream(flow.source.bus_id or flow.initiator or "")
        chain.make(stream, self._kernels[stream.context.bus_id])
        self._seeds.append(seed)
        return chain

    def _keep(self, walk: Walk, elapsed_ms: float, latency_ns: float, started: float) -> None:
        self._astray = self._astray or went_astray(len(self._samples), walk.wrong_offset)
        self._samples.append(
            Sample(
                bandwidth_gb_s=walk.load_gb_s if self.task.pattern is Pattern.LOADED else None,
                latency_ns=latency_ns,
                elapsed_ms=elapsed_ms,
                wall_ms=ms_since(started),
            )
        )


class _Chase(Probe):
    """One thread follows a chain of random lines, from sample to sample further along it."""

    def prepare(self, buffers: Sequence[FlowBuffers]) -> None:
        flow = self.task.flows[0]
        self.reader = self._reader(flow)
        self.chain = self._chain(flow, buffers[0].source, self._rig.new_seed())
        self.warm = WARM_UP_LOADS + (self.chain.lines if self._chase.warm else 0)

    def start(self) -> None:
        self.reader.start_walk(self.chain, self._chase.loads, warm=self.warm)
        self.warm = WARM_UP_LOADS

    def end(self, started: float) -> None:
        walk = self.reader.end_walk()
        self._keep(walk, walk.elapsed_ns / 1e6, walk.latency_ns, started)


class _Nvbandwidth(_Chase):
    """nvbandwidth's definition: one multiprocessor after the other walks from the start of a sequential chain.

    Each sample has so many launches that all their loads are at least those asked for, on multiprocessors that lie
    evenly apart. Events before the first and after the last give the time, which so holds the launches too.
    """

    def prepare(self, buffers: Sequence[FlowBuffers]) -> None:
        flow = self.task.flows[0]
        self.reader = self._reader(flow)
        self.chain = self._chain(flow, buffers[0].source, seed=0)
        self.blocks = self.reader.stream.context.multiprocessors
        self.loads = NVBANDWIDTH_LOADS // self.blocks
        self.launches = -(-self._chase.loads // self.loads)
        self.reader.start_walk(self.chain, 1, warm=self.chain.lines)
        self.reader.end_walk()

    def start(self) -> None:
        stream = self.reader.stream
        stream.context.make_current()
        stream.start()
        for number in range(self.launches):
            self.chain.rewind()
            block = number * self.blocks // self.launches
            self.reader.start_walk(self.chain, self.loads, warm=0, block=block, blocks=self.blocks)
        stream.end()

    def end(self, started: float) -> None:
        walk = self.reader.end_walk()
        elapsed_ms = self.reader.stream.elapsed_ms()
        self._keep(walk, elapsed_ms, elapsed_ms * 1e6 / (self.launches * self.loads), started)


class _Loaded(_Chase):
    """As the chase, while other blocks of the same launch read a second buffer at the same end."""

    def prepare(self, buffers: Sequence[FlowBuffers]) -> None:
        super().prepare(buffers)
        self.data = self._rig.destination(_there(buffers[1].source))
        self.load_blocks = min(self._chase.load_blocks, self.reader.stream.context.multiprocessors - 1)

    def start(self) -> None:
        self.reader.start_loaded_walk(
            self.chain,
            self._chase.loads,
            warm=self.warm,
            data=self.data.address,
            data_bytes=self.data.size_bytes,
            load_blocks=self.load_blocks,
        )

    def end(self, started: float) -> None:
        walk = self.reader.end_loaded_walk()
        if walk.expired:
            self._expired += 1
        else:
            self._beside = max(self._beside, walk.load_beside)
            self._keep(walk, walk.elapsed_ns / 1e6, walk.latency_ns, started)


class _PingPong(Probe):
    """One thread on each of two GPUs; each flow goes to the flag that the other one polls."""

    verification = None

    def prepare(self, buffers: Sequence[FlowBuffers]) -> None:
        self.readers = [self._reader(flow) for flow in self.task.flows]
        self.flags = [self._rig.destination(_there(buffer.destination)) for buffer in buffers]
        self.laps = WARM_UP_LAPS + self._chase.loads

    def start(self) -> None:
        serving, answering = self.readers
        for reader, flag in zip((answering, serving), self.flags, strict=True):
            clear_flag(reader.stream, flag.address)
        there, here = (flag.address for flag in self.flags)
        answering.start_laps(there, here, self.laps, serves=False)
        serving.start_laps(here, there, self.laps, serves=True)

    def end(self, started: float) -> None:
        serving, answering = self.readers
        laps = serving.end_laps(self.laps)
        answering.stream.synchronize()
        if laps.expired:
            self._expired += 1
            return
        self._samples.append(round_trips(laps.laps_ns[WARM_UP_LAPS:], ms_since(started)))


def _probe(task: Task) -> type[Probe]:
    if task.engine is Engine.PING_PONG:
        return _PingPong
    if task.pattern is Pattern.LOADED:
        return _Loaded
    sequential = task.chase is not None and task.chase.order is ChaseOrder.SEQUENTIAL
    return _Nvbandwidth if sequential else _Chase


def _there(buffer: Buffer | None) -> Buffer:
    if buffer is None:
        raise ValueError("a latency needs memory to read")
    return buffer
