"""How long one process takes to tell another one something and hear back: round trips by flag, event and message.

* A flag is a word in shared memory: a kernel in each process polls one and writes the other, and the host has no part
  in it.
* An event is recorded by one process and waited for by the other one's stream, which records its own; the first waits
  for that one on the host. That there is a new recording each tells the other by a message.
* A message goes over a socket between the two processes: what of an event's round trip is not the event.
"""

from __future__ import annotations

import os
import socket
import time
from abc import ABC, abstractmethod
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any

from egmctl.bench.conclusion import of_latency, round_trips
from egmctl.bench.exchange import Exchange, Item
from egmctl.bench.latency import WARM_UP_LAPS
from egmctl.bench.outcomes import FAILURES
from egmctl.bench.ranks.holding import Holding, holding
from egmctl.bench.ranks.team import Team, close_all
from egmctl.bench.rig import Rig
from egmctl.gpu.chase import Reader, clear_flag
from egmctl.gpu.clock import ms_since
from egmctl.gpu.handles import ImportedMemory, SharedMemory
from egmctl.gpu.ipc_events import ImportedEvent, SharedEvent
from egmctl.gpu.timing import Stream
from egmctl.model.codec import from_json, to_json
from egmctl.model.measurement import Engine, Measurement, Sample, Settings, Task
from egmctl.model.rank import Rank

SILENCE_S = 5.0
"""How long a process waits for a message that takes microseconds, as kernels wait for a flag."""

APART_BYTES = 1 << 20
"""From one flag to the other where one piece of memory has both."""


def measure(
    exchange: Exchange, rig: Rig, ranks: Sequence[Rank], tasks: Sequence[Task], settings: Settings
) -> list[Measurement]:
    """Measure the round trips of each task between two ranks, at the same time.

    Parameters
    ----------
    rig
        This rank's: stream and kernels.
    tasks
        The same in all ranks, also in those that have no part in them; no rank is in two. All are of one of the engines
        PING_PONG, EVENT and SOCKET. The first flow's ``initiator_rank`` sends first and takes the times; the other rank
        is the second flow's, or that of the first flow's destination. Of a flag each flow's destination is the memory
        that its initiator writes to: where that is another rank's, it has a handle.

    Returns
    -------
    list[Measurement]
        Of each task, the same in all ranks.

    Raises
    ------
    Abandoned
        Another rank has died or hangs; what this one held it has let go of.
    """
    team = Team(exchange, ranks, tasks)
    with holding(team) as held:
        pairs = [_PAIRS[task.engine](team, rig, task, one) for task, one in zip(tasks, held, strict=True)]
        connect(team, pairs)
        samples = [sample(team, pairs) for _ in range(settings.samples)]
    return [
        outcome or _conclude(task, [taken[place] for taken in samples])
        for place, (task, outcome) in enumerate(zip(tasks, team.outcomes, strict=True))
    ]


def connect(team: Team, pairs: Sequence[_Pair]) -> None:
    """Have each pair make what it needs, and send it to each other."""
    offered = team.do(lambda place: pairs[place].make())
    try:
        team.do(lambda place: pairs[place].open(offered[place]))
    finally:
        close_all(offered)


def sample(team: Team, pairs: Sequence[_Pair]) -> list[Sample | None]:
    """Take one sample of each task; ``None`` where a side has waited in vain."""
    team.do(lambda place: pairs[place].ready())
    told = team.do(lambda place: pairs[place].take())
    return [pair.joined(items) if items else None for pair, items in zip(pairs, told, strict=True)]


def _conclude(task: Task, taken: Sequence[Sample | None]) -> Measurement:
    samples = [sample for sample in taken if sample is not None]
    return of_latency(task, samples, thrown_away=len(taken) - len(samples))


class _Pair(ABC):
    """Two ranks that answer each other, as one rank sees them; it may have no part in it."""

    def __init__(self, team: Team, rig: Rig, task: Task, held: Holding) -> None:
        first = task.flows[0]
        other = task.flows[1].initiator_rank if len(task.flows) > 1 else first.destination.rank
        self.me = team.exchange.rank
        self.rig = rig
        self.bus_id = team.ranks[self.me].bus_id
        self.flows = task.flows
        self.held = held
        self.serving, self.answering = first.initiator_rank or 0, other or 0
        self.serves = self.me == self.serving
        self.takes_part = self.me in (self.serving, self.answering)
        self.laps = WARM_UP_LAPS + (task.chase.loads if task.chase else 0)

    @property
    def stream(self) -> Stream:
        """The stream that this rank works on."""
        return self.rig.stream(self.bus_id)

    @abstractmethod
    def make(self) -> Item:
        """Make what this side has to give to the other one."""

    @abstractmethod
    def open(self, offered: Sequence[Item]) -> None:
        """Open what the other side has given; of its descriptors what is kept is a copy."""

    @abstractmethod
    def ready(self) -> None:
        """Prepare one sample, before either side begins."""

    @abstractmethod
    def run(self) -> Sequence[float] | None:
        """Do this side's part of a sample; return the nanoseconds of each lap, ``None`` if it has waited in vain."""

    def take(self) -> Any:
        """Return this side's part of a sample as JSON data, ``None`` where it has none or has waited in vain."""
        if not self.takes_part:
            return None
        started = time.perf_counter()
        laps_ns = self.run()
        if laps_ns is None:
            return None
        wall_ms = ms_since(started)
        return to_json(self.summed_up(round_trips(laps_ns[WARM_UP_LAPS:], wall_ms))) if self.serves else {}

    def summed_up(self, sample: Sample) -> Sample:
        """Return a sample with the latency that stands for its laps: their mean."""
        return sample

    def joined(self, told: Sequence[Item]) -> Sample | None:
        """Return the sample of which each rank has told its part."""
        sides = [told[rank].data for rank in (self.serving, self.answering)]
        return None if None in sides else from_json(Sample, sides[0])


class _Flags(_Pair):
    """Kernels poll words in shared memory."""

    def make(self) -> Item:
        self._made: SharedMemory | None = None
        if self.takes_part:
            self._reader = Reader(self.stream, self.rig.kernels_of(self.bus_id))
            self.held.own.append(self._reader)
        end = next((flow.destination for flow in self.flows if flow.destination.rank == self.me), None)
        if end is None:
            return Item(None)
        handle = next(flow.destination.handle for flow in self.flows if flow.destination.handle is not None)
        self._made = SharedMemory(handle, self.stream.context, 2 * APART_BYTES, end.numa_node)
        self.held.own.append(self._made)
        description, fds = self._made.offer()
        return Item(description, tuple(fds))

    def open(self, offered: Sequence[Item]) -> None:
        if not self.takes_part:
            return
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

        mine, theirs = (0, 1) if self.serves else (1, 0)
        self._send, self._poll = flag(mine), flag(theirs)

    def ready(self) -> None:
        if self.takes_part:
            clear_flag(self.stream, self._poll)

    def run(self) -> Sequence[float] | None:
        self._reader.start_laps(self._poll, self._send, self.laps, serves=self.serves)
        found = self._reader.end_laps(self.laps)
        return None if found.expired else found.laps_ns


class _Messages(_Pair):
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
            raise EOFError("the other side has closed its end")

    def _keep(self, end: socket.socket) -> None:
        end.settimeout(SILENCE_S)
        self._socket = end
        self.held.own.append(end)


class _Events(_Messages):
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


_PAIRS: dict[Engine, type[_Pair]] = {
    Engine.PING_PONG: _Flags,
    Engine.EVENT: _Events,
    Engine.SOCKET: _Messages,
}
