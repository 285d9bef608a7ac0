"""The exchange as a rank has it: it asks the process that started it, which joins the words of all."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

from egmctl.bench.exchange import Abandoned, Item
from egmctl.bench.protocol import Event, Request
from egmctl.launch import Channel


class ParentExchange:
    """An :class:`egmctl.bench.exchange.Exchange` over the channel to the parent.

    Parameters
    ----------
    rank, size
        Of this process, and of all.
    """

    def __init__(self, parent: Channel, rank: int, size: int) -> None:
        self.rank = rank
        self.size = size
        self._parent = parent
        self._calls = 0

    def all_gather(self, data: Any, fds: Sequence[int] = ()) -> list[Item]:
        """Give something to all; return what each has given, by rank, this one included."""
        return self._join("all_gather", data, fds)

    def barrier(self) -> None:
        """Return when every rank has come here."""
        self._join("barrier", None, ())

    def _join(self, call: str, data: Any, fds: Sequence[int]) -> list[Item]:
        # The number tells a rank that is one call behind: it would be given what is not its own.
        self._calls += 1
        self._parent.send({"event": Event.EXCHANGE, "call": f"{call}, call {self._calls}", "data": data}, fds)
        message, given = self._parent.receive()
        if message["do"] == Request.ABANDON:
            for fd in given:
                os.close(fd)
            raise Abandoned(message["why"])
        rest = iter(given)
        return [Item(item["data"], tuple(next(rest) for _ in range(item["fds"]))) for item in message["items"]]
