"""Bandwidths of engines that queue work on streams, and the sequence of a step in all processes.

All flows of all tasks of a step run at the same time, and every byte is verified. Two processes may own the memory at
the ends of a flow: the owner of the source fills it, the process that issues the work moves the bytes, and the owner of
the destination verifies them. In one process, one gate blocks all work. With several processes, each has its own gate
and opens it at an agreed time of the clock that the processes of a node share (``docs/measurement.md``).
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from functools import cached_property, partial
from typing import Any

from egmctl.bench.buffers import Buffer, Window, assign_buffers, window
from egmctl.bench.case import End
from egmctl.bench.engine import ENGINES
from egmctl.bench.processes.collective import CollectiveStep, Item, OpenBuffers, open_buffers, with_evidence
from egmctl.bench.processes.context import AllocatedBuffer, WorkerContext
from egmctl.bench.results import EXPIRED_LIMIT, GateExpired, bandwidth_sample, mismatch_of, of_bandwidth
from egmctl.dataclass import dataclass
from egmctl.gpu.context import ms_since
from egmctl.gpu.memory import MappedMemory
from egmctl.gpu.pattern import Difference, PatternCheck, Region, WordPair, difference_by_cpu, poison
from egmctl.gpu.timing import FlowParts, Gate, GatedWork, Stream
from egmctl.model.codec import from_json, to_json
from egmctl.model.measurement import BufferCost, Measurement, Mismatch, Phase, Placement, Sample, Settings, Verification
from egmctl.model.task import Endpoint, Flow, Task

THREADS = 512
BLOCKS = 2
"""The number of blocks of a kernel per multiprocessor. On H200 more or larger blocks are not faster. Reads only appear
faster: with four blocks, a kernel that reads its peer's memory counts 389 GB/s, but only 0.967 bytes per counted byte,
376 GB/s, come over NVLink; the rest comes from the reader's own L2 (docs/hardware-notes.md)."""
WARM_UP_PASSES = 2
"""The number of untimed passes before the first sample of a task, which map host memory and let clocks rise."""
HEAD_START_S = 0.002
"""The time from when the last process of a node has queued its work until all processes open their gates."""
SPIN_S = 0.0005
"""The last part of the wait for a time, in which the process polls the clock: a sleep rarely ends later than this."""


@dataclass(eq=False)
class OwnBuffer:
    """Memory of this process at one end of a flow."""

    worker: WorkerContext
    held: AllocatedBuffer
    stream: Stream
    """A stream of the GPU that fills and verifies the memory."""
    seed: int
    """The seed of the pattern that the flow moves."""

    def region(self, part: Window) -> Region:
        """Return a window of the memory as a region with its expected pattern."""
        return _region(self.held.memory, part, self.seed)

    def fill(self, part: Window) -> None:
        """Write the pattern into a source up to the end of a window, from where it was filled before."""
        held = self.held
        start, end = held.filled_bytes, part.offset_bytes + part.size_bytes
        if end <= start:
            return
        started = time.perf_counter()
        self.worker.pattern.fill(self.stream, self.region(Window(start, 1, end - start)))
        # Other flows of the step may read the same source on streams that do not wait for this one.
        self.stream.synchronize()
        if (start, end) == (0, held.memory.size_bytes) and not held.is_reused:
            held.first_touch_ms = ms_since(started)
        held.filled_bytes = end

    def first_touch(self, part: Window) -> None:
        """Time the first write of a destination if the window is all of it."""
        if part.size_bytes == self.held.memory.size_bytes and not self.held.is_reused:
            started = time.perf_counter()
            self.poison(part)
            self.stream.synchronize()
            self.held.first_touch_ms = ms_since(started)

    def poison(self, part: Window) -> None:
        """Queue a memset of a destination to a value that no flow moves."""
        poison(self.stream, self.region(part))

    def check(self, part: Window) -> PatternCheck:
        """Queue a comparison of a window with its pattern: by the GPU, and of host memory once by the CPU too."""
        region = self.region(part)
        by_gpu = self.worker.pattern.check(self.stream, region)
        if self.held.is_compared_by_cpu or not self.held.memory.cpu_reads:
            return by_gpu
        self.held.is_compared_by_cpu = True
        return lambda: by_gpu() or difference_by_cpu(region)


