"""CPU threads: their memory bandwidth, and the latency of a pointer chase."""

from __future__ import annotations

import struct
import time
from collections.abc import Sequence
from contextlib import closing
from dataclasses import replace
from functools import partial

from egmctl.bench.buffers import buffers_of, moved_bytes
from egmctl.bench.engines.latency import WARM_UP_LOADS, Walker
from egmctl.bench.processes.context import WorkerContext
from egmctl.bench.results import bandwidth_gb_s, failure, mismatch_of, of_latency, summarize
from egmctl.errors import DriverCallError
from egmctl.facts.host import NoCpus, cpus_of
from egmctl.gpu.cpu_threads import LINE_WORDS, CpuThreads, CpuTriad, CpuWalk, words_of
from egmctl.gpu.memory import MappedMemory
from egmctl.gpu.pattern import Difference
from egmctl.model.finding import WaiverKind
from egmctl.model.measurement import (
    Measurement,
    MeasurementStatus,
    Mismatch,
    Phase,
    Sample,
    Settings,
    Verification,
    finish,
    waived,
)
from egmctl.model.route import MemoryKind
from egmctl.model.task import Engine, Task

WARM_UP_PASSES = 2
_WORD = 0x9E3779B97F4A7C15
"""The factor of the words that samples write. Each sample writes a different multiple."""
_MASK = (1 << 64) - 1


def measure_by_cpu(
    engine: type[Passes | Walks], worker: WorkerContext, tasks: Sequence[Task], settings: Settings
) -> list[Measurement]:
    """Measure tasks one after the other. An error ends only its own task."""
    measurements = []
    for task in tasks:
        started = time.perf_counter()
        try:
            measurement = _measured(engine, worker, task, settings)
        except DriverCallError as error:
            measurement = failure(task, error)
        except (NoCpus, OSError) as error:
            measurement = waived(task, WaiverKind.UNSUPPORTED_ENGINE, str(error))
        measurements.append(replace(measurement, wall_s=time.perf_counter() - started))
    return measurements


def _measured(engine: type[Passes | Walks], worker: WorkerContext, task: Task, settings: Settings) -> Measurement:
    """Measure one task, whose single flow is from memory to CPUs or from CPUs to memory."""
    flow = task.flows[0]
    reads = flow.destination.memory is MemoryKind.REGISTERS
    node, end = (flow.destination, flow.source) if reads else (flow.source, flow.destination)
    cpus = cpus_of(node.numa_node or 0, whole=engine is Triad)
    (buffer,) = buffers_of([task])
    with closing(engine(worker, task, worker.held(buffer).memory, cpus)) as work:
        placements = worker.placements((buffer,))
        if end.memory is MemoryKind.GPU_NUMA and not (placements and all(placement.right for placement in placements)):
            details = "; ".join(placement.detail for placement in placements) or "location unknown"
            reason = f"its pages are not shown to be in {end.label}'s memory: {details}"
            return waived(task, WaiverKind.NO_NUMA_MEMORY, reason)
        samples = tuple(work.sample(number) for number in range(settings.samples))
    return replace(work.conclude(samples), concurrent=1, placements=placements)


