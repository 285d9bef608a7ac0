"""A rank: the process that works one GPU of a measurement by several, kept alive from case to case.

It is asked by the command that started it, as the worker is (:mod:`egmctl.bench.protocol`), and reaches the other ranks
through it. All ranks do the same steps; the first one reports them.
"""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from egmctl.bench.engines import engine_for
from egmctl.bench.exchange import Abandoned, Exchange
from egmctl.bench.protocol import Event, NodeAccess, OrderedStep, Preparation, Request
from egmctl.bench.ranks.parent import ParentExchange
from egmctl.bench.ranks.sharing import release
from egmctl.bench.rig import Rig
from egmctl.bench.worker import start_driver
from egmctl.gpu.telemetry import Telemetry
from egmctl.launch import Channel
from egmctl.model.codec import from_json, to_json
from egmctl.model.measurement import Measurement, Settings, Status, Task
from egmctl.model.rank import Rank


def run(parent: Channel, arguments: dict[str, Any]) -> None:
    """Do what the command asks for: the target of a rank.

    Parameters
    ----------
    arguments
        ``rank`` and ``size``: the number of this one, and how many there are.
    """
    start_driver()
    exchange = ParentExchange(parent, arguments["rank"], arguments["size"])
    message, _ = parent.receive()
    preparation = from_json(Preparation, message["preparation"])
    own = preparation.ranks[exchange.rank]
    access = () if own.numa_node is None else (NodeAccess(numa_node=own.numa_node, gpus=(own.bus_id,)),)
    preparation = replace(preparation, gpus=(own.bus_id,), host_access=access)
    rig = Rig(preparation, Telemetry, first_seed=1 + (exchange.rank << 32))
    rig.witness.ours.update(item.data for item in exchange.all_gather(os.getpid()))
    parent.send({"event": Event.READY, "note": rig.note})
    while (message := parent.receive()[0])["do"] == Request.MEASURE:
        step = from_json(OrderedStep, message["step"])
        settings = replace(preparation.settings, samples=1) if step.proof else preparation.settings
        try:
            found = measure(exchange, rig, preparation.ranks, [ordered.task for ordered in step.tasks], settings)
            broken = any(measurement.status is Status.FAILED for measurement in found) and not rig.works()
            broken = any(item.data for item in exchange.all_gather(broken))
            problem = None if broken else release(exchange, rig, step.release)
        except Abandoned:
            # What has been made for the step is let go of with this process: its group is of no more use.
            parent.send({"event": Event.OVER, "broken": True, "problem": None})
            return
        if exchange.rank == 0:
            for ordered, measurement in zip(step.tasks, found, strict=True):
                parent.send({"event": Event.MEASURED, "task": ordered.number, "measurement": to_json(measurement)})
        parent.send({"event": Event.OVER, "broken": broken, "problem": problem})
        if broken:
            return
    # What was opened last is closed first: where a legacy handle of a GPU is closed, what else is mapped of it suffers.
    release(exchange, rig, rig.buffers[::-1])
    rig.close()
    parent.send({"event": Event.DONE})


def measure(
    exchange: Exchange, rig: Rig, ranks: Sequence[Rank], tasks: Sequence[Task], settings: Settings
) -> list[Measurement]:
    """Measure the tasks of a step, which are of one case, in all ranks."""
    started = time.perf_counter()
    found = engine_for(tasks[0].engine).measure(exchange, rig, ranks, tasks, settings)
    together = sum(measurement.status in (Status.OK, Status.UNSTABLE) for measurement in found) or None
    wall_s = time.perf_counter() - started
    return [replace(measurement, concurrent=together, wall_s=wall_s) for measurement in found]
