"""A run of the bench: measurements with their samples and evidence, and the time of each phase."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field, fields, replace
from pkgutil import resolve_name
from typing import Any, ClassVar, TypeVar

from egmctl.compat import StrEnum
from egmctl.dataclass import dataclass
from egmctl.model.answer import UNANSWERED, Answer, Cause
from egmctl.model.change import Change
from egmctl.model.doubt import Doubt
from egmctl.model.finding import Waiver, WaiverKind
from egmctl.model.kernel_log import KernelMessages, LoggedFault
from egmctl.model.machine import Machine
from egmctl.model.nccl import NcclRun
from egmctl.model.record import BusId, Plain, Shown, Uuid
from egmctl.model.route import LinkKind, Rank, UcxPath
from egmctl.model.task import Quantity, Task
from egmctl.model.verdict import MemoryOwner, RunVerdict

Seconds = TypeVar("Seconds", bound="PhaseSeconds")


class Phase(StrEnum):
    """The phases of a step in a measuring process, in order."""

    SET_UP = "set-up"
    """Creates streams, allocates and opens buffers, writes pointer chains, and does everything outside of the other
    phases."""
    WARM_UP = "warm-up"
    """Fills the sources and runs all flows a few times."""
    MEASURING = "measuring"
    """Queues the timed work and waits until it has completed."""
    VERIFYING = "verifying"
    """Poisons destinations before a sample and verifies them after it."""
    TEAR_DOWN = "tear-down"
    """Frees buffers that no later step needs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PhaseSeconds:
    """The seconds of each phase."""

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

    def plus(self: Seconds, other: PhaseSeconds) -> Seconds:
        """Return this record with the seconds of another one added, phase by phase."""
        names = [phase.name for phase in fields(PhaseSeconds)]
        return replace(self, **{name: getattr(self, name) + getattr(other, name) for name in names})


@dataclass(frozen=True, slots=True, kw_only=True)
class CaseSeconds(PhaseSeconds):
    """The seconds of all steps of one case, including proofs and repetitions."""

    case: Plain
    steps: int


@dataclass(frozen=True, slots=True, kw_only=True)
class RunSeconds(PhaseSeconds):
    """The seconds of a run: the sum of its phases, starting and waiting is ``RunReport.wall_s``.

    With several processes, these are the times of the first; all run the same steps together. ``tear_down_s`` includes
    the time in which the run waited for processes to end.
    """

    starting_s: float
    """The time from the start of the run, or of new processes after a failure, until CUDA, contexts and kernels are
    ready. It excludes what the first process did while the facts were read."""
    waiting_s: float
    """The remaining time: messages between processes, the journal, the kernel log, steps of processes that crashed,
    and NCCL's measurement."""
    cases: tuple[CaseSeconds, ...]
    """The cases in the order of execution."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HostLoad:
    """The load of the host's CPUs during a run."""

    cpus: int
    """The number of online CPUs."""
    load_average: float
    """The load average over the last minute, at the end."""
    wall_s: float
    others_cpu_s: float
    """The CPU time of all other processes."""


COUNTED_AT_LEAST = 0.95
"""The minimum fraction of the expected bytes in the link's counters, which count KiB and may lag behind."""
STRAY_AT_MOST = 0.5
"""The maximum fraction of the expected bytes that another kind of link, or another GPU, may show."""


NVLINK_COUNT = "nvlink-count"
"""The name of NVLink's newer byte counters beside ``nvlink``, the older ones (``egmctl/gpu/telemetry.py``)."""
COUNTERS_AGREE = 0.25
"""The maximum difference between the two, as a part of the larger. Chosen: the newer ones may count protocol too."""