@dataclass(eq=False)
class Mover:
    """The part of a flow in the process that issues its work."""

    worker: WorkerContext
    task: Task
    flow: Flow
    source: MappedMemory | None
    """The source at this process' address; ``None`` if it is registers."""
    destination: MappedMemory | None
    """The destination, likewise."""
    seed: int
    """The seed of the pattern that is moved."""
    streams: Sequence[Stream]
    """The streams for this flow on the GPU that issues the work."""
    share: int
    """The number of kernels on that GPU at the same time. They share its blocks, so that all run at once."""

    @property
    def ungated(self) -> str | None:
        """The reason why queueing the work may block until it completes and forbids a gate; else ``None``."""
        if ENGINES[self.task.engine].blocks_on_pageable:
            if any(memory is not None and memory.pageable for memory in (self.source, self.destination)):
                return "copies of pageable memory block the host until they are done"
            # Then cuMemcpyAsync is "fully synchronous with respect to the host" (CUDA driver API, "API synchronization
            # behavior"), pinned or not.
            if self.flow.through_gpu:
                return "copies from host memory to host memory block the host until they are done"
        # The documentation does not exclude that the driver blocks the host for a staged copy.
        return "copies that are staged may block the host until they are done" if self.flow.route.staged else None

    @cached_property
    def result(self) -> WordPair:
        """Two words in the GPU's memory for a kernel's result."""
        return self.worker.results.take(self.streams[0])

    def addresses(self, part: Window) -> list[int]:
        """Return the addresses of a window in the destination and in the source, without an end that is registers."""
        memories = (self.destination, self.source)
        return [memory.address + part.offset_bytes for memory in memories if memory is not None]

    def by_kernel(
        self, name: str, part: Window, *arguments: int, blocks: int = BLOCKS, threads: int = THREADS
    ) -> FlowParts:
        """Return one launch of a kernel as the work of a flow. The kernel's first arguments are :meth:`addresses`.

        The number of blocks is that of the task's point, or else ``blocks`` per multiprocessor, shared with other
        kernels of the GPU. The GPU schedules a block on the least loaded multiprocessor, so that up to as many blocks
        as multiprocessors run on one each.
        """
        stream = self.streams[0]
        multiprocessors = stream.context.multiprocessors
        grid = max(1, blocks * multiprocessors // self.share)
        if self.task.point.sms is not None:
            grid = self.task.point.sms or multiprocessors
        launch = self.worker.kernels[stream.context.bus_id].launch
        return [(stream, partial(launch, name, stream.handle, grid, threads, *self.addresses(part), *arguments))]

    def expected(self, part: Window) -> Region:
        """Return a window of the source, or else of the destination, with its expected pattern."""
        memory = self.source or self.destination
        assert memory is not None  # noqa: S101 - an engine carries bytes of one end at least
        return _region(memory, part, self.seed)


@dataclass
class FlowPart:
    """This process' part of a flow: the memory that it owns and the work that it issues."""

    number: int
    seed: int
    source: OwnBuffer | None = None
    destination: OwnBuffer | None = None
    mover: Mover | None = None

    @property
    def streams(self) -> list[Stream]:
        """The streams of this part, each once."""
        ends = [end.stream for end in (self.source, self.destination) if end is not None]
        movers = self.mover.streams if self.mover is not None else ()
        return list(dict.fromkeys([*movers, *ends]))


def poison_destination(flow: FlowPart, part: Window) -> None:
    """Queue a memset of a sample's destination, so that old data cannot pass the check."""
    if flow.destination is not None:
        flow.destination.poison(part)


def compare_destination(flow: FlowPart, part: Window, passes: int) -> PatternCheck | None:  # noqa: ARG001
    """Queue a comparison of every byte of the destination with the pattern."""
    return flow.destination.check(part) if flow.destination is not None else None


@dataclass(frozen=True)
class Transfer:
    """The functions of one engine that moves the bytes of flows by work queued on streams, and verifies them."""

    launch: Callable[[Mover, Window, int], FlowParts]
    """Returns the work of one flow in a number of passes over a window."""
    prepare: Callable[[FlowPart, Window], None] = poison_destination
    """Queues, before each sample, work that clears the memory of its result."""
    check: Callable[[FlowPart, Window, int], PatternCheck | None] = compare_destination
    """Queues the check of a number of passes; returns ``None`` if this process has nothing to verify."""
    verification: Verification = Verification.GPU_EVERY_SAMPLE


def measure_transfers(
    transfer: Transfer, worker: WorkerContext, tasks: Sequence[Task], settings: Settings
) -> list[Measurement]:
    """Measure the bandwidths of a step at the same time in all processes; every process returns the same result."""
    collective = CollectiveStep(worker, tasks)
    phase = worker.stopwatch.phase
    parts = [TransferPart(collective, worker, transfer, place) for place in range(len(tasks))]
    streams_taken: Counter[str] = Counter()
    opened = open_buffers(
        collective, worker, assign_buffers(tasks), before=lambda place: parts[place].take_streams(streams_taken)
    )
    # The number of kernels on each GPU.
    flows = [flow for task in tasks for flow in task.flows if ENGINES[task.engine].needs_kernels]
    sharing = Counter((flow.initiator_rank, flow.initiator) for flow in flows)
    collective.each(parts, lambda part: part.get_ready(opened, sharing))
    # A gate would never open if the work's queueing blocked until it completed.
    gate = worker.gate if all(part.ungated is None for part in parts) else Gate()
    try:
        with phase(Phase.WARM_UP):
            collective.each(parts, lambda part: part.fill())
            collective.each(parts, lambda part: part.synchronize(), begin=lambda part: part.pass_over())
        with worker.link_counters.watch(tasks) as watch:
            for number in range(settings.samples):
                if None not in collective.outcomes:
                    break
                timed = _timed(collective, worker, parts, gate, number)
                watch.count()
                for part, outcome, items in zip(parts, collective.outcomes, timed, strict=True):
                    if outcome is None:
                        part.keep(items)
                with phase(Phase.VERIFYING):
                    begin = partial(TransferPart.begin_checks, number=number)
                    checked = collective.each(parts, lambda part: part.finish_checks(), begin=begin)
                for part, items in zip(parts, checked, strict=True):
                    part.keep_mismatch(number, items)
    except BaseException:
        # Work behind a closed gate can neither complete nor be freed.
        gate.open()
        raise
    gathered = collective.each(parts, lambda part: part.told() | {"gating": gate.how})
    return with_evidence(collective, worker, watch, lambda place: parts[place].conclude(gathered[place]))


def _timed(
    collective: CollectiveStep, worker: WorkerContext, parts: Sequence[TransferPart], gate: Gate, number: int
) -> list[list[Item]]:
    """Take one sample, again if a gate times out; return the times of each task, by process."""
    phase = worker.stopwatch.phase
    for attempt in range(EXPIRED_LIMIT):
        with phase(Phase.VERIFYING):
            collective.each(parts, lambda part: part.synchronize(), begin=lambda part: part.poison(number))
        with phase(Phase.MEASURING):
            work = GatedParts(gate, parts)
            queued = collective.do_at_once(partial(work.queue, number))
            last = attempt == EXPIRED_LIMIT - 1
            timed = collective.do_at_once(partial(work.run, _start_s(collective, queued), last))
        if not any(item.data and item.data["expired"] for items in timed for item in items):
            break
    return timed


class GatedParts:
    """The work that this process issues in one sample, behind its gate."""

    def __init__(self, gate: Gate, parts: Sequence[TransferPart]) -> None:
        self._gate = gate
        self._parts = parts
        self._places: list[int] = []
        self._work: GatedWork | None = None

    def queue(self, number: int, places: Sequence[int]) -> dict[int, float]:
        """Queue the work of tasks; return for each the time when all work is queued."""
        self._places = [place for place in places if self._parts[place].movers]
        if self._places:
            self._work = GatedWork(self._gate, [self._parts[place].work(number) for place in self._places])
        return dict.fromkeys(places, time.perf_counter())

    def run(self, start_s: float | None, last: bool, places: Sequence[int]) -> dict[int, dict[str, Any]]:
        """Open the gate, within a node at ``start_s``; return the times of this process' flows by task index.

        Raises
        ------
        GateExpired
            The gate has timed out in the ``last`` attempt.
        """
        if self._work is None:
            return {}
        if start_s is not None and any(self._parts[place].on_one_node for place in self._places):
            _wait_until(start_s)
        # Tasks that have ended meanwhile run too: their work waits behind the gate.
        timings = dict(zip(self._places, self._work.run(), strict=True))
        if last and any(timing.expired for timing in timings.values()):
            raise GateExpired
        return {
            place: asdict(timing) | {"flows": list(self._parts[place].movers)}
            for place, timing in timings.items()
            if place in places
        }


def _start_s(collective: CollectiveStep, queued: Sequence[Sequence[Item]]) -> float | None:
    """Return the time at which all processes of this node open their gates; ``None`` if there is one process."""
    if collective.exchange.size == 1:
        return None
    ready_s = [items[rank].data for items in queued if items for rank in collective.here]
    return max((at for at in ready_s if at), default=0) + HEAD_START_S


class TransferPart:
    """This process' part of one task of a step."""

    def __init__(self, collective: CollectiveStep, worker: WorkerContext, transfer: Transfer, place: int) -> None:
        self.task = collective.tasks[place]
        self._place = place
        self._collective = collective
        self._worker = worker
        self._transfer = transfer
        self._buffers = assign_buffers(collective.tasks)[place]
        self._streams: dict[int, list[Stream]] = {}
        """The streams of the flows that this process issues, by flow index."""
        self._flows: list[FlowPart] = []
        self._opened = OpenBuffers()
        self._checks: list[tuple[int, PatternCheck]] = []
        """The queued checks, each with its flow's index."""
        self._samples: list[Sample] = []
        self._mismatch: Mismatch | None = None
        self.movers: dict[int, Mover] = {}
        """The movers of these flows, by flow index."""

    @property
    def ungated(self) -> str | None:
        """The reason why queueing work of this process may block until it completes; ``None`` if it cannot."""
        return next((mover.ungated for mover in self.movers.values() if mover.ungated is not None), None)

    @property
    def on_one_node(self) -> bool:
        """Whether all processes of the task are on one node, so that they share a clock."""
        return len({self._collective.ranks[number].host for number in self.task.ranks}) == 1

    def take_streams(self, taken: Counter[str]) -> None:
        """Get the streams of the flows that this process issues, and enable or disable peer access for them.

        Parameters
        ----------
        taken
            The number of streams in use on each GPU, which this call increases.
        """
        for number, flow in enumerate(self.task.flows):
            if not self._collective.issues(flow):
                continue
            initiator = flow.initiator or ""
            first = taken[initiator]
            count = self.task.point.streams or 1
            taken[initiator] += count
            self._streams[number] = [self._worker.stream(initiator, first + n) for n in range(count)]
            if flow.route.staged:
                self._worker.disconnect(flow.source.bus_id or "", flow.destination.bus_id or "")
                continue
            for end in (flow.source, flow.destination):
                if self._collective.owns(end):
                    self._worker.connect(initiator, end)

    def get_ready(self, opened: OpenBuffers, sharing: Mapping[tuple[int | None, str | None], int]) -> None:
        """Build this process' part of each flow; ``sharing`` is the number of kernels by rank and GPU."""
        worker = self._worker
        self._opened = opened
        for number, (flow, buffers) in enumerate(zip(self.task.flows, self._buffers, strict=True)):
            seed = opened.seeds[self._place, number, End.DESTINATION if buffers.source is None else End.SOURCE]
            ends = (flow.source, buffers.source), (flow.destination, buffers.destination)
            own_source, own_destination = (self._own(flow, end, buffer, seed) for end, buffer in ends)
            part = FlowPart(number, seed, own_source, own_destination)
            if self._collective.issues(flow):
                source, destination = (None if buffer is None else worker.held(buffer).memory for _, buffer in ends)
                share = sharing.get((flow.initiator_rank, flow.initiator), 1)
                streams = self._streams[number]
                part.mover = Mover(worker, self.task, flow, source, destination, seed, streams, share)
                self.movers[number] = part.mover
            self._flows.append(part)

    def _own(self, flow: Flow, end: Endpoint, buffer: Buffer | None, seed: int) -> OwnBuffer | None:
        if buffer is None or not self._collective.owns(end):
            return None
        return OwnBuffer(self._worker, self._worker.held(buffer), self._worker.near(end, flow), seed)

    def fill(self) -> None:
        """Fill the sources for the warm-up, and time the first write of new destinations."""
        part = self._window(0, WARM_UP_PASSES)
        for flow in self._flows:
            if flow.source is not None:
                flow.source.fill(part)
            if flow.destination is not None and self._opened.made_for(self._place, flow.destination.held):
                flow.destination.first_touch(part)

    def pass_over(self) -> None:
        """Queue the passes of the warm-up, without a gate."""
        part = self._window(0, WARM_UP_PASSES)
        for mover in self.movers.values():
            for stream, operation in self._transfer.launch(mover, part, WARM_UP_PASSES):
                stream.context.make_current()
                operation()

    def poison(self, number: int) -> None:
        """Fill the sources of a sample, and queue work that clears its results."""
        part = self._window(number)
        for flow in self._flows:
            if flow.source is not None:
                flow.source.fill(part)
            self._transfer.prepare(flow, part)

    def synchronize(self) -> None:
        """Wait for all streams of this part."""
        for flow in self._flows:
            for stream in flow.streams:
                stream.synchronize()

    def work(self, number: int) -> list[FlowParts]:
        """Return the work of one sample, by flow."""
        part, passes = self._window(number), self.task.copies
        return [self._transfer.launch(mover, part, passes) for mover in self.movers.values()]

    def keep(self, items: Sequence[Item]) -> None:
        """Add a sample, given the times of the flows of all processes."""
        sides = [item.data for item in items if item.data]
        elapsed_ms = max(side["elapsed_ms"] for side in sides)
        if len(sides) > 1 and self.on_one_node:
            # On one clock: the time from the first gate's opening to the end of the last flow.
            last_s = max(side["opened_s"] + side["elapsed_ms"] / 1e3 for side in sides)
            elapsed_ms = (last_s - min(side["opened_s"] for side in sides)) * 1e3
        flows_ms = dict(flow for side in sides for flow in zip(side["flows"], side["flows_ms"], strict=True))
        wall_ms = max(side["wall_ms"] for side in sides)
        self._samples.append(
            bandwidth_sample(self.task, elapsed_ms, [ms for _, ms in sorted(flows_ms.items())], wall_ms)
        )

    def begin_checks(self, number: int) -> None:
        """Queue the checks of this process: of its destinations, or of the checksums of what it read."""
        part, passes = self._window(number), self.task.copies
        checks = ((flow.number, self._transfer.check(flow, part, passes)) for flow in self._flows)
        self._checks = [(flow, check) for flow, check in checks if check is not None]

    def finish_checks(self) -> list[tuple[int, ...]]:
        """Wait for the checks; return (flow index, difference) tuples."""
        differences = [(flow, finish()) for flow, finish in self._checks]
        return [(flow, *difference) for flow, difference in differences if difference is not None]

    def keep_mismatch(self, number: int, items: Sequence[Item]) -> None:
        """Record the first difference of the task."""
        for item in items:
            for flow, *difference in item.data or ():
                self._mismatch = self._mismatch or mismatch_of(Difference(*difference), number, flow)

    def told(self) -> dict[str, Any]:
        """Return this process' data on the task's buffers and gate as JSON."""
        own = [buffer for flow in self._buffers for buffer in flow.there if self._collective.owns(buffer.end)]
        return {
            "costs": [to_json(cost) for cost in self._opened.costs(self._place)],
            "placements": [to_json(placement) for placement in self._worker.placements(own)],
            "ungated": self.ungated,
        }

    def conclude(self, items: Sequence[Item]) -> Measurement:
        """Return the measurement, given the data of each process."""
        data = [item.data for item in items]
        gating = {data[flow.initiator_rank or 0]["gating"] for flow in self.task.flows}
        reason = next((side["ungated"] for side in data if side["ungated"]), None)
        return of_bandwidth(
            self.task,
            self._samples,
            self._mismatch,
            reason and f"measured without a gate: {reason}",
            gating=" and ".join(sorted(gating)),
            verification=self._transfer.verification,
            seeds=tuple(flow.seed for flow in self._flows),
            costs=tuple(from_json(BufferCost, cost) for side in data for cost in side["costs"]),
            placements=tuple(from_json(Placement, placement) for side in data for placement in side["placements"]),
        )

    def _window(self, number: int, passes: int | None = None) -> Window:
        return window(self.task.size_bytes, passes or self.task.copies, number, self.task.rotated_bytes)


def _region(memory: MappedMemory, part: Window, seed: int) -> Region:
    return Region(memory.address + part.offset_bytes, part.size_bytes, seed, part.offset_bytes, memory.pageable)


def _wait_until(start_s: float) -> None:
    """Wait until a time of :func:`time.perf_counter`, accurate to microseconds."""
    if (ahead_s := start_s - time.perf_counter() - SPIN_S) > 0:
        time.sleep(ahead_s)
    while time.perf_counter() < start_s:
        pass
