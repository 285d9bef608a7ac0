"""Which cause explains which measurement that is slow, broke or was not made. Pure.

A root cause of doctor's explains a measurement where it is about one of its GPUs, pairs or NUMA nodes, and the
measurement crosses what the check guards (:data:`_REACH`). What was not measured is explained only by what can stop a
measurement (:data:`_STOPS`): a narrow link of a GPU that others use does not. What the run itself saw
(:mod:`egmctl.verdict.seen`) explains the measurements that it was seen on. Two causes of one measurement stay two, and
what nothing explains has none: that something is slow at the same time proves nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase

from egmctl.doctor.registry import CHECKS
from egmctl.doctor.runner import diagnose
from egmctl.doctor.scope import Scope
from egmctl.model.cause import RunCause
from egmctl.model.finding import Finding, Place, PlaceKind
from egmctl.model.finding import Status as Found
from egmctl.model.machine import Gpu, Machine
from egmctl.model.measurement import BROKEN, Flow, HandleKind, Measurement, RunReport
from egmctl.model.route import Carrier, LinkKind
from egmctl.model.verdict import Grade
from egmctl.topology.access import nvml_failure
from egmctl.verdict import seen
from egmctl.verdict.causes import Cause, causes
from egmctl.verdict.classes import is_degraded, is_lost

SECTIONS = ("switches", "confinement", "system")
"""The facts that causes are found in, besides those that a plan is made from."""


@dataclass(frozen=True, slots=True)
class Shortfalls:
    """The measurements of a run that need an explanation, by their places in it."""

    failing: frozenset[int] = frozenset()
    """For their speed, or a known cause."""
    warned: frozenset[int] = frozenset()
    """A little slow, or without EGM where its route is blocked."""
    waived: frozenset[int] = frozenset()
    """Of which the path that was asked for was not measured."""

    @property
    def slow(self) -> frozenset[int]:
        """All that were measured and are not as they should be."""
        return self.failing | self.warned

    @property
    def all(self) -> frozenset[int]:
        """All of them."""
        return self.slow | self.waived


def with_causes(report: RunReport, machine: Machine | None = None, *, asked: Collection[str] = ()) -> RunReport:
    """Return a run with the causes that explain it (``RunReport.causes``).

    Parameters
    ----------
    machine
        The live node, whose findings name things as they are called there; by default the run's own record of it, which
        has pseudonyms.
    asked
        Bus ids of the GPUs that the user named: that one cannot be measured is a fault then.
    """
    return replace(report, causes=run_causes(report, shortfalls(report), machine, asked=asked))


def run_causes(
    report: RunReport, short: Shortfalls, machine: Machine | None = None, *, asked: Collection[str] = ()
) -> tuple[RunCause, ...]:
    """Return the causes of shortfalls, the gravest first; of equally grave ones those that explain most.

    Of a job on several nodes, whose GPUs may have the same bus ids, only what the run itself saw.
    """
    if len(report.machines) != 1:
        found = [(one.finding, one.measurements & short.slow) for one in seen.during(report)]
    else:
        machine = machine or report.machines[0]
        scope = Scope(gpus=tuple(asked) or None)
        roots = causes(diagnose(machine, scope, CHECKS).findings) if short.all or _is_blind(machine) else ()
        found = _found(report, machine, roots, short, asked)
    told = [
        RunCause(
            status=Found.FAIL if numbers & short.failing else finding.status,
            finding=finding,
            explains=tuple(sorted(numbers)),
        )
        for finding, numbers in found
        if numbers
    ]
    return tuple(sorted(told, key=lambda one: (list(Found).index(one.status), -len(one.explains))))


def shortfalls(run: RunReport) -> Shortfalls:
    """Return what of a run needs an explanation; of one that was interrupted the rest does not."""
    failing = {number for number, one in enumerate(run.measurements) if one.status in BROKEN and not is_lost(one)}
    warned: set[int] = set()
    for judged in run.verdict.judged if run.verdict is not None else ():
        grades = {one.grade for one in judged.judgements}
        if Grade.FAIL in grades:
            failing.add(judged.measurement)
        elif Grade.WARN in grades:
            warned.add(judged.measurement)
    warned |= {number for number, one in enumerate(run.measurements) if one.measured and is_degraded(one)}
    waived = () if run.interrupted else (n for n, one in enumerate(run.measurements) if one.missed_path)
    return Shortfalls(frozenset(failing), frozenset(warned - failing), frozenset(waived))


def explained_by(cause: Cause, run: RunReport, short: Shortfalls) -> frozenset[int]:
    """Return the shortfalls that a root cause of doctor's explains."""
    measurements = run.measurements
    left_out = _left_out(run)
    return frozenset(
        number
        for number in short.all
        if _reaches_any(cause, measurements[number])
        and (number in short.slow or _can_stop(cause, measurements[number], left_out))
    )


