"""The plan of one run of the bench, in order: made in the command before anything touches a GPU, so that ``--list`` and
a refusal cost nothing.

``make`` and ``fabric`` plan a run. ``flows`` and ``ranks`` say who meets whom, ``paths`` over which
route, ``task`` what is measured there and why not, ``schedule`` what runs at the same time, ``budget`` what fits into
memory, ``cost`` how long it takes. All pure.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from egmctl.bench.buffers import Peak, peaks
from egmctl.model.gpu import Gpu
from egmctl.model.listing import PlannedTask, Step
from egmctl.model.measurement import BenchGpu, Settings
from egmctl.model.route import Rank
from egmctl.model.task import Task


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """The tasks and steps of one run of the bench, in order."""

    settings: Settings
    gpus: tuple[BenchGpu, ...]
    numa_nodes: tuple[int, ...]
    tasks: tuple[PlannedTask, ...]
    steps: tuple[Step, ...]
    """The steps of the tasks that will be run."""
    ranks: tuple[Rank, ...] = ()
    """The processes of the measurements by several, where there are such."""
    huge_page_bytes: Mapping[int, int] = field(default_factory=dict)
    """The size of the pages that huge-page memory of each NUMA node is counted in, where it is known."""
    notes: tuple[str, ...] = ()
    """Cases that these GPUs and nodes make no task of, and why."""

    @property
    def runnable(self) -> tuple[Task, ...]:
        """The tasks that will be run."""
        return tuple(task for task in self.tasks if not task.waivers)

    @property
    def peaks(self) -> tuple[Peak, ...]:
        """The most memory that the run holds at any time, on each GPU and NUMA node, on the host, and of huge pages."""
        steps = [[self.tasks[number] for number in step.tasks] for step in self.steps]
        # A soak keeps everything: it is all needed again.
        return peaks(steps, keep=self.settings.duration_s is not None, huge_page_bytes=self.huge_page_bytes)


def bench_gpu(gpu: Gpu, label: str) -> BenchGpu:
    """Return what a report says of a GPU that takes part."""
    return BenchGpu(label=label, index=gpu.index, bus_id=gpu.bus_id, uuid=gpu.uuid, name=gpu.name)