def counted_bytes(rises: Mapping[str, int], link: str) -> int | None:
    """Return the increase of a link's byte counters; of NVLink's newer ones if the older ones do not answer.

    ``None`` if none answers, or if both do and contradict each other.
    """
    older, newer = rises.get(link), rises.get(NVLINK_COUNT) if link == LinkKind.NVLINK else None
    if older is None or newer is None:
        return newer if older is None else older
    return older if abs(older - newer) <= max(COUNTERS_AGREE * max(older, newer), 16 << 20) else None


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuEvidence:
    """The state of one GPU during a measurement; ``None`` is not reported."""

    bus_id: BusId
    label: Plain
    sm_clock_mhz: int | None = None
    """The lowest sampled clock; likewise ``memory_clock_mhz``."""
    memory_clock_mhz: int | None = None
    throttle_reasons: tuple[Plain, ...] | None = None
    """All sampled throttle reasons, without ``idle``."""
    temperature_c: int | None = None
    """The highest sampled temperature."""
    sent_bytes: Mapping[Plain, int] = field(default_factory=dict)
    """The increase of the byte counters by link (``nvlink``, ``pcie``), and of NVLink's newer ones (``nvlink-count``)
    if they answer. PCIe bytes include protocol, ``nvlink`` bytes do not. They are read on the GPU that issues the work
    and, on NVLink, on the GPU under which EGM memory was allocated."""
    received_bytes: Mapping[Plain, int] = field(default_factory=dict)
    errors: Mapping[Plain, int] = field(default_factory=dict)
    """The increase of each error counter that increased."""
    other_processes: tuple[int, ...] | None = None
    """The ids of other processes that compute on the GPU."""


class LinkProof(StrEnum):
    """The comparison of the link counters with the moved bytes."""

    PROVEN = "proven"
    """The link's counters increased by at least :data:`COUNTED_AT_LEAST` of the bytes."""
    BY_EXCLUSION = "by-exclusion"
    """The link has no counters, and those of the other kinds increased by at most :data:`STRAY_AT_MOST` of the
    bytes."""
    REFUTED = "refuted"
    """The link's counters increased by too little, or those of another kind of link by too much."""
    UNKNOWN = "unknown"
    """No counters are available."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LinkEvidence:
    """The link that carried the bytes, by the counters of the GPUs."""

    link: LinkKind
    """The expected link at the GPUs that issue the work. The counters may replace it if the owner of EGM or managed
    memory is unknown (NVLink instead of C2C, or C2C instead of NVLink) and if the EGM route is blocked."""
    expected_bytes: int
    """The bytes that the samples moved over the link, without retries and verification."""
    carried_bytes: int | None
    """The increase of the link's counters; ``None`` if it has none, or if they contradict each other."""
    verdict: LinkProof
    fields: Plain | None = None
    """The NVML fields of ``carried_bytes``, sent and received: ``138/139`` or ``202/204`` for NVLink, ``197/198``."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskEvidence:
    """The state of a task's GPUs during its samples."""

    gpus: tuple[GpuEvidence, ...]
    route: LinkEvidence | None = None
    """The link; ``None`` if no bytes leave a GPU or they are too few."""
    unread: Plain | None = None
    """The reason why there is no evidence."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Placement:
    """The NUMA placement of one buffer of host memory."""

    label: Plain
    """The endpoint of the buffer, e.g. ``NUMA1``."""
    proof: Plain
    """The method: ``move_pages``, ``MemFree`` or ``not provable``."""
    detail: Plain
    """One sentence: the observation, or why there is none."""
    right: bool | None
    """Whether the whole buffer is on its node; ``None`` if that cannot be determined."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BufferCost:
    """The cost of allocating one buffer, which no sample includes.

    A buffer may use memory that an earlier step allocated and no longer needs: the cost is what that took.
    """

    label: Plain
    memory: Plain
    size_bytes: int
    allocate_ms: float
    first_touch_ms: float | None = None
    """The time of the first write to the whole buffer."""
    granularity_bytes: int | None = None
    """The minimum granularity of cuMemCreate memory (cuMemGetAllocationGranularity), of which its size is a multiple.
    The driver reports none for other memory."""
    recommended_granularity_bytes: int | None = None
    """The recommended granularity."""
    page_bytes: int | None = None
    """The kernel's page size of memory that the process mapped itself (KernelPageSize in ``/proc/self/smaps``);
    ``None`` if the driver chose the pages."""
    huge_bytes: int | None = None
    """The bytes of such memory in transparent huge pages (AnonHugePages), after the first write to all of it."""


class MeasurementStatus(StrEnum):
    """The outcomes of a measurement; all but ``ok`` have a reason."""

    OK = "ok"
    UNSTABLE = "unstable"
    """It was measured and verified, but the samples vary too much (:data:`egmctl.bench.results.UNSTABLE_CV`)."""
    CORRUPT = "corrupt"
    """The destination did not contain the data that was sent."""
    WAIVED = "waived"
    """It was not run, because of its waivers or because the run ended before it."""
    FAILED = "failed"
    """A driver call failed, or samples could not be taken."""
    CRASHED = "crashed"
    """The worker process died."""
    TIMED_OUT = "timed-out"
    """The worker process timed out and was killed."""