def _found(
    report: RunReport, machine: Machine, roots: Sequence[Cause], short: Shortfalls, asked: Collection[str]
) -> list[tuple[Finding, frozenset[int]]]:
    by_doctor = {id(root.finding): (root.finding, explained_by(root, report, short)) for root in roots}
    if _is_blind(machine):
        for root in roots:
            if "drv.libraries" in (root.finding.check, *(one.check for one in root.explains)):
                _, numbers = by_doctor[id(root.finding)]
                by_doctor[id(root.finding)] = root.finding, numbers | _of_unknown_links(report)
    told = list(by_doctor.values())
    throttled = frozenset().union(*(n for finding, n in told if finding.check == "gpu.throttle"), frozenset())
    for one in seen.during(report):
        numbers = one.measurements & short.slow
        told.append((one.finding, numbers - throttled if one.finding.check == seen.THROTTLED else numbers))
    told += _of_left_out(report, machine, told, short, asked)
    return told


def _of_left_out(
    report: RunReport,
    machine: Machine,
    told: Sequence[tuple[Finding, frozenset[int]]],
    short: Shortfalls,
    asked: Collection[str],
) -> Iterator[tuple[Finding, frozenset[int]]]:
    """Yield what no check knows of the GPUs that were not measured: who uses them, or why else."""
    known = frozenset[int]().union(*(numbers for _, numbers in told), frozenset())
    gpus = _gpus(report, machine)
    busy = () if report.settings.allow_busy else seen.busy_gpus(machine, gpus)
    unusable = seen.unusable_gpus(machine, gpus)
    groups: dict[tuple[str, bool], list[Gpu]] = {}
    for gpu in gpus:
        kind = seen.IN_USE if gpu.bus_id in busy else seen.UNUSABLE if gpu.bus_id in unusable else None
        if seen.is_hidden(machine, gpu):
            kind = seen.HIDDEN
        if kind is not None:
            groups.setdefault((kind, gpu.bus_id in asked), []).append(gpu)
    for (kind, wanted), those in groups.items():
        ids = {gpu.bus_id for gpu in those}
        numbers = {n for n in short.waived if any(_ends(flow) & ids for flow in report.measurements[n].flows)}
        if kind == seen.IN_USE:
            stopped = {n for n in numbers if any(_ends(f) & unusable.keys() for f in report.measurements[n].flows)}
            yield seen.busy(those, asked=wanted), frozenset(numbers - stopped)
        elif rest := numbers - known:
            yield seen.unusable(machine, those, asked=wanted), frozenset(rest)


def _gpus(report: RunReport, machine: Machine) -> list[Gpu]:
    taking_part = {gpu.bus_id for gpu in report.gpus}
    return [gpu for gpu in machine.gpus or () if gpu.bus_id in taking_part]


def _left_out(run: RunReport) -> frozenset[str]:
    """Return the GPUs of which nothing could be measured, whatever it was."""
    if len(run.machines) != 1:
        return frozenset()
    machine = run.machines[0]
    gpus = _gpus(run, machine)
    busy = () if run.settings.allow_busy else seen.busy_gpus(machine, gpus)
    return frozenset({*seen.unusable_gpus(machine, gpus), *busy})


def _is_blind(machine: Machine) -> bool:
    """Say whether NVML failed as a whole: then nobody knows the links."""
    return nvml_failure(machine) is not None and all(gpu.nvml is None for gpu in machine.gpus or ())


def _of_unknown_links(report: RunReport) -> frozenset[int]:
    return frozenset(
        number
        for number, one in enumerate(report.measurements)
        if any(hop.link is LinkKind.UNKNOWN for flow in one.flows for hop in flow.route.hops)
    )


# --- what a check's fault concerns -----------------------------------------------------------------------------------


def _can_stop(cause: Cause, measurement: Measurement, left_out: Collection[str]) -> bool:
    """Say whether a cause can keep something from being measured.

    Of a GPU that was left out altogether only what is about GPUs themselves counts; what a path alone lacks does not.
    """
    touched = set[str]().union(*(_ends(flow) for flow in measurement.flows))
    gone = touched & set(left_out)
    for finding in (cause.finding, *cause.explains):
        if gone and _fits(finding.check, _STOPS_GPU):
            if finding.place.kind is not PlaceKind.GPU or gone & set(finding.place.ids):
                return True
        elif not gone and _fits(finding.check, _STOPS):
            return True
    return False


