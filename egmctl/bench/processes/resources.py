"""What a rank takes for the tasks of a step and gives back at its end: what is others' before what is its own.

Memory that a legacy handle shares must not be freed before all have closed it, nor an event destroyed (CUDA driver API,
cuIpcCloseMemHandle and cuIpcOpenEventHandle).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import Protocol

from egmctl.bench.outcomes import FAILURES
from egmctl.bench.processes.collective import CollectiveStep


class _Closable(Protocol):
    def close(self) -> None: ...


@dataclass(slots=True)
class ResourceScope:
    """What a rank holds for one task, in the order in which it was taken."""

    own: list[_Closable] = field(default_factory=list)
    opened: list[_Closable] = field(default_factory=list)
    """Made by another rank."""

    def close(self) -> None:
        """Close what others have made, the latest first, whatever fails; raise the first failure."""
        _close(self.opened)

    def free(self) -> None:
        """Give back what this rank has made, likewise."""
        _close(self.own)


@contextmanager
def resource_scopes(collective: CollectiveStep) -> Iterator[list[ResourceScope]]:
    """Hold something for each task; at the end all ranks close what is others', then all give their own back.

    What fails then is an outcome of the task that had none yet.
    """
    held = [ResourceScope() for _ in collective.tasks]
    try:
        yield held
        _everywhere(collective, [one.close for one in held])
        _everywhere(collective, [one.free for one in held])
    except BaseException:
        # The others are gone, or this process is at its end: there is nobody to agree with.
        for one in held:
            for work in (one.close, one.free):
                with suppress(*FAILURES):
                    work()
        raise


def _everywhere(collective: CollectiveStep, works: Sequence[Callable[[], None]]) -> None:
    """Do something for each task, those that have ended included, and wait until all ranks have."""
    failed: dict[int, Exception] = {}
    for place, work in enumerate(works):
        try:
            work()
        except FAILURES as error:
            failed[place] = error

    def tell(place: int) -> None:
        if place in failed:
            raise failed[place]

    collective.do(tell)


def _close(held: list[_Closable]) -> None:
    problem: Exception | None = None
    while held:
        try:
            held.pop().close()
        except FAILURES as error:
            problem = problem or error
    if problem is not None:
        raise problem
