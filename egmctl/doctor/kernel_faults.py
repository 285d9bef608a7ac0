"""Faults in the kernel log: the meaning, blame and remedy of Xids, SXids, PCIe errors and driver messages."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

from egmctl.compat import StrEnum
from egmctl.dataclass import dataclass
from egmctl.files import read_toml
from egmctl.model.finding import NODE, Place, Status, on_gpus
from egmctl.model.kernel_log import DriverMessage, EventKind, KernelEvent
from egmctl.model.machine import Machine
from egmctl.model.remedy import ANYWHERE, ON_HOST, Need, Remedy, as_root, remedy_of
from egmctl.units import group_by, grouped, several


class Blame(StrEnum):
    """The parts that can be responsible for an error."""

    APPLICATION = "application"
    DRIVER = "driver or firmware"
    HARDWARE = "hardware"
    LINK = "NVLink: this GPU, the other end, or the cable"
    SWITCH = "NVSwitch, or the GPU at that link"
    PCIE = "PCIe: the card, its riser or cable"
    NOBODY = "information, no fault"
    UNKNOWN = "not in the catalogue"


class Action(StrEnum):
    """The actions after an Xid."""

    NONE = "none"
    BEFORE = "before"
    """It is a consequence: look at what came before it."""
    APPLICATION = "application"
    RESTART = "restart"
    """Restart the application, which did nothing wrong."""
    RESET = "reset"
    RESET_IF_IT_RETURNS = "reset-if-it-returns"
    REBOOT = "reboot"
    LINKS = "links"
    LINKS_NOT_FATAL = "links-not-fatal"
    """Look at the links: the driver calls the event ``Nonfatal``, so nothing is to be reset."""
    REPORTED = "reported"
    """The action is in the Xid's own message (154)."""


@dataclass(frozen=True, slots=True)
class Xid:
    """The catalogue entry of an Xid number."""

    name: str
    blame: Blame
    status: Status
    """The severity; ``pass`` if no operator is needed."""
    action: Action


RECOVERY_CHANGED = 154
"""The Xid with which the driver requests a recovery of a GPU, after the Xid that is the reason."""
REMOTE_ACCESS_XIDS = frozenset({108, 137})
"""The Xids of a failed access over NVLink: the application's fault, unless a link failed."""
C2C_XIDS = frozenset({121, 159, 173})
"""The Xids of the link between a GPU and its CPU, and of the coherent interface behind it."""


@dataclass(frozen=True, slots=True)
class Meaning:
    """The catalogue entry of a driver message."""

    status: Status
    meaning: str
    remedy: Remedy


_UNKNOWN = Xid("not in egmctl's catalogue", Blame.UNKNOWN, Status.WARN, Action.NONE)


@dataclass(frozen=True, slots=True)
class Catalogue:
    """The contents of ``kernel_faults.toml``: Xids, driver messages and remedies."""

    xids: dict[int, Xid]
    messages: dict[DriverMessage, Meaning]
    remedies: dict[str, Remedy]


@cache
def catalogue() -> Catalogue:
    """Return the catalogue, which is read on the first call."""
    tables = read_toml(Path(__file__).with_suffix(".toml").read_text(encoding="utf-8"))
    remedies = {name: _remedy(entry) for name, entry in tables["remedies"].items()}
    return Catalogue(
        xids={
            int(number): Xid(name, Blame[blame.upper()], Status(status), Action(action))
            for number, (blame, status, action, name) in tables["xids"].items()
        },
        messages={
            DriverMessage[name]: Meaning(Status(status), meaning, remedies[remedy])
            for name, (status, remedy, meaning) in tables["messages"].items()
        },
        remedies=remedies,
    )


def _remedy(entry: Mapping[str, Any]) -> Remedy:
    remedy = remedy_of(entry)
    return replace(remedy, works_in=ON_HOST if Need.ROOT in remedy.needs else ANYWHERE)


def meaning(event: KernelEvent) -> Xid:
    """Return the meaning of an Xid event; NVLink 5's Fatal or Nonfatal decides its status, and whether to reset.

    An Xid 154 that withdraws the recovery request (0x0) is ``pass``.
    """
    xid = catalogue().xids.get(event.number or -1, _UNKNOWN)
    if xid.blame is Blame.LINK and event.fatal is not None:
        if event.fatal:
            return replace(xid, status=Status.FAIL)
        return replace(xid, status=Status.WARN, action=Action.LINKS_NOT_FATAL)
    if event.number == RECOVERY_CHANGED and "to 0x0 " in event.text:
        return replace(xid, status=Status.PASS, action=Action.NONE)
    return xid


def is_one_of(event: KernelEvent, numbers_or_parts: Collection[int | Blame]) -> bool:
    """Return whether an Xid has one of these numbers, or blames one of these parts."""
    return event.number in numbers_or_parts or meaning(event).blame in numbers_or_parts


_MANY_CORRECTED = 100
"""The number of corrected PCIe errors of a device that is a warning. Our choice: a healthy link logs none; a link with
a few a day works."""