class Passes:
    """The bandwidth of threads that read or write the whole buffer. It is never ``unstable``."""

    def __init__(self, worker: WorkerContext, task: Task, memory: MappedMemory, cpus: Sequence[int]) -> None:
        self._task = task
        self._phase = worker.stopwatch.phase
        self._reads = task.flows[0].destination.memory is MemoryKind.REGISTERS
        self._threads = CpuThreads(cpus)
        # The memory may be larger, e.g. a whole number of huge pages.
        self._words = words_of(memory, moved_bytes(task))
        self._mismatch: Mismatch | None = None
        with self._phase(Phase.WARM_UP):
            self._warm_up()

    def _warm_up(self) -> None:
        self._threads.write(self._words, WARM_UP_PASSES, _WORD)

    def sample(self, number: int) -> Sample:
        """Measure one sample, and verify what it read or wrote."""
        with self._phase(Phase.MEASURING):
            elapsed_ms, word, total = self._move(number)
        if total is None:
            with self._phase(Phase.VERIFYING):
                _, total = self._threads.read(self._words, 1)
        if total != word * len(self._words) & _MASK and self._mismatch is None:
            self._mismatch = self._difference(word, number)
        gb_s = bandwidth_gb_s(self._task.copies * moved_bytes(self._task), elapsed_ms)
        return Sample(bandwidth_gb_s=gb_s, flows_gb_s=(gb_s,), elapsed_ms=elapsed_ms, wall_ms=elapsed_ms)

    def _move(self, number: int) -> tuple[float, int, int | None]:
        """Read the words of the warm-up, or write another word everywhere.

        Returns
        -------
        tuple[float, int, int | None]
            The elapsed milliseconds, the word that all words must be, and their sum; ``None`` if it was not computed.
        """
        if self._reads:
            elapsed_ms, total = self._threads.read(self._words, self._task.copies)
            return elapsed_ms, _WORD, total
        word = _WORD * (number + 2) & _MASK
        return self._threads.write(self._words, self._task.copies, word), word, None

    def conclude(self, samples: tuple[Sample, ...]) -> Measurement:
        """Return the measurement."""
        summary = summarize([sample.bandwidth_gb_s or 0 for sample in samples])
        wrong = self._mismatch
        return finish(
            self._task,
            MeasurementStatus.OK if wrong is None else MeasurementStatus.CORRUPT,
            reason=None if wrong is None else f"sample {wrong.sample}: the checksum over all words is wrong",
            samples=samples,
            bandwidth_gb_s=summary,
            flows_gb_s=(summary,),
            verification=Verification.CHECKSUM_EVERY_SAMPLE,
            mismatch=wrong,
        )

    def close(self) -> None:
        """Do nothing: the memory is the worker's."""

    def _difference(self, word: int, sample: int) -> Mismatch:
        wrong = (self._words != word).nonzero()[0]
        # No word is wrong if only the first read was.
        first = int(wrong[0]) if len(wrong) else 0
        return mismatch_of(Difference(len(wrong), 8 * first, word, int(self._words[first])), sample, 0)


class Triad(Passes):
    """The bandwidth of STREAM's triad, whose three arrays are the thirds of the buffer."""

    _B, _C = 3.0, 2.0

    def _warm_up(self) -> None:
        if len(self._words) % (3 * LINE_WORDS):
            raise OSError(f"{self._task.size_bytes} bytes are no multiple of 64, as the triad needs")
        arrays = self._words.reshape(3, -1, LINE_WORDS)
        self._words, *operands = arrays.reshape(3, -1)
        for words, value in zip(operands, (self._B, self._C), strict=True):
            self._threads.write(words, 1, _word_of(value))
        self._triad = CpuTriad(self._threads, arrays.view("f8"))
        self._triad.run(WARM_UP_PASSES, 1)

    def _move(self, number: int) -> tuple[float, int, int | None]:
        factor = number + 2.0
        return self._triad.run(self._task.copies, factor), _word_of(self._B + factor * self._C), None

    def close(self) -> None:
        """Unmap the code."""
        self._triad.close()


def _word_of(value: float) -> int:
    """Return the bits of a double."""
    (word,) = struct.unpack("=Q", struct.pack("=d", value))
    return int(word)


class Walks:
    """The latency of a pointer chase by one thread on the first CPU."""

    def __init__(self, worker: WorkerContext, task: Task, memory: MappedMemory, cpus: Sequence[int]) -> None:
        if task.chase is None:
            raise ValueError(f"{task.case} does not say how a latency is measured")
        self._task = task
        self._loads = task.chase.loads
        self._seed = worker.new_seed()
        self._walk = CpuWalk(memory, task.chase.stride_bytes, self._seed, cpus[0])
        self._wrong: str | None = None
        self.close = self._walk.close

    def sample(self, number: int) -> Sample:
        """Continue the walk where the last sample ended."""
        self._walk.walk(WARM_UP_LOADS)
        elapsed_ms, wrong_offset = self._walk.walk(self._loads)
        if wrong_offset is not None and self._wrong is None:
            self._wrong = f"sample {number}: {Walker.wrong_at} {wrong_offset}"
        return Sample(latency_ns=elapsed_ms * 1e6 / self._loads, elapsed_ms=elapsed_ms, wall_ms=elapsed_ms)

    def conclude(self, samples: tuple[Sample, ...]) -> Measurement:
        """Return the measurement."""
        verification = Verification.WALK_EVERY_SAMPLE
        return of_latency(self._task, samples, self._wrong, verification=verification, seeds=(self._seed,))


MEASURE = {
    Engine.CPU: partial(measure_by_cpu, Passes),
    Engine.CPU_TRIAD: partial(measure_by_cpu, Triad),
    Engine.CPU_CHASE: partial(measure_by_cpu, Walks),
}
