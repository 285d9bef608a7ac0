"""Round trips between two sides that wait for each other: by flags in memory, by events, or by messages."""

from __future__ import annotations

import os
import socket
import time
from abc import abstractmethod
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import Any

from egmctl.bench.engine import ENGINES
from egmctl.bench.engines.latency import TaskPart, measure_latencies
from egmctl.bench.processes.collective import CollectiveStep, Item, ResourceScope
from egmctl.bench.processes.context import WorkerContext
from egmctl.bench.results import FAILURES, of_latency, round_trips
from egmctl.gpu.chase import FLAG_BYTES, clear
from egmctl.gpu.context import ms_since, possible_ms
from egmctl.gpu.handles import ImportedEvent, ImportedMemory, SharedEvent, SharedMemory
from egmctl.model.codec import from_json, to_json
from egmctl.model.measurement import Measurement, Sample
from egmctl.model.task import Engine

WARM_UP_LAPS = 200
"""The number of untimed round trips before each sample, because one side starts a little before the other."""


class RoundTrips(TaskPart):
    """This process' part of round trips between two sides. The process may be one side, both, or neither.

    The first flow's initiator serves: it sends first and times the round trips. The other side is the second flow's
    initiator, or the first flow's destination. A rank takes part in at most one task. No data is verified: a wrong flag
    or message does not complete a round trip.
    """

    def __init__(self, collective: CollectiveStep, worker: WorkerContext, place: int, held: ResourceScope) -> None:
        super().__init__(collective, worker, place, held)
        self.me = collective.exchange.rank
        self.flows = self.task.flows
        other = self.flows[1].initiator_rank if len(self.flows) > 1 else self.flow.destination.rank
        self.serving, self.answering = self.flow.initiator_rank or 0, other or 0
        self.serves = self.me == self.serving
        self.takes_part = self.me in (self.serving, self.answering)
        self.laps = WARM_UP_LAPS + (self.task.chase.loads if self.task.chase else 0)

    @staticmethod
    def prepare(collective: CollectiveStep, worker: WorkerContext, parts: Sequence[RoundTrips]) -> None:  # noqa: ARG004
        """Make each side allocate its memory or events and open the other side's."""
        collective.share(lambda place: parts[place].make(), lambda place, offered: parts[place].open(offered))

    @abstractmethod
    def make(self) -> Item:
        """Allocate this side's memory or events and return their handles."""

    @abstractmethod
    def open(self, offered: Sequence[Item]) -> None:
        """Open the other side's handles; the caller closes the descriptors."""

    @abstractmethod
    def run(self) -> Sequence[float] | None:
        """Run this process' part of a sample; return the nanoseconds of each round trip, ``None`` after a timeout."""

    def take(self) -> Any:
        if not self.takes_part:
            return None
        laps_ns = self.run()
        if laps_ns is None:
            return None
        if not self.serves:
            return {}
        sample = round_trips(laps_ns[WARM_UP_LAPS:], ms_since(self.started))
        if ENGINES[self.task.engine].timed_by_host:
            # The host may preempt a process for longer than a hundred round trips take.
            sample = replace(sample, latency_ns=sample.p50_ns)
        return to_json(sample)

    def keep(self, items: Sequence[Item]) -> None:
        sides = [items[number].data for number in (self.serving, self.answering)] if items else [None]
        if None in sides:
            self.discarded += 1
        else:
            self.samples.append(from_json(Sample, sides[0]))

    def conclude(self) -> Measurement:
        return of_latency(self.task, self.samples, discarded=self.discarded)


APART_BYTES = 1 << 20
"""The distance between the two flags if they are in the same memory."""


