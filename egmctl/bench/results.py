"""Compute results from samples: statistics, the outcome of a task, and merged results of repeated measurements."""

from __future__ import annotations

import statistics
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from egmctl.bench.buffers import window
from egmctl.driver.signatures import cause_of
from egmctl.errors import DriverCallError, DriverTooOld, EgmctlError
from egmctl.facts.buffers import NoPages
from egmctl.gpu.context import ImpossibleTime
from egmctl.gpu.pattern import WORD_BYTES, Difference
from egmctl.gpu.program import NoKernels
from egmctl.model.finding import WaiverKind
from egmctl.model.measurement import (
    BROKEN,
    Attempt,
    Measurement,
    MeasurementStatus,
    Mismatch,
    Sample,
    Stage,
    Summary,
    finish,
    waived,
)
from egmctl.model.task import Task
from egmctl.units import GB, several

UNSTABLE_CV = 0.03
"""The coefficient of variation above which a measurement is unstable. This threshold is our choice: repeats of one path
on an idle H200 node differ by about 0.1 %."""

PERCENTILE_SAMPLES = 20
"""The minimum number of samples for percentiles: 5 % of fewer is less than one sample."""


def summarize(values: Sequence[float]) -> Summary:
    """Return the statistics of at least one value; without percentiles below :data:`PERCENTILE_SAMPLES` values."""
    mean = statistics.fmean(values)
    percentiles: Sequence[float | None] = (None,)
    if len(values) >= PERCENTILE_SAMPLES:
        percentiles = statistics.quantiles(values, n=20, method="inclusive")
    return Summary(
        median=statistics.median(values),
        min=min(values),
        max=max(values),
        cv=statistics.stdev(values) / mean if len(values) > 1 and mean else None,
        p05=percentiles[0],
        p95=percentiles[-1],
    )


def stages(names: Iterable[str], rounds: Sequence[Mapping[str, float]]) -> tuple[Stage, ...]:
    """Return the statistics of each timed stage in milliseconds, in the order of ``names``."""
    costs = {name: [stages_ms[name] for stages_ms in rounds if name in stages_ms] for name in names}
    return tuple(Stage(name=name, ms=summarize(ms)) for name, ms in costs.items() if ms)


def status_of(
    summary: Summary, wrong: str | None = None, remark: str | None = None
) -> tuple[MeasurementStatus, str | None]:
    """Return the status of samples and its reason. Corrupt data takes precedence over unstable samples.

    Parameters
    ----------
    wrong
        A sentence on corrupt data, if any.
    remark
        The reason to report if the samples are ``ok``.
    """
    if wrong is not None:
        return MeasurementStatus.CORRUPT, wrong
    if summary.cv is not None and summary.cv > UNSTABLE_CV:
        return MeasurementStatus.UNSTABLE, f"the samples vary by {100 * summary.cv:.1f} % (CV)"
    return MeasurementStatus.OK, remark


def bandwidth_gb_s(size_bytes: int, elapsed_ms: float) -> float:
    """Return a bandwidth in GB/s (1e9 bytes per second)."""
    return size_bytes / (elapsed_ms / 1e3) / GB


def of_bandwidth(
    task: Task, samples: Sequence[Sample], mismatch: Mismatch | None, remark: str | None = None, **more: Any
) -> Measurement:
    """Return the measurement of a bandwidth from its samples.

    Parameters
    ----------
    remark
        The reason to report if the status is ``ok``.
    more
        Additional fields of the measurement.
    """
    summary = summarize([sample.bandwidth_gb_s or 0 for sample in samples])
    status, reason = status_of(summary, describe(mismatch, task) if mismatch is not None else None, remark)
    return finish(
        task,
        status,
        reason=reason,
        samples=tuple(samples),
        bandwidth_gb_s=summary,
        flows_gb_s=_by_flow(samples),
        mismatch=mismatch,
        **more,
    )


def of_latency(
    task: Task,
    samples: Sequence[Sample],
    wrong: str | None = None,
    remark: str | None = None,
    *,
    discarded: int = 0,
    **more: Any,
) -> Measurement:
    """Return the measurement of a latency from its samples. Without samples it has failed.

    Parameters
    ----------
    wrong
        A sentence on a wrong value that was read, if any.
    remark
        The reason to report if the status is ``ok`` and no sample was discarded.
    discarded
        The number of samples that are missing because one side timed out waiting for its peer.
    more
        Additional fields of the measurement.
    """
    if not samples:
        return finish(task, MeasurementStatus.FAILED, reason="timed out waiting for the peer in every sample")
    if discarded:
        remark = f"{several(discarded, 'sample')} discarded: timed out waiting for the peer"
    latency = summarize([sample.latency_ns or 0 for sample in samples])
    status, reason = status_of(latency, wrong, remark)
    return finish(task, status, reason=reason, samples=tuple(samples), latency_ns=latency, **more)


