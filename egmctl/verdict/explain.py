"""Which cause explains which measurement that is slow, broke or was not made. Pure.

A root cause of doctor's explains a measurement where it is about one of its GPUs, pairs or NUMA nodes, the measurement
crosses what the check guards, and the fault can produce what is wrong with it (:mod:`egmctl.verdict.mechanisms`). Why
something was not measured is not guessed from the machine: who waived it recorded it (:mod:`egmctl.model.waiver`).
What the run itself saw (:mod:`egmctl.verdict.seen`) explains the measurements that it was seen on. Two causes of one
measurement stay two, and what nothing explains has none: that something is slow at the same time proves nothing.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field, replace

from egmctl.doctor.scope import Scope
from egmctl.model.cause import RunCause
from egmctl.model.finding import TOLD, Finding, PlaceKind, on_gpus
from egmctl.model.finding import Status as Found
from egmctl.model.machine import Gpu, Machine
from egmctl.model.measurement import BROKEN, Measurement, RunReport, Status
from egmctl.model.route import Carrier, LinkKind, Route
from egmctl.model.verdict import Grade
from egmctl.model.waiver import OF_GPUS, Waiver, WaiverKind
from egmctl.topology.access import nvml_failure
from egmctl.verdict import seen
from egmctl.verdict.causes import RootCause, causes
from egmctl.verdict.classes import is_degraded, is_lost
from egmctl.verdict.crossings import leads_through
from egmctl.verdict.mechanisms import Mechanism, Symptom, mechanisms
from egmctl.verdict.nodes import RunNode, nodes, touches

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
    """Whose planned path was not measured."""
    lost: frozenset[int] = frozenset()
    """That crashed, hung, or failed for no cause that the failing call names."""

    @property
    def slow(self) -> frozenset[int]:
        """All that were measured and are not as they should be."""
        return self.failing | self.warned

    @property
    def all(self) -> frozenset[int]:
        """All of them."""
        return self.slow | self.waived | self.lost


@dataclass(slots=True)
class _Explained:
    """What one cause explains."""

    finding: Finding
    node: str = ""
    numbers: set[int] = field(default_factory=set)
    waivers: set[tuple[int, Waiver]] = field(default_factory=set)
    """Each with the measurement that it stopped."""


def with_causes(
    report: RunReport,
    machine: Machine | None = None,
    *,
    asked: Collection[str] = (),
    numa: Collection[int] | None = None,
) -> RunReport:
    """Return a run with the causes that explain it (``RunReport.causes``).

    Parameters
    ----------
    machine
        The live node, whose findings name things as they are called there; by default the run's own record of it, which
        has pseudonyms.
    asked
        Bus ids of the GPUs that the user named: that one cannot be measured is a fault then.
    numa
        NUMA nodes that the user named: that one's memory may not be used is a fault then; ``None``: none were.
    """
    return replace(report, causes=run_causes(report, shortfalls(report), machine, asked=asked, numa=numa))


def run_causes(
    report: RunReport,
    short: Shortfalls,
    machine: Machine | None = None,
    *,
    asked: Collection[str] = (),
    numa: Collection[int] | None = None,
) -> tuple[RunCause, ...]:
    """Return the causes of shortfalls, the gravest first; of equally grave ones those that explain most."""
    found: list[_Explained] = []
    scope = Scope(gpus=tuple(asked) or None, numa=None if numa is None else tuple(numa))
    for node in nodes(report, machine):
        found += _on_node(report, short, node, scope)
    throttled = frozenset[int]().union(*(one.numbers for one in found if one.finding.check == "gpu.throttle"))
    for one in seen.during(report):
        numbers = {n for n in one.measurements & short.slow if _produces(one.finding, _symptoms(report, short, n))}
        found.append(
            _Explained(one.finding, "", numbers - throttled if one.finding.check == seen.THROTTLED else numbers)
        )
    gpus = {gpu.bus_id: gpu for machine in report.machines for gpu in machine.gpus or ()}
    told = [_told(one, short, asked, gpus) for one in found if one.numbers]
    return tuple(sorted(told, key=lambda one: (list(Found).index(one.status), -len(one.explains))))


def _told(one: _Explained, short: Shortfalls, asked: Collection[str], gpus: dict[str, Gpu]) -> RunCause:
    taken = {bus_id for _, waiver in one.waivers if waiver.kind in OF_GPUS for bus_id in waiver.gpus}
    named = [gpus[bus_id] for bus_id in taken & set(asked) & gpus.keys()]
    return RunCause(
        status=Found.FAIL if named or one.numbers & (short.failing | short.lost) else one.finding.status,
        finding=one.finding,
        node=one.node,
        asked=on_gpus(named).label if named else "",
        explains=tuple(sorted(one.numbers)),
    )


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
    lost = (n for n, one in enumerate(run.measurements) if is_lost(one))
    return Shortfalls(frozenset(failing), frozenset(warned - failing), frozenset(waived), frozenset(lost))


def explained_by(cause: RootCause, run: RunReport, short: Shortfalls) -> frozenset[int]:
    """Return the shortfalls of a run on one node that a root cause of doctor's explains."""
    return frozenset(
        number
        for node in nodes(run)[:1]
        for number in _by_doctor(cause, run, short, node, _waived(run, short, node)).numbers
    )


