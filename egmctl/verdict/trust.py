"""Decides which measurements of a run may be believed, and for what; and what changed on the node meanwhile. Pure.

The answer, the causes, learning and comparison all read this one list: a number that is not believed must not pass
in one place and fail in another.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from statistics import median

from egmctl.bench.path_class import ceiling, is_degraded
from egmctl.compat import StrEnum
from egmctl.doctor.troubles import SLOWDOWNS, numa_nodes
from egmctl.model.change import Change, ChangeKind
from egmctl.model.doubt import Doubt, DoubtReason, Effect
from egmctl.model.gpu import Gpu, GpuNvml
from egmctl.model.machine import Machine
from egmctl.model.measurement import (
    GpuEvidence,
    HostLoad,
    LinkProof,
    Measurement,
    MeasurementStatus,
    RunReport,
    Sample,
)
from egmctl.model.route import Egm, Hop, MemoryKind
from egmctl.model.task import Quantity
from egmctl.model.verdict import Judgement
from egmctl.topology.access import device_node_obstacle, obstacle
from egmctl.units import several, shortened
from egmctl.verdict.yardsticks import MORE_THAN_IT_CARRIES, is_by_host, not_judged, value_of


def with_doubts(report: RunReport) -> RunReport:
    """Return a run with the doubts about it, by measurement (``RunReport.doubts``); all else reads them there.

    A run that was not judged has no bounds: samples are then compared with each other alone.
    """
    bounds = _fail_bounds(report)
    busy = host_busy(report.host_load)
    result: list[Doubt] = []
    for number, measurement in enumerate(report.measurements):
        if not measurement.measured:
            continue
        for rule in _RULES:
            result += rule(number, measurement)
        result += _worst_sample(number, measurement, bounds.get(number, ()))
        if busy and all(map(numa_nodes, measurement.flows)):
            result.append(Doubt(reason=DoubtReason.HOST_BUSY, effect=Effect.LOW, measurement=number))
    return replace(report, doubts=tuple(result))


def of_other_paths(measurements: Sequence[Measurement]) -> Mapping[int, DoubtReason]:
    """Return the measurements whose number is not that of their path, by index, with the reason.

    Such a number neither passes nor condemns, and is no measure for others.
    """
    reasons = {}
    for number, measurement in enumerate(measurements):
        if not measurement.measured:
            continue
        for rule in _OF_PATHS:
            for doubt in rule(number, measurement):
                if doubt.effect in (Effect.FAIL, Effect.VOID):
                    reasons[doubt.measurement] = doubt.reason
    return reasons


class MeasurementUse(StrEnum):
    """The uses of a measurement."""

    LEARN = "learn"
    """Its value becomes a reference for other runs."""
    COMPARE_WORSE = "compare-worse"
    """A lower value than another run's is called worse."""
    COMPARE_BETTER = "compare-better"
    """A higher value than another run's is called better."""


_LEARN, _WORSE, _BETTER = MeasurementUse.LEARN, MeasurementUse.COMPARE_WORSE, MeasurementUse.COMPARE_BETTER
_FORBIDS: Mapping[DoubtReason, tuple[MeasurementUse, ...]] = {
    # An unstable path may be worse than it was; that it is better is not proved.
    DoubtReason.UNSTABLE: (_LEARN, _BETTER),
    DoubtReason.WORST_SAMPLE: (_LEARN, _BETTER),
    DoubtReason.ATTEMPTS_DIFFER: (_LEARN, _BETTER),
    DoubtReason.PLACEMENT: (_LEARN, _WORSE, _BETTER),
    DoubtReason.ROUTE: (_LEARN, _WORSE, _BETTER),
    DoubtReason.ROUTE_UNKNOWN: (),
    DoubtReason.NO_COUNTERS: (),
    DoubtReason.TOO_FAST: (_LEARN, _WORSE, _BETTER),
    # Others take a part of what the path carries: it is not worse for that.
    DoubtReason.OTHER_PROCESSES: (_LEARN, _WORSE),
    DoubtReason.HOST_BUSY: (_LEARN, _WORSE),
    DoubtReason.THROTTLED: (_LEARN,),
    DoubtReason.ERRORS_ROSE: (_LEARN,),
    DoubtReason.DEGRADED: (_LEARN, _WORSE, _BETTER),
    DoubtReason.UNGATED: (_LEARN,),
    DoubtReason.UNVERIFIED: (_LEARN,),
}