class Flags(RoundTrips):
    """Round trips by flags in memory of one process, or in memory that one of two processes exports to the other.

    The destination of each flow is the memory that its initiator writes. It has a handle if another process owns it.
    """

    def make(self) -> Item:
        flows = enumerate(self.flows)
        self._readers = {side: self.reader(flow) for side, flow in flows if self.collective.issues(flow)}
        self._made: SharedMemory | None = None
        end = next((flow.destination for flow in self.flows if self.collective.owns(flow.destination)), None)
        if end is None or self._alone:
            return Item(None)
        handle = next(flow.destination.handle for flow in self.flows if flow.destination.handle is not None)
        self._made = self.held.own.keep(
            SharedMemory(handle, self.worker.own_stream.context, 2 * APART_BYTES, end.numa_node)
        )
        description, fds = self._made.offer()
        return Item(description, tuple(fds))

    def open(self, offered: Sequence[Item]) -> None:
        opened: dict[int, ImportedMemory] = {}

        def flag(number: int) -> int:
            """Return the address of the flag that a flow's initiator writes, at a different offset for each flow."""
            owner = self.flows[number].destination.rank or 0
            if self._made is not None and owner == self.me:
                return self._made.address + number * APART_BYTES
            if owner not in opened:
                imported = ImportedMemory(self.worker.own_stream.context, offered[owner].data, offered[owner].fds)
                opened[owner] = self.held.opened.keep(imported)
            return opened[owner].address + number * APART_BYTES

        if self._alone:
            destinations = [buffers.destination for buffers in self.buffers if buffers.destination is not None]
            self._flags = [self.worker.held(buffer).memory.address for buffer in destinations]
        elif self.takes_part:
            self._flags = [flag(0), flag(1)]

    def ready(self) -> None:
        """Clear the flags before either side starts."""
        for side, reader in reversed(self._readers.items()):
            clear(reader.stream, self._flags[1 - side], FLAG_BYTES)

    def start(self) -> None:
        super().start()
        for side, reader in reversed(self._readers.items()):
            reader.start_laps(self._flags[1 - side], self._flags[side], self.laps, serves=side == 0)

    def run(self) -> Sequence[float] | None:
        laps_ns = {side: reader.end_laps(self.laps) for side, reader in self._readers.items()}
        if any(len(each) < self.laps for each in laps_ns.values()):
            return None
        if 0 in laps_ns:
            possible_ms("the kernel ping_pong", sum(laps_ns[0]) / 1e6)
        return laps_ns.get(0, ())

    @property
    def _alone(self) -> bool:
        """Whether this process is both sides."""
        return all(flow.destination.handle is None for flow in self.flows)


SILENCE_S = 5.0
"""The timeout of a message, which normally takes microseconds. Kernels wait as long for a flag."""


class SocketRoundTrips(RoundTrips):
    """Round trips of one byte over a socket between two processes."""

    def make(self) -> Item:
        if not self.serves:
            return Item(None)
        here, self._there = map(self.held.own.keep, socket.socketpair())
        self._use(here)
        return Item(None, (self._there.fileno(),))

    def open(self, offered: Sequence[Item]) -> None:
        if self.serves:
            # The other side has its own descriptor of its end. With this one open, its close would not be noticed.
            self._there.close()
        elif self.takes_part:
            self._use(self.held.own.keep(socket.socket(fileno=os.dup(offered[self.serving].fds[0]))))

    def ready(self) -> None:
        # A late answer of a sample that timed out would be taken for the answer to the next message.
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
            # Ends the wait of the other side.
            self._socket.close()
            raise
        except (OSError, EOFError):
            # The other side is silent or gone. It reports the reason in the exchange, or the command does.
            return None
        return laps_ns

    def begin(self) -> None:
        """Prepare the message, on the serving side."""

    def answer(self) -> None:
        """Prepare the answer, on the other side."""

    def end(self) -> None:
        """Complete the round trip after the answer, on the serving side."""

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

    def _use(self, end: socket.socket) -> None:
        end.settimeout(SILENCE_S)
        self._socket = end


class Events(SocketRoundTrips):
    """Round trips of messages, each sent after an event for which the other stream, at the end the host, waits."""

    def make(self) -> Item:
        if not self.takes_part:
            return super().make()
        self._own = self.held.own.keep(SharedEvent(self.worker.own_stream.context))
        return Item(self._own.handle.hex(), super().make().fds)

    def open(self, offered: Sequence[Item]) -> None:
        super().open(offered)
        if self.takes_part:
            handle = offered[self.answering if self.serves else self.serving].data
            self._others = self.held.opened.keep(ImportedEvent(self.worker.own_stream.context, bytes.fromhex(handle)))

    def begin(self) -> None:
        self._own.record(self.worker.own_stream)

    def answer(self) -> None:
        self._others.hold(self.worker.own_stream)
        self._own.record(self.worker.own_stream)

    def end(self) -> None:
        self._others.synchronize()


MEASURE = {
    Engine.PING_PONG: partial(measure_latencies, Flags),
    Engine.EVENT: partial(measure_latencies, Events),
    Engine.SOCKET: partial(measure_latencies, SocketRoundTrips),
}
