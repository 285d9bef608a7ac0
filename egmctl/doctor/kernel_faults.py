"""What events of the kernel's log mean: on which device, how grave, whose fault, what to do. Pure.

For the checks of the log, and for what the kernel said while a bench ran.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from egmctl.compat import assert_never
from egmctl.doctor.messages import MESSAGES
from egmctl.doctor.situation import by_value
from egmctl.doctor.xids import Blame, meaning, remedy
from egmctl.model.finding import NODE, Place, Remedy, Status, on_gpus
from egmctl.model.kernel_log import EventKind, KernelEvent
from egmctl.model.machine import Machine
from egmctl.wording import several

_MANY_CORRECTED = 100
"""Corrected PCIe errors of one device from which on a link is called noisy. Chosen: a healthy link logs none; a link
that repairs some a day works."""


@dataclass(frozen=True, slots=True, kw_only=True)
class KernelFault:
    """Events that say the same of the same device."""

    status: Status
    """``pass`` for what needs no operator."""
    place: Place
    where: str
    """``GPU2``, else the device's bus id, with what it is where that is known."""
    name: str
    """``Xid 79, GPU fell off the bus``."""
    title: str
    """Device and name in one line."""
    blame: Blame
    remedy: Remedy
    events: tuple[KernelEvent, ...]

    @property
    def times(self) -> str:
        """How often, where that is not in the title: ``, 3 times``."""
        many = len(self.events) > 1 and self.events[0].kind is not EventKind.AER
        return f", {len(self.events)} times" if many else ""


def kernel_faults(machine: Machine, events: Iterable[KernelEvent]) -> Iterator[KernelFault]:
    """Yield what events mean, those of one kind together: Xids, SXids, PCIe errors, messages of the driver.

    PCIe errors count of the node's GPUs, NVSwitches and NICs, and of the bridges above them.
    """
    by_kind: dict[EventKind, list[KernelEvent]] = {kind: [] for kind in EventKind}
    for event in events:
        by_kind[event.kind].append(event)
    for kind, those in by_kind.items():
        match kind:
            case EventKind.XID:
                yield from _xids(machine, those)
            case EventKind.SXID:
                yield from _sxids(those)
            case EventKind.AER:
                yield from _pcie(machine, those)
            case EventKind.DRIVER:
                yield from _messages(machine, those)
            case _:
                assert_never(kind)


def _xids(machine: Machine, events: Sequence[KernelEvent]) -> Iterator[KernelFault]:
    for (number, bus_id, status), group in by_value(events, lambda e: (e.number, e.bus_id, meaning(e).status)):
        one, place = meaning(group[0]), _place(machine, bus_id)
        where = place.label or str(bus_id)
        yield KernelFault(
            status=status,
            place=place,
            where=where,
            name=f"Xid {number}, {one.name}",
            title=f"{where}: Xid {number}, {one.name}",
            blame=one.blame,
            remedy=remedy(one),
            events=tuple(group),
        )


def _sxids(events: Sequence[KernelEvent]) -> Iterator[KernelFault]:
    for (number, bus_id, fatal), group in by_value(events, lambda e: (e.number, e.bus_id, e.fatal)):
        link = "" if group[0].link is None else f" on link {group[0].link}"
        where = f"NVSwitch {bus_id}"
        # Unless the line says Non-fatal it is taken for fatal, as NVIDIA's own monitors do.
        name = f"SXid {number}{link}, {'non-fatal' if fatal is False else 'fatal'}"
        yield KernelFault(
            status=Status.WARN if fatal is False else Status.FAIL,
            place=NODE,
            where=where,
            name=name,
            title=f"{where}: {name}",
            blame=Blame.SWITCH,
            remedy=Remedy(
                text="Look up the number in the Fabric Manager guide; reset all GPUs and NVSwitches of the node "
                "together, then inspect or replace the switch or the GPU at that link.",
                needs_root=True,
            ),
            events=tuple(group),
        )


def _pcie(machine: Machine, events: Sequence[KernelEvent]) -> Iterator[KernelFault]:
    known = _devices(machine)
    those = [event for event in events if event.bus_id in known]
    for (bus_id, corrected, fatal), group in by_value(those, lambda e: (e.bus_id, e.corrected, e.fatal)):
        what = "corrected" if corrected else "fatal" if fatal else "non-fatal"
        few = corrected and len(group) < _MANY_CORRECTED
        where, name = known[bus_id or ""], several(len(group), f"{what} PCIe error")
        yield KernelFault(
            status=Status.PASS if few else Status.FAIL if fatal else Status.WARN,
            place=_below(machine, bus_id),
            where=where,
            name=name,
            title=f"{where}: {name}",
            blame=Blame.PCIE,
            remedy=Remedy(
                text="Reseat or replace the card, its riser or cable; compare the link's width and speed (lspci -vv)."
            ),
            events=tuple(group),
        )


def _messages(machine: Machine, events: Sequence[KernelEvent]) -> Iterator[KernelFault]:
    for message, group in by_value(events, lambda e: e.message):
        if message is None:
            continue
        known = MESSAGES[message]
        place = _place(machine, group[0].bus_id) if len({e.bus_id for e in group}) == 1 else NODE
        name = f"the driver logged: {known.meaning}"
        yield KernelFault(
            status=Status.FAIL if known.status is Status.FAIL else Status.WARN,
            place=place,
            where=place.label,
            name=name,
            title=name,
            blame=Blame.UNKNOWN,
            remedy=known.remedy,
            events=tuple(group),
        )


def _place(machine: Machine, bus_id: str | None) -> Place:
    gpus = [gpu for gpu in machine.gpus or () if gpu.bus_id == bus_id]
    return on_gpus(gpus) if gpus else NODE


def _below(machine: Machine, bus_id: str | None) -> Place:
    """Return the place of a GPU, or of those below a bridge: all that they send crosses it."""
    below = [gpu for gpu in machine.gpus or () if gpu.pci is not None and bus_id in (gpu.pci.path or ())]
    return on_gpus(below) if below else _place(machine, bus_id)


def _devices(machine: Machine) -> dict[str, str]:
    """Return the PCIe devices whose errors matter here, and what to call them."""
    bridges = (machine.system.bridges if machine.system else None) or ()
    return {
        **{bridge.bus_id: f"PCIe bridge {bridge.bus_id}" for bridge in bridges},
        **{nic.pci.bus_id: nic.name for nic in machine.nics or () if nic.pci is not None},
        **{switch.pci.bus_id: f"NVSwitch {switch.pci.bus_id}" for switch in machine.switches or () if switch.pci},
        **{gpu.bus_id: f"GPU{gpu.index}" for gpu in machine.gpus or ()},
    }
