"""Round trips of a flag: a kernel on each side polls a word in memory and writes another."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from egmctl.bench.engines.round_trips import Pair, RoundTripEngine
from egmctl.bench.exchange import Exchange, Item
from egmctl.bench.rig import Rig
from egmctl.gpu.chase import Reader, clear_flag
from egmctl.gpu.handles import ImportedMemory, SharedMemory
from egmctl.model.measurement import Measurement, Settings, Task
from egmctl.model.rank import Rank

APART_BYTES = 1 << 20
"""From one flag to the other where one piece of memory has both."""


@dataclass(frozen=True, kw_only=True)
class PingPong(RoundTripEngine):
    """Between two GPUs, of one process or of two."""

    def measure(
        self, exchange: Exchange, rig: Rig, ranks: Sequence[Rank], tasks: Sequence[Task], settings: Settings
    ) -> list[Measurement]:
        if not ranks:
            from egmctl.bench import latency

            return latency.measure(rig, tasks, settings)
        return super().measure(exchange, rig, ranks, tasks, settings)


class Flags(Pair):
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


PING_PONG = PingPong(caption="a flag", counted="", needs_kernels=True, pair=Flags)
