"""Records of commands that measure nothing: lists of runs, machines, checks and cases, a run's plan, and its cost."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from typing import ClassVar, overload

from egmctl.dataclass import dataclass
from egmctl.model.answer import State
from egmctl.model.finding import Guard, Waiver
from egmctl.model.machine import Origin, OriginKind
from egmctl.model.measurement import BenchGpu, Settings
from egmctl.model.nccl import NcclPlan
from egmctl.model.record import Plain
from egmctl.model.route import Rank
from egmctl.model.task import Axis, Flow, Pattern, Task


@dataclass(frozen=True, slots=True, kw_only=True)
class KeptRun:
    """A run of the bench, from its journal."""

    file: str
    """The journal's path."""
    started_at: Plain
    """UTC, ISO 8601."""
    gpus: tuple[Plain, ...]
    """``GPU0``, ``GPU1``, ..."""
    measurements: int
    """The number of measurements in the journal, including the one in progress at its end."""
    ok: int
    exit_code: int | None
    """The exit code of the run; ``None`` if the run did not end."""
    state: State = State.BROKE
    """What the run answered: it broke if it did not end."""
    ending: Plain
    """A short description of how the run ended."""


@dataclass(frozen=True, slots=True, kw_only=True)
class History:
    """The result of ``egmctl history``: the runs of the bench on this node, the latest last."""

    SCHEMA: ClassVar[str] = "egmctl.history/1"

    runs: tuple[KeptRun, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class ShippedMachine:
    """A machine that is included in the tool."""

    name: Plain
    """The name for ``--machine``."""
    origin: OriginKind
    platform: Plain
    """The platform in one line."""
    description: Plain


@dataclass(frozen=True, slots=True, kw_only=True)
class MachineList:
    """The result of ``--machine list``."""

    SCHEMA: ClassVar[str] = "egmctl.machines/1"

    machines: tuple[ShippedMachine, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckEntry:
    """A check of doctor."""

    id: Plain
    """The stable id, ``area.what``."""
    title: Plain
    guards: tuple[Guard, ...]
    """The purposes at risk if the check does not pass."""
    blocks: tuple[Guard, ...]
    """The purposes that do not work if the check fails."""
    sections: tuple[Plain, ...]
    """The sections of the machine without which the check is unknown."""
    why: Plain
    read: Plain
    fix: Plain


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckList:
    """The result of ``egmctl doctor --list`` and ``--explain``."""

    SCHEMA: ClassVar[str] = "egmctl.checks/1"

    checks: tuple[CheckEntry, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedTask(Task):
    """A task of a plan, and the reasons why it would not be run."""

    waivers: tuple[Waiver, ...] = ()
    """All reasons against the task; empty if it would be run."""
    planned_gb_s: float = 0
    """The estimated rate of its slowest flow."""
    disjoint: bool = False
    """Whether it may run at the same time as tasks that share no GPU with it."""

    @property
    def waiver(self) -> str | None:
        """The first reason why the task would not be run, in one sentence; ``None`` if it would be run."""
        return self.waivers[0].reason if self.waivers else None


class PlannedTasks(Sequence[PlannedTask]):
    """The tasks of a plan, in order. Each is made when it is first asked for.

    Most tasks of a case are alike in everything but their flows, and 72 GPUs have 72,000. What counts or adds up reads
    :attr:`kinds` instead of the tasks.

    Parameters
    ----------
    distinct
        One task of each kind. All tasks of the kind are equal to it in everything but the flows, and have as many flows
        as it, over the same kind of route and between the same kinds of memory. A kind may have no task.
    numbers
        The index of each task's kind.
    flows
        The flows of each task.
    """

    def __init__(
        self, distinct: Iterable[PlannedTask], numbers: Iterable[int], flows: Iterable[tuple[Flow, ...]]
    ) -> None:
        self.distinct = tuple(distinct)
        self.numbers = tuple(numbers)
        self.flows = tuple(flows)
        self._tasks: dict[int, PlannedTask] = {}
        if len(self.numbers) != len(self.flows):
            raise ValueError(f"{len(self.numbers)} kinds of tasks for {len(self.flows)} tasks")

    @cached_property
    def kinds(self) -> tuple[PlannedTask, ...]:
        """The kind of each task."""
        return tuple(map(self.distinct.__getitem__, self.numbers))

    @classmethod
    def joined(cls, parts: Iterable[PlannedTasks]) -> PlannedTasks:
        """Return the tasks of all parts, in order."""
        parts = tuple(parts)
        if len(parts) == 1:
            return parts[0]
        distinct: list[PlannedTask] = []
        numbers: list[int] = []
        flows: list[tuple[Flow, ...]] = []
        for part in parts:
            numbers += map(len(distinct).__add__, part.numbers)
            distinct += part.distinct
            flows += part.flows
        return cls(distinct, numbers, flows)

    @classmethod
    def of(cls, tasks: Sequence[PlannedTask]) -> PlannedTasks:
        """Return tasks that exist, each of which is a kind of its own."""
        if isinstance(tasks, cls):
            return tasks
        return cls(tasks, range(len(tasks)), (task.flows for task in tasks))

    def only(self, numbers: Sequence[int]) -> PlannedTasks:
        """Return the tasks of these numbers."""
        return PlannedTasks(
            self.distinct, [self.numbers[number] for number in numbers], [self.flows[number] for number in numbers]
        )

    def alike(self, others: PlannedTasks) -> bool:
        """Return whether both have tasks of the same flows and each of them the same tasks of one kind."""
        return (len(self.distinct), self.numbers, self.flows) == (len(others.distinct), others.numbers, others.flows)

    def __len__(self) -> int:
        return len(self.numbers)

    @overload
    def __getitem__(self, index: int) -> PlannedTask: ...

    @overload
    def __getitem__(self, index: slice) -> tuple[PlannedTask, ...]: ...

    def __getitem__(self, index: int | slice) -> PlannedTask | tuple[PlannedTask, ...]:
        if isinstance(index, slice):
            return tuple(self[number] for number in range(len(self))[index])
        number = range(len(self))[index]
        task = self._tasks.get(number)
        if task is None:
            kind, flows = self.distinct[self.numbers[number]], self.flows[number]
            task = self._tasks[number] = kind if kind.flows is flows else replace(kind, flows=flows)
        return task

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, (PlannedTasks, tuple)):
            return NotImplemented
        return tuple(self) == tuple(other)

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return f"PlannedTasks({tuple(self)!r})"


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanStep:
    """Tasks that run at the same time, as indices into the plan's tasks."""

    tasks: tuple[int, ...]
    group: Plain | None = None
    """The group of several tasks, or of a proof for one of them."""
    proof: bool = False
    """Whether the step measures one task alone that was measured with others, to compare both results."""
    isolated: Plain | None = None
    """The name of a separate process for a step that may fail or crash. Steps with the same name share the process."""
    seconds: float | None = None
    """The estimated duration, if there is an estimate."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HeldMemory:
    """The peak memory of the run at one location."""

    place: Plain
    """``GPU0``, ``NUMA1``, or ``host`` for all NUMA nodes together. Huge pages are separate: ``NUMA1 huge pages``,
    ``huge pages``."""
    bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanReport:
    """The result of ``egmctl bench --dry-run``: the plan of a run. Nothing was measured."""

    SCHEMA: ClassVar[str] = "egmctl.plan/2"

    origin: Origin
    """The source of the machine's facts."""
    settings: Settings
    gpus: tuple[BenchGpu, ...]
    numa_nodes: tuple[int, ...]
    ranks: tuple[Rank, ...]
    tasks: Sequence[PlannedTask]
    steps: tuple[PlanStep, ...]
    memory: tuple[HeldMemory, ...]
    notes: tuple[Plain, ...]
    bytes_moved: int
    """The bytes that the samples move."""
    seconds: float
    """The estimated duration of the run."""
    nccl: NcclPlan | None = None
    """What NCCL would measure; ``None`` without the suite ``nccl``."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CaseCost:
    """The cost of one case."""

    case: Plain
    pattern: Pattern
    measurements: int
    waived: int
    """The measurements that cannot be made."""
    reason: Plain | None
    """The first one's reason."""
    steps: int
    """The number of sequential steps, including proofs."""
    bytes: int
    """The bytes that the samples move."""
    seconds: float
    held_bytes: int
    """The peak memory of the GPU or host with the highest peak."""
    too_large: bool
    """Whether that exceeds the share of memory that the run may use: of the free memory, or of all memory of a
    model."""


@dataclass(frozen=True, slots=True, kw_only=True)
class JobCost:
    """The cost of a run with a number of ranks, on nodes like one machine (``egmctl bench --dry-run --ranks``)."""

    SCHEMA: ClassVar[str] = "egmctl.cost/2"

    origin: Origin
    ranks: int
    nodes: int
    costs: tuple[CaseCost, ...]
    seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class ListedCase:
    """A case, and whether it can run."""

    name: Plain
    family: Plain
    description: Plain
    axes: tuple[Axis, ...]
    """The axes for ``--sweep``."""
    measurements: int
    """The number of measurements for the chosen GPUs and NUMA nodes; 0 if the case needs two GPUs and there is one."""
    runnable: int
    reasons: tuple[Plain, ...]
    """The reasons why the others cannot run."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CaseList:
    """The result of ``egmctl bench --list``."""

    SCHEMA: ClassVar[str] = "egmctl.cases/1"

    origin: Origin
    cases: tuple[ListedCase, ...]
    suites: Mapping[Plain, Plain]
    """The descriptions of all suites by their names for ``--suite``."""
