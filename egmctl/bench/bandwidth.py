"""How the bandwidth of the tasks of a step is measured: all their flows behind one gate, and every byte looked at."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from egmctl.bench.buffers import FlowBuffers, Window, assign, window
from egmctl.bench.conclusion import bandwidth_sample, mismatch_of, of_bandwidth
from egmctl.bench.engines import transfers
from egmctl.bench.evidence import Watch
from egmctl.bench.flow_run import FlowRun
from egmctl.bench.outcomes import EXPIRED_LIMIT, FAILURES, GateExpired, failure
from egmctl.bench.rig import Rig
from egmctl.gpu.timing import Gate, Timing, time_together
from egmctl.model.measurement import (
    BufferCost,
    Measurement,
    Mismatch,
    Sample,
    Settings,
    Task,
    Verification,
)

WARM_UP_PASSES = 2
"""Untimed passes before the first sample of a task: host memory is mapped at its first touch, and clocks rise."""


def measure(rig: Rig, tasks: Sequence[Task], settings: Settings) -> list[Measurement]:
    """Measure the tasks of a step at the same time; a driver call that fails is an outcome, not an exception."""
    runs = [_Run(task, buffers) for task, buffers in zip(tasks, assign(tasks), strict=True)]
    sharing = Counter(flow.initiator for task in tasks if transfers(task).needs_kernels for flow in task.flows)
    streams: Counter[str] = Counter()
    for run in runs:
        _attempt([run], lambda run=run: _prepare(rig, run, streams, sharing))  # type: ignore[misc]
    ready = [run for run in runs if run.outcome is None]
    gate = rig.gate(pageable=any(flow.pageable for run in ready for flow in run.flows))
    _attempt(ready, lambda: _warm_up(ready))
    with rig.witness.watch([run.task for run in ready]) as watch:
        _attempt(ready, lambda: _sample(rig, gate, watch, [run for run in ready if run.outcome is None], settings))
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
                transfers(run.task),
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


def _sample(rig: Rig, gate: Gate, watch: Watch, runs: Sequence[_Run], settings: Settings) -> None:
    """Take all samples."""
    for number in range(settings.samples if runs else 0):
        parts = {id(run): window(run.task.size_bytes, run.task.copies, number) for run in runs}
        for _ in range(EXPIRED_LIMIT):
            timings = _take(gate, runs, parts)
            if not any(timing.expired for timing in timings):
                break
        else:
            raise GateExpired
        watch.count()
        for run, timing in zip(runs, timings, strict=True):
            run.samples.append(bandwidth_sample(run.task, timing.elapsed_ms, timing.flows_ms, timing.wall_ms))
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
        (run, place, check)
        for run in runs
        for place, flow in enumerate(run.flows)
        for check in flow.checks(parts[id(run)], run.task.copies)
    ]
    for run, place, finish_check in checks:
        difference = finish_check()
        if difference is not None and run.mismatch is None:
            run.mismatch = mismatch_of(difference, number, place)


def _conclude(rig: Rig, gate: Gate, run: _Run, watch: Watch) -> Measurement:
    task, samples = run.task, run.samples
    pageable = any(flow.pageable for flow in run.flows)
    return of_bandwidth(
        task,
        samples,
        run.mismatch,
        "measured without a gate: copies of memory that is not pinned keep the host until they are done"
        if pageable
        else None,
        gating=gate.how,
        verification=transfers(task).verification(rig),
        seeds=tuple(flow.seed for flow in run.flows),
        costs=tuple(run.costs),
        placements=rig.placements(buffer for flow in run.buffers for buffer in flow.there),
        evidence=watch.of(task, len(samples)),
    )
