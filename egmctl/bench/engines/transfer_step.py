"""How the bandwidths of a step are measured: all flows of all tasks at the same time, and every byte looked at.

Each process fills the sources that it owns, queues the work that it issues behind its gate, and looks at the
destinations that it owns. In one process one gate holds everything. Of several each has its own, and opens it at a time
that all have agreed on by the clock that the processes of a node share (``docs/measurement.md``).
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import astuple, dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any

from egmctl.bench.buffers import Window, assign, window
from egmctl.bench.case import End
from egmctl.bench.engine import ENGINES
from egmctl.bench.engines.transfer import Destination, Mover, Source, Transfer
from egmctl.bench.evidence import Watch
from egmctl.bench.outcomes import EXPIRED_LIMIT, GateExpired
from egmctl.bench.processes import collective as evidence
from egmctl.bench.processes.collective import CollectiveStep, Item, OpenBuffers, open_buffers
from egmctl.bench.results import bandwidth_sample, mismatch_of, of_bandwidth
from egmctl.gpu.pattern import Check, Difference
from egmctl.gpu.timing import Gate, GatedWork, Stream
from egmctl.model.codec import from_json, to_json
from egmctl.model.measurement import BufferCost, Measurement, Mismatch, Phase, Placement, Sample, Settings, Task

if TYPE_CHECKING:
    from egmctl.bench.processes.context import WorkerContext

WARM_UP_PASSES = 2
"""Untimed passes before the first sample of a task: host memory is mapped at its first touch, and clocks rise."""
HEAD_START_S = 0.002
"""From when the last process of a node has queued its work until all open their gates: what it takes to tell them."""
SPIN_S = 0.0005
"""A sleeping process wakes up this much too late at most, as a rule: the rest of the time it looks at the clock."""


def measure(transfer: Transfer, worker: WorkerContext, tasks: Sequence[Task], settings: Settings) -> list[Measurement]:
    """Measure the tasks of a step at the same time, in all processes; every process returns the same."""
    collective = CollectiveStep(worker, tasks)
    step = _Step(transfer, collective, worker)
    step.prepare()
    gate = worker.gate(held=not step.ungated)
    try:
        with worker.stopwatch.phase(Phase.WARM_UP):
            step.warm_up()
        with worker.link_counters.watch(tasks) as watch:
            for number in range(settings.samples):
                if None in collective.outcomes:
                    step.sample(gate, watch, number)
    except BaseException:
        # Whatever waits behind a closed gate can be neither finished nor freed.
        gate.open()
        raise
    gathered = collective.do(
        lambda place: step.told(place) | {"seen": evidence.told(watch, worker), "gating": gate.how}
    )
    return [
        outcome or step.conclude(place, items)
        for place, (outcome, items) in enumerate(zip(collective.outcomes, gathered, strict=True))
    ]


@dataclass
class _FlowPart:
    """This process' part of a flow: what it owns or issues of it."""

    number: int
    seed: int
    source: Source | None
    destination: Destination | None
    mover: Mover | None

    def streams(self) -> list[Stream]:
        """Return the streams that it works on."""
        ends = [end.stream for end in (self.source, self.destination) if end is not None]
        return [*(self.mover.streams if self.mover is not None else ()), *ends]


@dataclass
class _TaskPart:
    """This process' part of a task."""

    streams: dict[int, list[Stream]] = field(default_factory=dict)
    """By the numbers of the flows that this process issues."""
    flows: list[_FlowPart] = field(default_factory=list)
    checks: list[tuple[int, Check]] = field(default_factory=list)
    """Under way, each with its flow's number."""
    samples: list[Sample] = field(default_factory=list)
    mismatch: Mismatch | None = None

    @property
    def moved(self) -> list[tuple[int, Mover]]:
        """The flows that this process issues."""
        return [(flow.number, flow.mover) for flow in self.flows if flow.mover is not None]


