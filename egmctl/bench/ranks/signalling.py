"""How long one process takes to tell another one something and hear back: round trips by flag, event and message.

* A flag is a word in shared memory: a kernel in each process polls one and writes the other, and the host has no part
  in it.
* An event is recorded by one process and waited for by the other one's stream, which records its own; the first waits
  for that one on the host. That there is a new recording each tells the other by a message.
* A message goes over a socket between the two processes: what of an event's round trip is not the event.
"""

from __future__ import annotations

import socket
import time
from abc import ABC, abstractmethod
from collections.abc import Sequence
from contextlib import ExitStack
from typing import Any

from egmctl.bench.exchange import Exchange
from egmctl.bench.latency import WARM_UP_LAPS, round_trips
from egmctl.bench.ranks.together import Ended, Sharing, Together, close_all
from egmctl.bench.rig import Rig
from egmctl.bench.statistics import is_unstable, summarize, unstable_reason
from egmctl.gpu.chase import Reader, clear_flag
from egmctl.gpu.handles import ImportedMemory, SharedMemory
from egmctl.gpu.ipc_events import ImportedEvent, SharedEvent
from egmctl.model.codec import from_json, to_json
from egmctl.model.measurement import Engine, Flow, HandleKind, Measurement, Sample, Settings, Status, Task, finish

SILENCE_S = 5.0
"""How long a process waits for a message that takes microseconds, as kernels wait for a flag."""

APART_BYTES = 1 << 20
"""From one flag to the other where one piece of memory has both."""


def measure(exchange: Exchange, rig: Rig, bus_id: str, task: Task, settings: Settings) -> Measurement:
    """Measure the round trips of a task between two ranks.

    All ranks of the exchange call it with the same task; those that have no part in it only take part in the exchange.

    Parameters
    ----------
    rig
        This rank's: stream and kernels.
    bus_id
        Of this rank's GPU.
    task
        Of the engine PING_PONG, EVENT or SOCKET. The first flow's ``initiator_rank`` sends first and takes the times;
        the other rank is the second flow's, or that of the first flow's destination. Of a flag each flow's destination
        is the memory that its initiator writes to: where that is another rank's, it has a handle.

    Returns
    -------
    Measurement
        The same on all ranks.

    Raises
    ------
    Abandoned
        Another rank has died or hangs; what this one held it has let go of.
    """
    together = Together(exchange, task)
    try:
        with together.sharing() as memory:
            pair = _PAIRS[task.engine](together, rig, bus_id, task, memory)
            pair.connect()
            samples = [pair.sample() for _ in range(settings.samples)]
    except Ended as ended:
        return ended.outcome
    return _conclude(task, [sample for sample in samples if sample is not None], len(samples))


def _conclude(task: Task, samples: Sequence[Sample], asked: int) -> Measurement:
    if not samples:
        return finish(task, Status.FAILED, reason="one side waited in vain for the other in every sample")
    latency = summarize([sample.latency_ns or 0 for sample in samples])
    status, reason = Status.OK, None
    if is_unstable(latency):
        status, reason = Status.UNSTABLE, unstable_reason(latency)
    elif len(samples) < asked:
        reason = f"{asked - len(samples)} samples were thrown away: one side had waited in vain for the other"
    return finish(task, status, reason=reason, samples=tuple(samples), latency_ns=latency)


class _Pair(ABC):
    """Two ranks that answer each other; on all others, nobody."""

    def __init__(self, together: Together, rig: Rig, bus_id: str, task: Task, memory: Sharing) -> None:
        first = task.flows[0]
        other = task.flows[1].initiator_rank if len(task.flows) > 1 else first.destination.rank
        self.together = together
        self.rig = rig
        self.bus_id = bus_id
        self.task = task
        self.memory = memory
        self.serving, self.answering = first.initiator_rank, other
        self.serves = together.rank == self.serving
        self.takes_part = together.rank in (self.serving, other)
        self.laps = WARM_UP_LAPS + (task.chase.loads if task.chase else 0)

    @abstractmethod
    def connect(self) -> None:
        """Make what the two need, and send it to each other."""

    @abstractmethod
    def ready(self) -> None:
        """Prepare one sample, before either side begins."""

    @abstractmethod
    def run(self) -> Sequence[float] | None:
        """Do this side's part; return the nanoseconds of each lap if it serves, ``None`` if it waited in vain."""

    def sample(self) -> Sample | None:
        """Take one sample; return it, ``None`` if a side waited in vain."""
        self.together.do(self.ready if self.takes_part else _nothing)

        def part() -> tuple[Any, Sequence[int]]:
            if not self.takes_part:
                return None, ()
            started = time.perf_counter()
            laps_ns = self.run()
            if laps_ns is None:
                return None, ()
            wall_ms = (time.perf_counter() - started) * 1e3
            return to_json(round_trips(laps_ns[WARM_UP_LAPS:], wall_ms)) if self.serves else {}, ()

        told = self.together.gather(part)
        sides = [told[rank].data for rank in (self.serving, self.answering) if rank is not None]
        return None if None in sides else from_json(Sample, sides[0])


