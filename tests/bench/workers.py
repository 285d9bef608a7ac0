"""Workers that do what real ones do when things go wrong: targets for the supervisor's tests, run in real processes.

Which task misbehaves is in the environment, so that a second worker can be told from the first by its order alone.
"""

from __future__ import annotations

import os
import signal
import time
from typing import Any

from egmctl.bench.processes.protocol import Event, OrderedStep, Preparation, Request
from egmctl.bench.results import summarize
from egmctl.driver import breadcrumb
from egmctl.launch import Channel
from egmctl.model.codec import from_json, to_json
from egmctl.model.measurement import MeasurementStatus, Sample, finish


def run(parent: Channel, _arguments: dict[str, Any]) -> None:
    """Measure nothing, but say so; EGMCTL_TEST_FAULT names a task's number and what happens there, e.g. ``2:crash``.

    ``2:crash@cuMemCreate`` names the driver call that is under way. ``2p`` is its proof alone, ``2t`` the task among
    others. A task alone has 100 GB/s, several at once have what EGMCTL_TEST_TOGETHER says.
    """
    while (message := parent.receive()[0])["do"] == Request.OPEN:
        pass
    from_json(Preparation, message["preparation"])
    faults = dict(part.split(":") for part in os.environ.get("EGMCTL_TEST_FAULT", "").split(",") if part)
    _misbehave(faults.get("setup", ""), "cuInit")
    parent.send({"event": Event.READY})
    while (message := parent.receive()[0])["do"] == Request.MEASURE:
        step = from_json(OrderedStep, message["step"])
        broken = False
        together = float(os.environ.get("EGMCTL_TEST_TOGETHER", "100"))
        value = together if len(step.tasks) > 1 else 100.0
        for ordered in step.tasks:
            fault = faults.get(f"{ordered.number}p" if step.proof else str(ordered.number), "")
            if len(step.tasks) > 1:
                fault = faults.get(f"{ordered.number}t", fault)
            _misbehave(fault, "cuStreamSynchronize")
            broken = fault == "break"
            # The process that measured is in the reason, so that tests see where a new one took over.
            status = MeasurementStatus.UNSTABLE if os.environ.get("EGMCTL_TEST_UNSTABLE") else MeasurementStatus.OK
            status = MeasurementStatus.CORRUPT if fault == "corrupt" else status
            measurement = finish(
                ordered.task,
                MeasurementStatus.FAILED if broken else status,
                reason=f"pid {os.getpid()}",
                samples=(Sample(bandwidth_gb_s=value, elapsed_ms=1, wall_ms=1),),
                bandwidth_gb_s=summarize([value]),
                concurrent=len(step.tasks),
            )
            parent.send({"event": Event.MEASURED, "task": ordered.number, "measurement": to_json(measurement)})
        parent.send({"event": Event.OVER, "broken": broken, "problem": None})
        if broken:
            return
    _misbehave(faults.get("close", ""), "cuMemRelease")
    parent.send({"event": Event.DONE})


def _misbehave(fault: str, call: str) -> None:
    fault, _, named = fault.partition("@")
    call = named or call
    if fault in ("crash", "hang", "interrupt"):
        breadcrumb.enter(call)
    if fault == "crash":
        os.kill(os.getpid(), signal.SIGSEGV)
    if fault == "hang":
        time.sleep(600)
    if fault == "interrupt":
        # The supervisor has time to hear of what was measured before.
        time.sleep(0.3)
        os.kill(os.getppid(), signal.SIGTERM)
        time.sleep(600)
    if fault == "raise":
        raise ValueError("a bug in the worker")
