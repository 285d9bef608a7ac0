"""What ``egmctl bench --dry-run`` says of a run that it does not make: for planners that read JSON."""

from __future__ import annotations

from dataclasses import dataclass

from egmctl.model.finding import Waiver
from egmctl.model.measurement import BenchGpu, Settings, Task
from egmctl.model.record import Plain
from egmctl.model.ucx import Rank

PLAN_SCHEMA = "egmctl.plan/1"


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedMeasurement(Task):
    """A task, and why it would not be run."""

    waiver: Plain | None = None
    """The first of what stops it; ``None`` if it would be run."""
    waivers: tuple[Waiver, ...] = ()
    """All that stops it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedStep:
    """Measurements that would run at the same time."""

    measurements: tuple[int, ...]
    """Places in ``PlanReport.measurements``."""
    proof: bool
    """The one measurement was made with others at the same time: now once more alone."""
    seconds: float
    """About how long it takes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HeldMemory:
    """The most memory that the run would hold at one place."""

    place: Plain
    """``GPU0``, ``NUMA1``, ``host`` for all nodes together; ``NUMA1 huge pages`` and ``huge pages``, which those do not
    count."""
    bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanReport:
    """A run that was planned and not made: nothing in it was measured."""

    settings: Settings
    gpus: tuple[BenchGpu, ...]
    numa_nodes: tuple[int, ...]
    ranks: tuple[Rank, ...]
    measurements: tuple[PlannedMeasurement, ...]
    steps: tuple[PlannedStep, ...]
    memory: tuple[HeldMemory, ...]
    notes: tuple[Plain, ...]
    bytes_moved: int
    """In samples."""
    seconds: float
    """About how long the run takes."""