def unbelieved(run_doubts: Iterable[Doubt], use: MeasurementUse) -> frozenset[int]:
    """Return the indices of the measurements that must not be used for something."""
    return frozenset(doubt.measurement for doubt in run_doubts if use in _FORBIDS[doubt.reason])


def with_effect(run_doubts: Iterable[Doubt], effect: Effect) -> frozenset[int]:
    """Return the indices of the measurements with a doubt of this effect."""
    return frozenset(doubt.measurement for doubt in run_doubts if doubt.effect is effect)


# --- what the GPUs and the host showed meanwhile ---------------------------------------------------------------------

BUSY_CPUS, BUSY_PART = 4, 0.1
"""The thresholds of a busy host: other processes use at least this many CPUs (on a small host half of them) and this
part of all CPUs. Chosen: an idle host stays below one CPU; four CPUs that copy use a fifth of a socket's memory
bandwidth."""


def host_busy(load: HostLoad | None) -> bool:
    """Return whether other processes kept the host's CPUs, and so its memory, busy."""
    if load is None or load.wall_s <= 0:
        return False
    return load.others_cpu_s / load.wall_s >= max(min(BUSY_CPUS, load.cpus / 2), BUSY_PART * load.cpus)


def slowdowns(gpu: GpuEvidence) -> tuple[str, ...]:
    """Return the reasons in words for which heat or a power supply lowered the clocks of a GPU."""
    return tuple(SLOWDOWNS[reason] for reason in gpu.throttle_reasons or () if reason in SLOWDOWNS)


def _of_gpus(number: int, measurement: Measurement) -> Iterator[Doubt]:
    """Yield the doubts from the state of the GPUs during the samples."""
    gpus = measurement.evidence.gpus if measurement.evidence is not None else ()
    others = {gpu.label: gpu.other_processes for gpu in gpus if gpu.other_processes}
    if others:
        seen = [f"{label}: process {shortened(pids, 3)}" for label, pids in others.items()]
        yield _seen(DoubtReason.OTHER_PROCESSES, Effect.LOW, number, seen)
    slow = {gpu.label: slowdowns(gpu) for gpu in gpus if slowdowns(gpu)}
    if slow:
        seen = [f"{label}: {', '.join(reasons)}" for label, reasons in slow.items()]
        yield _seen(DoubtReason.THROTTLED, Effect.WARN, number, seen)
    rises = [f"{counter} of {gpu.label} by {rise}" for gpu in gpus for counter, rise in gpu.errors.items()]
    if rises:
        yield Doubt(reason=DoubtReason.ERRORS_ROSE, effect=Effect.WARN, measurement=number, detail=", ".join(rises))


def _seen(reason: DoubtReason, effect: Effect, number: int, details: Sequence[str]) -> Doubt:
    """Return a doubt about a measurement from what was seen of several GPUs or buffers."""
    return Doubt(reason=reason, effect=effect, measurement=number, detail="; ".join(details), details=tuple(details))


# --- whether it is the path that was requested -----------------------------------------------------------------------


def _is_promised(measurement: Measurement) -> bool:
    """Return whether the place of host memory is a promise: memory of a named NUMA node, or EGM."""
    ends = (end for flow in measurement.flows for end in (flow.source, flow.destination))
    named = any(end.memory is MemoryKind.HOST_NUMA for end in ends)
    return named or any(flow.route.egm is Egm.YES for flow in measurement.flows)


def _of_place(number: int, measurement: Measurement) -> Iterator[Doubt]:
    """Yield the doubt that a buffer is on another NUMA node than the one that was requested."""
    wrong = [placement for placement in measurement.placements if placement.right is False]
    if wrong:
        effect = Effect.FAIL if _is_promised(measurement) else Effect.VOID
        seen = [f"{placement.label}: {placement.detail}" for placement in wrong]
        yield _seen(DoubtReason.PLACEMENT, effect, number, seen)


def _of_route(number: int, measurement: Measurement) -> Iterator[Doubt]:
    """Yield the doubts about the links that the bytes crossed."""
    if is_degraded(measurement):
        yield Doubt(reason=DoubtReason.DEGRADED, effect=Effect.VOID, measurement=number)
        return
    route = measurement.evidence.route if measurement.evidence is not None else None
    if route is None:
        return
    is_egm = any(flow.route.egm is Egm.YES for flow in measurement.flows)
    if route.verdict is LinkProof.REFUTED:
        effect = Effect.FAIL if is_egm else Effect.VOID
        yield Doubt(reason=DoubtReason.ROUTE, effect=effect, measurement=number, detail=route.link.value)
    elif route.verdict is LinkProof.UNKNOWN:
        reason = DoubtReason.ROUTE_UNKNOWN if is_egm else DoubtReason.NO_COUNTERS
        yield Doubt(reason=reason, effect=Effect.NOTE, measurement=number, detail=route.link.value)


