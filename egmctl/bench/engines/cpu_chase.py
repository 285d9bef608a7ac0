"""How long a CPU waits for a load: one thread follows a chain of addresses through memory."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from egmctl.bench.buffers import assign
from egmctl.bench.conclusion import chain_error, of_latency
from egmctl.bench.engines.base import BenchEngine
from egmctl.bench.engines.chase import WARM_UP_LOADS
from egmctl.bench.engines.cpu import misplaced, one_by_one
from egmctl.bench.processes.context import WorkerContext
from egmctl.facts.cpus import NoCpus, cpus_of
from egmctl.gpu.cpu_chase import CpuWalk
from egmctl.model.measurement import Measurement, Sample, Settings, Task, Verification, waived
from egmctl.model.waiver import WaiverKind


@dataclass(frozen=True, kw_only=True)
class CpuChase(BenchEngine):
    """Tasks are measured one after the other, by one thread on the first CPU of the node."""

    @property
    def verification(self) -> Verification:
        return Verification.WALK_EVERY_SAMPLE

    def measure(self, worker: WorkerContext, tasks: Sequence[Task], settings: Settings) -> list[Measurement]:
        return one_by_one(measure, worker, tasks, settings)


CPU_CHASE = CpuChase(
    caption="pointer chase by a CPU", counted="", needs_kernels=False, writes_source=True, timed_by_host=True
)


def measure(worker: WorkerContext, task: Task, settings: Settings) -> Measurement:
    """Measure one task: its one flow is from memory to a CPU.

    Raises
    ------
    DriverCallError
        If the memory cannot be had.
    """
    flow, chase = task.flows[0], task.chase
    ((buffers,),) = assign([task])
    if chase is None or buffers.source is None:
        raise ValueError(f"{task.case} does not say how a latency is measured, or of which memory")
    try:
        cpu = cpus_of(flow.destination.numa_node or 0)[0]
        seed = worker.new_seed()
        walk = CpuWalk(worker.destination(buffers.source), chase.stride_bytes, seed, cpu)
    except (NoCpus, OSError) as why:
        return waived(task, WaiverKind.UNSUPPORTED_ENGINE, str(why))
    try:
        placements = worker.placements((buffers.source,))
        if (outcome := misplaced(task, flow.source, placements)) is not None:
            return outcome
        samples: list[Sample] = []
        wrong: str | None = None
        for number in range(settings.samples):
            walk.walk(WARM_UP_LOADS)
            elapsed_ms, at = walk.walk(chase.loads)
            wrong = wrong or chain_error(number, at)
            latency_ns = elapsed_ms * 1e6 / chase.loads
            samples.append(Sample(latency_ns=latency_ns, elapsed_ms=elapsed_ms, wall_ms=elapsed_ms))
    finally:
        walk.close()
    verification = Verification.WALK_EVERY_SAMPLE
    return of_latency(
        task, samples, wrong, verification=verification, seeds=(seed,), concurrent=1, placements=placements
    )
