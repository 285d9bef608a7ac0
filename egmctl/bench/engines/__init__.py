"""What moves the bytes of a measurement, one file per engine.

A file owns all of its engine: what it launches, what its bandwidth counts, how what it moved is verified, what it is
called in tables, whether it needs kernels, and how its samples become a measurement (:mod:`egmctl.bench.engines.base`).
A new engine is a member of :class:`egmctl.model.task.Engine`, a file here, and its arm below, which the type checker
asks for.
"""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING

from egmctl.bench.engines.base import BenchEngine
from egmctl.compat import assert_never
from egmctl.model.task import Engine, Task

if TYPE_CHECKING:
    from egmctl.bench.engines.transfer import TransferEngine


@cache
def engine_for(engine: Engine) -> BenchEngine:
    """Return what an engine is made of; its file is imported when it is first asked for."""
    match engine:
        case Engine.COPY_ENGINE:
            from egmctl.bench.engines.copies import COPY_ENGINE

            return COPY_ENGINE
        case Engine.SM_COPY:
            from egmctl.bench.engines.copies import COPY_KERNEL

            return COPY_KERNEL
        case Engine.BULK:
            from egmctl.bench.engines.copies import BULK

            return BULK
        case Engine.ATOMIC:
            from egmctl.bench.engines.atomic import ATOMIC

            return ATOMIC
        case Engine.ATOMIC_LATENCY:
            from egmctl.bench.engines.atomic import ATOMIC_LATENCY

            return ATOMIC_LATENCY
        case Engine.SM_READ:
            from egmctl.bench.engines.copies import READ_KERNEL

            return READ_KERNEL
        case Engine.SM_WRITE:
            from egmctl.bench.engines.copies import WRITE_KERNEL

            return WRITE_KERNEL
        case Engine.CPU:
            from egmctl.bench.engines.cpu import CPU

            return CPU
        case Engine.CPU_CHASE:
            from egmctl.bench.engines.cpu import CPU_CHASE

            return CPU_CHASE
        case Engine.CHASE:
            from egmctl.bench.engines.chase import CHASE

            return CHASE
        case Engine.PING_PONG:
            from egmctl.bench.engines.round_trips import PING_PONG

            return PING_PONG
        case Engine.EVENT:
            from egmctl.bench.engines.round_trips import EVENT

            return EVENT
        case Engine.SOCKET:
            from egmctl.bench.engines.round_trips import SOCKET

            return SOCKET
        case Engine.LIFE_CYCLE:
            from egmctl.bench.engines.life_cycle import LIFE_CYCLE

            return LIFE_CYCLE
        case Engine.UCX:
            from egmctl.bench.engines.ucx import UCX

            return UCX
        case Engine.UCX_PUT:
            from egmctl.bench.engines.ucx import UCX_PUT

            return UCX_PUT
        case Engine.UCX_GET:
            from egmctl.bench.engines.ucx import UCX_GET

            return UCX_GET
        case _:
            assert_never(engine)


def transfers(task: Task) -> TransferEngine:
    """Return the engine of a task whose work is queued on streams.

    Raises
    ------
    TypeError
        If the task is no such one.
    """
    from egmctl.bench.engines.transfer import TransferEngine

    engine = engine_for(task.engine)
    if not isinstance(engine, TransferEngine):
        raise TypeError(f"{task.case}: {task.engine} queues no transfers on streams")
    return engine
