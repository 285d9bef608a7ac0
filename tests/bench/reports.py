"""A run's report around measurements made by hand: for tests of what is shown."""

from __future__ import annotations

from collections.abc import Iterable

from egmctl.bench.plan import Plan
from egmctl.model.measurement import Measurement, RunReport


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
