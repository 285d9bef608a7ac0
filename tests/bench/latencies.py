"""Latencies by hand, and how they are shown."""

from __future__ import annotations

from egmctl.bench.cases.one_process import LATENCY_CASES
from egmctl.bench.plan.make import make_plan
from egmctl.bench.results import summarize
from egmctl.model.listing import PlannedTask
from egmctl.model.machine import Machine
from egmctl.model.measurement import Measurement, MeasurementStatus, Sample, Settings, Verification, finish
from egmctl.units import MIB
from tests.bench.reports import report
from tests.report.texts import matrices_text

SETTINGS = Settings(size_bytes=512 * MIB, copies=16, samples=3, timeout_s=60)


def measured(planned: PlannedTask, latency_ns: float, gb_s: float | None = None) -> Measurement:
    """Return a measurement of a task with two samples around a latency."""
    values = (latency_ns, latency_ns + 0.5)
    p50_ns, p99_ns = (latency_ns, latency_ns + 9) if "ping_pong" in planned.case else (None, None)
    return finish(
        planned,
        MeasurementStatus.OK,
        samples=tuple(
            Sample(latency_ns=value, bandwidth_gb_s=gb_s, p50_ns=p50_ns, p99_ns=p99_ns, elapsed_ms=40, wall_ms=41)
            for value in values
        ),
        latency_ns=summarize(values),
        bandwidth_gb_s=summarize([gb_s]) if gb_s is not None else None,
        verification=Verification.WALK_EVERY_SAMPLE,
    )


def shown(machine: Machine, gpus: int, nodes: list[int], name: str, *latencies_ns: float) -> str:
    """Return the text of a report of the cases whose names begin so."""
    chosen = tuple(case for case in LATENCY_CASES if case.name.startswith(name))
    plan = make_plan(machine, (machine.gpus or ())[:gpus], nodes, chosen, SETTINGS)
    values = iter(latencies_ns or range(100, 10000))
    measurements = [
        measured(task, next(values), 10.0 * number if "loaded" in task.case else None)
        for number, task in enumerate(plan.tasks)
    ]
    return matrices_text(report(plan, measurements))
