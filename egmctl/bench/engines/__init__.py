"""The code of the engines, which only a worker imports: what each launches, and how it verifies the bytes.

A new engine is a member of :class:`egmctl.model.task.Engine`, its line in :data:`egmctl.bench.engine.ENGINES`, and a
file here, or a place in one, with its name below. A file lists the engines that it has in ``MEASURE``.
"""

from __future__ import annotations

from collections.abc import Sequence
from importlib import import_module
from typing import TYPE_CHECKING, Protocol

from egmctl.model.measurement import Measurement, Settings
from egmctl.model.task import Engine, Task

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
    "copies": {Engine.COPY_ENGINE, Engine.SM_COPY, Engine.SM_READ, Engine.SM_WRITE, Engine.BULK},
    "atomic": {Engine.ATOMIC, Engine.ATOMIC_LATENCY},
    "cpu": {Engine.CPU, Engine.CPU_CHASE},
    "chase": {Engine.CHASE},
    "round_trips": {Engine.PING_PONG, Engine.EVENT, Engine.SOCKET},
    "ucx": {Engine.UCX, Engine.UCX_PUT, Engine.UCX_GET},
    "life_cycle": {Engine.LIFE_CYCLE},
}


def engine_for(engine: Engine) -> Measure:
    """Return the code of an engine; its file is imported when it is first asked for."""
    file = next(file for file, engines in _FILES.items() if engine in engines)
    measure: Measure = import_module(f"{__name__}.{file}").MEASURE[engine]
    return measure