class _Flags(_Pair):
    """Kernels poll words in shared memory."""

    def connect(self) -> None:
        self.reader: Reader | None = None
        flows = self.task.flows
        # The flag that a side polls is the one that the other side's flow writes to.
        mine, theirs = flows if self.serves else (flows[1], flows[0])
        owners = {flow.destination.rank for flow in flows}
        made: list[SharedMemory] = []

        def make() -> tuple[Any, Sequence[int]]:
            if self.takes_part:
                stream = self.rig.stream(self.bus_id)
                self.reader = Reader(stream, self.rig.kernels_of(self.bus_id))
                self.memory.own.append(self.reader)
            if self.together.rank not in owners:
                return None, ()
            context = self.rig.stream(self.bus_id).context
            end = theirs.destination if theirs.destination.rank == self.together.rank else mine.destination
            made.append(SharedMemory(_handle(flows), context, 2 * APART_BYTES, end.numa_node))
            self.memory.own += made
            return made[0].offer()

        offered = self.together.gather(make)

        def open_it() -> None:
            def address(flow: Flow) -> int:
                """Return where a flow's flag is; one memory with both has the second flow's after the first one's."""
                owner = flow.destination.rank
                offset = APART_BYTES * (flow is flows[1])
                if owner == self.together.rank:
                    return made[0].address + offset
                if owner not in opened:
                    item = offered[owner or 0]
                    context = self.rig.stream(self.bus_id).context
                    opened[owner] = ImportedMemory(context, item.data, item.fds)
                    self.memory.opened.append(opened[owner])
                return opened[owner].address + offset

            opened: dict[int | None, ImportedMemory] = {}
            if self.takes_part:
                self.send, self.poll = address(mine), address(theirs)

        try:
            self.together.do(open_it)
        finally:
            close_all(fd for item in offered for fd in item.fds)

    def ready(self) -> None:
        clear_flag(self.rig.stream(self.bus_id), self.poll)

    def run(self) -> Sequence[float] | None:
        if self.reader is None:
            raise ValueError("this rank has no part in it")
        self.reader.start_laps(self.poll, self.send, self.laps, serves=self.serves)
        found = self.reader.end_laps(self.laps)
        return None if found.expired else found.laps_ns


class _Messages(_Pair):
    """One byte over a socket between the two processes, and one back."""

    def connect(self) -> None:
        # The end of the serving side, and the one that it sends to the other.
        with ExitStack() as sent:

            def make() -> tuple[Any, Sequence[int]]:
                if not self.serves:
                    return None, ()
                here, there = socket.socketpair()
                sent.callback(there.close)
                self._keep(here)
                return None, (there.fileno(),)

            given = self.together.gather(make)
        for fd in (fd for item in given for fd in item.fds):
            end = socket.socket(fileno=fd)
            if self.takes_part and not self.serves:
                self._keep(end)
            else:
                end.close()

    def ready(self) -> None:
        """Nothing is left of the last sample."""

    def run(self) -> Sequence[float] | None:
        laps_ns = []
        try:
            for _ in range(self.laps):
                started = time.perf_counter_ns()
                if self.serves:
                    self.begin()
                    self._tell()
                    self._hear()
                    self.end()
                else:
                    self._hear()
                    self.answer()
                    self._tell()
                laps_ns.append(float(time.perf_counter_ns() - started))
        except (OSError, EOFError):
            # The other side is silent or gone: what it says in the exchange is the reason.
            return None
        except BaseException:
            self.end_of_talk()
            raise
        return laps_ns

    def begin(self) -> None:
        """Do what comes before the message, on the side that serves."""

    def answer(self) -> None:
        """Do what comes between the two messages, on the other side."""

    def end(self) -> None:
        """Do what comes after the answer, on the side that serves."""

    def end_of_talk(self) -> None:
        """Let the other side wait no longer."""
        self._end.close()

    def _keep(self, end: socket.socket) -> None:
        end.settimeout(SILENCE_S)
        self._end = end
        self.memory.own.append(end)

    def _tell(self) -> None:
        self._end.sendall(b"x")

    def _hear(self) -> None:
        if not self._end.recv(1):
            raise EOFError


class _Events(_Messages):
    """As messages, with a recording before each that the other side's stream, or at last the host, waits for."""

    def connect(self) -> None:
        super().connect()

        def make() -> tuple[Any, Sequence[int]]:
            if not self.takes_part:
                return None, ()
            self._own = SharedEvent(self.rig.stream(self.bus_id).context)
            self.memory.own.append(self._own)
            return self._own.handle.hex(), ()

        offered = self.together.gather(make)

        def open_it() -> None:
            if self.takes_part:
                handle = offered[(self.answering if self.serves else self.serving) or 0].data
                self._others = ImportedEvent(self.rig.stream(self.bus_id).context, bytes.fromhex(handle))
                self.memory.opened.append(self._others)

        self.together.do(open_it)

    def begin(self) -> None:
        self._own.record(self.rig.stream(self.bus_id))

    def answer(self) -> None:
        stream = self.rig.stream(self.bus_id)
        self._others.hold(stream)
        self._own.record(stream)

    def end(self) -> None:
        self._others.synchronize()


_PAIRS: dict[Engine, type[_Pair]] = {
    Engine.PING_PONG: _Flags,
    Engine.EVENT: _Events,
    Engine.SOCKET: _Messages,
}


def _handle(flows: Sequence[Flow]) -> HandleKind:
    return next(flow.destination.handle for flow in flows if flow.destination.handle is not None)


def _nothing() -> None:
    pass