@dataclass(frozen=True, slots=True)
class KernelFault:
    """A fault: events with the same meaning about the same device."""

    status: Status
    """The severity; ``pass`` if no operator is needed."""
    place: Place
    where: str
    """The device: ``GPU2``, ``mlx5_0``, ``NVSwitch 0000:05:00.0`` or a bus id; may be empty for a driver message."""
    name: str
    """The fault in words, e.g. ``Xid 79, GPU fell off the bus``."""
    blame: Blame
    remedy: Remedy
    events: tuple[KernelEvent, ...]

    @property
    def title(self) -> str:
        """The device and the name in one line; for a driver message, only the name."""
        return self.name if self.events[0].kind is EventKind.DRIVER else f"{self.where}: {self.name}"

    @property
    def times(self) -> str:
        """The number of events, e.g. ``, 3 times``; empty for one event and for PCIe errors."""
        is_repeated = len(self.events) > 1 and self.events[0].kind is not EventKind.AER
        return f", {len(self.events)} times" if is_repeated else ""


def kernel_faults(machine: Machine, events: Iterable[KernelEvent]) -> Iterator[KernelFault]:
    """Yield the faults that events report, by kind: Xids, SXids, PCIe errors, driver messages.

    Only PCIe errors of the node's GPUs, NVSwitches and NICs, and of the bridges above them, count.
    """
    judges = {EventKind.XID: _xids, EventKind.SXID: _sxids, EventKind.AER: _pcie, EventKind.DRIVER: _messages}
    by_kind = grouped((event.kind, event) for event in events)
    for kind, judge in judges.items():
        yield from judge(machine, by_kind.get(kind, ()))


def _xids(machine: Machine, events: Sequence[KernelEvent]) -> Iterator[KernelFault]:
    for (number, bus_id, status), group in group_by(events, lambda e: (e.number, e.bus_id, meaning(e).status)):
        xid, place = meaning(group[0]), _place(machine, bus_id)
        where, name = place.label or str(bus_id), f"Xid {number}, {xid.name}"
        yield KernelFault(status, place, where, name, xid.blame, catalogue().remedies[xid.action], group)


_SWITCH_REMEDY = as_root(
    "Look up the number in the Fabric Manager guide; reset all GPUs and NVSwitches of the node together, then inspect "
    "or replace the switch or the GPU at that link.",
    Need.NO_JOBS,
)


def _sxids(_machine: Machine, events: Sequence[KernelEvent]) -> Iterator[KernelFault]:
    for (number, bus_id, fatal), group in group_by(events, lambda e: (e.number, e.bus_id, e.fatal)):
        link = "" if group[0].link is None else f" on link {group[0].link}"
        # Like NVIDIA's monitors, treat an SXid as fatal unless the line says Non-fatal.
        status, severity = (Status.WARN, "non-fatal") if fatal is False else (Status.FAIL, "fatal")
        name = f"SXid {number}{link}, {severity}"
        yield KernelFault(status, NODE, f"NVSwitch {bus_id}", name, Blame.SWITCH, _SWITCH_REMEDY, group)


_PCIE_REMEDY = as_root(
    "Reseat or replace the card, its riser or cable; compare the link's width and speed in pcie.link.", Need.REBOOT
)


def _pcie(machine: Machine, events: Sequence[KernelEvent]) -> Iterator[KernelFault]:
    devices = _devices(machine)
    known = [event for event in events if event.bus_id in devices]
    for (bus_id, corrected, fatal), group in group_by(known, lambda e: (e.bus_id, e.corrected, e.fatal)):
        if corrected:
            kind = "corrected"
        elif fatal:
            kind = "fatal"
        else:
            kind = "non-fatal"
        if corrected and len(group) < _MANY_CORRECTED:
            status = Status.PASS
        elif fatal:
            status = Status.FAIL
        else:
            status = Status.WARN
        where, name = devices[bus_id or ""], several(len(group), f"{kind} PCIe error")
        # Traffic of the GPUs below a bridge crosses it.
        below = [gpu for gpu in machine.gpus or () if gpu.pci is not None and bus_id in (gpu.pci.path or ())]
        place = on_gpus(below) if below else _place(machine, bus_id)
        yield KernelFault(status, place, where, name, Blame.PCIE, _PCIE_REMEDY, group)


def _messages(machine: Machine, events: Sequence[KernelEvent]) -> Iterator[KernelFault]:
    for message, group in group_by(events, lambda e: e.message):
        if message is None:
            continue
        known = catalogue().messages[message]
        bus_ids = {event.bus_id for event in group}
        place = _place(machine, bus_ids.pop()) if len(bus_ids) == 1 else NODE
        status = Status.FAIL if known.status is Status.FAIL else Status.WARN
        name = f"the driver logged: {known.meaning}"
        yield KernelFault(status, place, place.label, name, Blame.UNKNOWN, known.remedy, group)


def _place(machine: Machine, bus_id: str | None) -> Place:
    gpus = [gpu for gpu in machine.gpus or () if gpu.bus_id == bus_id]
    return on_gpus(gpus) if gpus else NODE


def _devices(machine: Machine) -> dict[str, str]:
    """Return the names of the PCIe devices whose errors count, by bus id."""
    bridges = (machine.system.bridges if machine.system else None) or ()
    return {
        **{bridge.bus_id: f"PCIe bridge {bridge.bus_id}" for bridge in bridges},
        **{nic.pci.bus_id: nic.name for nic in machine.nics or () if nic.pci is not None},
        **{switch.pci.bus_id: f"NVSwitch {switch.pci.bus_id}" for switch in machine.switches or () if switch.pci},
        **{gpu.bus_id: f"GPU{gpu.index}" for gpu in machine.gpus or ()},
    }
