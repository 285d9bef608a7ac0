"""The devices that the causes of an answer are about, as a drawing of the node marks them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from egmctl.dataclass import dataclass
from egmctl.model.answer import Cause
from egmctl.model.finding import PlaceKind, Status
from egmctl.report.document import Tone
from egmctl.report.views.findings import TONES
from egmctl.topology.topology import Topology


@dataclass(frozen=True, slots=True)
class Fault:
    """What is wrong with a device."""

    tone: Tone
    words: str


FAULT_SIGNS: Mapping[Tone, str] = {Tone.BAD: "✕", Tone.WARN: "▲"}
"""The signs of devices that fail and warn, in every drawing."""
Faults = Mapping[str, Fault]
"""The faults by the labels of devices: ``GPU0``, ``NUMA1``, ``NIC2``. Of several, the most severe."""


def faults(topology: Topology, causes: Iterable[Cause]) -> Faults:
    """Return what the causes find to be wrong with the devices of a node, for each its most severe failure or warning.

    A cause that is about the whole node marks no device.
    """
    wrong = [cause for cause in causes if cause.status in (Status.FAIL, Status.WARN)]
    known: dict[str, Fault] = {}
    for cause in sorted(wrong, key=lambda cause: list(Status).index(cause.status)):
        for label in _labels(topology, cause):
            known.setdefault(label, Fault(TONES[cause.status], cause.title))
    return known


def _labels(topology: Topology, cause: Cause) -> list[str]:
    place = cause.finding.place
    if (gpus := place.gpus) is not None:
        return [label for label, gpu in topology.gpus.items() if gpu.bus_id in gpus]
    match place.kind:
        case PlaceKind.NUMA:
            return [f"NUMA{number}" for number in place.ids]
        case PlaceKind.NIC:
            return [label for label, nic in topology.nics.items() if nic.name in place.ids]
        case _:
            return []
