"""A run's report around measurements made by hand: for tests of what is shown."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from egmctl.bench.plan import Plan
from egmctl.bench.results import summarize
from egmctl.model.measurement import Measurement, MeasurementStatus, RunReport, Sample, finish
from egmctl.model.task import Quantity, Task
from tests.bench.four import NAMES
from tests.bench.plans import plan_of


def report(plan: Plan, measurements: Iterable[Measurement]) -> RunReport:
    """Return the report of a run of ``plan`` that found these."""
    return RunReport(
        settings=plan.settings,
        gpus=plan.gpus,
        numa_nodes=plan.numa_nodes,
        driver_version="580.159.04",
        cuda_driver_version=13000,
        started_at="2026-11-20T12:00:00+00:00",
        wall_s=12.5,
        interrupted=False,
        measurements=tuple(measurements),
    )


def measured(
    task: Task, *values: float, status: MeasurementStatus = MeasurementStatus.OK, step: float = 0.0, **more: Any
) -> Measurement:
    """Return a measurement of a task with samples of these values, in GB/s of each flow or in ns.

    Parameters
    ----------
    step
        How much faster each flow is than the one before.
    """
    if task.quantity is not Quantity.BANDWIDTH:
        latency = summarize(values) if task.quantity is Quantity.LATENCY else None
        return finish(task, status, latency_ns=latency, **more)
    samples = [tuple(value + number * step for number in range(len(task.flows))) for value in values]
    return finish(
        task,
        status,
        samples=tuple(
            Sample(bandwidth_gb_s=sum(flows), flows_gb_s=flows, elapsed_ms=8000 / flows[0], wall_ms=22.5)
            for flows in samples
        ),
        bandwidth_gb_s=summarize([sum(flows) for flows in samples]),
        flows_gb_s=tuple(summarize(flow) for flow in zip(*samples, strict=True)),
        **more,
    )


PLAN = plan_of(NAMES[3], gpus=2)
TASK = PLAN.tasks[-1]


def soak_pass(*values: float, status: MeasurementStatus = MeasurementStatus.OK) -> Measurement:
    """Return one pass of a soak; a status that is not ok is its own reason."""
    return measured(TASK, *values, status=status, reason=None if status is MeasurementStatus.OK else status.value)
