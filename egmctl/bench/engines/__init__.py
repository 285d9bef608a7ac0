"""The code of the engines, which only a worker imports: what each launches, and how what it moved is verified.

A new engine is a member of :class:`egmctl.model.task.Engine`, its line in :data:`egmctl.bench.engine.ENGINES`, and a
file here with its line below. A file lists the engines that it has in ``MEASURE``.
"""

from __future__ import annotations

from collections.abc import Sequence
from importlib import import_module
from typing import TYPE_CHECKING, Protocol

from egmctl.model.measurement import Measurement, Settings, Task
from egmctl.model.task import Engine

if TYPE_CHECKING:
    from egmctl.bench.processes.context import WorkerContext


class Measure(Protocol):
    """The code of one engine."""

    def __call__(self, worker: WorkerContext, tasks: Sequence[Task], settings: Settings) -> list[Measurement]:
        """Measure the tasks of a step, all of this engine, in all processes; every process returns the same.

        A driver call that fails is an outcome of its task, not an exception.

        Raises
        ------
        Abandoned
            Another process has died or hangs.
        """


_FILES = {
    Engine.COPY_ENGINE: "copies",
    Engine.SM_COPY: "copies",
    Engine.SM_READ: "copies",
    Engine.SM_WRITE: "copies",
    Engine.BULK: "copies",
    Engine.ATOMIC: "atomic",
    Engine.ATOMIC_LATENCY: "atomic",
    Engine.CPU: "cpu",
    Engine.CPU_CHASE: "cpu",
    Engine.CHASE: "chase",
    Engine.PING_PONG: "round_trips",
    Engine.EVENT: "round_trips",
    Engine.SOCKET: "round_trips",
    Engine.UCX: "ucx",
    Engine.UCX_PUT: "ucx",
    Engine.UCX_GET: "ucx",
    Engine.LIFE_CYCLE: "life_cycle",
}


def engine_for(engine: Engine) -> Measure:
    """Return the code of an engine; its file is imported when it is first asked for."""
    measure: Measure = import_module(f"{__name__}.{_FILES[engine]}").MEASURE[engine]
    return measure
