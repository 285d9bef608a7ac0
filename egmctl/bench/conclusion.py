"""What was timed and looked at becomes samples, and samples a measurement: the same in one process and in several."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from typing import Any

from egmctl.bench.buffers import window
from egmctl.bench.statistics import bandwidth_gb_s, judged, summarize
from egmctl.gpu.pattern import WORD_BYTES, Difference
from egmctl.model.measurement import Measurement, Mismatch, Sample, Status, Task, finish
from egmctl.wording import several


def of_bandwidth(
    task: Task, samples: Sequence[Sample], mismatch: Mismatch | None, remark: str | None = None, **more: Any
) -> Measurement:
    """Return the measurement that samples of a bandwidth make.

    Parameters
    ----------
    remark
        The reason of one that is plainly ``ok``.
    more
        Further fields of it.
    """
    summary = summarize([sample.bandwidth_gb_s or 0 for sample in samples])
    status, reason = judged(summary, describe(mismatch, task) if mismatch is not None else None, remark)
    return finish(
        task,
        status,
        reason=reason,
        samples=tuple(samples),
        bandwidth_gb_s=summary,
        flows_gb_s=tuple(
            summarize([sample.flows_gb_s[place] for sample in samples]) for place in range(len(task.flows))
        ),
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
    """Return the measurement that samples of a latency make.

    Parameters
    ----------
    wrong
        What was read that should not be there, as a sentence.
    remark
        The reason of one that is plainly ``ok``.
    discarded
        How many samples are missing because one side timed out waiting for its peer.
    more
        Further fields of it.
    """
    if not samples:
        return finish(task, Status.FAILED, reason="timed out waiting for the peer in every sample")
    if discarded:
        remark = f"{several(discarded, 'sample')} discarded: timed out waiting for the peer"
    latency = summarize([sample.latency_ns or 0 for sample in samples])
    status, reason = judged(latency, wrong, remark)
    return finish(task, status, reason=reason, samples=tuple(samples), latency_ns=latency, **more)


def bandwidth_sample(task: Task, elapsed_ms: float, flows_ms: Sequence[float], wall_ms: float) -> Sample:
    """Return a sample by the time that all flows took and each of them."""
    size_bytes = task.copies * task.size_bytes
    return Sample(
        bandwidth_gb_s=bandwidth_gb_s(len(task.flows) * size_bytes, elapsed_ms),
        flows_gb_s=tuple(bandwidth_gb_s(size_bytes, flow_ms) for flow_ms in flows_ms),
        elapsed_ms=elapsed_ms,
        wall_ms=wall_ms,
    )


def round_trips(laps_ns: Sequence[float], wall_ms: float) -> Sample:
    """Return the sample that timed round trips make."""
    return Sample(
        latency_ns=statistics.fmean(laps_ns),
        p50_ns=statistics.median(laps_ns),
        p99_ns=statistics.quantiles(laps_ns, n=100)[98],
        elapsed_ms=sum(laps_ns) / 1e6,
        wall_ms=wall_ms,
    )


def mismatch_of(difference: Difference, sample: int, flow: int) -> Mismatch:
    """Return a difference as results show it."""
    return Mismatch(
        sample=sample,
        flow=flow,
        words=difference.words,
        first_offset_bytes=difference.first_offset_bytes,
        expected=f"{difference.expected:#018x}",
        found=f"{difference.found:#018x}",
    )


def describe(mismatch: Mismatch, task: Task) -> str:
    """Say in one sentence where data was corrupt."""
    where = f"sample {mismatch.sample}"
    if len(task.flows) > 1:
        where += f", {task.flows[mismatch.flow].path}"
    if mismatch.words == 0:
        return f"{where}: the check's result is {mismatch.found}, not {mismatch.expected}; no wrong word was located"
    looked_at = window(task.size_bytes, task.copies, mismatch.sample).size_bytes // WORD_BYTES
    return (
        f"{where}: {mismatch.words} of {looked_at} words differ, the first at offset "
        f"{mismatch.first_offset_bytes}: expected {mismatch.expected}, found {mismatch.found}"
    )


def chain_error(sample: int, offset: int | None) -> str | None:
    """Say in one sentence that a walk ended where its chain does not lead; ``None`` if it did not."""
    if offset is None:
        return None
    return f"sample {sample}: the pointer chase ended at the wrong offset {offset}"
