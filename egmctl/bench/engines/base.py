"""What an engine has to have: a class that lacks one of these cannot be made, and the type checker says so."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from egmctl.model.measurement import Measurement, Settings, Task, Verification

if TYPE_CHECKING:
    from egmctl.bench.processes.context import WorkerContext


@dataclass(frozen=True, kw_only=True)
class BenchEngine(ABC):
    """One engine. What queues its work on streams is a :class:`egmctl.bench.engines.transfer.TransferEngine`."""

    caption: str
    """What it is called in the titles of tables, where the matrix of a case begins with it."""
    counted: str
    """What its bandwidth counts; empty for one that measures none."""
    needs_kernels: bool
    """Whether kernels of the project do its work."""
    needs_capability: tuple[int, int] = (0, 0)
    """The compute capability from which on GPUs can do it; its tasks are waived on older ones."""
    atomics: bool = False
    """Whether it adds atomically: to a peer's memory only where the two have native atomics."""
    round_trip: bool = False
    """Whether its latency is that of an answer, not of a load."""
    writes_source: bool = False
    """Whether it writes words of its own into what it then reads: nobody else's source, and no pass takes another
    slot."""
    timed_by_host: bool = False
    """Whether the host has a part in what is timed: where it runs the processes is in the number then."""

    @property
    @abstractmethod
    def verification(self) -> Verification | None:
        """Return what is compared with what was sent; ``None`` where nothing arrives that could be wrong."""

    @abstractmethod
    def measure(self, worker: WorkerContext, tasks: Sequence[Task], settings: Settings) -> list[Measurement]:
        """Measure the tasks of a step at the same time, in all processes; every process returns the same.

        Parameters
        ----------
        worker
            What this process has: its GPUs, what it has taken on them, and the way to the other processes.
        tasks
            All of this engine.

        Returns
        -------
        list[Measurement]
            The outcome of each task. A driver call that fails is an outcome, not an exception.

        Raises
        ------
        Abandoned
            Another process has died or hangs.
        """