BROKEN = (MeasurementStatus.CORRUPT, MeasurementStatus.FAILED, MeasurementStatus.CRASHED, MeasurementStatus.TIMED_OUT)
"""The statuses of tasks that were run without a usable result."""


class Verification(StrEnum):
    """The methods of verifying the data."""

    GPU_EVERY_SAMPLE = "gpu-every-sample"
    """A kernel on the GPU compares all bytes of the destination after every sample."""
    CHECKSUM_EVERY_SAMPLE = "checksum-every-sample"
    """The checksum of the data that was read is compared in every sample. Nothing is written."""
    COUNTERS_EVERY_SAMPLE = "counters-every-sample"
    """All counters contain the sum of the additions after every sample, and each addition returned the previous
    value."""
    WALK_EVERY_SAMPLE = "walk-every-sample"
    """The pointer chase of every sample ended at the expected index, so each of its loads returned the right line."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """One timed batch of copies, or one timed pointer chase."""

    bandwidth_gb_s: float | None = None
    """The bandwidth of all flows together: their bytes divided by the time from the first start to the last end, in 1e9
    bytes per second. For a loaded latency, the bandwidth of the load."""
    flows_gb_s: tuple[float, ...] = ()
    """The bandwidth of each flow, from its own start to its own end."""
    latency_ns: float | None = None
    """The mean of a chase's loads or a ping-pong's round trips; the median round trip of events and messages."""
    p50_ns: float | None = None
    """The median round trip of a ping-pong, of events or of messages; ``p99_ns`` is the 99th percentile."""
    p99_ns: float | None = None
    elapsed_ms: float
    """The time that the other values are computed from: the GPU's, or the host's for CPU threads, events and
    messages."""
    wall_ms: float
    """The duration on the host's clock, including the wake-up of the host."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Summary:
    """Statistics of one quantity over the samples. The field that holds this has the unit in its name."""

    median: float
    min: float
    max: float
    cv: float | None
    """The coefficient of variation: sample standard deviation / mean. ``None`` for a single sample or a mean of 0."""
    p05: float | None = None
    """The 5th percentile, from :data:`egmctl.bench.results.PERCENTILE_SAMPLES` samples on; ``p95`` is the 95th."""
    p95: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Stage:
    """One stage of a handle's life cycle."""

    name: Plain
    """``allocate``, ``set-access``, ``export``, ``transfer``, ``open``, ``map``, ``import-access``, ``first-touch``,
    ``second-touch``, ``close`` or ``free``; for memory that UCX registers ``register``, ``pack``, ``unpack`` or
    ``deregister``."""
    ms: Summary


