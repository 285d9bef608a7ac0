"""Round trips between two sides that wait for each other: by flags in memory, by events, by messages."""

from __future__ import annotations

import os
import socket
import time
from abc import ABC, abstractmethod
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

from egmctl.bench.buffers import assign
from egmctl.bench.engine import ENGINES
from egmctl.bench.engines.chase import take_reader
from egmctl.bench.outcomes import FAILURES
from egmctl.bench.processes.collective import (
    CollectiveStep,
    Item,
    ResourceScope,
    close_all,
    resource_scopes,
    with_evidence,
)
from egmctl.bench.results import of_latency, round_trips
from egmctl.gpu.chase import Reader, clear_flag
from egmctl.gpu.context import ms_since, possible_ms
from egmctl.gpu.handles import ImportedEvent, ImportedMemory, SharedEvent, SharedMemory
from egmctl.gpu.timing import Stream
from egmctl.model.codec import from_json, to_json
from egmctl.model.measurement import Engine, Measurement, Phase, Sample, Settings, Task

if TYPE_CHECKING:
    from egmctl.bench.processes.context import WorkerContext


WARM_UP_LAPS = 200
"""Untimed round trips before those of each sample: the side that serves begins a little before the other."""


def measure(
    pair_type: type[Pair], worker: WorkerContext, tasks: Sequence[Task], settings: Settings
) -> list[Measurement]:
    """Measure how two GPUs, or two processes, answer each other: no process is in two tasks, but one that has all GPUs.

    A flag or a message that is wrong ends no round trip: there is nothing to compare.
    """
    collective = CollectiveStep(worker, tasks)
    # Where the host has a part in the round trips, what asks NVML meanwhile is in their way.
    watched = () if ENGINES[tasks[0].engine].timed_by_host else tasks
    with resource_scopes(collective) as scopes:
        pairs = [pair_type(collective, worker, task, scope) for task, scope in zip(tasks, scopes, strict=True)]
        offered = collective.do(lambda place: pairs[place].make())
        try:
            collective.do(lambda place: pairs[place].open(offered[place]))
        finally:
            close_all(offered)
        samples: list[list[Sample | None]] = [[] for _ in tasks]
        with worker.stopwatch.phase(Phase.MEASURING), worker.link_counters.watch(watched) as watch:
            for _ in range(settings.samples):
                collective.do(lambda place: pairs[place].ready())
                sides = collective.do(lambda place: pairs[place].take(), begin=lambda place: pairs[place].start())
                for taken, pair, items in zip(samples, pairs, sides, strict=True):
                    taken.append(pair.joined(items) if items else None)

    def conclude(place: int) -> Measurement:
        kept = [sample for sample in samples[place] if sample is not None]
        return of_latency(tasks[place], kept, discarded=len(samples[place]) - len(kept))

    if watched:
        return with_evidence(collective, worker, watch, conclude)
    return [outcome or conclude(place) for place, outcome in enumerate(collective.outcomes)]


class Pair(ABC):
    """Two sides that answer each other, as one process sees them: it may be one of them, or both, or none.

    The first flow's initiator sends first and takes the times; the other side is the second flow's initiator, or the
    first flow's destination.
    """

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


APART_BYTES = 1 << 20
"""From one flag to the other where one piece of memory has both."""


class Flags(Pair):
    """The flags lie in memory of the one process, or in memory that one of two has made and the other has opened.

    Of each flow the destination is the memory that its initiator writes to: where that is another process', it has a
    handle.
    """

    def make(self) -> Item:
        self._sides = [number for number, flow in enumerate(self.flows) if self.collective.issues(flow)]
        self._readers: dict[int, Reader] = {}
        self._made: SharedMemory | None = None
        for side in self._sides:
            self._readers[side] = take_reader(self.collective, self.worker, self.flows[side])
            self.held.own.append(self._readers[side])
        end = next((flow.destination for flow in self.flows if self.collective.owns(flow.destination)), None)
        if end is None or self._alone:
            return Item(None)
        handle = next(flow.destination.handle for flow in self.flows if flow.destination.handle is not None)
        self._made = SharedMemory(handle, self.stream.context, 2 * APART_BYTES, end.numa_node)
        self.held.own.append(self._made)
        description, fds = self._made.offer()
        return Item(description, tuple(fds))

    def open(self, offered: Sequence[Item]) -> None:
        opened: dict[int, ImportedMemory] = {}

        def flag(number: int) -> int:
            """Return where the flag is that a flow's initiator writes; one memory with both has them apart."""
            owner = self.flows[number].destination.rank or 0
            if self._made is not None and owner == self.me:
                return self._made.address + number * APART_BYTES
            if owner not in opened:
                opened[owner] = ImportedMemory(self.stream.context, offered[owner].data, offered[owner].fds)
                self.held.opened.append(opened[owner])
            return opened[owner].address + number * APART_BYTES

        if self._alone:
            tasks = self.collective.tasks
            buffers = next(
                flow_buffers for task, flow_buffers in zip(tasks, assign(tasks), strict=True) if task is self.task
            )
            self._flags = [
                self.worker.destination(flow_buffers.destination).address
                for flow_buffers in buffers
                if flow_buffers.destination
            ]
        elif self.takes_part:
            self._flags = [flag(0), flag(1)]

    def ready(self) -> None:
        for side in reversed(self._sides):
            clear_flag(self._readers[side].stream, self._flags[1 - side])

    def start(self) -> None:
        super().start()
        for side in reversed(self._sides):
            poll, send = self._flags[1 - side], self._flags[side]
            self._readers[side].start_laps(poll, send, self.laps, serves=side == 0)

    def run(self) -> Sequence[float] | None:
        laps_by_side = {side: self._readers[side].end_laps(self.laps) for side in self._sides}
        if any(laps.expired for laps in laps_by_side.values()):
            return None
        if 0 not in laps_by_side:
            return ()
        possible_ms("the kernel ping_pong", sum(laps_by_side[0].laps_ns) / 1e6)
        return laps_by_side[0].laps_ns

    @property
    def _alone(self) -> bool:
        """Whether one process has both sides."""
        return all(flow.destination.handle is None for flow in self.flows)


