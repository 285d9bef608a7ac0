"""A run of the bench: measurements with their samples and evidence, and where its time went."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any, ClassVar

from egmctl.compat import StrEnum
from egmctl.errors import ExitCode
from egmctl.model.finding import RunCause, Waiver, WaiverKind
from egmctl.model.finding import Status as Found
from egmctl.model.kernel_log import KernelMessages
from egmctl.model.machine import Machine
from egmctl.model.record import BusId, Plain, Uuid
from egmctl.model.route import LinkKind, Rank, UcxPath
from egmctl.model.task import Quantity, Task
from egmctl.model.verdict import MemoryOwner, RunVerdict


class Phase(StrEnum):
    """The phases of a step in a process that measures, in their order."""

    SET_UP = "set-up"
    """Makes streams and buffers, opens those of others, writes chains; and what is none of the rest."""
    WARM_UP = "warm-up"
    """Fills the sources, and moves everything a few times."""
    MEASURING = "measuring"
    """Queues what is timed, and waits for it."""
    VERIFYING = "verifying"
    """Poisons destinations before a sample, and looks at what it has left."""
    TEAR_DOWN = "tear-down"
    """Gives buffers back that no later step needs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PhaseSeconds:
    """Seconds of each phase."""

    set_up_s: float = 0
    warm_up_s: float = 0
    measuring_s: float = 0
    verifying_s: float = 0
    tear_down_s: float = 0

    @property
    def sum_s(self) -> float:
        """The sum of all phases."""
        total: float = sum(getattr(self, phase.name) for phase in fields(PhaseSeconds))
        return total

    def plus(self, other: PhaseSeconds) -> PhaseSeconds:
        """Return both together."""
        names = [phase.name for phase in fields(PhaseSeconds)]
        return PhaseSeconds(**{name: getattr(self, name) + getattr(other, name) for name in names})


@dataclass(frozen=True, slots=True, kw_only=True)
class CaseSeconds(PhaseSeconds):
    """The seconds of all steps of one case, proofs and repeats included."""

    case: Plain
    steps: int


@dataclass(frozen=True, slots=True, kw_only=True)
class RunSeconds(PhaseSeconds):
    """The seconds of a run: what its phases, starting and waiting take together is ``RunReport.wall_s``.

    Of several processes it is the first one's time: all do the same steps together. ``tear_down_s`` has the end of the
    processes too.
    """

    starting_s: float
    """From when the run began, or a process failed, until processes had CUDA, contexts and kernels. What the first one
    did while the facts were read is not in it."""
    waiting_s: float
    """The rest: messages between the processes, the journal, the kernel's log, and steps of processes that died."""
    cases: tuple[CaseSeconds, ...]
    """In the order in which they ran."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HostLoad:
    """How busy the CPUs of the host were while a run measured."""

    cpus: int
    """That are online."""
    load_average: float
    """Over the last minute, at the end."""
    wall_s: float
    others_cpu_s: float
    """CPU time of all processes but the run's own."""


COUNTED_AT_LEAST = 0.95
"""The part of the expected bytes that a link's counters must show: they are read in KiB and may lag behind."""
STRAY_AT_MOST = 0.5
"""The part of the expected bytes that another kind of link, or another GPU, may show."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuEvidence:
    """One GPU over the time of a measurement; ``None`` where the driver does not say."""

    bus_id: BusId
    label: Plain
    sm_clock_mhz: int | None = None
    """The lowest seen, like the memory's."""
    memory_clock_mhz: int | None = None
    throttle_reasons: tuple[Plain, ...] | None = None
    """All that were seen, without ``idle``."""
    temperature_c: int | None = None
    """The highest seen."""
    sent_bytes: Mapping[Plain, int] = field(default_factory=dict)
    """By link (``nvlink``, ``pcie``): what its counter rose by. Of PCIe with protocol, of NVLink without. Counted
    where the GPU issues the work; of EGM memory that was allocated under another GPU, that one's NVLinks too."""
    received_bytes: Mapping[Plain, int] = field(default_factory=dict)
    errors: Mapping[Plain, int] = field(default_factory=dict)
    """By counter: what it rose by; only those that rose."""
    other_processes: tuple[int, ...] | None = None
    """Those that compute on the GPU, by their ids."""