@dataclass(frozen=True, slots=True, kw_only=True)
class Mismatch:
    """The difference between a destination and the data that was sent, in the first sample that differed."""

    sample: int
    """The index of the sample."""
    flow: int = 0
    """The index of the flow in the task."""
    words: int
    """The number of 8-byte words that differ."""
    first_offset_bytes: int
    expected: Plain
    """The expected value of the first differing word, hexadecimal."""
    found: Plain
    """The same word, read again: equal to ``expected`` if only the verification's first read was wrong."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Attempt:
    """The samples of an attempt whose result is not the one that was kept."""

    status: MeasurementStatus
    reason: Plain | None = None
    samples: tuple[Sample, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Measurement(Task):
    """A task and its result."""

    status: MeasurementStatus
    reason: Plain | None = None
    """One sentence for every status but ``ok``; an ``ok`` measurement may have one too."""
    waivers: tuple[Waiver, ...] = ()
    """All reasons why the measurement was waived; the first is ``reason``."""
    samples: tuple[Sample, ...] = ()
    bandwidth_gb_s: Summary | None = None
    """The bandwidth of all flows together."""
    flows_gb_s: tuple[Summary, ...] = ()
    """The bandwidth of each flow; empty if the flows were not timed."""
    latency_ns: Summary | None = None
    stages: tuple[Stage, ...] = ()
    """The stages of a handle's life cycle, or of the memory registration for one-sided UCX."""
    in_process: float | None = None
    """For memory of another process: the median of the same path within one process, in the same run."""
    gating: Plain | None = None
    """The gate that blocked the work until all of it was queued: ``kernel`` or ``none``."""
    verification: Verification | None = None
    """The method; ``None`` if nothing was verified."""
    mismatch: Mismatch | None = None
    seeds: tuple[int, ...] = ()
    """The seed of each flow's source data (``egmctl/gpu/kernels/pattern.cu``)."""
    concurrent: int | None = None
    """The number of tasks that were measured at the same time, including this one: disjoint pairs over NVLink."""
    alone: float | None = None
    """The median of the same quantity with nothing else running, which proves that concurrency does not change it."""
    attempts: int = 1
    """The number of attempts: more than one if samples varied too much, and in a soak."""
    other_attempts: tuple[Attempt, ...] = ()
    """The attempts beside the one whose result is this measurement's, in order. A soak keeps all samples together."""
    slowest_at_s: float | None = None
    """In a soak, the time of the worst sample, or of the latest pass that broke, in seconds since the soak began."""
    costs: tuple[BufferCost, ...] = ()
    """The cost of the buffers that this measurement used first."""
    placements: tuple[Placement, ...] = ()
    """The NUMA placement of the buffers in host memory."""
    evidence: TaskEvidence | None = None
    ucx: UcxPath | None = None
    """The path that UCX chose."""
    known_cause: bool = False
    """Whether the failure has a known cause in the environment; ``reason`` names it."""
    last_call: Plain | None = None
    """The driver call that failed, or that was in progress when the worker crashed or timed out."""
    failed_rank: int | None = None
    """The rank that failed, crashed or timed out."""
    wall_s: float | None = None
    """The total time: buffers, filling, warm-up, samples and verification."""

    @property
    def measured(self) -> bool:
        """Whether the values are valid: it was timed and verified, although it may be unstable."""
        return self.status in (MeasurementStatus.OK, MeasurementStatus.UNSTABLE)

    def graver_than(self, other: Measurement) -> bool:
        """Whether this outcome takes precedence over that of another attempt, because it broke more severely.

        Corrupt data takes precedence over a failed call, and both over a value.
        """
        if self.status is MeasurementStatus.CORRUPT:
            return other.status is not MeasurementStatus.CORRUPT
        return self.status in BROKEN and other.status not in BROKEN

    @property
    def missed_path(self) -> bool:
        """Whether the intended path was not measured: the task was waived, or staged through host memory."""
        return self.status is MeasurementStatus.WAIVED or any(flow.route.staged_reason for flow in self.flows)

    @property
    def headline(self) -> Summary | None:
        """The result: a latency (ns), or the bandwidth of all flows together (GB/s).

        ``None`` if nothing was measured, and for a life cycle, whose stages have no single value.
        """
        if not self.measured or self.quantity is Quantity.DURATION:
            return None
        return self.latency_ns if self.quantity is Quantity.LATENCY else self.bandwidth_gb_s

    @property
    def timed(self) -> Summary | None:
        """The value of the samples even if the data is corrupt: a latency (ns), or a bandwidth (GB/s).

        Corrupt data has this speed of the path, but no result (:attr:`headline`). ``None`` if nothing was timed.
        """
        return self.latency_ns or self.bandwidth_gb_s


