"""How the bandwidth of the tasks of a step is measured: all their flows behind one gate, and every byte looked at."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from egmctl.bench.buffers import FlowBuffers, Window, assign, window
from egmctl.bench.evidence import Watch
from egmctl.bench.flow_run import FlowRun
from egmctl.bench.outcomes import EXPIRED_LIMIT, FAILURES, GateExpired, failure
from egmctl.bench.rig import Rig
from egmctl.bench.statistics import bandwidth_gb_s, is_unstable, summarize, unstable_reason
from egmctl.gpu.pattern import WORD_BYTES, Difference
from egmctl.gpu.timing import Gate, Timing, time_together
from egmctl.model.measurement import (
    BufferCost,
    Engine,
    Measurement,
    Mismatch,
    Sample,
    Settings,
    Status,
    Task,
    Verification,
    finish,
)

WARM_UP_PASSES = 2
"""Untimed passes before the first sample of a task: host memory is mapped at its first touch, and clocks rise."""

BY_KERNELS = frozenset({Engine.SM_COPY, Engine.SM_READ, Engine.SM_WRITE})


def measure(rig: Rig, tasks: Sequence[Task], settings: Settings) -> list[Measurement]:
    """Measure the tasks of a step at the same time; a driver call that fails is an outcome, not an exception."""
    runs = [_Run(task, buffers) for task, buffers in zip(tasks, assign(tasks), strict=True)]
    sharing = Counter(flow.initiator for task in tasks if task.engine in BY_KERNELS for flow in task.flows)
    streams: Counter[str] = Counter()
    for run in runs:
        _attempt([run], lambda run=run: _prepare(rig, run, streams, sharing))  # type: ignore[misc]
    ready = [run for run in runs if run.outcome is None]
    gate = rig.gate(pageable=any(flow.pageable for run in ready for flow in run.flows))
    _attempt(ready, lambda: _warm_up(ready))
    with rig.witness.watch([run.task for run in ready]) as watch:
        _attempt(ready, lambda: _sample(rig, gate, [run for run in ready if run.outcome is None], settings))
    return [run.outcome or _conclude(rig, gate, run, watch) for run in runs]


@dataclass
class _Run:
    """A task under way."""

    task: Task
    buffers: tuple[FlowBuffers, ...]
    flows: list[FlowRun] = field(default_factory=list)
    costs: list[BufferCost] = field(default_factory=list)
    samples: list[Sample] = field(default_factory=list)
    mismatch: Mismatch | None = None
    outcome: Measurement | None = None
    """Where it ended early."""


def _attempt(runs: Sequence[_Run], action: Callable[[], None]) -> None:
    """Do something for tasks; if it fails, that is their outcome."""
    try:
        action()
    except FAILURES as error:
        for run in runs:
            run.outcome = failure(run.task, error)


def _prepare(rig: Rig, run: _Run, streams: Counter[str], sharing: Counter[str | None]) -> None:
    """Get streams and buffers for each flow."""
    for flow, buffers in zip(run.task.flows, run.buffers, strict=True):
        initiator = flow.initiator or ""
        first = streams[initiator]
        streams[initiator] += run.task.streams
        run.flows.append(
            FlowRun(
                rig,
                run.task,
                flow,
                buffers,
                streams=[rig.stream(initiator, first + number) for number in range(run.task.streams)],
                share=sharing[initiator],
            )
        )


def _warm_up(runs: Sequence[_Run]) -> None:
    """Fill the sources, and move everything a few times."""
    flows = [(flow, window(run.task.size_bytes, WARM_UP_PASSES, 0)) for run in runs for flow in run.flows]
    for flow, part in flows:
        flow.first_touch(part)
    for flow, part in flows:
        for stream, operation in flow.parts(part, WARM_UP_PASSES):
            stream.context.make_current()
            operation()
    for flow, _ in flows:
        flow.synchronize()
    for run in runs:
        run.costs = [cost for flow in run.flows for cost in flow.costs()]


def _sample(rig: Rig, gate: Gate, runs: Sequence[_Run], settings: Settings) -> None:
    """Take all samples."""
    for number in range(settings.samples if runs else 0):
        parts = {id(run): window(run.task.size_bytes, run.task.copies, number) for run in runs}
        for _ in range(EXPIRED_LIMIT):
            timings = _take(gate, runs, parts)
            if not any(timing.expired for timing in timings):
                break
        else:
            raise GateExpired
        for run, timing in zip(runs, timings, strict=True):
            run.samples.append(_to_sample(run.task, timing))
        if rig.verification is Verification.GPU_EVERY_SAMPLE or number in (0, settings.samples - 1):
            _check(runs, parts, number)


def _take(gate: Gate, runs: Sequence[_Run], parts: dict[int, Window]) -> tuple[Timing, ...]:
    for run in runs:
        for flow in run.flows:
            flow.spoil(parts[id(run)])
    for run in runs:
        for flow in run.flows:
            flow.synchronize()
    return time_together(gate, [[flow.parts(parts[id(run)], run.task.copies) for flow in run.flows] for run in runs])


def _check(runs: Sequence[_Run], parts: dict[int, Window], number: int) -> None:
    """Look at what all destinations hold now; all GPUs at the same time."""
    checks = [
        (run, place, flow.check(parts[id(run)], run.task.copies))
        for run in runs
        for place, flow in enumerate(run.flows)
    ]
    for run, place, finish_check in checks:
        difference = finish_check()
        if difference is not None and run.mismatch is None:
            run.mismatch = mismatch_of(difference, number, place)


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


def _to_sample(task: Task, timing: Timing) -> Sample:
    return to_sample(task, timing.elapsed_ms, timing.flows_ms, timing.wall_ms)


def to_sample(task: Task, elapsed_ms: float, flows_ms: Sequence[float], wall_ms: float) -> Sample:
    """Return a sample by the time that all flows took and each of them."""
    size_bytes = task.copies * task.size_bytes
    return Sample(
        bandwidth_gb_s=bandwidth_gb_s(len(task.flows) * size_bytes, elapsed_ms),
        flows_gb_s=tuple(bandwidth_gb_s(size_bytes, flow_ms) for flow_ms in flows_ms),
        elapsed_ms=elapsed_ms,
        wall_ms=wall_ms,
    )


def _conclude(rig: Rig, gate: Gate, run: _Run, watch: Watch) -> Measurement:
    task, samples = run.task, run.samples
    pageable = any(flow.pageable for flow in run.flows)
    return conclude(
        task,
        samples,
        run.mismatch,
        "measured without a gate: copies of memory that is not pinned keep the host until they are done"
        if pageable
        else None,
        gating=gate.how,
        verification=Verification.CHECKSUM_EVERY_SAMPLE if task.engine is Engine.SM_READ else rig.verification,
        seeds=tuple(flow.seed for flow in run.flows),
        costs=tuple(run.costs),
        placements=rig.placements(buffer for flow in run.buffers for buffer in flow.there),
        evidence=watch.of(task, len(samples)),
    )


def conclude(
    task: Task, samples: Sequence[Sample], mismatch: Mismatch | None, remark: str | None = None, **more: Any
) -> Measurement:
    """Return the measurement that samples make.

    Parameters
    ----------
    remark
        The reason of one that is plainly ``ok``.
    more
        Further fields of it.
    """
    summary = summarize([sample.bandwidth_gb_s or 0 for sample in samples])
    status, reason = Status.OK, remark
    if mismatch is not None:
        status, reason = Status.CORRUPT, describe(mismatch, task)
    elif is_unstable(summary):
        status, reason = Status.UNSTABLE, unstable_reason(summary)
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


def describe(mismatch: Mismatch, task: Task) -> str:
    """Say in one sentence where data was corrupt."""
    where = f"sample {mismatch.sample}"
    if len(task.flows) > 1:
        where += f", {task.flows[mismatch.flow].path}"
    if mismatch.words == 0:
        return (
            f"{where}: the sum of what was read is {mismatch.found}, not {mismatch.expected}; "
            "all words were right when they were read again"
        )
    looked_at = window(task.size_bytes, task.copies, mismatch.sample).size_bytes // WORD_BYTES
    return (
        f"{where}: {mismatch.words} of {looked_at} words differ, the first at offset "
        f"{mismatch.first_offset_bytes}: expected {mismatch.expected}, found {mismatch.found}"
    )