class _Step:
    """Tasks that are measured at the same time, as one process sees them."""

    def __init__(self, transfer: Transfer, collective: CollectiveStep, worker: WorkerContext) -> None:
        self._transfer = transfer
        self._verified_by = transfer.verified_by
        self._collective = collective
        self._worker = worker
        self._phase = worker.stopwatch.phase
        self._tasks = collective.tasks
        self._buffers = assign(collective.tasks)
        self._parts = [_TaskPart() for _ in collective.tasks]
        self._open = OpenBuffers()
        self._taken: Counter[str | None] = Counter()
        self._held: GatedWork | None = None
        self._held_tasks: list[int] = []

    def prepare(self) -> None:
        """Get streams, make, offer and open the buffers."""
        # Kernels that share a GPU.
        sharing = Counter(
            (flow.initiator_rank, flow.initiator)
            for task in self._tasks
            for flow in task.flows
            if ENGINES[task.engine].needs_kernels
        )
        self._open = open_buffers(self._collective, self._worker, self._buffers, before=self._take_streams)
        self._collective.do(lambda place: self._get_ready(place, sharing))

    @property
    def ungated(self) -> bool:
        """Whether a copy of this process might not be queued before it is done."""
        return any(mover.ungated is not None for part in self._parts for _, mover in part.moved)

    def warm_up(self) -> None:
        """Fill the sources, and move everything a few times."""
        self._collective.do(self._fill)
        self._collective.do(self._synchronize, begin=self._pass_over)

    def sample(self, gate: Gate, watch: Watch, number: int) -> None:
        """Take one sample of each task."""
        for attempt in range(EXPIRED_LIMIT):
            with self._phase(Phase.VERIFYING):
                self._collective.do(self._synchronize, begin=lambda place: self._poison(place, number))
            with self._phase(Phase.MEASURING):
                queued = self._collective.do_at_once(lambda places: self._queue(places, number, gate))
                start_s = self._start_s(queued)
                last = attempt == EXPIRED_LIMIT - 1
                timed = self._collective.do_at_once(partial(self._run, start_s=start_s, last=last))
            if not any(item.data and item.data["expired"] for items in timed for item in items):
                break
        watch.count()
        for place, items in enumerate(timed):
            if self._collective.outcomes[place] is None:
                self._parts[place].samples.append(self._joined(place, items))
        with self._phase(Phase.VERIFYING):
            differences = self._collective.do(
                self._finish_checks, begin=lambda place: self._begin_checks(place, number)
            )
        self._keep_mismatches(number, differences)

    def told(self, place: int) -> dict[str, Any]:
        """Return what this process alone knows of a task."""
        own = [buffer for flow in self._buffers[place] for buffer in flow.there if self._collective.owns(buffer.end)]
        return {
            "costs": [to_json(cost) for cost in self._open.costs(place)],
            "placements": [to_json(placement) for placement in self._worker.placements(own)],
            "ungated": next((reason for _, mover in self._parts[place].moved if (reason := mover.ungated)), None),
        }

    def conclude(self, place: int, items: Sequence[Item]) -> Measurement:
        """Return the measurement of a task, of which each process has told what it knows."""
        task, part = self._tasks[place], self._parts[place]
        gating = {items[flow.initiator_rank or 0].data["gating"] for flow in task.flows}
        return of_bandwidth(
            task,
            part.samples,
            part.mismatch,
            next((f"measured without a gate: {reason}" for item in items if (reason := item.data["ungated"])), None),
            gating=" and ".join(sorted(gating)),
            verification=self._verified_by.name,
            seeds=tuple(flow.seed for flow in part.flows),
            costs=tuple(from_json(BufferCost, cost) for item in items for cost in item.data["costs"]),
            placements=tuple(
                from_json(Placement, placement) for item in items for placement in item.data["placements"]
            ),
            evidence=evidence.gathered(task, len(part.samples), self._collective.ranks, items, "seen"),
        )

    def _take_streams(self, place: int) -> None:
        """Get the streams of the flows that this process issues, and let their GPUs reach its other GPUs."""
        task = self._tasks[place]
        for number, flow in enumerate(task.flows):
            if not self._collective.issues(flow):
                continue
            initiator = flow.initiator or ""
            first = self._taken[initiator]
            count = task.point.streams or 1
            self._taken[initiator] += count
            streams = [self._worker.stream(initiator, first + number) for number in range(count)]
            self._parts[place].streams[number] = streams
            if flow.route.staged:
                self._worker.disconnect(flow.source.bus_id or "", flow.destination.bus_id or "")
                continue
            for end in (flow.source, flow.destination):
                if self._collective.owns(end):
                    self._worker.connect(initiator, end)

    def _get_ready(self, place: int, sharing: Mapping[tuple[int | None, str | None], int]) -> None:
        """Put together what fills, moves and looks at the bytes of each flow."""
        collective, worker, part = self._collective, self._worker, self._parts[place]
        for number, (flow, buffers) in enumerate(zip(self._tasks[place].flows, self._buffers[place], strict=True)):
            seed = self._open.seeds[place, number, End.DESTINATION if buffers.source is None else End.SOURCE]
            source = destination = mover = None
            if buffers.source is not None and collective.owns(flow.source):
                source = Source(worker, worker.held(buffers.source), worker.near(flow.source, flow))
            if buffers.destination is not None and collective.owns(flow.destination):
                held = worker.held(buffers.destination)
                destination = Destination(worker, held, worker.near(flow.destination, flow), seed)
            if collective.issues(flow):
                ends = [worker.held(b).memory if b else None for b in (buffers.source, buffers.destination)]
                share = sharing.get((flow.initiator_rank, flow.initiator), 1)
                mover = Mover(
                    worker,
                    self._transfer,
                    self._tasks[place],
                    flow,
                    *ends,
                    seed=seed,
                    streams=part.streams[number],
                    share=share,
                )
            part.flows.append(_FlowPart(number, seed, source, destination, mover))

    def _fill(self, place: int) -> None:
        part = window(self._tasks[place].size_bytes, WARM_UP_PASSES, 0)
        for flow in self._parts[place].flows:
            if flow.source is not None:
                flow.source.fill(part)
            if flow.destination is not None and self._open.made_for(place, flow.destination.held):
                flow.destination.first_touch(part)

    def _pass_over(self, place: int) -> None:
        part = window(self._tasks[place].size_bytes, WARM_UP_PASSES, 0)
        for _, mover in self._parts[place].moved:
            for stream, operation in mover.parts(part, WARM_UP_PASSES):
                stream.context.make_current()
                operation()

    def _poison(self, place: int, number: int) -> None:
        """Begin to make sure that what a sample leaves is not there already."""
        part = self._window(place, number)
        for flow in self._parts[place].flows:
            if flow.source is not None:
                flow.source.fill(part)
            if flow.destination is not None:
                self._verified_by.prepare_destination(flow.destination, part)
            if flow.mover is not None:
                self._verified_by.prepare_mover(flow.mover)

    def _synchronize(self, place: int) -> None:
        for flow in self._parts[place].flows:
            for stream in dict.fromkeys(flow.streams()):
                stream.synchronize()

    def _queue(self, places: Sequence[int], number: int, gate: Gate) -> dict[int, float]:
        """Queue all that this process issues behind its gate; return when that was done."""
        self._held_tasks = [place for place in places if self._parts[place].moved]
        groups = [
            [mover.parts(self._window(place, number), self._tasks[place].copies) for _, mover in part.moved]
            for place, part in enumerate(self._parts)
            if place in self._held_tasks
        ]
        self._held = GatedWork(gate, groups) if groups else None
        return dict.fromkeys(places, time.perf_counter())

    def _start_s(self, queued: Sequence[Sequence[Item]]) -> float | None:
        """Return when the processes of this node open their gates; ``None`` where there is one process."""
        if self._collective.exchange.size == 1:
            return None
        ready_s = [items[rank].data for items in queued if items for rank in self._collective.here]
        return max((at for at in ready_s if at), default=0) + HEAD_START_S

    def _run(self, places: Sequence[int], *, start_s: float | None, last: bool) -> dict[int, dict[str, Any]]:
        """Open the gate, on one node at the agreed time; return the times of the flows that this process issues."""
        held, self._held = self._held, None
        if held is None:
            return {}
        if start_s is not None and any(self._one_node(place) for place in self._held_tasks):
            _wait_until(start_s)
        # Also what has ended meanwhile: it waits behind the gate.
        timings = held.run()
        if last and any(timing.expired for timing in timings):
            raise GateExpired
        return {
            place: {
                "flows_ms": [[n, ms] for (n, _), ms in zip(self._parts[place].moved, timing.flows_ms, strict=True)],
                "opened_s": timing.opened_s,
                "elapsed_ms": timing.elapsed_ms,
                "wall_ms": timing.wall_ms,
                "expired": timing.expired,
            }
            for place, timing in zip(self._held_tasks, timings, strict=True)
            if place in places
        }

    def _joined(self, place: int, items: Sequence[Item]) -> Sample:
        """Return the sample that the flows of all processes make."""
        parts = [item.data for item in items if item.data]
        elapsed_ms = max(part["elapsed_ms"] for part in parts)
        if len(parts) > 1 and self._one_node(place):
            # One clock: what lies between the first gate's opening and the end of the last flow.
            last_s = max(part["opened_s"] + part["elapsed_ms"] / 1e3 for part in parts)
            elapsed_ms = (last_s - min(part["opened_s"] for part in parts)) * 1e3
        flows_ms = [ms for _, ms in sorted(flow for part in parts for flow in part["flows_ms"])]
        return bandwidth_sample(self._tasks[place], elapsed_ms, flows_ms, max(part["wall_ms"] for part in parts))

    def _one_node(self, place: int) -> bool:
        return len({self._collective.ranks[number].host for number in self._tasks[place].ranks}) == 1

    def _begin_checks(self, place: int, number: int) -> None:
        """Begin to look at what the destinations of this process hold, and at what it has kept of what it read."""
        task, part, by = self._tasks[place], self._window(place, number), self._verified_by
        checks = self._parts[place].checks = []
        for flow in self._parts[place].flows:
            if flow.mover is not None and (check := by.check_mover(flow.mover, part, task.copies)) is not None:
                checks.append((flow.number, check))
            if flow.destination is not None:
                checks.append((flow.number, by.check_destination(flow.destination, part, task.copies)))

    def _finish_checks(self, place: int) -> list[tuple[int, ...]]:
        """Return each difference with its flow's number."""
        differences = [(flow, finish()) for flow, finish in self._parts[place].checks]
        return [(flow, *astuple(difference)) for flow, difference in differences if difference is not None]

    def _keep_mismatches(self, number: int, gathered: Sequence[Sequence[Item]]) -> None:
        for part, items in zip(self._parts, gathered, strict=True):
            for item in items:
                for flow, *difference in item.data or ():
                    part.mismatch = part.mismatch or mismatch_of(Difference(*difference), number, flow)

    def _window(self, place: int, number: int) -> Window:
        return window(self._tasks[place].size_bytes, self._tasks[place].copies, number)


def _wait_until(start_s: float) -> None:
    """Wait for a time of :func:`time.perf_counter` to within microseconds."""
    if (ahead_s := start_s - time.perf_counter() - SPIN_S) > 0:
        time.sleep(ahead_s)
    while time.perf_counter() < start_s:
        pass