@dataclass(frozen=True, slots=True, kw_only=True)
class BenchGpu:
    """A GPU that was measured or requested."""

    label: Plain
    index: int
    bus_id: BusId
    uuid: Uuid | None
    name: Plain | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """The settings of a run."""

    size_bytes: int
    copies: int | None
    """Copies per sample; ``None`` if each task has as many as a sample of sufficient length needs (``Task.copies``)."""
    samples: int
    timeout_s: float
    """The timeout of each step."""
    serial: bool = False
    """Whether disjoint pairs are measured one at a time."""
    gate: bool = True
    """Whether work is blocked until all of it is queued. Profilers serialise kernels, so a gate times out under
    them."""
    allow_busy: bool = False
    """Whether GPUs that other processes use are measured."""
    memory_percent: int = 50
    """The percentage of the free memory of each GPU, each NUMA node and the host that buffers may use."""
    duration_s: float | None = None
    """The duration of a soak, which repeats all measurements; ``None`` without a soak."""


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class RunReport(Shown):
    """One run of the bench."""

    SCHEMA: ClassVar[str] = "egmctl.bench/3"

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
    """Facts that apply to every value of the run."""
    problems: tuple[Plain, ...] = ()
    """Failures outside of measurements."""
    kernel_messages: KernelMessages | None = None
    """The kernel log messages during the run; ``None`` if the log was not read."""
    ranks: tuple[Rank, ...] = ()
    """The processes of measurements between several ranks."""
    measurements: tuple[Measurement, ...]
    nccl: NcclRun | None = None
    """What NCCL measured between the GPUs; ``None`` without the suite ``nccl``."""
    verdict: RunVerdict | None = None
    """The verdict; ``None`` if the run was not judged."""
    doubts: tuple[Doubt, ...] = ()
    """The reasons not to believe measurements, or not all of them (:mod:`egmctl.verdict.trust`)."""
    changes: tuple[Change, ...] = ()
    """What changed on the GPUs between the start and the end of the run (:mod:`egmctl.verdict.trust`)."""
    causes: tuple[Cause, ...] = ()
    """The causes of slow, broken or waived measurements, the most severe first."""
    host_load: HostLoad | None = None
    """The load of the host; ``None`` in a run of several commands."""
    seconds: RunSeconds | None = None
    """The time of each phase; ``None`` for a run that did not end."""
    machines: tuple[Machine, ...] = ()
    """The nodes that were measured, with the facts for the plan and with pseudonyms for private data."""
    logged: tuple[LoggedFault, ...] = ()
    """What the kernel logged during the run, by device and kind, the most severe first."""
    answer: Answer = UNANSWERED
    """What the command answers (:mod:`egmctl.verdict.answers`)."""

    def to_pandas(self, *, samples: bool = False) -> Any:
        """Return the rows of the CSV as a pandas DataFrame.

        Parameters
        ----------
        samples
            Whether each sample is a row of its own.

        Raises
        ------
        UsageError
            If pandas is not installed.
        """
        return resolve_name("egmctl.report.exports.csv:bench_frame")(self, samples=samples)

    @property
    def fault(self) -> str | None:
        """The first inconsistency, as half a sentence that begins with the key; ``None`` if there is none."""
        for place, measurement in enumerate(self.measurements):
            if fault := measurement_fault(measurement):
                return f"result.measurements[{place}].{fault}"
        numbers: list[tuple[str, int]] = []
        if (verdict := self.verdict) is not None:
            for place, owner in enumerate(verdict.owners):
                if fault := _owner_fault(owner):
                    return f"result.verdict.owners[{place}]{fault}"
            numbers += [("verdict", judged.measurement) for judged in verdict.judged]
            numbers += [("verdict", number) for each in verdict.classes for number in each.measurements]
            numbers += [("verdict.owners", number) for owner in verdict.owners for number in owner.measurements]
        numbers += [(f"causes[{place}]", n) for place, cause in enumerate(self.causes) for n in cause.measurements]
        numbers += [(f"doubts[{place}]", doubt.measurement) for place, doubt in enumerate(self.doubts)]
        if self.nccl is not None and self.nccl.slowest is not None:
            numbers.append(("nccl.slowest", self.nccl.slowest.measurement))
        count = len(self.measurements)
        outside = ((where, number) for where, number in numbers if not 0 <= number < count)
        return next((f"result.{where}: there is no measurement {n} of {count}" for where, n in outside), None)


def finish(task: Task, status: MeasurementStatus, **outcome: Any) -> Measurement:
    """Return the measurement of ``task`` with a status; ``outcome`` has further fields of :class:`Measurement`."""
    return Measurement(**{f.name: getattr(task, f.name) for f in fields(Task)}, status=status, **outcome)


def waived(task: Task, kind: WaiverKind, reason: str, *, last_call: str | None = None) -> Measurement:
    """Return the waived measurement of ``task``, with one reason."""
    waivers = (Waiver(kind=kind, reason=reason),)
    return finish(task, MeasurementStatus.WAIVED, reason=reason, waivers=waivers, last_call=last_call)


def measurement_fault(measurement: Measurement) -> str | None:
    """Return the first inconsistency, as half a sentence that begins with the field; ``None`` if there is none."""
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
