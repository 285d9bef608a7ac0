"""Threads of a CPU: their bandwidth on memory, and the latency of a pointer chase."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial

from egmctl.bench.buffers import assign
from egmctl.bench.engines.chase import WARM_UP_LOADS
from egmctl.bench.outcomes import failure
from egmctl.bench.processes.context import WorkerContext
from egmctl.bench.results import bandwidth_gb_s, chain_error, of_latency, summarize
from egmctl.errors import DriverCallError
from egmctl.facts.host import NoCpus, cpus_of
from egmctl.gpu.cpu_threads import CpuThreads, CpuWalk, words_of
from egmctl.gpu.memory import Memory
from egmctl.model.finding import WaiverKind
from egmctl.model.measurement import (
    Endpoint,
    Engine,
    Measurement,
    MemoryKind,
    Mismatch,
    Phase,
    Placement,
    Sample,
    Settings,
    Status,
    Task,
    Verification,
    finish,
    waived,
)

WARM_UP_PASSES = 2
_WORD = 0x9E3779B97F4A7C15
"""What is written, multiplied by the sample's number: no two samples leave the same."""
_MASK = (1 << 64) - 1


def one_by_one(
    measure: Callable[[WorkerContext, Task, Settings], Measurement],
    worker: WorkerContext,
    tasks: Sequence[Task],
    settings: Settings,
) -> list[Measurement]:
    """Measure tasks of CPUs one after the other; a driver call that fails costs its task alone."""

    def timed(task: Task) -> Measurement:
        started = time.perf_counter()
        try:
            measurement = measure(worker, task, settings)
        except DriverCallError as error:
            measurement = failure(task, error)
        return replace(measurement, wall_s=time.perf_counter() - started)

    return [timed(task) for task in tasks]


def measure(worker: WorkerContext, task: Task, settings: Settings) -> Measurement:
    """Measure one task: its one flow is from memory to CPUs or the other way. Its samples are never judged.

    Raises
    ------
    DriverCallError
        If the memory cannot be had.
    """
    flow = task.flows[0]
    reads = flow.destination.memory is MemoryKind.REGISTERS
    cpus, end = (flow.destination, flow.source) if reads else (flow.source, flow.destination)
    try:
        threads = CpuThreads(cpus_of(cpus.numa_node or 0))
    except NoCpus as why:
        return waived(task, WaiverKind.UNSUPPORTED_ENGINE, str(why))
    ((buffers,),) = assign([task])
    buffer = buffers.source or buffers.destination
    if buffer is None:
        raise ValueError(f"{task.case} has no memory at {end.label}")
    # The buffer is larger where the size is small: copies then go from place to place.
    memory = _Part(worker.destination(buffer).address, task.size_bytes)
    with worker.stopwatch.phase(Phase.WARM_UP):
        threads.write(memory, WARM_UP_PASSES, _word(0))
    placements = worker.placements((buffer,))
    if (outcome := misplaced(task, end, placements)) is not None:
        return outcome
    samples: list[Sample] = []
    mismatch: Mismatch | None = None
    for number in range(settings.samples):
        if reads:
            word = _word(0)
            with worker.stopwatch.phase(Phase.MEASURING):
                elapsed_ms, total = threads.read(memory, task.copies)
        else:
            word = _word(number + 1)
            with worker.stopwatch.phase(Phase.MEASURING):
                elapsed_ms = threads.write(memory, task.copies, word)
            with worker.stopwatch.phase(Phase.VERIFYING):
                _, total = threads.read(memory, 1)
        gb_s = bandwidth_gb_s(task.copies * task.size_bytes, elapsed_ms)
        samples.append(Sample(bandwidth_gb_s=gb_s, flows_gb_s=(gb_s,), elapsed_ms=elapsed_ms, wall_ms=elapsed_ms))
        if total != word * (memory.size_bytes // 8) & _MASK and mismatch is None:
            mismatch = _difference(memory, word, number)
    summary = summarize([sample.bandwidth_gb_s or 0 for sample in samples])
    return finish(
        task,
        Status.OK if mismatch is None else Status.CORRUPT,
        reason=None if mismatch is None else f"sample {mismatch.sample}: the checksum over all words is wrong",
        samples=tuple(samples),
        bandwidth_gb_s=summary,
        flows_gb_s=(summary,),
        verification=Verification.CHECKSUM_EVERY_SAMPLE,
        mismatch=mismatch,
        concurrent=1,
        placements=placements,
    )


def misplaced(task: Task, end: Endpoint, placements: Sequence[Placement]) -> Measurement | None:
    """Return the outcome of a task on a GPU's memory whose pages are not shown to be there; ``None`` of others."""
    if end.memory is not MemoryKind.GPU_NUMA or (placements and all(placement.right for placement in placements)):
        return None
    not_shown = f"not shown to be in {end.label}'s memory"
    details = "; ".join(placement.detail for placement in placements)
    reason = f"its pages are {not_shown}: {details}" if details else f"location of its pages unknown: {not_shown}"
    return waived(task, WaiverKind.NO_NUMA_MEMORY, reason)


@dataclass(slots=True)
class _Part:
    """The beginning of a buffer."""

    address: int
    size_bytes: int

    def close(self) -> None:
        """Give nothing back: the buffer is the worker's."""


def _word(number: int) -> int:
    return _WORD * (number + 1) & _MASK


def _difference(memory: Memory, word: int, sample: int) -> Mismatch:
    words = words_of(memory)
    wrong = (words != word).nonzero()[0]
    # Nothing is wrong any more if only the reading went wrong.
    first = int(wrong[0]) if len(wrong) else 0
    return Mismatch(
        sample=sample,
        words=len(wrong),
        first_offset_bytes=8 * first,
        expected=f"{word:#018x}",
        found=f"{int(words[first]):#018x}",
    )


def measure_chase(worker: WorkerContext, task: Task, settings: Settings) -> Measurement:
    """Measure one task by one thread on the first CPU of the node: its one flow is from memory to a CPU.

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


MEASURE = {
    Engine.CPU: partial(one_by_one, measure),
    Engine.CPU_CHASE: partial(one_by_one, measure_chase),
}
