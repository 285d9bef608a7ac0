"""What the kernel's log holds against GPUs, NVSwitches and PCIe links, told apart by whose fault it is and how old."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Generator, Hashable, Iterable, Iterator, Sequence
from typing import TypeVar

from egmctl.doctor.check import Check, failed, passed, skipped, unknown, warned
from egmctl.doctor.messages import MESSAGES
from egmctl.doctor.scope import Scope
from egmctl.doctor.xids import Blame, meaning, remedy
from egmctl.model.finding import NODE, Evidence, Finding, Guard, Place, Remedy, Status, on_gpus
from egmctl.model.kernel_log import EventKind, KernelEvent, KernelLog
from egmctl.model.machine import Machine, OriginKind, Reason

K = TypeVar("K", bound=Hashable)

ALL = tuple(Guard)
_SHOWN = 3
"""Events that a finding quotes: the first, and the newest."""
_MANY_CORRECTED = 100
"""Corrected PCIe errors of one device from which on a link is called noisy. Chosen: a healthy link logs none; a link
that repairs some a day works."""

_MAY_READ = Remedy(
    text="Run as root, or with CAP_SYSLOG, or as a member of the group adm or systemd-journal; in a container, look on "
    "the host.",
    command="sudo egmctl doctor --check 'kernel.*'",
    needs_root=True,
)


def _xid(machine: Machine, scope: Scope) -> Iterator[Finding]:
    log = yield from _log(machine)
    if log is None:
        return
    harmless: list[KernelEvent] = []
    found = False
    events = [event for event in _recent(log, scope, EventKind.XID) if _concerns(machine, scope, event)]
    for (_, bus_id, status), group in _groups(events, lambda e: (e.number, e.bus_id, meaning(e).status)):
        if status is Status.PASS:
            harmless += group
            continue
        found = True
        one = meaning(group[0])
        place = _place(machine, bus_id)
        told = failed if status is Status.FAIL else warned
        yield told(
            f"{place.label or bus_id}: Xid {group[0].number}, {one.name}{_times(log, group)}",
            remedy(one),
            place=place,
            evidence=_evidence(log, group),
            cause="" if one.blame in (Blame.NOBODY, Blame.UNKNOWN) else f"blamed on: {one.blame.value}",
        )
    if not found:
        yield passed(
            "no Xid that calls for an operator" if harmless else "no Xid",
            evidence=(_covered(log, scope), *_evidence(log, harmless)),
            note=_harmless(machine, harmless),
        )


def _harmless(machine: Machine, events: Sequence[KernelEvent]) -> str:
    """Return a sentence on the Xids that need no operator: which, how often, whose fault."""
    parts = []
    for (number, bus_id), group in _groups(events, lambda e: (e.number, e.bus_id)):
        one = meaning(group[0])
        where = _place(machine, bus_id).label or bus_id
        parts.append(f"{len(group)} x Xid {number} on {where} ({one.name}; {one.blame.value})")
    return "; ".join(parts)


def _sxid(machine: Machine, scope: Scope) -> Iterator[Finding]:
    log = yield from _log(machine)
    if log is None:
        return
    events = _recent(log, scope, EventKind.SXID)
    if not events:
        if not machine.switches:
            yield skipped("no NVSwitch on this node; the switches of a rack log on their own trays")
        else:
            yield passed("no SXid", evidence=(_covered(log, scope),))
        return
    for (number, bus_id, fatal), group in _groups(events, lambda e: (e.number, e.bus_id, e.fatal)):
        # Unless the line says Non-fatal it is taken for fatal, as NVIDIA's own monitors do.
        told = warned if fatal is False else failed
        link = "" if group[0].link is None else f" on link {group[0].link}"
        yield told(
            f"NVSwitch {bus_id}: SXid {number}{link}, {'non-fatal' if fatal is False else 'fatal'}{_times(log, group)}",
            Remedy(
                text="Look the number up in the Fabric Manager guide; reset all GPUs and NVSwitches of the node "
                "together, then inspect or replace the switch or the GPU at that link.",
                needs_root=True,
            ),
            evidence=_evidence(log, group),
        )


def _aer(machine: Machine, scope: Scope) -> Iterator[Finding]:
    log = yield from _log(machine)
    if log is None:
        return
    known = _devices(machine)
    found = False
    events = [event for event in _recent(log, scope, EventKind.AER) if event.bus_id in known]
    for (bus_id, corrected, fatal), group in _groups(events, lambda e: (e.bus_id, e.corrected, e.fatal)):
        if corrected and len(group) < _MANY_CORRECTED:
            continue
        found = True
        what = "corrected" if corrected else "fatal" if fatal else "non-fatal"
        told = failed if fatal else warned
        yield told(
            f"{known[bus_id or '']}: {len(group)} {what} PCIe errors{_times(log, group, count=False)}",
            Remedy(
                text="Reseat or replace the card, its riser or cable; compare the link's width and speed (lspci -vv)."
            ),
            place=_place(machine, bus_id),
            evidence=_evidence(log, group),
        )
    if not found:
        few = f"{len(events)} corrected PCIe errors, which the links repaired" if events else ""
        yield passed(
            "no PCIe error of a GPU, its bridges or a NIC" + (" but corrected ones" if events else ""),
            evidence=(_covered(log, scope),),
            note=few,
        )


def _driver(machine: Machine, scope: Scope) -> Iterator[Finding]:
    log = yield from _log(machine)
    if log is None:
        return
    events = [event for event in _recent(log, scope, EventKind.DRIVER) if event.message is not None]
    found = False
    for message, group in _groups(events, lambda e: e.message):
        if message is None:
            continue
        known = MESSAGES[message]
        found = True
        place = _place(machine, group[0].bus_id) if len({e.bus_id for e in group}) == 1 else NODE
        told = failed if known.status is Status.FAIL else warned
        yield told(
            f"the driver logged: {known.meaning}{_times(log, group)}",
            known.remedy,
            place=place,
            evidence=(Evidence(source=log.source, value=f"{_ago(log, group[-1])}: ... {message.value} ..."),),
        )
    if not found:
        yield passed(
            "no message of the driver that names a fault of EGM, NVLink, C2C, fabric or IMEX",
            evidence=(_covered(log, scope),),
        )


def _log(machine: Machine) -> Generator[Finding, None, KernelLog | None]:
    """Return the log, or yield why there is none."""
    if machine.kernel_log is not None:
        return machine.kernel_log
    status = machine.sections.get("kernel_log")
    if machine.origin.kind is OriginKind.MODELLED:
        yield skipped("a model has no kernel log")
    elif status is None or (status.unread and status.unread.reason in (Reason.NOT_ASKED, Reason.NOT_STATED)):
        yield skipped("recorded without the kernel's log")
    else:
        why = status.unread
        yield unknown(
            "the kernel's log was not read" + (f" ({why.detail or why.reason.value})" if why else ""), remedy=_MAY_READ
        )
    return None


def _recent(log: KernelLog, scope: Scope, kind: EventKind) -> list[KernelEvent]:
    """Return the events of a kind that are not older than ``--since``."""
    least = 0.0 if scope.since_s is None else log.now_s - scope.since_s
    return [event for event in log.events if event.kind is kind and event.time_s >= least]


def _concerns(machine: Machine, scope: Scope, event: KernelEvent) -> bool:
    """Say whether an event is of a GPU in scope, or of one that is no longer there."""
    known = {gpu.bus_id for gpu in machine.gpus or ()}
    return scope.gpus is None or event.bus_id in scope.gpus or event.bus_id not in known


def _groups(events: Iterable[KernelEvent], key: Callable[[KernelEvent], K]) -> Iterator[tuple[K, list[KernelEvent]]]:
    groups: dict[K, list[KernelEvent]] = defaultdict(list)
    for event in events:
        groups[key(event)].append(event)
    yield from groups.items()


def _place(machine: Machine, bus_id: str | None) -> Place:
    gpus = [gpu for gpu in machine.gpus or () if gpu.bus_id == bus_id]
    return on_gpus(gpus) if gpus else NODE


def _devices(machine: Machine) -> dict[str, str]:
    """Return the PCIe devices whose errors matter here, and what to call them."""
    bridges = (machine.system.bridges if machine.system else None) or ()
    return {
        **{bridge.bus_id: f"PCIe bridge {bridge.bus_id}" for bridge in bridges},
        **{nic.pci.bus_id: nic.name for nic in machine.nics or () if nic.pci is not None},
        **{switch.pci.bus_id: f"NVSwitch {switch.pci.bus_id}" for switch in machine.switches or () if switch.pci},
        **{gpu.bus_id: f"GPU{gpu.index}" for gpu in machine.gpus or ()},
    }


def _times(log: KernelLog, events: Sequence[KernelEvent], *, count: bool = True) -> str:
    """Return how often and when last: ``, 3 times, last 12 min ago``."""
    often = f", {len(events)} times" if count and len(events) > 1 else ""
    return f"{often}, {'last ' if len(events) > 1 else ''}{_ago(log, events[-1])}"


def _ago(log: KernelLog, event: KernelEvent) -> str:
    seconds = max(0, round(log.now_s - event.time_s))
    if seconds < 120:
        return f"{seconds} s ago"
    if seconds < 7200:
        return f"{seconds // 60} min ago"
    return f"{seconds // 3600} h ago" if seconds < 172800 else f"{seconds // 86400} days ago"


def _evidence(log: KernelLog, events: Sequence[KernelEvent]) -> tuple[Evidence, ...]:
    shown = (*events[:1], *events[1:][-(_SHOWN - 1) :])
    return tuple(Evidence(source=log.source, value=_line(event)) for event in shown)


def _line(event: KernelEvent) -> str:
    who = f", pid={event.pid}" if event.pid is not None else ""
    who += f", name={event.process}" if event.process else ""
    word = {EventKind.XID: "Xid ", EventKind.SXID: "SXid "}.get(event.kind, "")
    number = "" if event.number is None else f"{word}{event.number}"
    return f"[{event.time_s:.3f}] {event.bus_id} {number}{who} {event.text}".rstrip()


def _covered(log: KernelLog, scope: Scope) -> Evidence:
    """Return what part of the log was looked at: a ring buffer forgets."""
    first = "empty" if log.first_s is None else f"from {log.first_s:.0f} s to {log.now_s:.0f} s after boot"
    since = "" if scope.since_s is None else f", only the last {scope.since_s:.0f} s were asked for"
    lost = ", with lines overwritten meanwhile" if log.overwritten else ""
    return Evidence(source=log.source, value=f"{first}{since}{lost}")


CHECKS = (
    Check(
        id="kernel.xid",
        title="no Xid that calls for an operator",
        guards=ALL,
        sections=("gpus",),
        wants=("kernel_log",),
        judge=_xid,
        why="The GPU driver reports errors as numbered Xids in the kernel's log and nowhere else for long. Many are an "
        "application's fault (13, 31, 43, 45) and no reason to drain a node; some mean a reset, a reboot or a repair. "
        "Meanings: NVIDIA's Xid catalogue and nverror.h.",
        read="/dev/kmsg, else journalctl --dmesg --boot; both may need rights. Lines are known by their text, never by "
        "priority. The ring buffer forgets old lines: the evidence says from when on it was read. --since looks at "
        "newer ones only.",
        fix="Do what the Xid asks for: restart the application, reset the GPU, reboot, or inspect the hardware.",
    ),
    Check(
        id="kernel.sxid",
        title="no SXid of an NVSwitch",
        guards=(Guard.P2P, Guard.IPC, Guard.PERF),
        sections=("gpus",),
        wants=("kernel_log", "switches"),
        judge=_sxid,
        why="NVSwitches report errors as SXids. A fatal one stops NVLink between all GPUs of the node until they "
        "are reset together (NVIDIA Fabric Manager User Guide).",
        read="The kernel's log, as for kernel.xid. Only HGX-style nodes have their switches' driver; the switches of "
        "an NVL72 rack log on their own trays.",
        fix="Reset all GPUs and NVSwitches together; inspect or replace what the SXid's link names.",
    ),
    Check(
        id="kernel.aer",
        title="no PCIe errors of GPUs, bridges and NICs",
        guards=(Guard.PERF, Guard.RDMA),
        sections=("gpus",),
        wants=("kernel_log", "system", "nics", "switches"),
        judge=_aer,
        why="PCIe Advanced Error Reporting logs what links could not or only just deliver. Uncorrected errors end "
        "jobs; a stream of corrected ones costs bandwidth and announces them.",
        read="The kernel's log, as for kernel.xid, for the GPUs, the bridges above them, NVSwitches and NICs. Where "
        "the firmware keeps AER to itself nothing is logged.",
        fix="Reseat or replace the card, its riser or its cable.",
    ),
    Check(
        id="kernel.driver-messages",
        title="no driver message about EGM, NVLink, fabric or IMEX faults",
        guards=(Guard.EGM, Guard.P2P, Guard.IPC, Guard.FABRIC),
        sections=("gpus",),
        wants=("kernel_log",),
        judge=_driver,
        why="Why EGM is off, a link did not train or an import failed is often said by the driver only, in words and "
        "without a number.",
        read="The kernel's log, as for kernel.xid; messages as open-gpu-kernel-modules 595.45.04 spells them. A driver "
        "that words them otherwise is not understood, so a pass is no proof.",
        fix="Depends on the message; the finding says it.",
    ),
)
