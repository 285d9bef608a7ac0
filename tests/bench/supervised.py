"""Runs of workers that misbehave."""

from __future__ import annotations

from egmctl.bench.plan import Plan
from egmctl.bench.plan.make import make_plan
from egmctl.model.measurement import Settings
from tests.bench.four import FOUR
from tests.doctor.machines import shipped

MACHINE = shipped("dgx-h100")
TARGET = "tests.bench.workers:run"


def plan(timeout_s: float = 30, gpus: int = 2, duration_s: float | None = None) -> Plan:
    """Plan all cases for some GPUs and NUMA node 0: eight tasks for two."""
    settings = Settings(size_bytes=1 << 20, copies=1, samples=1, timeout_s=timeout_s, duration_s=duration_s)
    return make_plan(MACHINE, (MACHINE.gpus or ())[:gpus], [0], FOUR, settings)
