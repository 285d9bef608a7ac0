"""The plan of one run of the bench. It is made before any GPU is used, so ``--list`` and a refusal cost nothing.

``make`` plans the run of a node, ``fabric`` that of a job. ``flows`` finds the ends of flows, ``paths`` their routes;
``candidates`` has what the cases of one process make tasks of, ``ranks`` the same of several, on a node or in a job;
``placement`` has the ranks. ``task`` makes the tasks and says why some cannot run, ``schedule`` which run at the same
time, ``budget`` the sizes that fit into memory, ``cost`` the time. All pure.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field

from egmctl.bench.peaks import EndNumbers, Peak, Uses
from egmctl.dataclass import dataclass
from egmctl.model.gpu import Gpu
from egmctl.model.listing import PlannedTasks, PlanStep
from egmctl.model.measurement import BenchGpu, Settings
from egmctl.model.nccl import NcclPlan
from egmctl.model.route import Rank
from egmctl.model.task import Task


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """The tasks and steps of one run of the bench, in order."""

    settings: Settings
    gpus: tuple[BenchGpu, ...]
    numa_nodes: tuple[int, ...]
    tasks: PlannedTasks
    steps: tuple[PlanStep, ...]
    """The steps of the tasks that will be run."""
    ranks: tuple[Rank, ...] = ()
    """The processes of cases that need several; empty if no case does."""
    huge_page_bytes: Mapping[int, int] = field(default_factory=dict)
    """The page size that huge-page memory is rounded up to, by NUMA node; without nodes whose page size is unknown."""
    notes: tuple[str, ...] = ()
    """Cases that have no task on these GPUs and nodes with the reasons, and other remarks."""

    nccl: NcclPlan | None = None
    """What NCCL measures after the steps; ``None`` without the suite ``nccl``."""
    ends: EndNumbers = field(default_factory=EndNumbers, repr=False, compare=False)
    """The numbers of the ends of flows, which plans of several sizes share."""
    known_uses: tuple[PlannedTasks, tuple[PlanStep, ...], Uses] | None = field(default=None, repr=False, compare=False)
    """The uses of these tasks and steps, if they have been looked at already."""

    @property
    def runnable(self) -> tuple[Task, ...]:
        """The tasks that will be run."""
        return tuple(self.tasks[number] for number, kind in enumerate(self.tasks.kinds) if not kind.waivers)

    @property
    def peaks(self) -> tuple[Peak, ...]:
        """The maximum memory that the run holds on each GPU and NUMA node, on the host, and in huge pages."""
        # A soak keeps all buffers, because it uses them again.
        keep = self.settings.duration_s is not None
        return tuple(self.uses.peaks(keep=keep, huge_page_bytes=self.huge_page_bytes))

    @property
    def uses(self) -> Uses:
        """The first and the last step that uses each buffer."""
        if self.known_uses is not None:
            tasks, steps, uses = self.known_uses
            if tasks is self.tasks and steps is self.steps:
                return uses
        return Uses(self.tasks.kinds, self.tasks.flows, [step.tasks for step in self.steps], self.ends)


def bench_gpu(gpu: Gpu, label: str) -> BenchGpu:
    """Return the report's record of a GPU that takes part."""
    return BenchGpu(label=label, index=gpu.index, bus_id=gpu.bus_id, uuid=gpu.uuid, name=gpu.name)