def bandwidth_sample(task: Task, elapsed_ms: float, flows_ms: Sequence[float], wall_ms: float) -> Sample:
    """Return the bandwidth sample for the time of all flows together and the time of each flow."""
    size_bytes = task.copies * task.size_bytes
    return Sample(
        bandwidth_gb_s=bandwidth_gb_s(len(task.flows) * size_bytes, elapsed_ms),
        flows_gb_s=tuple(bandwidth_gb_s(size_bytes, flow_ms) for flow_ms in flows_ms),
        elapsed_ms=elapsed_ms,
        wall_ms=wall_ms,
    )


def round_trips(laps_ns: Sequence[float], wall_ms: float) -> Sample:
    """Return the latency sample for the times of single round trips."""
    return Sample(
        latency_ns=statistics.fmean(laps_ns),
        p50_ns=statistics.median(laps_ns),
        p99_ns=statistics.quantiles(laps_ns, n=100)[98],
        elapsed_ms=sum(laps_ns) / 1e6,
        wall_ms=wall_ms,
    )


def mismatch_of(difference: Difference, sample: int, flow: int) -> Mismatch:
    """Return the mismatch record for a difference."""
    return Mismatch(
        sample=sample,
        flow=flow,
        words=difference.words,
        first_offset_bytes=difference.first_offset_bytes,
        expected=f"{difference.expected:#018x}",
        found=f"{difference.found:#018x}",
    )


def describe(mismatch: Mismatch, task: Task) -> str:
    """Return a sentence that says where data is corrupt."""
    where = f"sample {mismatch.sample}"
    if len(task.flows) > 1:
        where += f", {task.flows[mismatch.flow].path}"
    if mismatch.words == 0:
        return f"{where}: the check's result is {mismatch.found}, not {mismatch.expected}; no wrong word was located"
    looked_at = window(task.size_bytes, task.copies, mismatch.sample, task.rotated_bytes).size_bytes // WORD_BYTES
    return (
        f"{where}: {mismatch.words} of {looked_at} words differ, the first at offset "
        f"{mismatch.first_offset_bytes}: expected {mismatch.expected}, found {mismatch.found}"
    )


_STEADINESS = {MeasurementStatus.CORRUPT: 0, MeasurementStatus.OK: 1, MeasurementStatus.UNSTABLE: 2}
"""The precedence of outcomes of one task: corrupt data first, then the steadier result."""


def of_both(before: Measurement | None, now: Measurement) -> Measurement:
    """Return the result to keep after a task was measured, given the result before that, if any.

    The samples of the attempt that is not kept stay in ``other_attempts``: a path that was slow in one attempt of four
    must not look as if it never was.
    """
    if before is None:
        return now
    if before.status in BROKEN:
        # A failure stays, whatever the reason for the repetition: other tasks of the step may have been unstable.
        kept = now if now.graver_than(before) else before
    elif now.status not in _STEADINESS:
        kept = now
    elif before.concurrent != now.concurrent:
        # Measured again alone, since it was slower among others: the first numbers answer another question.
        return now
    else:
        kept = min(before, now, key=lambda measurement: _STEADINESS[measurement.status])
    other = before if kept is now else now
    attempts = before.other_attempts
    if other.samples:
        attempts += (Attempt(status=other.status, reason=other.reason, samples=other.samples),)
    return replace(kept, attempts=before.attempts + 1, other_attempts=attempts)


def with_proof(among: Measurement, proof: Measurement) -> tuple[Measurement, float | None]:
    """Return the result to keep of a task measured with others and then alone, and the difference of the two.

    The second is kept only if it failed worse. The difference is a fraction of its median; ``None`` if one has no
    figure.
    """
    if proof.graver_than(among):
        return proof, None
    summary, alone = among.timed, proof.timed
    measurement = replace(among, alone=alone.median if alone else None)
    if not summary or not alone:
        return measurement, None
    # A median within the range of the samples does not differ: a latency varies by 1 or 2 % with the SM.
    return measurement, max(summary.min / alone.median - 1, 1 - summary.max / alone.median, 0)


SAMPLES_KEPT = 10_000
"""The maximum number of samples that a soak keeps per task, including the slowest."""