def _of_rate(number: int, measurement: Measurement) -> Iterator[Doubt]:
    """Yield the doubt that a value exceeds what the links of its path carry.

    Only the rate that the driver reports counts: a published rate of a memory is rounded, and a cache may exceed it.
    """
    value, limit = value_of(measurement), ceiling(measurement)
    if value is None or limit is None or not isinstance(limit.limit, Hop) or limit.limit.source is not None:
        return
    if not_judged(measurement) is None and value > MORE_THAN_IT_CARRIES * limit.gb_s:
        yield Doubt(
            reason=DoubtReason.TOO_FAST, effect=Effect.VOID, measurement=number, highest=value, bound=limit.gb_s
        )


def _of_method(number: int, measurement: Measurement) -> Iterator[Doubt]:
    """Yield the doubts about how it was measured."""
    if measurement.gating == "none":
        yield Doubt(reason=DoubtReason.UNGATED, effect=Effect.NOTE, measurement=number)
    if measurement.verification is None and measurement.quantity is Quantity.BANDWIDTH and measurement.samples:
        yield Doubt(reason=DoubtReason.UNVERIFIED, effect=Effect.NOTE, measurement=number)


# --- samples of all attempts -----------------------------------------------------------------------------------------

ATTEMPTS_APART = 0.06
"""The difference between the medians of two attempts, as a part of the better one, above which they differ. Chosen as
twice the coefficient of variation above which the samples of one attempt are unstable
(:data:`egmctl.bench.results.UNSTABLE_CV`)."""


def attempts_of(measurement: Measurement) -> list[list[float]]:
    """Return the values of the samples of each attempt, in the unit of the measurement; the kept attempt is last."""
    batches = [*(attempt.samples for attempt in measurement.other_attempts), measurement.samples]
    values = [[value for sample in batch if (value := _value(measurement, sample)) is not None] for batch in batches]
    return [batch for batch in values if batch]


def _value(measurement: Measurement, sample: Sample) -> float | None:
    return sample.latency_ns if measurement.quantity is Quantity.LATENCY else sample.bandwidth_gb_s


def _of_attempts(number: int, measurement: Measurement) -> Iterator[Doubt]:
    """Yield the doubts from how far samples and attempts are apart.

    A round trip of messages is timed by the host and depends on the CPU that wakes up: it is not judged.
    """
    attempts = attempts_of(measurement)
    if not attempts or not_judged(measurement) is not None or is_by_host(measurement):
        return
    values = [value for attempt in attempts for value in attempt]
    lowest, highest = min(values), max(values)
    if measurement.status is MeasurementStatus.UNSTABLE:
        yield Doubt(
            reason=DoubtReason.UNSTABLE,
            effect=Effect.WARN,
            measurement=number,
            lowest=lowest,
            highest=highest,
            attempts=measurement.attempts,
        )
    medians = [median(attempt) for attempt in attempts]
    if max(medians) > 0 and min(medians) / max(medians) < 1 - ATTEMPTS_APART:
        yield Doubt(
            reason=DoubtReason.ATTEMPTS_DIFFER,
            effect=Effect.WARN,
            measurement=number,
            lowest=min(medians),
            highest=max(medians),
            attempts=len(attempts),
        )


_PROVED_BY = 2
"""The number of attempts with a sample beyond the bound that prove a fault; one alone may have been disturbed."""


def _worst_sample(number: int, measurement: Measurement, judgements: Sequence[Judgement]) -> Iterator[Doubt]:
    """Yield the doubt that samples are beyond the bound of a failure which the median is not."""
    if is_by_host(measurement) or not_judged(measurement) is not None:
        return
    latency = measurement.quantity is Quantity.LATENCY
    bounds = [judgement.fail for judgement in judgements if judgement.fail is not None]
    value = value_of(measurement)
    if not bounds or value is None:
        return
    bound = min(bounds) if latency else max(bounds)

    def beyond(sample: float) -> bool:
        return sample > bound if latency else sample < bound

    if beyond(value):
        return
    attempts = attempts_of(measurement)
    affected = [attempt for attempt in attempts if any(map(beyond, attempt))]
    # A soak keeps the samples of all its passes together.
    soaked = not measurement.other_attempts and measurement.attempts > 1
    count = sum(map(beyond, affected[0])) if soaked and affected else len(affected)
    if count:
        values = [sample for attempt in affected for sample in attempt]
        yield Doubt(
            reason=DoubtReason.WORST_SAMPLE,
            effect=Effect.FAIL if count >= _PROVED_BY else Effect.WARN,
            measurement=number,
            lowest=min(values),
            highest=max(values),
            bound=bound,
            attempts=count,
        )