def _on_node(report: RunReport, short: Shortfalls, node: RunNode, scope: Scope) -> Iterator[_Explained]:
    """Yield what explains shortfalls on one node: doctor's causes, then what no check knows of the GPUs left out."""
    blind = _is_blind(node.machine)
    if not (short.all or blind):
        return
    # All checks: only where there is something to explain.
    from egmctl.doctor.registry import CHECKS
    from egmctl.doctor.runner import diagnose

    waived = _waived(report, short, node)
    found = [
        _by_doctor(one, report, short, node, waived) for one in causes(diagnose(node.machine, scope, CHECKS).findings)
    ]
    for one in found:
        if blind and "drv.libraries" in (one.finding.check, *one.finding.explains):
            one.numbers |= _of_unknown_links(report, node)
    yield from found
    known = {(number, waiver) for one in found for number, waiver in one.waivers}
    yield from _left_out(node, waived, known)


def _left_out(
    node: RunNode, waived: Mapping[int, Measurement], known: Collection[tuple[int, Waiver]]
) -> Iterator[_Explained]:
    """Yield who uses the GPUs that were not measured, who hides them, or what else a run recorded of them."""
    stopped: dict[WaiverKind, set[tuple[int, Waiver]]] = {}
    for number, one in waived.items():
        for waiver in one.waivers:
            if waiver.kind in OF_GPUS and waiver.gpus and node.has(waiver.rank) and (number, waiver) not in known:
                stopped.setdefault(waiver.kind, set()).add((number, waiver))
    for kind, those in stopped.items():
        ids = {bus_id for _, waiver in those for bus_id in waiver.gpus}
        gpus = [gpu for gpu in node.machine.gpus or () if gpu.bus_id in ids]
        if gpus:
            yield _Explained(seen.left_out(node.machine, gpus, kind), node.name, {n for n, _ in those}, those)


def _is_blind(machine: Machine) -> bool:
    """Say whether NVML failed as a whole: then nobody knows the links."""
    return nvml_failure(machine) is not None and all(gpu.nvml is None for gpu in machine.gpus or ())


def _of_unknown_links(report: RunReport, node: RunNode) -> set[int]:
    """Return what was tried over links that nobody knows, however it ended."""
    return {
        number
        for number, one in enumerate(report.measurements)
        if one.status is not Status.WAIVED
        and any(hop.link is LinkKind.UNKNOWN and node.gpus(flow) for flow in one.flows for hop in flow.route.hops)
    }


# --- what a check's fault explains -----------------------------------------------------------------------------------


def _by_doctor(
    cause: RootCause, report: RunReport, short: Shortfalls, node: RunNode, waived: Mapping[int, Measurement]
) -> _Explained:
    found = _Explained(cause.finding, node.name)
    # That something could not be determined makes nothing slow, whatever it follows from.
    faults = [one for one in (cause.finding, *cause.explains) if one.status in TOLD]
    rows = [(finding, row) for finding in faults for row in mechanisms(finding.check) if _can(finding, row, node)]
    for number in short.slow | short.lost:
        one, symptoms = report.measurements[number], _symptoms(report, short, number)
        if any(row.does & symptoms and _concerns(finding, row, one, node) for finding, row in rows):
            found.numbers.add(number)
    for number, one in waived.items():
        for waiver in one.waivers:
            if any(_stops(finding, row, waiver, one, node) for finding, row in rows):
                found.waivers.add((number, waiver))
                found.numbers.add(number)
    return found


