"""The worker process: sets the GPUs up once, measures one step after the other, and reports each as it is over.

It is the only process of ``egmctl bench`` that works a GPU. It can be killed at any time: the driver then releases
what it held.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from egmctl.bench import latency
from egmctl.bench.buffers import Buffer, FlowBuffers, assign
from egmctl.bench.causes import known_cause
from egmctl.bench.protocol import Event, OrderedStep, Preparation, Request
from egmctl.bench.rig import Rig
from egmctl.bench.statistics import bandwidth_gb_s, is_unstable, summarize
from egmctl.errors import DriverCallError, DriverTooOld
from egmctl.gpu.driver import initialise
from egmctl.gpu.memory import Memory
from egmctl.gpu.pattern import Difference, poison
from egmctl.gpu.timing import Stream, Timing, time_together
from egmctl.launch import Channel
from egmctl.model.codec import from_json, to_json
from egmctl.model.measurement import (
    Flow,
    Measurement,
    Mismatch,
    Quantity,
    Sample,
    Settings,
    Status,
    Task,
    Verification,
    finish,
)

WARM_UP_COPIES = 4
"""Untimed copies before the first sample of a task; the first touch of host memory maps it, and clocks rise."""

EXPIRED_LIMIT = 3
"""How often a sample whose gate gave up is taken again."""


def run(parent: Channel, _arguments: dict[str, Any]) -> None:
    """Do what the command asks for (:mod:`egmctl.bench.protocol`): the target of the worker."""
    initialise()
    message, _ = parent.receive()
    preparation = from_json(Preparation, message["preparation"])
    rig = Rig(preparation)
    parent.send({"event": Event.READY, "note": rig.note})
    while (message := parent.receive()[0])["do"] == Request.MEASURE:
        step = from_json(OrderedStep, message["step"])
        settings = replace(preparation.settings, samples=1) if step.proof else preparation.settings
        found = measure(rig, [ordered.task for ordered in step.tasks], settings)
        for ordered, measurement in zip(step.tasks, found, strict=True):
            parent.send({"event": Event.MEASURED, "task": ordered.number, "measurement": to_json(measurement)})
        broken = any(measurement.status is Status.FAILED for measurement in found) and not rig.works()
        problem = None if broken else _release(rig, step.release)
        parent.send({"event": Event.OVER, "broken": broken, "problem": problem})
        if broken:
            # Nothing can be released any more through a broken context; the end of the process does it.
            return
    rig.close()
    parent.send({"event": Event.DONE})


def _release(rig: Rig, buffers: Sequence[Buffer]) -> str | None:
    """Give buffers back; return what went wrong with the last one that could not be."""
    problem = None
    for buffer in buffers:
        try:
            rig.release(buffer)
        except DriverCallError as error:
            problem = str(error)
    return problem


def measure(rig: Rig, tasks: Sequence[Task], settings: Settings) -> list[Measurement]:
    """Measure the tasks of a step at the same time; a driver call that fails is an outcome, not an exception."""
    started = time.perf_counter()
    if tasks[0].quantity is Quantity.LATENCY:
        with rig.witness.watch(tasks) as watch:
            measured = latency.measure(rig, tasks, settings, _failure)
        return [
            replace(
                found,
                concurrent=len(tasks),
                evidence=watch.of(found, len(found.samples)) if found.samples else None,
                wall_s=time.perf_counter() - started,
            )
            for found in measured
        ]
    runs = [_Run(task, buffers) for task, buffers in zip(tasks, assign(tasks), strict=True)]
    streams: dict[str, int] = {}
    for run_ in runs:
        _attempt([run_], lambda run_=run_: _prepare(rig, run_, streams))  # type: ignore[misc]
    ready = [run_ for run_ in runs if run_.outcome is None]
    with rig.witness.watch([run_.task for run_ in ready]) as watch:
        _attempt(ready, lambda: _sample(rig, ready, settings))
    return [
        replace(
            run_.outcome or _conclude(rig, run_),
            concurrent=len(ready) or None,
            evidence=watch.of(run_.task, len(run_.samples)) if run_.samples else None,
            placements=rig.placements(_of_host(run_.buffers)) if run_.samples else (),
            wall_s=time.perf_counter() - started,
        )
        for run_ in runs
    ]


class GateExpired(Exception):
    """The gate gave up again and again before the host had queued the copies."""


@dataclass
class _FlowRun:
    """A flow with what it is measured with."""

    flow: Flow
    stream: Stream
    checker: Stream
    """Of the GPU that the destination belongs to, so that the check does not take the path under test."""
    source: Memory
    seed: int
    destination: Memory

    def copy(self, copies: int) -> None:
        for _ in range(copies):
            self.stream.copy(self.destination.address, self.source.address, self.destination.size_bytes)


@dataclass
class _Run:
    """A task under way."""

    task: Task
    buffers: tuple[FlowBuffers, ...]
    flows: list[_FlowRun] = field(default_factory=list)
    samples: list[Sample] = field(default_factory=list)
    mismatch: Mismatch | None = None
    outcome: Measurement | None = None
    """Where it ended early."""


def _attempt(runs: Sequence[_Run], action: Callable[[], None]) -> None:
    """Do something for tasks; if it fails, that is their outcome."""
    try:
        action()
    except DriverCallError as error:
        for run_ in runs:
            run_.outcome = _failure(run_.task, error)
    except GateExpired as error:
        for run_ in runs:
            run_.outcome = finish(run_.task, Status.FAILED, reason=str(error), known_cause=True)


def _failure(task: Task, error: DriverCallError) -> Measurement:
    """Return the outcome of a task whose driver call failed: waived where the driver says that it has no such thing."""
    if isinstance(error, DriverTooOld) or error.name == "CUDA_ERROR_NOT_SUPPORTED":
        return finish(task, Status.WAIVED, reason=str(error), last_call=error.call)
    if (error.call, error.name) == ("cuDeviceGetByPCIBusId", "CUDA_ERROR_INVALID_DEVICE"):
        return finish(task, Status.WAIVED, reason=f"CUDA does not see a GPU of this path: {error}")
    cause = known_cause(error)
    return finish(
        task,
        Status.FAILED,
        reason=f"{error}; {cause}" if cause else str(error),
        known_cause=cause is not None,
        last_call=error.call,
    )


def _prepare(rig: Rig, run_: _Run, streams: dict[str, int]) -> None:
    """Get streams and buffers, and warm the paths up."""
    for flow, buffers in zip(run_.task.flows, run_.buffers, strict=True):
        initiator = flow.initiator or ""
        number = streams.get(initiator, 0)
        streams[initiator] = number + 1
        stream = rig.stream(initiator, number)
        for end in (flow.source, flow.destination):
            rig.connect(initiator, end.bus_id)
        source, seed = rig.source(_there(buffers.source), initiator)
        destination = rig.destination(_there(buffers.destination))
        checker = rig.stream(flow.destination.bus_id or initiator)
        run_.flows.append(_FlowRun(flow, stream, checker, source, seed, destination))
    for flow_run in run_.flows:
        flow_run.stream.context.make_current()
        flow_run.copy(WARM_UP_COPIES)
        flow_run.stream.synchronize()


def _sample(rig: Rig, runs: Sequence[_Run], settings: Settings) -> None:
    flows = [(run_, flow) for run_ in runs for flow in run_.flows]
    for number in range(settings.samples):
        for _ in range(EXPIRED_LIMIT):
            for _run, flow in flows:
                poison(flow.checker, flow.destination)
            timings = time_together(
                rig.gate,
                [(flow.stream, lambda run_=run_, flow=flow: flow.copy(run_.task.copies)) for run_, flow in flows],  # type: ignore[misc]
            )
            if not any(timing.expired for timing in timings):
                break
        else:
            raise GateExpired(f"the host did not queue the copies in time, {EXPIRED_LIMIT} times: it is overloaded")
        of_flow = {id(flow): timing for (_, flow), timing in zip(flows, timings, strict=True)}
        checked = rig.verification is Verification.GPU_EVERY_SAMPLE or number in (0, settings.samples - 1)
        for run_ in runs:
            run_.samples.append(_to_sample(run_.task, [of_flow[id(flow)] for flow in run_.flows]))
            if checked:
                _check(rig, run_, number)


def _to_sample(task: Task, timings: Sequence[Timing]) -> Sample:
    # All flows start when the gate opens.
    elapsed_ms = max(timing.elapsed_ms for timing in timings)
    size_bytes = task.copies * task.size_bytes
    return Sample(
        bandwidth_gb_s=bandwidth_gb_s(len(timings) * size_bytes, elapsed_ms),
        flows_gb_s=tuple(bandwidth_gb_s(size_bytes, timing.elapsed_ms) for timing in timings),
        elapsed_ms=elapsed_ms,
        wall_ms=timings[0].wall_ms,
    )


def _check(rig: Rig, run_: _Run, sample: int) -> None:
    for place, flow in enumerate(run_.flows):
        difference = rig.pattern.check(flow.checker, flow.destination, flow.seed)
        if difference is not None and run_.mismatch is None:
            run_.mismatch = _mismatch(sample, place, difference)


def _conclude(rig: Rig, run_: _Run) -> Measurement:
    task, samples = run_.task, run_.samples
    summary = summarize([sample.bandwidth_gb_s or 0 for sample in samples])
    status, reason = Status.OK, None
    if run_.mismatch is not None:
        status, reason = Status.CORRUPT, describe(run_.mismatch, task)
    elif is_unstable(summary):
        status, reason = Status.UNSTABLE, f"the samples vary by {100 * (summary.cv or 0):.1f} % (CV)"
    return finish(
        task,
        status,
        reason=reason,
        samples=tuple(samples),
        bandwidth_gb_s=summary,
        flows_gb_s=tuple(
            summarize([sample.flows_gb_s[place] for sample in samples]) for place in range(len(task.flows))
        ),
        gating=rig.gate.how,
        verification=rig.verification,
        mismatch=run_.mismatch,
        seeds=tuple(flow.seed for flow in run_.flows),
    )


def describe(mismatch: Mismatch, task: Task) -> str:
    """Say in one sentence where data was corrupt."""
    where = f", {task.flows[mismatch.flow].path}" if len(task.flows) > 1 else ""
    return (
        f"sample {mismatch.sample}{where}: {mismatch.words} of {task.size_bytes // 8} words differ, the first at "
        f"offset {mismatch.first_offset_bytes}: expected {mismatch.expected}, found {mismatch.found}"
    )


def _mismatch(sample: int, flow: int, difference: Difference) -> Mismatch:
    return Mismatch(
        sample=sample,
        flow=flow,
        words=difference.words,
        first_offset_bytes=difference.first_offset_bytes,
        expected=f"{difference.expected:#018x}",
        found=f"{difference.found:#018x}",
    )


def _of_host(flows: Sequence[FlowBuffers]) -> tuple[Buffer, ...]:
    """Return the buffers in host memory, each once."""
    buffers = (buffer for flow in flows for buffer in (flow.source, flow.destination))
    return tuple(dict.fromkeys(buffer for buffer in buffers if buffer is not None and buffer.end.bus_id is None))


def _there(buffer: Buffer | None) -> Buffer:
    if buffer is None:
        raise ValueError("a copy needs memory at both ends")
    return buffer