def _fail_bounds(report: RunReport) -> dict[int, tuple[Judgement, ...]]:
    judged = report.verdict.judged if report.verdict is not None else ()
    return {each.measurement: each.judgements for each in judged}


_Rule = Callable[[int, Measurement], Iterable[Doubt]]
_OF_PATHS: tuple[_Rule, ...] = (_of_place, _of_route, _of_rate)
_RULES: tuple[_Rule, ...] = (*_OF_PATHS, _of_attempts, _of_gpus, _of_method)


# --- what changed on the node: the first cause of what failed ---------------------------------------------------------


def changes(before: Machine, after: Machine) -> tuple[Change, ...]:
    """Return what got worse on the GPUs of a node between two readings; what was not read both times is no change."""
    now = {gpu.bus_id: gpu for gpu in after.gpus or ()}
    return tuple(
        Change(kind=kind, bus_id=gpu.bus_id, label=f"GPU{gpu.index}", before=was, after=became)
        for gpu in before.gpus or ()
        if gpu.bus_id in now
        for kind, was, became in _changes_of_gpu(before, gpu, after, now[gpu.bus_id])
    )


_Difference = tuple[ChangeKind, str, str]


def _changes_of_gpu(before: Machine, gpu: Gpu, after: Machine, now: Gpu) -> Iterator[_Difference]:
    if (denied := _denied(now)) is not None and _denied(gpu) is None:
        # A library that opened the device before goes on; a new process cannot.
        yield ChangeKind.ACCESS, "usable", denied
        return
    was, became = obstacle(before, gpu), obstacle(after, now)
    if gpu.nvml is not None and now.nvml is None:
        yield ChangeKind.LOST, "listed by NVML", became.cause if became else "not listed by NVML"
        return
    if was is None and became is not None:
        yield ChangeKind.LOST, "usable", became.cause
        return
    if gpu.nvml is None or now.nvml is None:
        return
    yield from _changes_of_fabric(gpu.nvml, now.nvml)
    links, links_now = _active_links(gpu.nvml), _active_links(now.nvml)
    if links is not None and links_now is not None and links_now < links:
        yield ChangeKind.NVLINKS, f"{several(links, 'NVLink')} active", f"{links_now} active"
    lanes, lanes_now = _lanes(gpu), _lanes(now)
    # An idle link lowers its rate, and only from PCI Express 6.0 on its width.
    if lanes is not None and lanes_now is not None and lanes_now < lanes:
        yield ChangeKind.PCIE, f"PCIe x{lanes}", f"x{lanes_now}"


def _denied(gpu: Gpu) -> str | None:
    """Return why a GPU's device node cannot be opened; ``None`` if it can, or if that was not read."""
    if gpu.node is None:
        return None
    if not gpu.node.exists:
        return f"{gpu.node.path} is gone"
    obstacle_of_node = device_node_obstacle(gpu.node, (None, None))
    return None if obstacle_of_node is None else obstacle_of_node.cause


def _active_links(nvml: GpuNvml) -> int | None:
    states = [link.active for link in nvml.nvlinks or ()]
    return None if None in states or not states else sum(map(bool, states))


def _lanes(gpu: Gpu) -> int | None:
    link = gpu.pci.link if gpu.pci else None
    return None if link is None or link.sheds_lanes else link.width


def _changes_of_fabric(was: GpuNvml, became: GpuNvml) -> Iterator[_Difference]:
    if was.fabric is None or became.fabric is None or was.fabric.state is None or became.fabric.state is None:
        return
    if was.fabric.registered and not became.fabric.registered:
        status = f", error {became.fabric.status}" if became.fabric.status else ""
        yield ChangeKind.FABRIC, "registered with the fabric", f"{became.fabric.state}{status}"
    elif was.fabric.health is not None and became.fabric.health is not None:
        harmful = ("true", "incorrect")
        worse = [
            name
            for name, value in became.fabric.health.items()
            if value.startswith(harmful) and was.fabric.health.get(name) == "false"
        ]
        if worse:
            yield ChangeKind.FABRIC, "fabric healthy", f"fabric unhealthy: {', '.join(worse)}"
