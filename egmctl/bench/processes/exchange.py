"""How processes that share memory tell each other: all that a measurement by several knows of the others.

Of several processes each asks the one that started it (:class:`ParentExchange`). What that one does with it is the
launcher's matter on one node, and MPI's across nodes. The one process that works all GPUs is alone with itself
(:class:`LocalExchange`).
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from egmctl.bench.processes.protocol import Event, Request
from egmctl.launch import Channel


@dataclass(frozen=True, slots=True)
class Item:
    """What one rank has given."""

    data: Any
    """JSON data."""
    fds: tuple[int, ...] = ()
    """File descriptors of this process now, which closes them. Across nodes there are none."""


class Exchange(Protocol):
    """The other ranks. Every rank makes the same calls in the same order; each call is a barrier."""

    @property
    def rank(self) -> int:
        """This process' number, from 0."""

    @property
    def size(self) -> int:
        """How many there are."""

    def all_gather(self, data: Any, fds: Sequence[int] = ()) -> list[Item]:
        """Give something to all; return what each has given, by rank, this one included.

        Raises
        ------
        Abandoned
            Another rank has died or hangs, or the time for the step is over: let go of everything.
        """

    def barrier(self) -> None:
        """Return when every rank has come here."""


class LocalExchange:
    """The exchange of the one process that works all GPUs."""

    rank = 0
    size = 1

    def all_gather(self, data: Any, fds: Sequence[int] = ()) -> list[Item]:
        return [Item(data, tuple(fds))]

    def barrier(self) -> None:
        """Nobody is waited for."""


class ParentExchange:
    """The exchange of one process of several, over the channel to the parent.

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


class Abandoned(Exception):
    """What the ranks were doing together is over, through no fault of this one."""
