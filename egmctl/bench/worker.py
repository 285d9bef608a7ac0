"""The worker process: sets the GPUs up once, measures one step after the other, and reports each as it is over.

It is the only process of ``egmctl bench`` that works a GPU. It can be killed at any time: the driver then releases
what it held.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import replace
from threading import Thread
from typing import Any

from egmctl.bench.engines import engine_for
from egmctl.bench.exchange import LocalExchange
from egmctl.bench.protocol import Event, OrderedStep, Preparation, Request
from egmctl.bench.rig import Rig
from egmctl.driver.cuda import initialise
from egmctl.gpu import program
from egmctl.gpu.context import architectures
from egmctl.gpu.telemetry import Telemetry
from egmctl.launch import Channel
from egmctl.model.codec import from_json, to_json
from egmctl.model.measurement import Measurement, Settings, Status, Task


def run(parent: Channel, _arguments: dict[str, Any]) -> None:
    """Do what the command asks for (:mod:`egmctl.bench.protocol`): the target of the worker."""
    start_driver()
    message, _ = parent.receive()
    preparation = from_json(Preparation, message["preparation"])
    rig = Rig(preparation, Telemetry)
    parent.send({"event": Event.READY, "note": rig.note})
    while (message := parent.receive()[0])["do"] == Request.MEASURE:
        step = from_json(OrderedStep, message["step"])
        settings = replace(preparation.settings, samples=1) if step.proof else preparation.settings
        found = measure(rig, [ordered.task for ordered in step.tasks], settings)
        for ordered, measurement in zip(step.tasks, found, strict=True):
            parent.send({"event": Event.MEASURED, "task": ordered.number, "measurement": to_json(measurement)})
        broken = any(measurement.status is Status.FAILED for measurement in found) and not rig.works()
        problem = None if broken else rig.release_all(step.release)
        parent.send({"event": Event.OVER, "broken": broken, "problem": problem})
        if broken:
            # Nothing can be released any more through a broken context; the end of the process does it.
            return
    rig.close()
    parent.send({"event": Event.DONE})


def start_driver() -> None:
    """Initialise CUDA and compile the kernels."""
    # Both take a second or so: the driver wakes all GPUs, and the compiler is loaded from a large file.
    compiler = Thread(target=program.load_compiler, daemon=True)
    compiler.start()
    initialise()
    compiler.join()
    program.compile_ahead(architectures())


def measure(rig: Rig, tasks: Sequence[Task], settings: Settings) -> list[Measurement]:
    """Measure the tasks of a step, which are of one case, at the same time."""
    started = time.perf_counter()
    found = engine_for(tasks[0].engine).measure(LocalExchange(), rig, (), tasks, settings)
    together = sum(bool(measurement.samples) for measurement in found) or None
    wall_s = time.perf_counter() - started
    # An engine that measures its tasks one after the other says so of each.
    return [m if m.wall_s is not None else replace(m, concurrent=together, wall_s=wall_s) for m in found]
