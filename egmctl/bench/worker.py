"""The worker process: sets the GPUs up once, measures one task after the other, and reports each as it is over.

It is the only process of ``egmctl bench`` that works a GPU. It can be killed at any time: the driver then releases
what it held.
"""

from __future__ import annotations

import time
from collections.abc import Iterable
from dataclasses import replace
from typing import Any

from egmctl.bench.causes import known_cause
from egmctl.bench.protocol import Event, Order, OrderedTask
from egmctl.bench.rig import Rig
from egmctl.bench.statistics import bandwidth_gb_s, is_unstable, summarize
from egmctl.errors import DriverCallError, DriverTooOld
from egmctl.gpu.pattern import Difference, poison
from egmctl.launch import Channel
from egmctl.model.codec import from_json, to_json
from egmctl.model.measurement import (
    Measurement,
    MemoryKind,
    Mismatch,
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


def run(parent: Channel, arguments: dict[str, Any]) -> None:
    """Measure an :class:`~egmctl.bench.protocol.Order`, sending an event for each step: the target of the worker."""
    order = from_json(Order, arguments)
    rig = Rig(order.gpus, _host_access(order.tasks), order.settings.size_bytes)
    parent.send({"event": Event.READY, "note": rig.note})
    for ordered in order.tasks:
        parent.send({"event": Event.STARTED, "task": ordered.number})
        measurement = measure(rig, ordered.task, order.settings)
        parent.send({"event": Event.MEASURED, "task": ordered.number, "measurement": to_json(measurement)})
        if measurement.status is Status.FAILED and not rig.works():
            # Nothing can be released any more through a broken context; the end of the process does it.
            parent.send({"event": Event.BROKEN})
            return
    rig.close()
    parent.send({"event": Event.DONE})


def measure(rig: Rig, task: Task, settings: Settings) -> Measurement:
    """Measure one task; a driver call that fails is the measurement's outcome, not an exception."""
    started = time.perf_counter()
    try:
        measurement = _measure(rig, task, settings)
    except DriverCallError as error:
        measurement = _failure(task, error)
    except GateExpired as error:
        measurement = finish(task, Status.FAILED, reason=str(error), known_cause=True)
    return replace(measurement, wall_s=time.perf_counter() - started)


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


class GateExpired(Exception):
    """The gate gave up again and again before the host had queued the copies."""


def _measure(rig: Rig, task: Task, settings: Settings) -> Measurement:
    stream = rig.stream(task.initiator)
    rig.connect(task)
    source, seed = rig.source(task)
    destination = rig.destination(task)
    # The GPU that the destination belongs to looks at it, so that the check does not take the path under test.
    checker = rig.stream(task.destination.bus_id or task.initiator)

    def copy(count: int = task.copies) -> None:
        for _ in range(count):
            stream.copy(destination.address, source.address, task.size_bytes)

    stream.context.make_current()
    copy(WARM_UP_COPIES)
    stream.synchronize()

    samples: list[Sample] = []
    mismatch: Mismatch | None = None
    for number in range(settings.samples):
        for _ in range(EXPIRED_LIMIT):
            poison(checker, destination)
            timing = stream.time(rig.gate, copy)
            if not timing.expired:
                break
        else:
            raise GateExpired(f"the host did not queue the copies in time, {EXPIRED_LIMIT} times: it is overloaded")
        bandwidth = bandwidth_gb_s(task.copies * task.size_bytes, timing.elapsed_ms)
        samples.append(Sample(bandwidth_gb_s=bandwidth, elapsed_ms=timing.elapsed_ms, wall_ms=timing.wall_ms))
        if rig.verification is Verification.GPU_EVERY_SAMPLE or number in (0, settings.samples - 1):
            difference = rig.pattern.check(checker, destination, seed)
            if difference is not None and mismatch is None:
                mismatch = _mismatch(number, difference)

    summary = summarize([sample.bandwidth_gb_s for sample in samples])
    status, reason = Status.OK, None
    if mismatch is not None:
        status, reason = Status.CORRUPT, describe(mismatch, task.size_bytes)
    elif is_unstable(summary):
        status, reason = Status.UNSTABLE, f"the samples vary by {100 * (summary.cv or 0):.1f} % (CV)"
    return finish(
        task,
        status,
        reason=reason,
        samples=tuple(samples),
        bandwidth_gb_s=summary,
        gating=rig.gate.how,
        verification=rig.verification,
        mismatch=mismatch,
        seed=seed,
    )


def describe(mismatch: Mismatch, size_bytes: int) -> str:
    """Say in one sentence where data was corrupt."""
    return (
        f"sample {mismatch.sample}: {mismatch.words} of {size_bytes // 8} words differ, the first at offset "
        f"{mismatch.first_offset_bytes}: expected {mismatch.expected}, found {mismatch.found}"
    )


def _mismatch(sample: int, difference: Difference) -> Mismatch:
    return Mismatch(
        sample=sample,
        words=difference.words,
        first_offset_bytes=difference.first_offset_bytes,
        expected=f"{difference.expected:#018x}",
        found=f"{difference.found:#018x}",
    )


def _host_access(tasks: Iterable[OrderedTask]) -> dict[int, list[str]]:
    """Return for each NUMA node the GPUs that some task uses its memory with."""
    access: dict[int, list[str]] = {}
    for task in (ordered.task for ordered in tasks):
        for end in (task.source, task.destination):
            if end.memory is MemoryKind.HOST_NUMA and end.numa_node is not None:
                gpus = access.setdefault(end.numa_node, [])
                if task.initiator not in gpus:
                    gpus.append(task.initiator)
    return access