SILENCE_S = 5.0
"""How long a process waits for a message that takes microseconds, as kernels wait for a flag."""


class Messages(Pair):
    """One byte over a socket between the two processes, and one back."""

    def make(self) -> Item:
        if not self.serves:
            return Item(None)
        here, there = socket.socketpair()
        self._keep(here)
        self.held.own.append(there)
        return Item(None, (there.fileno(),))

    def open(self, offered: Sequence[Item]) -> None:
        if self.serves:
            # The other side has its own copy of its end, and only so is it seen when it closes that.
            self.held.own.pop().close()
        elif self.takes_part:
            self._keep(socket.socket(fileno=os.dup(offered[self.serving].fds[0])))

    def ready(self) -> None:
        # An answer that came after this side had given up would be taken for that to the next message.
        if self.takes_part:
            self._socket.setblocking(False)
            with suppress(OSError):
                while self._socket.recv(1):
                    pass
            self._socket.settimeout(SILENCE_S)

    def run(self) -> Sequence[float] | None:
        laps_ns = []
        try:
            for _ in range(self.laps):
                started = time.perf_counter_ns()
                self._lap()
                laps_ns.append(float(time.perf_counter_ns() - started))
        except FAILURES:
            # The other side waits no longer.
            self._socket.close()
            raise
        except (OSError, EOFError):
            # It is silent or gone; why, it says in the exchange, or whoever started it does.
            return None
        return laps_ns

    def summed_up(self, sample: Sample) -> Sample:
        # The host takes a process off its CPU now and then, for longer than a hundred laps take.
        return replace(sample, latency_ns=sample.p50_ns)

    def begin(self) -> None:
        """Do what comes before the message, on the side that serves."""

    def answer(self) -> None:
        """Do what comes between the two messages, on the other side."""

    def end(self) -> None:
        """Do what comes after the answer, on the side that serves."""

    def _lap(self) -> None:
        if self.serves:
            self.begin()
            self._socket.sendall(b"x")
            self._hear()
            self.end()
        else:
            self._hear()
            self.answer()
            self._socket.sendall(b"x")

    def _hear(self) -> None:
        if not self._socket.recv(1):
            raise EOFError("the peer has closed its end")

    def _keep(self, end: socket.socket) -> None:
        end.settimeout(SILENCE_S)
        self._socket = end
        self.held.own.append(end)


class Events(Messages):
    """As messages, with a recording before each that the other side's stream, or at last the host, waits for."""

    def make(self) -> Item:
        sockets = super().make()
        if not self.takes_part:
            return sockets
        self._own = SharedEvent(self.stream.context)
        self.held.own.insert(0, self._own)
        return Item(self._own.handle.hex(), sockets.fds)

    def open(self, offered: Sequence[Item]) -> None:
        super().open(offered)
        if self.takes_part:
            handle = offered[self.answering if self.serves else self.serving].data
            self._others = ImportedEvent(self.stream.context, bytes.fromhex(handle))
            self.held.opened.append(self._others)

    def begin(self) -> None:
        self._own.record(self.stream)

    def answer(self) -> None:
        self._others.hold(self.stream)
        self._own.record(self.stream)

    def end(self) -> None:
        self._others.synchronize()


MEASURE = {
    Engine.PING_PONG: partial(measure, Flags),
    Engine.EVENT: partial(measure, Events),
    Engine.SOCKET: partial(measure, Messages),
}
