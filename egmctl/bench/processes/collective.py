"""What all ranks do together for the tasks of a step: each its part, and then all hear how each has fared.

A driver call that fails in one rank so ends the task in all of them, at the same place, and nobody waits for another.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

from egmctl.bench.outcomes import FAILURES, GateExpired, failure
from egmctl.bench.processes.exchange import Item
from egmctl.driver.signatures import cause_of
from egmctl.errors import DriverCallError, DriverTooOld
from egmctl.gpu.clock import ImpossibleTime
from egmctl.gpu.program import NoKernels
from egmctl.model.measurement import Endpoint, Flow, Measurement, Status, Task, finish, waived
from egmctl.model.waiver import WaiverKind

if TYPE_CHECKING:
    from egmctl.bench.processes.context import WorkerContext

_OPENING = ("cuIpcOpenMemHandle", "cuIpcOpenEventHandle", "cuMemImportFromShareableHandle")
_OPENING_POOL = ("cuMemPoolImportFromShareableHandle", "cuMemPoolImportPointer")
_MAKING = ("cuMemCreate", "cuMemPoolCreate", "cuMemExportToShareableHandle", "cuMemPoolExportToShareableHandle")
_NOT_PERMITTED = 800


class CollectiveStep:
    """The tasks of a step, in all processes; of one process, in that one.

    Attributes
    ----------
    here
        The processes of this one's node: what the others' clocks say means nothing here.
    outcomes
        Of each task, where it has ended early; the same in every process.
    """

    def __init__(self, worker: WorkerContext, tasks: Sequence[Task]) -> None:
        self.exchange = worker.exchange
        self.ranks = worker.ranks
        self.tasks = tasks
        self.here = [rank.number for rank in self.ranks if rank.host == self.ranks[self.exchange.rank].host] or [0]
        self.outcomes: list[Measurement | None] = [None] * len(tasks)

    def owns(self, end: Endpoint) -> bool:
        """Say whether the memory at an end is made by this process: the one process makes all of it."""
        return (end.rank or 0) == self.exchange.rank

    def issues(self, flow: Flow) -> bool:
        """Say whether this process issues the work of a flow."""
        return (flow.initiator_rank or 0) == self.exchange.rank

    def do(self, part: Callable[[int], Any], *, begin: Callable[[int], None] | None = None) -> list[list[Item]]:
        """Have every process do its part of each task that goes on, and wait for all of them.

        Parameters
        ----------
        part
            Called with the place of a task; what it returns, JSON data or an :class:`Item` with file descriptors, all
            processes hear. What it raises of :data:`FAILURES` ends the task in all processes.
        begin
            Called for every task before ``part`` is for the first one: what GPUs do at the same time.

        Returns
        -------
        list
            Of each task, what each process has given; of a task that ended before, nothing. Its descriptors are this
            process', which closes them (:func:`close_all`).

        Raises
        ------
        Abandoned
            As of :class:`Exchange`.
        """
        failed: dict[int, Exception] = {}
        given: dict[int, Any] = {}
        if begin is not None:
            for place in self._going():
                _attempt(failed, place, partial(begin, place))
        for place in self._going():
            if place not in failed:
                _attempt(failed, place, lambda place=place: given.update({place: part(place)}))  # type: ignore[misc]
        return self._gather(given, failed)

    def do_at_once(self, part: Callable[[Sequence[int]], Mapping[int, Any]]) -> list[list[Item]]:
        """Have every process do its part of all tasks as one; what fails ends all in which the process has a part.

        Parameters
        ----------
        part
            Called with the places of the tasks that go on, also of none; what it returns for each all processes hear.

        Returns
        -------
        list
            As of :meth:`do`.
        """
        failed: dict[int, Exception] = {}
        given: Mapping[int, Any] = {}
        try:
            given = part(self._going())
        except FAILURES as error:
            failed = {place: error for place in self._going() if self._has_part(place)}
        return self._gather(given, failed)

    def _going(self) -> list[int]:
        return [place for place, outcome in enumerate(self.outcomes) if outcome is None]

    def _has_part(self, place: int) -> bool:
        return self.exchange.rank in (self.tasks[place].ranks or (0,))

    def _gather(self, given: Mapping[int, Any], failed: Mapping[int, Exception]) -> list[list[Item]]:
        if self.exchange.size == 1:
            for place, error in failed.items():
                self.outcomes[place] = failure(self.tasks[place], error)
            return [[_item(given.get(place))] for place in range(len(self.tasks))]
        words: list[dict[str, Any]] = []
        fds: list[int] = []
        for place in range(len(self.tasks)):
            if place in failed:
                words.append({"failed": _described(failed[place])})
                continue
            item = _item(given.get(place))
            words.append({"data": item.data, "fds": len(item.fds)})
            fds += item.fds
        said = self.exchange.all_gather(words, fds)
        gathered: list[list[Item]] = [[] for _ in self.tasks]
        for rank, said_item in enumerate(said):
            rest = iter(said_item.fds)
            for place, word in enumerate(said_item.data):
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
                found = waived(task, WaiverKind.NO_IMEX_CHANNEL, f"{error}; {cause}", last_call=error.call)
        return replace(
            found,
            reason=f"rank {rank} ({self.ranks[rank].label}): {found.reason}",
            waivers=tuple(replace(waiver, rank=rank) for waiver in found.waivers),
            failed_rank=rank,
        )


def _attempt(failed: dict[int, Exception], place: int, work: Callable[[], None]) -> None:
    try:
        work()
    except FAILURES as error:
        failed[place] = error


def _item(value: Any) -> Item:
    return value if isinstance(value, Item) else Item(value)


def close_all(gathered: Iterable[Iterable[Item]]) -> None:
    """Close the descriptors that came with what ranks have given."""
    for items in gathered:
        for item in items:
            for fd in item.fds:
                os.close(fd)


def _described(error: Exception) -> dict[str, Any]:
    if isinstance(error, DriverCallError):
        return {"kind": type(error).__name__, "call": error.call, "number": error.number, "name": error.name}
    if isinstance(error, ImpossibleTime):
        return {"kind": type(error).__name__, "message": str(error), "measured_by": error.call}
    return {"kind": type(error).__name__, "message": str(error)}


def _error(described: dict[str, Any]) -> Exception:
    """Return an error of another rank as if it were this one's."""
    if "call" in described:
        kind = DriverTooOld if described["kind"] == DriverTooOld.__name__ else DriverCallError
        return kind(described["call"], described["number"], described["name"])
    if "measured_by" in described:
        return ImpossibleTime(described["message"], described["measured_by"])
    return GateExpired() if described["kind"] == GateExpired.__name__ else NoKernels(described["message"])
