"""The process that measures: it sets up its GPUs once, measures one step after the other, and reports each.

There is either one worker for all GPUs, or several ranks with one GPU each, which communicate through the processes
that started them (:mod:`egmctl.bench.processes.collective`). All ranks run the same steps; rank 0 reports them. The
engine of a task decides which file of :mod:`egmctl.bench.engines` measures it (:func:`engine_for`). A process can be
killed at any time: the driver then frees its resources.
"""

from __future__ import annotations

import os
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from importlib import import_module
from typing import Any, Protocol

from egmctl.ahead import import_ahead
from egmctl.bench.processes.collective import Abandoned, Exchange, release
from egmctl.bench.processes.context import WorkerContext
from egmctl.bench.processes.protocol import Event, NodeAccess, OrderedStep, Preparation, Request
from egmctl.driver.cuda import initialise
from egmctl.errors import DriverCallError
from egmctl.gpu import program
from egmctl.gpu.context import Context, ReleaseStack, architectures
from egmctl.launch import Channel
from egmctl.model.codec import from_json, to_json
from egmctl.model.measurement import Measurement, MeasurementStatus, Phase, Settings
from egmctl.model.task import Engine, Task


def run(parent: Channel, arguments: dict[str, Any]) -> None:
    """Serve the command's requests (:mod:`egmctl.bench.processes.protocol`): the target of every worker and rank.

    Parameters
    ----------
    arguments
        ``rank``, the number of this rank, ``size``, the number of ranks, and ``waits``, whether it does nothing before
        its first request; empty for a single worker.
    """
    waits = arguments.pop("waits", False)
    if waits:
        import_ahead("cuda.bindings.driver", "numpy")
    first = parent.receive()[0] if waits else None
    start_driver()
    exchange = Exchange(parent, **arguments) if arguments else Exchange()
    opened, message = _opened_ahead(parent, first)
    preparation = _own(from_json(Preparation, message["preparation"]), exchange.rank)
    worker = WorkerContext(preparation, exchange)
    worker.link_counters.ours.update(item.data for item in exchange.all_gather(os.getpid()))
    parent.send({"event": Event.READY})
    while (message := parent.receive()[0])["do"] == Request.MEASURE:
        step = from_json(OrderedStep, message["step"])
        settings = replace(preparation.settings, samples=1) if step.proof else preparation.settings
        try:
            with worker.stopwatch.phase(Phase.SET_UP):
                measurements = measure_step(worker, [ordered.task for ordered in step.tasks], settings)
            with worker.stopwatch.phase(Phase.TEAR_DOWN):
                broken = (
                    any(measurement.status is MeasurementStatus.FAILED for measurement in measurements)
                    and not worker.works()
                )
                broken = any(item.data for item in exchange.all_gather(broken))
                problem = None if broken else release(worker, step.release)
                problem = worker.link_counters.new_losses() or problem
        except Abandoned:
            # The end of this process frees the step's resources; its group cannot continue.
            parent.send({"event": Event.OVER, "broken": True, "problem": None})
            return
        if exchange.rank == 0:
            for ordered, measurement in zip(step.tasks, measurements, strict=True):
                parent.send({"event": Event.MEASURED, "task": ordered.number, "measurement": to_json(measurement)})
        spent = to_json(worker.stopwatch.take())
        parent.send({"event": Event.OVER, "broken": broken, "problem": problem, "spent": spent})
        if broken:
            # A broken context cannot release anything; the end of the process does.
            return
    if exchange.size > 1:
        # In reverse order of opening: closing a legacy handle of a GPU affects other mappings of it.
        release(worker, worker.buffers[::-1])
    with opened:
        worker.close()
    parent.send({"event": Event.DONE})


def _opened_ahead(parent: Channel, first: dict[str, Any] | None) -> tuple[ReleaseStack, dict[str, Any]]:
    """Open the contexts that the command asks for before its preparation; return them and the preparation's message.

    Parameters
    ----------
    first
        The first message if it has been received already.
    """
    opened = ReleaseStack()
    message = first or parent.receive()[0]
    while message["do"] == Request.OPEN:
        for bus_id in message["gpus"]:
            # Another process may still have the GPU for itself. The preparation reports why a GPU cannot be used.
            with suppress(DriverCallError):
                opened.keep(Context(bus_id))
        message = parent.receive()[0]
    return opened, message


def _own(preparation: Preparation, rank: int) -> Preparation:
    """Return the part of a preparation for this process: for a rank, its GPU and the nearest NUMA node."""
    if not preparation.ranks:
        return preparation
    own = preparation.ranks[rank]
    access = () if own.numa_node is None else (NodeAccess(numa_node=own.numa_node, gpus=(own.bus_id,)),)
    return replace(preparation, gpus=(own.bus_id,), host_access=access)


def start_driver() -> None:
    """Initialize CUDA and start to load the kernels."""
    # The CPU's comparisons need it, and loading it takes as long as a step.
    import_ahead("numpy")
    initialise()
    program.compile_ahead(architectures())


def measure_step(worker: WorkerContext, tasks: Sequence[Task], settings: Settings) -> list[Measurement]:
    """Measure the tasks of a step, all of one engine, in all processes."""
    started = time.perf_counter()
    worker.begin_step()
    measurements = engine_for(tasks[0].engine)(worker, tasks, settings)
    together = sum(bool(measurement.samples or measurement.stages) for measurement in measurements) or None
    wall_s = time.perf_counter() - started
    # An engine that measures its tasks one after the other sets these fields itself.
    return [m if m.wall_s is not None else replace(m, concurrent=together, wall_s=wall_s) for m in measurements]


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


_FILES: Mapping[str, set[Engine]] = {
    "copies": {Engine.COPY_ENGINE, Engine.SM_COPY, Engine.SM_READ, Engine.SM_WRITE, Engine.BULK, Engine.ATOMIC},
    "cpu": {Engine.CPU, Engine.CPU_TRIAD, Engine.CPU_CHASE},
    "latency": {Engine.CHASE, Engine.CHASE_BULK, Engine.ATOMIC_LATENCY},
    "round_trips": {Engine.PING_PONG, Engine.EVENT, Engine.SOCKET},
    "ucx": {Engine.UCX, Engine.UCX_PUT, Engine.UCX_GET},
    "life_cycle": {Engine.LIFE_CYCLE},
}
"""The engines by their file in ``egmctl/bench/engines/``."""


def engine_for(engine: Engine) -> Measure:
    """Import an engine's file and return its function."""
    file = next(file for file, engines in _FILES.items() if engine in engines)
    measure: Measure = import_module(f"egmctl.bench.engines.{file}").MEASURE[engine]
    return measure