class LinkProof(StrEnum):
    """Whether the bytes took the expected link."""

    PROVEN = "proven"
    """The link's own counters rose by at least what was moved."""
    BY_EXCLUSION = "by-exclusion"
    """The link has no counter, and those of the other kinds did not rise by what was moved."""
    REFUTED = "refuted"
    """The link's own counters did not rise by what was moved, or those of another kind of link did."""
    UNKNOWN = "unknown"
    """There are no counters to tell by."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LinkEvidence:
    """The link that carried the bytes, by the counters of the GPUs."""

    link: LinkKind
    """The one expected at the GPUs that issue the work; of EGM memory of a GPU's own CPU, NVLink instead of C2C where
    the counters show that it belongs to the CPU's other GPU, and C2C instead of NVLink where they show it does not."""
    expected_bytes: int
    """The bytes that the samples moved over it, without retries and checks."""
    carried_bytes: int | None
    """The rise of its counters; ``None`` where it has none."""
    verdict: LinkProof


@dataclass(frozen=True, slots=True, kw_only=True)
class Evidence:
    """Observations of the GPUs of a task while it ran."""

    gpus: tuple[GpuEvidence, ...]
    route: LinkEvidence | None = None
    """``None`` where the bytes of a task leave no GPU, or are too few to tell."""
    unread: Plain | None = None
    """Why nothing could be told."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Placement:
    """Where one buffer of host memory lies."""

    label: Plain
    """The buffer's end, e.g. ``NUMA1``."""
    proof: Plain
    """``move_pages``, ``MemFree`` or ``not provable``."""
    detail: Plain
    """One sentence: what was seen, or why nothing can be."""
    right: bool | None
    """Whether all of it is on its node; ``None`` where that is not provable."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BufferCost:
    """The cost of getting one buffer, apart from every sample."""

    label: Plain
    memory: Plain
    size_bytes: int
    allocate_ms: float
    first_touch_ms: float | None = None
    """The first time that all of it was written."""
    granularity_bytes: int | None = None
    """Of cuMemCreate memory: the minimum of cuMemGetAllocationGranularity, of which its size is a multiple. The driver
    names none for other memory."""
    recommended_granularity_bytes: int | None = None
    """The recommended one."""
    page_bytes: int | None = None
    """Of memory that the process has mapped itself, the kernel's page size (KernelPageSize in ``/proc/self/smaps``);
    ``None`` where the driver has chosen the pages."""
    huge_bytes: int | None = None
    """How much of such memory lies in transparent huge pages (AnonHugePages), once all of it is written."""


class Status(StrEnum):
    """How a measurement ended; everything but ``ok`` has a reason."""

    OK = "ok"
    UNSTABLE = "unstable"
    """Measured and verified, but the samples differ too much (:data:`egmctl.bench.results.UNSTABLE_CV`)."""
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


BROKEN = (Status.CORRUPT, Status.FAILED, Status.CRASHED, Status.TIMED_OUT)
"""Statuses of tasks that were tried and gave no result that can be used."""


class Verification(StrEnum):
    """The comparison with what was sent."""

    GPU_EVERY_SAMPLE = "gpu-every-sample"
    """After every sample all bytes of the destination, by a kernel on the GPU."""
    CHECKSUM_EVERY_SAMPLE = "checksum-every-sample"
    """Every sample's sum over what was read, which was not written anywhere."""
    COUNTERS_EVERY_SAMPLE = "counters-every-sample"
    """After every sample all counters hold what was added to them, and each addition found what was there before."""
    WALK_EVERY_SAMPLE = "walk-every-sample"
    """Every sample's walk ended at the line where its chain leads: each of its loads gave the right line."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """One timed batch of copies, or one timed walk."""

    bandwidth_gb_s: float | None = None
    """The bandwidth of all flows together: their bytes by the time from the first start to the last end. GB/s are 1e9
    bytes a second. Of a loaded latency, what the load moved."""
    flows_gb_s: tuple[float, ...] = ()
    """The bandwidth of each flow, by its own start and end."""
    latency_ns: float | None = None
    """Mean of the walk's loads; of a ping-pong, of its round trips; of events and messages the median of theirs."""
    p50_ns: float | None = None
    """The median of a ping-pong's round trips."""
    p99_ns: float | None = None
    elapsed_ms: float
    """By the GPU: what the other numbers are made of."""
    wall_ms: float
    """The same batch by the host's clock, with the host's waking up."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Summary:
    """The samples of one quantity; its unit is in the name of the field that holds this."""

    median: float
    min: float
    max: float
    cv: float | None
    """Coefficient of variation: sample standard deviation by mean; ``None`` for a single sample or a mean of 0."""
    p05: float | None = None
    """Percentiles, from :data:`egmctl.bench.results.PERCENTILE_SAMPLES` samples on."""
    p95: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Stage:
    """One stage of a handle's life cycle."""

    name: Plain
    """``allocate``, ``export``, ``transfer``, ``open``, ``map``, ``first-touch``, ``second-touch``, ``close`` or
    ``free``; of memory that UCX registers ``register``, ``pack``, ``unpack``, ``deregister``."""
    ms: Summary


