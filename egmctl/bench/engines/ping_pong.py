"""Round trips of a flag: a kernel on each side polls a word in memory and writes another."""

from __future__ import annotations

from collections.abc import Sequence

from egmctl.bench.buffers import assign
from egmctl.bench.engines.chase import take_reader
from egmctl.bench.engines.round_trips import Pair, RoundTripEngine
from egmctl.bench.processes.exchange import Item
from egmctl.gpu.chase import Reader, clear_flag
from egmctl.gpu.clock import possible_ms
from egmctl.gpu.handles import ImportedMemory, SharedMemory

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
            buffers = next(of for task, of in zip(tasks, assign(tasks), strict=True) if task is self.task)
            self._flags = [self.worker.destination(of.destination).address for of in buffers if of.destination]
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
        found = {side: self._readers[side].end_laps(self.laps) for side in self._sides}
        if any(laps.expired for laps in found.values()):
            return None
        if 0 not in found:
            return ()
        possible_ms("the kernel ping_pong", sum(found[0].laps_ns) / 1e6)
        return found[0].laps_ns

    @property
    def _alone(self) -> bool:
        """Whether one process has both sides."""
        return all(flow.destination.handle is None for flow in self.flows)


PING_PONG = RoundTripEngine(caption="a flag", counted="", needs_kernels=True, pair=Flags)
