"""How ranks measure bandwidths of memory that they share: owners fill and look, those who opened it move the bytes.

Each rank has its own gate, queues its work behind it and opens it when all ranks have come so far. What flows of
different processes take together is told by the clock that the processes of a node share (``docs/measurement.md``).
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import count
from typing import Any

from egmctl.bench.bandwidth import WARM_UP_PASSES
from egmctl.bench.buffers import FlowBuffers, Window, assign, window
from egmctl.bench.case import End
from egmctl.bench.conclusion import bandwidth_sample, mismatch_of, of_bandwidth
from egmctl.bench.engines import transfers
from egmctl.bench.engines.transfer import Destination, Mover, Source
from egmctl.bench.exchange import Exchange, Item
from egmctl.bench.flow_run import cost_of
from egmctl.bench.outcomes import EXPIRED_LIMIT, GateExpired
from egmctl.bench.ranks import evidence
from egmctl.bench.ranks.sharing import Seeds, open_buffers
from egmctl.bench.ranks.team import Team
from egmctl.bench.rig import Held as HeldBuffer
from egmctl.bench.rig import Rig
from egmctl.gpu.pattern import Difference
from egmctl.gpu.timing import Gate, Held, Stream
from egmctl.model.codec import from_json, to_json
from egmctl.model.measurement import (
    BufferCost,
    Measurement,
    Mismatch,
    Placement,
    Sample,
    Settings,
    Task,
    Verification,
)
from egmctl.model.rank import Rank

HEAD_START_S = 0.002
"""From when the last rank of a node has queued its work until all open their gates: what it takes to tell them."""
SPIN_S = 0.0005
"""A sleeping process wakes up this much too late at most, as a rule: the rest of the time it looks at the clock."""


def measure(
    exchange: Exchange, rig: Rig, ranks: Sequence[Rank], tasks: Sequence[Task], settings: Settings
) -> list[Measurement]:
    """Measure the tasks of a step at the same time, in all ranks; every rank returns the same."""
    team = Team(exchange, ranks, tasks)
    step = _Step(team, rig, ranks[exchange.rank].bus_id)
    gate = rig.gate()
    try:
        step.prepare()
        step.warm_up()
        with rig.witness.watch(tasks) as watch:
            for number in range(settings.samples):
                step.sample(gate, number, check=step.checks_all or number in (0, settings.samples - 1))
                watch.count()
    except BaseException:
        # Whatever waits behind a closed gate can be neither finished nor freed.
        gate.open()
        raise
    gathered = team.do(lambda place: step.told(place) | {"seen": evidence.told(watch), "gating": gate.how})
    return [
        outcome or step.conclude(place, items)
        for place, (outcome, items) in enumerate(zip(team.outcomes, gathered, strict=True))
    ]


@dataclass
class _Part:
    """This rank's part of a task."""

    sources: list[Source] = field(default_factory=list)
    destinations: dict[int, Destination] = field(default_factory=dict)
    """By the place of their flow, like the movers."""
    movers: dict[int, Mover] = field(default_factory=dict)
    streams: list[Stream] = field(default_factory=list)
    seeds: tuple[int, ...] = ()
    held: Held | None = None
    samples: list[Sample] = field(default_factory=list)
    mismatch: Mismatch | None = None