@dataclass(frozen=True, slots=True, kw_only=True)
class Mismatch:
    """Where a destination differed from what was sent, in the first sample that differed."""

    sample: int
    """From 0."""
    flow: int = 0
    """The flow with this destination, by its place in the task."""
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
    waivers: tuple[Waiver, ...] = ()
    """All that stopped a waived one, what the reason says first."""
    samples: tuple[Sample, ...] = ()
    bandwidth_gb_s: Summary | None = None
    """The bandwidth of all flows together."""
    flows_gb_s: tuple[Summary, ...] = ()
    """The bandwidth of each flow; empty where none was timed."""
    latency_ns: Summary | None = None
    stages: tuple[Stage, ...] = ()
    """The stages of a life cycle; of one-sided UCX what it costs to register the memory."""
    in_process: float | None = None
    """Where the memory is another process': the median of the same path within one process, in the same run."""
    gating: Plain | None = None
    """The gate that held the copies until all were queued: ``kernel`` or ``none``."""
    verification: Verification | None = None
    """``None`` where nothing was verified."""
    mismatch: Mismatch | None = None
    seeds: tuple[int, ...] = ()
    """The seed of each flow's source (``egmctl/gpu/kernels/pattern.cu``)."""
    concurrent: int | None = None
    """How many tasks were measured at the same time, this one included: disjoint pairs over NVLink are."""
    alone: float | None = None
    """The same quantity once more while nothing else ran: the proof that measuring pairs at once changes nothing."""
    attempts: int = 1
    """How often it was measured: again where the samples differed too much, and in a soak."""
    slowest_at_s: float | None = None
    """In a soak, when the worst sample was taken: seconds since the run began."""
    costs: tuple[BufferCost, ...] = ()
    """The cost of the buffers that this measurement was the first to use."""
    placements: tuple[Placement, ...] = ()
    """The places of the buffers in host memory."""
    evidence: Evidence | None = None
    ucx: UcxPath | None = None
    """The way that UCX took."""
    known_cause: bool = False
    """The failure has a known cause in the environment, which the reason names."""
    last_call: Plain | None = None
    """The driver call that failed, or that was under way when the worker died or hung."""
    failed_rank: int | None = None
    """The one of several processes that failed, died or hung."""
    wall_s: float | None = None
    """All of it: buffers, filling, warm-up, samples and verification."""

    @property
    def measured(self) -> bool:
        """Whether its numbers count: it was timed and verified, though perhaps unstable."""
        return self.status in (Status.OK, Status.UNSTABLE)

    def graver_than(self, other: Measurement) -> bool:
        """Whether it broke in a way that counts more than the outcome of another try: data that arrives corrupt counts
        more than a call that fails, and both more than a number."""
        if self.status is Status.CORRUPT:
            return other.status is not Status.CORRUPT
        return self.status in BROKEN and other.status not in BROKEN

    @property
    def missed_path(self) -> bool:
        """Whether the path that it is about was not measured: waived, or staged through host memory in its place."""
        return self.status is Status.WAIVED or any(flow.route.staged_reason for flow in self.flows)

    @property
    def headline(self) -> Summary | None:
        """The figure that it is about: a latency (ns), or the bandwidth of all flows together (GB/s).

        ``None`` where nothing was measured, and of a life cycle, whose stages have no one figure.
        """
        if not self.measured or self.quantity is Quantity.DURATION:
            return None
        return self.latency_ns if self.quantity is Quantity.LATENCY else self.bandwidth_gb_s

    @property
    def timed(self) -> Summary | None:
        """The figure of its samples, whatever was found of the data: a latency (ns), or a bandwidth (GB/s).

        Corrupt data has this too: it says how fast the path was, but is no result, which :attr:`headline` is. ``None``
        where nothing was timed.
        """
        return self.latency_ns or self.bandwidth_gb_s


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
    copies: int | None
    """``None``: for each task as many as make a sample long enough (``Task.copies`` says how many)."""
    samples: int
    timeout_s: float
    """For each step."""
    serial: bool = False
    """One pair at a time, although pairs are disjoint."""
    gate: bool = True
    """Whether work is held back until all of it is queued; profilers serialise kernels, which a gate does not bear."""
    allow_busy: bool = False
    """GPUs that other processes use are measured too."""
    memory_percent: int = 50
    """The share of what is free on each GPU, each NUMA node and the host that buffers may take."""
    duration_s: float | None = None
    """Everything is measured again and again for this long."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunReport:
    """One run of the bench."""

    SCHEMA: ClassVar[str] = "egmctl.bench/2"

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
    """Facts that a reader of every number has to know."""
    problems: tuple[Plain, ...] = ()
    """Failures outside of any measurement."""
    kernel_messages: KernelMessages | None = None
    """Messages that the kernel logged meanwhile; ``None`` where not read."""
    ranks: tuple[Rank, ...] = ()
    """The processes of the measurements by several."""
    measurements: tuple[Measurement, ...]
    verdict: RunVerdict | None = None
    """``None`` where the run was not judged."""
    causes: tuple[RunCause, ...] = ()
    """Causes that explain why measurements are slow, broke or were not made, the gravest first."""
    host_load: HostLoad | None = None
    """``None`` where not read: in a run over several nodes, and in documents of older versions."""
    seconds: RunSeconds | None = None
    """Where the time went; ``None`` in what is left of a run that did not end."""
    machines: tuple[Machine, ...] = ()
    """The nodes that were measured, with the facts that the plan was made from and pseudonyms for what is private."""

    @property
    def fault(self) -> str | None:
        """The first contradiction in the record, as half a sentence that names the place."""
        return _run_fault(self)

    @property
    def exit_code(self) -> ExitCode:
        """The code that the command ends with: see ``docs/exit-codes.md``."""
        if self.interrupted:
            return ExitCode.INTERRUPTED
        code = ExitCode.CRASHED if self.problems else exit_code(self.measurements)
        if code is not ExitCode.OK:
            return code
        strict = self.verdict is not None and self.verdict.strict
        failed = self.verdict is not None and self.verdict.failed
        return ExitCode.FAILED if failed or any(self._is_fault(cause, strict) for cause in self.causes) else code

    def _is_fault(self, cause: RunCause, strict: bool) -> bool:
        """Say whether a failed check, or in a strict run any finding, kept a path from being measured."""
        if not any(self.measurements[number].missed_path for number in cause.explains):
            return False
        return cause.status is Found.FAIL or strict


def finish(task: Task, status: Status, **outcome: Any) -> Measurement:
    """Return the measurement of ``task`` that ended with ``status``; ``outcome`` are further fields of it."""
    return Measurement(**{f.name: getattr(task, f.name) for f in fields(Task)}, status=status, **outcome)


def waived(task: Task, kind: WaiverKind, reason: str, *, last_call: str | None = None) -> Measurement:
    """Return the measurement of ``task`` that one thing kept from being made."""
    waivers = (Waiver(kind=kind, reason=reason),)
    return finish(task, Status.WAIVED, reason=reason, waivers=waivers, last_call=last_call)


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


def _run_fault(report: RunReport) -> str | None:
    for place, measurement in enumerate(report.measurements):
        if fault := measurement_fault(measurement):
            return f"result.measurements[{place}].{fault}"
    numbers: list[tuple[str, int]] = []
    if (verdict := report.verdict) is not None:
        for place, owner in enumerate(verdict.owners):
            if fault := _owner_fault(owner):
                return f"result.verdict.owners[{place}]{fault}"
        numbers += [("verdict", judged.measurement) for judged in verdict.judged]
        numbers += [("verdict", number) for each in verdict.classes for number in each.measurements]
        numbers += [("verdict.owners", number) for owner in verdict.owners for number in owner.measurements]
    numbers += [(f"causes[{place}]", number) for place, cause in enumerate(report.causes) for number in cause.explains]
    count = len(report.measurements)
    return next(
        (f"result.{where}: there is no measurement {n} of {count}" for where, n in numbers if not 0 <= n < count), None
    )


def measurement_fault(measurement: Measurement) -> str | None:
    """Return what in a measurement does not fit together, as half a sentence that begins with the field."""
    flows = len(measurement.flows)
    if not flows:
        return "flows: there is none, a measurement has at least one"
    counts: list[tuple[str, tuple[object, ...]]] = [("flows_gb_s", measurement.flows_gb_s)]
    counts += [(f"samples[{place}].flows_gb_s", sample.flows_gb_s) for place, sample in enumerate(measurement.samples)]
    for name, values in counts:
        if values and len(values) != flows:
            return f"{name}: {len(values)} numbers for {flows} flows"
    return None


def _owner_fault(owner: MemoryOwner) -> str | None:
    if not owner.measurements:
        return ".measurements: there is none"
    if (owner.owner is None) == (owner.unknown is None):
        return ": one of owner and unknown is there, and not both"
    if (owner.owner is None) != (owner.owner_label is None):
        return ".owner_label: it is there where owner is"
    return None
