"""How processes that share memory tell each other: all that a measurement by several knows of the others.

There is one implementation in the processes that work the GPUs: they ask the process that started them. What that one
does with it is the launcher's matter on one node, and MPI's across nodes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol


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


class Abandoned(Exception):
    """What the ranks were doing together is over, through no fault of this one."""
