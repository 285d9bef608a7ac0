"""Round trips of interprocess events: one process records, the other one's stream waits and records its own.

The first one waits for that one on the host. That there is a new recording each tells the other by a message.
"""

from __future__ import annotations

from collections.abc import Sequence

from egmctl.bench.engines.round_trips import RoundTripEngine
from egmctl.bench.engines.socket_message import Messages
from egmctl.bench.processes.exchange import Item
from egmctl.gpu.ipc_events import ImportedEvent, SharedEvent


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


EVENT = RoundTripEngine(
    caption="an interprocess event, and of the messages that announce it,",
    counted="",
    needs_kernels=False,
    timed_by_host=True,
    pair=Events,
)