class _Step:
    """Tasks that are measured at the same time, as one rank sees them."""

    def __init__(self, team: Team, rig: Rig, bus_id: str) -> None:
        self._team = team
        self._rig = rig
        self._bus_id = bus_id
        self._me = team.exchange.rank
        # What the others' clocks say means nothing here.
        own = team.ranks[self._me].host
        self._here = [number for number, rank in enumerate(team.ranks) if rank.host == own]
        self._tasks = team.tasks
        self._buffers = assign(team.tasks)
        self._parts = [_Part() for _ in team.tasks]
        self._new: list[tuple[int, Any, HeldBuffer]] = []
        self.checks_all = rig.verification is Verification.GPU_EVERY_SAMPLE

    def prepare(self) -> None:
        """Make, offer and open the buffers, and get streams."""
        known = {buffer for flows in self._buffers for flow in flows for buffer in flow.there if self._rig.has(buffer)}
        seeds = open_buffers(self._team, self._rig, self._bus_id, self._buffers)
        self._new = [
            (place, buffer, self._rig.held(buffer))
            for place, flows in enumerate(self._buffers)
            for flow in flows
            for buffer in flow.there
            if buffer.end.rank == self._me and buffer not in known and self._rig.has(buffer)
        ]
        numbers = count()
        sharing = Counter(
            flow.initiator_rank for task in self._tasks if transfers(task).needs_kernels for flow in task.flows
        )
        self._team.do(lambda place: self._get_ready(place, seeds, numbers, sharing[self._me]))

    def warm_up(self) -> None:
        """Fill the sources, and move everything a few times."""
        self._team.do(lambda place: self._fill(place, self._window(place, WARM_UP_PASSES, 0)))
        self._team.do(self._pass_over)

    def sample(self, gate: Gate, number: int, *, check: bool) -> None:
        """Take one sample of each task."""
        for attempt in range(EXPIRED_LIMIT + 1):
            self._team.do(lambda place: self._spoil(place, number))
            queued = self._team.do(lambda place: self._queue(place, number, gate))
            ready_s = [items[rank].data for items in queued if items for rank in self._here]
            start_s = max((at for at in ready_s if at), default=0) + HEAD_START_S
            timed = self._team.do(partial(self._run, start_s=start_s, last=attempt == EXPIRED_LIMIT))
            if not any(flow["expired"] for items in timed for item in items for flow in item.data or ()):
                break
        for place, items in enumerate(timed):
            if self._team.outcomes[place] is None:
                self._parts[place].samples.append(self._joined(place, items))
        if check:
            self._keep_mismatches(number, self._team.do(lambda place: self._check(place, number)))

    def told(self, place: int) -> dict[str, Any]:
        """Return what this rank alone knows of a task."""
        own = [buffer for flow in self._buffers[place] for buffer in flow.there if buffer.end.rank == self._me]
        return {
            "costs": [to_json(cost_of(buffer, held)) for at, buffer, held in self._new if at == place],
            "placements": [to_json(placement) for placement in self._rig.placements(own)],
        }

    def conclude(self, place: int, items: Sequence[Item]) -> Measurement:
        """Return the measurement of a task, of which each rank has told what it knows."""
        task, part = self._tasks[place], self._parts[place]
        gating = {items[flow.initiator_rank or 0].data["gating"] for flow in task.flows}
        return of_bandwidth(
            task,
            part.samples,
            part.mismatch,
            gating=" and ".join(sorted(gating)),
            verification=transfers(task).verification(self._rig),
            seeds=part.seeds,
            costs=tuple(from_json(BufferCost, cost) for item in items for cost in item.data["costs"]),
            placements=tuple(from_json(Placement, one) for item in items for one in item.data["placements"]),
            evidence=evidence.gathered(task, len(part.samples), self._team.ranks, items, "seen"),
        )

    def _get_ready(self, place: int, seeds: Seeds, numbers: count[int], share: int) -> None:
        task, part = self._tasks[place], self._parts[place]
        near = self._rig.stream(self._bus_id)
        moved = []
        for number, (flow, buffers) in enumerate(zip(task.flows, self._buffers[place], strict=True)):
            seed = seeds[place, number, End.DESTINATION if buffers.source is None else End.SOURCE]
            moved.append(seed)
            if buffers.source is not None and flow.source.rank == self._me:
                part.sources.append(Source(self._rig, self._rig.held(buffers.source), near))
            if buffers.destination is not None and flow.destination.rank == self._me:
                held = self._rig.held(buffers.destination)
                part.destinations[number] = Destination(self._rig, held, near, seed)
            if flow.initiator_rank == self._me:
                streams = [self._rig.stream(self._bus_id, next(numbers)) for _ in range(task.streams)]
                part.streams += streams
                part.movers[number] = self._mover(task, buffers, seed, streams, share)
        part.seeds = tuple(moved)

    def _mover(self, task: Task, buffers: FlowBuffers, seed: int, streams: list[Stream], share: int) -> Mover:
        memories = [self._rig.held(buffer) if buffer else None for buffer in (buffers.source, buffers.destination)]
        source, destination = (held.memory if held else None for held in memories)
        return Mover(self._rig, transfers(task), source, destination, seed, streams=streams, share=share)

    def _fill(self, place: int, part: Window) -> None:
        own = self._parts[place]
        for source in own.sources:
            source.fill(part)
        for destination in own.destinations.values():
            if any(held is destination.held for _, _, held in self._new):
                destination.first_touch(part)
        self._rig.stream(self._bus_id).synchronize()

    def _pass_over(self, place: int) -> None:
        own = self._parts[place]
        part = self._window(place, WARM_UP_PASSES, 0)
        for mover in own.movers.values():
            for stream, operation in mover.parts(part, WARM_UP_PASSES):
                stream.context.make_current()
                operation()
        for stream in own.streams:
            stream.synchronize()

    def _spoil(self, place: int, number: int) -> None:
        own = self._parts[place]
        part = self._window(place, self._tasks[place].copies, number)
        verified_by = transfers(self._tasks[place]).verified_by
        for source in own.sources:
            source.fill(part)
        for destination in own.destinations.values():
            verified_by.prepare_destination(destination, part)
        for mover in own.movers.values():
            verified_by.prepare_mover(mover)
        for stream in {self._rig.stream(self._bus_id), *own.streams}:
            stream.synchronize()

    def _queue(self, place: int, number: int, gate: Gate) -> float:
        """Queue this rank's work behind its gate; return when that was done."""
        own, task = self._parts[place], self._tasks[place]
        part = self._window(place, task.copies, number)
        flows = [mover.parts(part, task.copies) for mover in own.movers.values()]
        own.held = Held(gate, [flows]) if flows else None
        return time.perf_counter()

    def _run(self, place: int, *, start_s: float, last: bool) -> list[dict[str, Any]]:
        """Open the gate, on one node at the agreed time; return the times of this rank's flows."""
        own = self._parts[place]
        if own.held is None:
            return []
        if self._one_node(place):
            _wait_until(start_s)
        (timing,) = own.held.run()
        if timing.expired and last:
            raise GateExpired
        ended_s = timing.opened_s + timing.elapsed_ms / 1e3
        times = {"opened_s": timing.opened_s, "ended_s": ended_s, "wall_ms": timing.wall_ms, "expired": timing.expired}
        return [{"flow": n, "ms": ms} | times for n, ms in zip(own.movers, timing.flows_ms, strict=True)]

    def _joined(self, place: int, items: Sequence[Item]) -> Sample:
        """Return the sample that the flows of all ranks make."""
        flows = sorted((flow for item in items for flow in item.data), key=lambda flow: flow["flow"])
        elapsed_ms = max((flow["ended_s"] - flow["opened_s"]) * 1e3 for flow in flows)
        if self._one_node(place):
            # One clock: what lies between the first gate's opening and the end of the last flow.
            first, last = min(flow["opened_s"] for flow in flows), max(flow["ended_s"] for flow in flows)
            elapsed_ms = (last - first) * 1e3
        wall_ms = max(flow["wall_ms"] for flow in flows)
        return bandwidth_sample(self._tasks[place], elapsed_ms, [flow["ms"] for flow in flows], wall_ms)

    def _one_node(self, place: int) -> bool:
        return len({self._team.ranks[number].host for number in self._tasks[place].ranks}) == 1

    def _check(self, place: int, number: int) -> list[dict[str, Any]]:
        """Return what is wrong in this rank's memory."""
        own, task = self._parts[place], self._tasks[place]
        part = self._window(place, task.copies, number)
        by = transfers(task).verified_by
        checks = [(flow, by.check_destination(end, part, task.copies)) for flow, end in own.destinations.items()]
        begun = ((flow, by.check_mover(mover, part, task.copies)) for flow, mover in own.movers.items())
        checks += [(flow, check) for flow, check in begun if check is not None]
        found = [(flow, finish()) for flow, finish in checks]
        return [
            {"flow": flow, "words": d.words, "at": d.first_offset_bytes, "expected": d.expected, "found": d.found}
            for flow, d in found
            if d is not None
        ]

    def _keep_mismatches(self, number: int, gathered: Sequence[Sequence[Item]]) -> None:
        for part, items in zip(self._parts, gathered, strict=True):
            for item in items:
                for wrong in item.data or ():
                    difference = Difference(wrong["words"], wrong["at"], wrong["expected"], wrong["found"])
                    part.mismatch = part.mismatch or mismatch_of(difference, number, wrong["flow"])

    def _window(self, place: int, passes: int, number: int) -> Window:
        return window(self._tasks[place].size_bytes, passes, number)


def _wait_until(start_s: float) -> None:
    """Wait for a time of :func:`time.perf_counter` to within microseconds."""
    if (ahead_s := start_s - time.perf_counter() - SPIN_S) > 0:
        time.sleep(ahead_s)
    while time.perf_counter() < start_s:
        pass