class Soak:
    """The clock of a soak, which starts now, and the merge of its repeated results."""

    def __init__(self, duration_s: float) -> None:
        self._started = time.monotonic()
        self._duration_s = duration_s

    @property
    def over(self) -> bool:
        """Whether the time has run out."""
        return self.part_over >= 1

    @property
    def part_over(self) -> float:
        """The elapsed fraction of the time, 0 to 1."""
        return min(1.0, (time.monotonic() - self._started) / self._duration_s)

    def merge(self, before: Measurement | None, now: Measurement) -> Measurement:
        """Return the result of a task after another pass. A failed pass stays visible after later successful passes."""
        at_s = time.monotonic() - self._started
        if before is None:
            return replace(now, slowest_at_s=at_s if now.samples else None)
        attempts = before.attempts + 1
        if before.status not in (MeasurementStatus.OK, MeasurementStatus.UNSTABLE) and not now.graver_than(before):
            return replace(before, attempts=attempts)
        if now.status not in (MeasurementStatus.OK, MeasurementStatus.UNSTABLE):
            return replace(
                before,
                status=now.status,
                reason=now.reason,
                last_call=now.last_call,
                known_cause=now.known_cause,
                mismatch=now.mismatch,
                attempts=attempts,
                slowest_at_s=at_s,
            )
        slowest_at_s = at_s if _worst(now) < _worst(before) else before.slowest_at_s
        samples = _bounded((*before.samples, *now.samples))
        merged = replace(
            now,
            samples=samples,
            attempts=attempts,
            slowest_at_s=slowest_at_s,
            bandwidth_gb_s=_summary([sample.bandwidth_gb_s for sample in samples]),
            latency_ns=_summary([sample.latency_ns for sample in samples]),
            flows_gb_s=_by_flow(samples),
            costs=before.costs or now.costs,
        )
        status, reason = (MeasurementStatus.OK, None) if merged.timed is None else status_of(merged.timed)
        return replace(merged, status=status, reason=reason)


def _worst(measurement: Measurement) -> float:
    """Return the value of the worst sample; a smaller value is worse."""
    if measurement.latency_ns is not None:
        return -measurement.latency_ns.max
    return measurement.bandwidth_gb_s.min if measurement.bandwidth_gb_s is not None else 0


def _bounded(samples: tuple[Sample, ...]) -> tuple[Sample, ...]:
    """Drop every second sample if there are too many, except the slowest."""
    if len(samples) <= SAMPLES_KEPT:
        return samples
    slowest = max(samples, key=lambda sample: sample.elapsed_ms)
    return tuple(sample for place, sample in enumerate(samples) if place % 2 or sample is slowest)


def _by_flow(samples: Iterable[Sample]) -> tuple[Summary, ...]:
    return tuple(map(summarize, zip(*(sample.flows_gb_s for sample in samples), strict=True)))


def _summary(values: list[float | None]) -> Summary | None:
    known = [value for value in values if value is not None]
    return summarize(known) if known else None


EXPIRED_LIMIT = 3
"""The number of attempts at a sample whose gate times out."""


class GateExpired(EgmctlError):
    """The gate timed out in every attempt, before the host had queued the work."""

    def __init__(self) -> None:
        super().__init__(f"the host failed {EXPIRED_LIMIT} times to queue the work in time: it is overloaded")


FAILURES = (DriverCallError, NoKernels, NoPages, GateExpired, ImpossibleTime)
"""The errors that end a measurement but not the worker."""


def failure(task: Task, error: Exception) -> Measurement:
    """Return the outcome of a task that one of :data:`FAILURES` ended: failed, or waived if a feature is missing."""
    if isinstance(error, NoKernels):
        return waived(task, WaiverKind.UNSUPPORTED_ENGINE, str(error))
    if isinstance(error, NoPages):
        return waived(task, WaiverKind.NO_PAGES, str(error))
    if isinstance(error, ImpossibleTime):
        return finish(task, MeasurementStatus.FAILED, reason=str(error), last_call=error.call)
    if not isinstance(error, DriverCallError):
        return finish(task, MeasurementStatus.FAILED, reason=str(error), known_cause=True)
    if isinstance(error, DriverTooOld) or error.name == "CUDA_ERROR_NOT_SUPPORTED":
        return waived(task, WaiverKind.REFUSED, str(error), last_call=error.call)
    if (error.call, error.name) == ("cuDeviceGetByPCIBusId", "CUDA_ERROR_INVALID_DEVICE"):
        return waived(task, WaiverKind.GPU_UNUSABLE, f"CUDA does not see a GPU of this path: {error}")
    if error.name == "CUDA_ERROR_TOO_MANY_PEERS":
        reason = f"{error}; without NVSwitch a GPU has 8 peers at a time, those of other processes too"
        return waived(task, WaiverKind.NO_PEER_ACCESS, reason, last_call=error.call)
    cause = cause_of(error.call, error.number)
    return finish(
        task,
        MeasurementStatus.FAILED,
        reason=f"{error}; {cause}" if cause else str(error),
        known_cause=cause is not None,
        last_call=error.call,
    )