def _waived(report: RunReport, short: Shortfalls, node: RunNode) -> dict[int, Measurement]:
    """Return what was not measured as planned, with what stopped it."""
    if not short.waived:
        return {}
    tried = {gpu for one in report.measurements if one.status is not Status.WAIVED for gpu in _gpus_of(one, node)}
    return {number: _as_asked(report.measurements[number], node, tried) for number in sorted(short.waived)}


def _gpus_of(one: Measurement, node: RunNode) -> set[str]:
    return {gpu for flow in one.flows for gpu in node.gpus(flow)}


def _as_asked(one: Measurement, node: RunNode, tried: Collection[str]) -> Measurement:
    """Return the planned measurement as waived, with its reason.

    Copies that were staged are a path that was refused; a worker that finds a GPU missing does not say which of a path:
    it is the one of which nothing was measured.
    """
    ends = _gpus_of(one, node)
    missing = tuple(sorted(ends.difference(tried) or ends))
    one = replace(
        one,
        waivers=tuple(
            replace(waiver, gpus=missing) if waiver.kind in OF_GPUS and not waiver.gpus else waiver
            for waiver in one.waivers
        ),
    )
    staged = [flow for flow in one.flows if flow.route.staged_reason]
    if not staged:
        return one
    no_access = tuple(
        Waiver(kind=WaiverKind.NO_PEER_ACCESS, reason=flow.route.staged_reason, gpus=tuple(sorted(node.gpus(flow))))
        for flow in staged
    )
    flows = tuple(replace(flow, route=Route(carrier=Carrier.NONE)) if flow in staged else flow for flow in one.flows)
    return replace(one, flows=flows, waivers=(*one.waivers, *no_access))


def _symptoms(report: RunReport, short: Shortfalls, number: int) -> frozenset[Symptom]:
    """Return what is wrong with a measurement that was tried."""
    one = report.measurements[number]
    if one.status is Status.CORRUPT:
        return frozenset({Symptom.CORRUPT})
    if not one.measured:
        return frozenset({Symptom.LOST if number in short.lost else Symptom.FAILED})
    # What went without EGM has no reference: it is slow only by comparison with another run.
    slow = {Symptom.SLOW} if number in short.failing or not is_degraded(one) else set[Symptom]()
    return frozenset(slow | ({Symptom.DEGRADED} if is_degraded(one) else set()))


def _produces(finding: Finding, symptoms: Collection[Symptom]) -> bool:
    return any(not row.does.isdisjoint(symptoms) for row in mechanisms(finding.check))


def _can(finding: Finding, row: Mechanism, node: RunNode) -> bool:
    """Say whether a finding is one that a row is about."""
    placed = finding.place.kind is PlaceKind.GPU or not row.own_gpu
    return placed and (row.given is None or row.given(finding, node))


def _stops(finding: Finding, row: Mechanism, waiver: Waiver, one: Measurement, node: RunNode) -> bool:
    """Say whether a fault is why something was not measured."""
    # A waiver of a path names no rank.
    if waiver.kind not in row.stops or (waiver.rank is not None and not node.has(waiver.rank)):
        return False
    if waiver.kind in OF_GPUS and waiver.gpus:
        ids = waiver.gpus if row.whole_node or finding.place.kind is not PlaceKind.GPU else finding.place.ids
        return bool(_gpus_of(one, node)) and not set(ids).isdisjoint(waiver.gpus)
    return _concerns(finding, row, one, node)


def _concerns(finding: Finding, row: Mechanism, one: Measurement, node: RunNode) -> bool:
    """Say whether a fault is on the way of one of a measurement's flows."""
    return any(
        (row.crosses is None or row.crosses(flow))
        and (row.where is None or row.where(flow, node))
        and (
            touches(finding.place, flow, node, whole=row.whole_node)
            or (row.of_links and leads_through(finding.place, flow, node))
        )
        for flow in one.flows
    )