def _reaches_any(cause: Cause, measurement: Measurement) -> bool:
    return any(
        _touches(finding.place, flow) and _reaches(finding, flow)
        for finding in (cause.finding, *cause.explains)
        for flow in measurement.flows
    )


def _ends(flow: Flow) -> set[str]:
    return {end for end in (flow.source.bus_id, flow.destination.bus_id, flow.initiator) if end is not None}


def _touches(place: Place, flow: Flow) -> bool:
    ends = (flow.source.bus_id, flow.destination.bus_id)
    match place.kind:
        case PlaceKind.NODE:
            return True
        case PlaceKind.GPU:
            return not _ends(flow).isdisjoint(place.ids)
        case PlaceKind.PAIR:
            return f"{ends[0]}>{ends[1]}" in place.ids or f"{ends[1]}>{ends[0]}" in place.ids
        case PlaceKind.NUMA:
            nodes = (flow.source.numa_node, flow.destination.numa_node)
            return any(str(node) in place.ids for node in nodes if node is not None)
        case PlaceKind.NIC:
            return False


def _reaches(finding: Finding, flow: Flow) -> bool:
    return any(
        fnmatchcase(finding.check, pattern) and all(holds(flow) for holds in conditions)
        for pattern, conditions in _REACH.items()
    )


def _fits(check: str, patterns: Collection[str]) -> bool:
    return any(fnmatchcase(check, pattern) for pattern in patterns)


_Holds = Callable[[Flow], bool]


def _between_gpus(flow: Flow) -> bool:
    return None not in (flow.source.bus_id, flow.destination.bus_id) and flow.source.bus_id != flow.destination.bus_id


def _host_memory(flow: Flow) -> bool:
    return flow.source.numa_node is not None or flow.destination.numa_node is not None


def _by_fabric_handle(flow: Flow) -> bool:
    return flow.route.across_nodes or HandleKind.FABRIC in (flow.source.handle, flow.destination.handle)


def _over(link: LinkKind, otherwise: _Holds) -> _Holds:
    """Return whether a flow crosses a link; of a blocked or staged route, where it is missing, whether it would."""

    def holds(flow: Flow) -> bool:
        if flow.route.carrier is Carrier.NONE:
            return otherwise(flow)
        missing = bool(flow.route.staged_reason) and otherwise(flow)
        return missing or any(hop.link is link for hop in flow.route.hops)

    return holds


_NVLINK = _over(LinkKind.NVLINK, _between_gpus)
_C2C = _over(LinkKind.C2C, _host_memory)
_PCIE = _over(LinkKind.PCIE, _host_memory)

_REACH: Mapping[str, tuple[_Holds, ...]] = {
    **dict.fromkeys(("dev.*", "drv.libraries", "drv.versions", "drv.nouveau", "env.visible-devices"), ()),
    **dict.fromkeys(("gpu.health", "gpu.mig", "gpu.cc-mode", "gpu.vgpu", "gpu.compute-mode", "gpu.throttle"), ()),
    **dict.fromkeys(("mps.env", "env.bad-cuda-env", "kernel.xid"), ()),
    **dict.fromkeys(("nvlink.*", "kernel.sxid", "fabric.manager", "fabric.management", "fabric.state"), (_NVLINK,)),
    **dict.fromkeys(("p2p.*", "egm.peer-route", "fabric.consistency"), (_between_gpus,)),
    **dict.fromkeys(("imex.*", "fabric.alloc-active"), (_by_fabric_handle,)),
    **dict.fromkeys(("pcie.acs", "pcie.iommu"), (_between_gpus, _PCIE)),
    **dict.fromkeys(("pcie.link", "kernel.aer"), (_PCIE,)),
    "c2c.link": (_C2C,),
    **dict.fromkeys(("egm.*", "numa.*"), (_host_memory,)),
}
"""By check, or glob of checks: what a flow has to cross for its faults to concern it. Other checks explain no speed."""

_STOPS_GPU = ("dev.*", "drv.*", "env.visible-devices", "gpu.mig", "gpu.compute-mode")
"""Checks whose faults take a whole GPU away."""
_STOPS = ("p2p.*", "egm.*", "c2c.link", "nvlink.*", "fabric.*", "imex.*", "numa.cpuset-mems", "numa.mempolicy-syscalls")
"""Checks whose faults keep a path from being tried at all."""
