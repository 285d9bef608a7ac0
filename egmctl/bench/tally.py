"""What planned tasks add up to: measurements, steps, time, bytes moved, and the length of the report of them. Pure."""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from typing import Any

from egmctl.bench.estimate import STEP_S, task_seconds
from egmctl.bench.plan import PlannedTask, shortened
from egmctl.model.codec import to_json
from egmctl.model.evidence import Evidence, GpuEvidence
from egmctl.model.measurement import Quantity, Sample, Settings, Status, Summary, Task, Verification, finish


@dataclass
class Tally:
    """What the measurements of one case add up to."""

    settings: Settings
    measurements: int = 0
    waived: int = 0
    steps: int = 0
    bytes: int = 0
    seconds: float = 0
    report_bytes: int = 0

    def add(self, planned: PlannedTask, count: int, *, alone: bool) -> None:
        """Add tasks that are alike; each is a step of its own where it is measured alone."""
        self.measurements += count
        self.report_bytes += count * _report_bytes(planned, self.settings.samples)
        if planned.waiver is not None:
            self.waived += count
            return
        self.bytes += count * _moved(planned.task) * self.settings.samples
        if alone:
            self.steps += count
            self.seconds += count * step_seconds(planned, self.settings.samples)

    def prove(self, planned: PlannedTask | None, count: int) -> None:
        """Add the proofs that tasks do alone what they did among others."""
        if planned is None:
            return
        short = replace(planned, task=shortened(planned.task))
        self.steps += count
        self.seconds += count * step_seconds(short, 1)
        self.bytes += count * _moved(short.task)


def _moved(task: Task) -> int:
    return task.copies * task.size_bytes * len(task.flows) if task.quantity is Quantity.BANDWIDTH else 0


def step_seconds(planned: PlannedTask | None, samples: int) -> float:
    """Return how long a step takes whose longest task is this one."""
    return STEP_S + task_seconds(planned, samples) if planned is not None else 0.0


_SEEN = (
    GpuEvidence(
        bus_id="0008:01:00.0",
        label="node1:GPU0",
        sm_clock_mhz=1980,
        memory_clock_mhz=3996,
        throttle_reasons=("idle",),
        temperature_c=35,
        sent_bytes={"nvlink": 8589934592},
        received_bytes={"nvlink": 8589934592},
        other_processes=(),
    ),
)
"""Of one GPU."""


def _report_bytes(planned: PlannedTask, samples: int) -> int:
    """Return how long one measurement is in the report, as it is written."""
    task = planned.task
    if len(task.flows) > 2:
        # Each flow is as long as the next one.
        one, two = (_report_bytes(replace(planned, task=replace(task, flows=task.flows[:n])), samples) for n in (1, 2))
        return one + (len(task.flows) - 1) * (two - one)
    some = Summary(median=396.4012345, min=395.8012345, max=396.9012345, cv=0.0012345678)
    outcome: dict[str, Any] = {"reason": planned.waiver}
    if planned.waiver is None:
        flows = tuple(396.4012345 for _ in task.flows)
        sample = Sample(bandwidth_gb_s=396.4012345, flows_gb_s=flows, elapsed_ms=21.6712345, wall_ms=21.7012345)
        outcome = {
            "samples": (sample,) * samples,
            "bandwidth_gb_s": some,
            "flows_gb_s": (some,) * len(flows),
            "gating": "kernel",
            "verification": Verification.GPU_EVERY_SAMPLE,
            "seeds": (1,) * len(flows),
            "evidence": Evidence(gpus=_SEEN * (1 + len(flows))),
        }
    status = Status.OK if planned.waiver is None else Status.WAIVED
    return len(json.dumps(to_json(finish(task, status, **outcome)), indent=2))
