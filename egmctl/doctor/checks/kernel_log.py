"""Checks of the kernel log: Xids, SXids, PCIe errors and driver messages, with blame and age."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from egmctl.doctor.check import Scope, Verdicts, check, end, skip
from egmctl.doctor.findings import fact, failed, passed, unknown, warned
from egmctl.doctor.kernel_faults import Action, Blame, KernelFault, kernel_faults, meaning
from egmctl.model.finding import Evidence, Finding, Guard, Status
from egmctl.model.kernel_log import DriverMessage, EventKind, KernelEvent, KernelLog
from egmctl.model.machine import Machine, OriginKind
from egmctl.model.record import Reason
from egmctl.model.remedy import as_root
from egmctl.units import several

_SHOWN = 3
"""The maximum number of events that a finding quotes: the first and the newest."""
_MAY_READ = as_root("Run as root or with CAP_SYSLOG, on the host.", look="egmctl doctor --check 'kernel.*'")


_BY_A_PROGRAM = "blamed on: application; the GPU is at fault only if several programs have it there"


@check("kernel.xid", *Guard, wants=("kernel_log",))
def _xid(machine: Machine, scope: Scope) -> Verdicts:
    log = _log(machine)
    events = [event for event in _recent(log, scope, EventKind.XID) if _concerns(machine, scope, event)]
    faults = list(kernel_faults(machine, events))
    harmless = [fault for fault in faults if fault.status is Status.PASS]
    by_programs = [fault for fault in harmless if meaning(fault.events[0]).action is Action.APPLICATION]
    for fault in faults:
        if fault in by_programs:
            yield replace(_finding(log, fault, cause=_BY_A_PROGRAM), status=Status.NOTE)
        elif fault not in harmless:
            blamed = "" if fault.blame in (Blame.NOBODY, Blame.UNKNOWN) else f"blamed on: {fault.blame.value}"
            yield _finding(log, fault, cause=blamed)
    if len(harmless) == len(faults):
        others = [fault for fault in harmless if fault not in by_programs]
        notes = [f"{len(fault.events)} x {fault.name} on {fault.where} ({fault.blame.value})" for fault in others]
        quoted = [event for event in events if meaning(event).status is Status.PASS]
        evidence = (_covered(log, scope), *_evidence(log, quoted))
        text = "no Xid that needs an operator" if harmless else "no Xid"
        yield passed(text, evidence=evidence, note="; ".join(notes))


def xids_of(machine: Machine, finding: Finding) -> tuple[KernelEvent, ...]:
    """Return the events that a finding of ``kernel.xid`` quotes."""
    log, quoted = machine.kernel_log, set(finding.evidence)
    if log is None:
        return ()
    events = (event for event in log.events if event.kind is EventKind.XID)
    return tuple(event for event in events if quoted.intersection(_evidence(log, [event])))


@check("kernel.sxid", Guard.P2P, Guard.IPC, Guard.PERF, wants=("kernel_log", "switches"))
def _sxid(machine: Machine, scope: Scope) -> Verdicts:
    log = _log(machine)
    events = _recent(log, scope, EventKind.SXID)
    if not events and not machine.switches:
        skip("no NVSwitch on this node; the switches of a rack log on their own trays")
    if not events:
        yield passed("no SXid", evidence=(_covered(log, scope),))
    yield from (_finding(log, fault) for fault in kernel_faults(machine, events))


@check("kernel.aer", Guard.PERF, Guard.RDMA, wants=("kernel_log", "system", "nics", "switches"))
def _aer(machine: Machine, scope: Scope) -> Verdicts:
    log = _log(machine)
    errors = list(kernel_faults(machine, _recent(log, scope, EventKind.AER)))
    faults = [fault for fault in errors if fault.status is not Status.PASS]
    yield from (_finding(log, fault) for fault in faults)
    if not faults:
        count = sum(len(fault.events) for fault in errors)
        yield passed(
            f"no PCIe errors on GPUs, their bridges and NICs{' but corrected ones' if count else ''}",
            evidence=(_covered(log, scope),),
            note=f"{several(count, 'corrected PCIe error')}, repaired by the links" if count else "",
        )


@check("kernel.driver-messages", Guard.EGM, Guard.P2P, Guard.IPC, Guard.FABRIC, wants=("kernel_log",))
def _driver(machine: Machine, scope: Scope) -> Verdicts:
    log = _log(machine)
    faults = list(kernel_faults(machine, _recent(log, scope, EventKind.DRIVER)))
    for fault in faults:
        yield replace(_finding(log, fault), evidence=(_quoted(log, fault.events[-1]),))
    if not faults:
        none = "no driver message about EGM, NVLink, C2C, fabric or IMEX faults"
        yield passed(none, evidence=(_covered(log, scope),))


def message_of(machine: Machine, finding: Finding) -> DriverMessage | None:
    """Return the driver message that a finding of ``kernel.driver-messages`` quotes."""
    log = machine.kernel_log
    if log is None:
        return None
    events = (event for event in log.events if event.kind is EventKind.DRIVER)
    return next((event.message for event in events if _quoted(log, event) in finding.evidence), None)


def _quoted(log: KernelLog, event: KernelEvent) -> Evidence:
    return fact(log.source, f"{_ago(log, event)}: ... {event.message.value if event.message else ''} ...")


def _finding(log: KernelLog, fault: KernelFault, *, cause: str = "") -> Finding:
    # The finding shows its place, so the device is added only if it is not the place.
    name = fault.name if fault.where == fault.place.label else fault.title
    last = "last " if len(fault.events) > 1 else ""
    return (failed if fault.status is Status.FAIL else warned)(
        f"{name}{fault.times}, {last}{_ago(log, fault.events[-1])}",
        fault.remedy,
        fault.place,
        evidence=_evidence(log, fault.events),
        cause=cause,
    )


def _log(machine: Machine) -> KernelLog:
    """Return the kernel log; end the check if there is none."""
    if machine.kernel_log is not None:
        return machine.kernel_log
    status = machine.sections.get("kernel_log")
    unread = status.unread if status else None
    if machine.origin.kind is OriginKind.MODELLED:
        skip("a model has no kernel log")
    if status is None or (unread and unread.reason in (Reason.NOT_ASKED, Reason.NOT_STATED)):
        skip("recorded without the kernel log")
    reason = f" ({unread.detail or unread.reason.value})" if unread else ""
    end(unknown(f"the kernel log was not read{reason}", remedy=_MAY_READ))


def _recent(log: KernelLog, scope: Scope, kind: EventKind) -> list[KernelEvent]:
    """Return the events of a kind that are not older than ``--since``; all without it."""
    least = 0.0 if scope.since_s is None else log.now_s - scope.since_s
    return [event for event in log.events if event.kind is kind and event.time_s >= least]


def _concerns(machine: Machine, scope: Scope, event: KernelEvent) -> bool:
    """Return whether an event is about a GPU in scope, or about one that the machine no longer has."""
    known = {gpu.bus_id for gpu in machine.gpus or ()}
    return scope.gpus is None or event.bus_id in scope.gpus or event.bus_id not in known


def _ago(log: KernelLog, event: KernelEvent) -> str:
    seconds = max(0, round(log.now_s - event.time_s))
    units = (("days", 86400), ("h", 3600), ("min", 60), ("s", 1))
    return next((f"{seconds // size} {unit} ago" for unit, size in units if seconds >= 2 * size), f"{seconds} s ago")


def _evidence(log: KernelLog, events: Sequence[KernelEvent]) -> tuple[Evidence, ...]:
    shown = (*events[:1], *events[1:][-(_SHOWN - 1) :])
    return tuple(fact(log.source, _line(event)) for event in shown)


def _line(event: KernelEvent) -> str:
    process = f", pid={event.pid}" if event.pid is not None else ""
    process += f", name={event.process}" if event.process else ""
    prefix = {EventKind.XID: "Xid ", EventKind.SXID: "SXid "}.get(event.kind, "")
    number = "" if event.number is None else f"{prefix}{event.number}"
    return f"[{event.time_s:.3f}] {event.bus_id} {number}{process} {event.text}".rstrip()


def _covered(log: KernelLog, scope: Scope) -> Evidence:
    """Return the time range that was searched: a ring buffer overwrites old lines."""
    first = "empty" if log.first_s is None else f"from {log.first_s:.0f} s to {log.now_s:.0f} s after boot"
    since = "" if scope.since_s is None else f", limited to the last {scope.since_s:.0f} s by --since"
    overwritten = ", with lines overwritten in between" if log.overwritten else ""
    return fact(log.source, f"{first}{since}{overwritten}")
