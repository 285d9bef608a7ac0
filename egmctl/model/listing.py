"""Lists and plans that commands make without measuring: runs, machines, checks and cases, a run's plan and its cost."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from egmctl.model.finding import Guard, Waiver
from egmctl.model.machine import Origin, OriginKind
from egmctl.model.measurement import BenchGpu, Settings
from egmctl.model.record import Plain
from egmctl.model.route import Rank
from egmctl.model.task import Axis, Pattern, Task


@dataclass(frozen=True, slots=True, kw_only=True)
class KeptRun:
    """A run of the bench, by its journal."""

    file: str
    """The journal's path."""
    started_at: Plain
    """UTC, ISO 8601."""
    gpus: tuple[Plain, ...]
    """``GPU0``, ``GPU1``, ..."""
    measurements: int
    """Those that the journal holds, what was under way at its end among them."""
    ok: int
    exit_code: int | None
    """Its exit code; ``None`` where it did not end."""
    ending: Plain
    """How it ended, in a few words."""


@dataclass(frozen=True, slots=True, kw_only=True)
class History:
    """``egmctl history``: the runs of the bench on this node, the latest last."""

    SCHEMA: ClassVar[str] = "egmctl.history/1"

    runs: tuple[KeptRun, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class ShippedMachine:
    """A machine that ships with the tool."""

    name: Plain
    """The name that ``--machine`` takes."""
    origin: OriginKind
    platform: Plain
    """Its platform, in one line."""
    description: Plain


@dataclass(frozen=True, slots=True, kw_only=True)
class MachineList:
    """``--machine list``."""

    SCHEMA: ClassVar[str] = "egmctl.machines/1"

    machines: tuple[ShippedMachine, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckEntry:
    """A check of the doctor."""

    id: Plain
    """Stable, ``area.what``."""
    title: Plain
    guards: tuple[Guard, ...]
    """The abilities at risk where it does not pass."""
    sections: tuple[Plain, ...]
    """Sections of the machine without which it cannot say anything."""
    why: Plain
    read: Plain
    fix: Plain


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckList:
    """``egmctl doctor --list`` and ``--explain``."""

    SCHEMA: ClassVar[str] = "egmctl.checks/1"

    checks: tuple[CheckEntry, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedTask(Task):
    """A task of a plan, and why it would not be run."""

    waivers: tuple[Waiver, ...] = ()
    """All that stops it; empty if the task would be run."""
    planned_gb_s: float = 0
    """The rate that the slowest of its flows is planned with: an estimate."""
    disjoint: bool = False
    """Whether it may run beside tasks that share no GPU with it."""

    @property
    def waiver(self) -> str | None:
        """The first of what stops it, in one sentence; ``None`` if the task would be run."""
        return self.waivers[0].reason if self.waivers else None


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """Tasks that run at the same time, by their places in the plan."""

    tasks: tuple[int, ...]
    group: Plain | None = None
    """The group of several tasks, and of the proof for one."""
    proof: bool = False
    """The one task has been measured with others at the same time: now it is alone, to see whether that differs."""
    isolated: Plain | None = None
    """Set where a step may fail or end its process: it gets one of its own, shared with the steps of the same name."""
    seconds: float | None = None
    """About how long it takes, where that was estimated."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HeldMemory:
    """The most memory that the run would hold at one place."""

    place: Plain
    """``GPU0``, ``NUMA1``, ``host`` for all nodes together; ``NUMA1 huge pages`` and ``huge pages``, which those do not
    count."""
    bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanReport:
    """``egmctl bench --dry-run``: a run that was planned and not made; nothing in it was measured."""

    SCHEMA: ClassVar[str] = "egmctl.plan/2"

    origin: Origin
    """Where the facts of the machine came from."""
    settings: Settings
    gpus: tuple[BenchGpu, ...]
    numa_nodes: tuple[int, ...]
    ranks: tuple[Rank, ...]
    tasks: tuple[PlannedTask, ...]
    steps: tuple[Step, ...]
    memory: tuple[HeldMemory, ...]
    notes: tuple[Plain, ...]
    bytes_moved: int
    """In samples."""
    seconds: float
    """About how long the run takes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CaseCost:
    """The cost of one case."""

    case: Plain
    pattern: Pattern
    measurements: int
    waived: int
    """Measurements that cannot be made."""
    reason: Plain | None
    """Why, of the first."""
    steps: int
    """One after the other, those that prove what was measured with others included."""
    bytes: int
    """Moved in samples."""
    seconds: float
    held_bytes: int
    """Held by the GPU, or by the host, that holds most."""
    too_large: bool
    """That is more than the run may take of what is free; of a model, which uses nothing, of all there is."""


@dataclass(frozen=True, slots=True, kw_only=True)
class JobCost:
    """``egmctl bench --dry-run --ranks``: what a run between so many ranks costs, on nodes like one machine."""

    SCHEMA: ClassVar[str] = "egmctl.cost/2"

    origin: Origin
    ranks: int
    nodes: int
    costs: tuple[CaseCost, ...]
    seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class ListedCase:
    """A case, and whether it would run."""

    name: Plain
    family: Plain
    description: Plain
    axes: tuple[Axis, ...]
    """The axes along which ``--sweep`` can measure it."""
    measurements: int
    """How many it makes of the chosen GPUs and NUMA nodes; 0 where it needs two GPUs and there is one."""
    runnable: int
    reasons: tuple[Plain, ...]
    """Why the others would not run."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CaseList:
    """``egmctl bench --list``."""

    SCHEMA: ClassVar[str] = "egmctl.cases/1"

    origin: Origin
    cases: tuple[ListedCase, ...]
    suites: Mapping[Plain, Plain]
    """The descriptions of all suites, by the names that ``--suite`` takes."""
