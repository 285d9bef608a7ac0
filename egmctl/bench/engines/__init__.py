"""The code of the engines, which only a worker imports: the work that each launches, and how it verifies the bytes.

A new engine needs a member of :class:`egmctl.model.task.Engine`, a line in :data:`egmctl.bench.engine.ENGINES`, and
code in a file here, in whose ``MEASURE`` and in :data:`_FILES` it is listed.
"""

from __future__ import annotations

from collections.abc import Sequence
from importlib import import_module
from typing import Protocol

from egmctl.bench.processes.context import WorkerContext
from egmctl.model.measurement import Measurement, Settings
from egmctl.model.task import Engine, Task


class Measure(Protocol):
    """The function of an engine."""

    def __call__(self, worker: WorkerContext, tasks: Sequence[Task], settings: Settings) -> list[Measurement]:
        """Measure the tasks of a step, all of this engine, in all processes; every process returns the same result.

        A failed driver call is an outcome of its task, not an exception.

        Raises
        ------
        Abandoned
            Another process has died or hangs.
        """


_FILES = {
    "copies": {Engine.COPY_ENGINE, Engine.SM_COPY, Engine.SM_READ, Engine.SM_WRITE, Engine.BULK, Engine.ATOMIC},
    "cpu": {Engine.CPU, Engine.CPU_TRIAD, Engine.CPU_CHASE},
    "latency": {Engine.CHASE, Engine.CHASE_BULK, Engine.ATOMIC_LATENCY},
    "round_trips": {Engine.PING_PONG, Engine.EVENT, Engine.SOCKET},
    "ucx": {Engine.UCX, Engine.UCX_PUT, Engine.UCX_GET},
    "life_cycle": {Engine.LIFE_CYCLE},
}


def engine_for(engine: Engine) -> Measure:
    """Import an engine's file and return its function."""
    file = next(file for file, engines in _FILES.items() if engine in engines)
    measure: Measure = import_module(f"{__name__}.{file}").MEASURE[engine]
    return measure
