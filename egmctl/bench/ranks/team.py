"""What all ranks do together for the tasks of a step: each its part, and then all hear how each has fared.

A driver call that fails in one rank so ends the task in all of them, at the same place, and nobody waits for another.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import Any

from egmctl.bench.exchange import Exchange, Item
from egmctl.bench.outcomes import FAILURES, GateExpired, failure
from egmctl.driver.signatures import cause_of
from egmctl.errors import DriverCallError, DriverTooOld
from egmctl.gpu.program import NoCompiler
from egmctl.model.measurement import Measurement, Status, Task, finish
from egmctl.model.rank import Rank

_OPENING = ("cuIpcOpenMemHandle", "cuIpcOpenEventHandle", "cuMemImportFromShareableHandle")
_OPENING_POOL = ("cuMemPoolImportFromShareableHandle", "cuMemPoolImportPointer")
_MAKING = ("cuMemCreate", "cuMemPoolCreate", "cuMemExportToShareableHandle", "cuMemPoolExportToShareableHandle")
_NOT_PERMITTED = 800


class Team:
    """The tasks of a step, in all ranks.

    Attributes
    ----------
    outcomes
        Of each task, where it has ended early; the same in every rank.
    """

    def __init__(self, exchange: Exchange, ranks: Sequence[Rank], tasks: Sequence[Task]) -> None:
        self.exchange = exchange
        self.ranks = ranks
        self.tasks = tasks
        self.outcomes: list[Measurement | None] = [None] * len(tasks)

    def do(self, part: Callable[[int], Any]) -> list[list[Item]]:
        """Have every rank do its part of each task that goes on, and wait for all of them.

        Parameters
        ----------
        part
            Called with the place of a task; what it returns, JSON data or an :class:`Item` with file descriptors, all
            ranks hear. What it raises of :data:`FAILURES` ends the task in all ranks.

        Returns
        -------
        list
            Of each task, what each rank has given; of a task that ended before, nothing. Its descriptors are this
            process', which closes them (:func:`close_all`).

        Raises
        ------
        Abandoned
            As of :class:`Exchange`.
        """
        words: list[dict[str, Any]] = []
        fds: list[int] = []
        for place, outcome in enumerate(self.outcomes):
            given = Item(None)
            if outcome is None:
                try:
                    value = part(place)
                    given = value if isinstance(value, Item) else Item(value)
                except FAILURES as error:
                    words.append({"failed": _described(error)})
                    continue
            words.append({"data": given.data, "fds": len(given.fds)})
            fds += given.fds
        said = self.exchange.all_gather(words, fds)
        gathered: list[list[Item]] = [[] for _ in self.tasks]
        for rank, item in enumerate(said):
            rest = iter(item.fds)
            for place, word in enumerate(item.data):
                if "failed" in word:
                    gathered[place].append(Item(None))
                    if self.outcomes[place] is None:
                        self.outcomes[place] = self._failed(self.tasks[place], word["failed"], rank)
                else:
                    gathered[place].append(Item(word["data"], tuple(next(rest) for _ in range(word["fds"]))))
        return gathered

    def _failed(self, task: Task, described: dict[str, Any], rank: int) -> Measurement:
        """Return the outcome of a task that an error in a rank has ended."""
        error = _error(described)
        found = failure(task, error)
        if isinstance(error, DriverCallError):
            cause = cause_of(error.call, error.number)
            if error.call in (*_OPENING, *_OPENING_POOL) and cause is not None:
                # A driver that cannot open what another process could make says NOT_SUPPORTED too: no lack of support.
                found = finish(task, Status.FAILED, reason=f"{error}; {cause}", known_cause=True, last_call=error.call)
            elif error.call in _MAKING and error.number == _NOT_PERMITTED:
                found = finish(task, Status.WAIVED, reason=f"{error}; {cause}", last_call=error.call)
        return replace(found, reason=f"rank {rank} ({self.ranks[rank].label}): {found.reason}", failed_rank=rank)


def close_all(gathered: Iterable[Iterable[Item]]) -> None:
    """Close the descriptors that came with what ranks have given."""
    for items in gathered:
        for item in items:
            for fd in item.fds:
                os.close(fd)


def _described(error: Exception) -> dict[str, Any]:
    if isinstance(error, DriverCallError):
        return {"kind": type(error).__name__, "call": error.call, "number": error.number, "name": error.name}
    return {"kind": type(error).__name__, "message": str(error)}


def _error(described: dict[str, Any]) -> Exception:
    """Return an error of another rank as if it were this one's."""
    if "call" in described:
        kind = DriverTooOld if described["kind"] == DriverTooOld.__name__ else DriverCallError
        return kind(described["call"], described["number"], described["name"])
    return GateExpired() if described["kind"] == GateExpired.__name__ else NoCompiler(described["message"])
