"""What ``egmctl bench`` measures and what it found: tasks, measurements, and the report of one run.

A :class:`Task` is a combination of three small vocabularies (memory, engine, pattern) between named ends; a
:class:`Measurement` is a task with its outcome. Matrices and tables are views of measurements, never results.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from enum import StrEnum
from typing import Any

from egmctl.errors import ExitCode
from egmctl.model.machine import BusId, Plain, Uuid

BENCH_SCHEMA = "egmctl.bench/1"


class MemoryKind(StrEnum):
    """Where the bytes are, by how the memory was allocated."""

    DEVICE = "device"
    """cuMemAlloc."""
    HOST_NUMA = "host-numa"
    """cuMemCreate on a host NUMA node. It is EGM only where the platform has EGM: see :attr:`Task.egm`."""


class Engine(StrEnum):
    """What moves the bytes."""

    COPY_ENGINE = "ce"
    """cuMemcpyAsync."""


class Pattern(StrEnum):
    """What runs at the same time."""

    PAIR = "pair"
    """One source and one destination, nothing else."""


class Status(StrEnum):
    """How a measurement ended; everything but ``ok`` has a reason."""

    OK = "ok"
    UNSTABLE = "unstable"
    """Measured and verified, but the samples differ too much (:data:`egmctl.bench.statistics.UNSTABLE_CV`)."""
    CORRUPT = "corrupt"
    """The destination did not hold what was sent."""
    WAIVED = "waived"
    """Not run: it cannot run here, or the run ended before it."""
    FAILED = "failed"
    """A driver call failed, or the samples could not be taken."""
    CRASHED = "crashed"
    """The worker process died."""
    TIMED_OUT = "timed-out"
    """The worker process did not finish in time and was killed."""


class Verification(StrEnum):
    """What was compared with what was sent."""

    GPU_EVERY_SAMPLE = "gpu-every-sample"
    """After every sample all bytes of the destination, by a kernel on the GPU."""
    HOST_FIRST_AND_LAST_SAMPLE = "host-first-and-last-sample"
    """After the first and the last sample, on the host: there was no NVRTC to compile the kernel."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Endpoint:
    """One end of a transfer: memory of a kind on a GPU or on a NUMA node."""

    memory: MemoryKind
    label: Plain
    """``GPU0``, ``NUMA1``: for people."""
    bus_id: BusId | None = None
    """Of the GPU, for device memory."""
    numa_node: int | None = None
    """For host memory."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """One transfer to measure."""

    case: Plain
    """The case's name, in nvbandwidth's words where it has one."""
    source: Endpoint
    destination: Endpoint
    engine: Engine
    pattern: Pattern
    initiator: BusId
    """The GPU whose context issues the work: it writes to the destination (push) or reads from the source (pull)."""
    initiator_label: Plain
    wire: Plain
    """The way the bytes are expected to take, e.g. ``NV18`` or ``HOST_NUMA over PCIe, not EGM``."""
    egm: bool | None = None
    """Whether the host end is Extended GPU Memory: by the NVML capability bit and C2C, never by the calls alone;
    ``None`` where no end is host memory."""
    counted: Plain
    """What the bandwidth counts."""
    size_bytes: int
    copies: int
    """Copies of ``size_bytes`` in one sample, one after the other."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """One timed batch of copies."""

    bandwidth_gb_s: float
    """GB/s are 1e9 bytes a second."""
    elapsed_ms: float
    """Between two events, by the GPU: what the bandwidth is made of."""
    wall_ms: float
    """The same batch by the host's clock, with the host's waking up."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Summary:
    """The samples of one quantity; its unit is in the name of the field that holds this."""

    median: float
    min: float
    max: float
    cv: float | None
    """Coefficient of variation: sample standard deviation by mean; ``None`` for a single sample."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Mismatch:
    """Where the destination differed from what was sent, in the first sample that differed."""

    sample: int
    """From 0."""
    words: int
    """8-byte words that differ."""
    first_offset_bytes: int
    expected: Plain
    """The first differing word as it should be, hexadecimal."""
    found: Plain
    """The same word read again: equal to ``expected`` if only the check's own read went wrong."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Measurement(Task):
    """A task and how it ended."""

    status: Status
    reason: Plain | None = None
    """One sentence for every status but ``ok``; it may tell more of an ``ok`` one."""
    samples: tuple[Sample, ...] = ()
    bandwidth_gb_s: Summary | None = None
    gating: Plain | None = None
    """What held the copies until all were queued: ``kernel``, ``stream-wait`` or ``none``."""
    verification: Verification | None = None
    """``None`` where nothing was verified."""
    mismatch: Mismatch | None = None
    seed: int | None = None
    """Of the source's pattern (``egmctl/gpu/kernels/pattern.cu``)."""
    known_cause: bool = False
    """The failure has a known cause in the environment, which the reason names."""
    last_call: Plain | None = None
    """The driver call that failed, or that was under way when the worker died or hung."""
    wall_s: float | None = None
    """All of it: buffers, filling, warm-up, samples and verification."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BenchGpu:
    """A GPU that took part, or was asked to."""

    label: Plain
    index: int
    bus_id: BusId
    uuid: Uuid | None
    name: Plain | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """How everything in one run was measured."""

    size_bytes: int
    copies: int
    samples: int
    timeout_s: float
    """For each task."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunReport:
    """One run of the bench."""

    settings: Settings
    gpus: tuple[BenchGpu, ...]
    numa_nodes: tuple[int, ...]
    driver_version: Plain | None
    cuda_driver_version: int | None
    started_at: Plain
    """UTC, ISO 8601."""
    wall_s: float
    interrupted: bool
    notes: tuple[Plain, ...] = ()
    """What a reader of every number has to know."""
    problems: tuple[Plain, ...] = ()
    """What went wrong outside of any measurement."""
    measurements: tuple[Measurement, ...]

    @property
    def exit_code(self) -> ExitCode:
        """The code that the command ends with: see ``docs/exit-codes.md``."""
        if self.interrupted:
            return ExitCode.INTERRUPTED
        return ExitCode.CRASHED if self.problems else exit_code(self.measurements)


def finish(task: Task, status: Status, **outcome: Any) -> Measurement:
    """Return the measurement of ``task`` that ended with ``status``; ``outcome`` are further fields of it."""
    return Measurement(**{f.name: getattr(task, f.name) for f in fields(Task)}, status=status, **outcome)


def exit_code(measurements: Sequence[Measurement]) -> ExitCode:
    """Return the exit code that measurements add up to; the worst one counts, and waived ones only if all are."""
    if any(m.status in (Status.CRASHED, Status.TIMED_OUT) for m in measurements):
        return ExitCode.CRASHED
    failed = [m for m in measurements if m.status is Status.FAILED]
    if any(not m.known_cause for m in failed):
        return ExitCode.CRASHED
    if failed or any(m.status is Status.CORRUPT for m in measurements):
        return ExitCode.FAILED
    if all(m.status is Status.WAIVED for m in measurements):
        return ExitCode.NOTHING
    return ExitCode.OK
