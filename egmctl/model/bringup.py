"""The acceptance verdict on a node, from the results of doctor, topology and the quick bench."""

from __future__ import annotations

from typing import ClassVar

from egmctl.dataclass import dataclass
from egmctl.model.answer import UNANSWERED, Answer
from egmctl.model.diagnosis import AboutDiagnosed, Diagnosis
from egmctl.model.measurement import RunReport
from egmctl.model.record import BusId, Plain


@dataclass(frozen=True, slots=True, kw_only=True)
class Board:
    """The board of a GPU, as its vendor knows it (NVML). Null is what NVML did not report."""

    gpu: Plain
    """The label of the GPU: ``GPU0``."""
    bus_id: BusId
    serial: Plain | None
    """The serial number of the board (``nvmlDeviceGetSerial``)."""
    part_number: Plain | None
    chassis_serial: Plain | None
    """The serial number of the chassis (``nvmlDeviceGetPlatformInfo``), with the slot and the tray in it."""
    slot: int | None
    tray: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Identity:
    """The names of a node and its parts, of which all else in a document has pseudonyms."""

    hostname: Plain
    boards: tuple[Board, ...]


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Bringup(AboutDiagnosed):
    """The key ``result`` of the document of ``egmctl bringup``; its answer has the causes and gaps of both parts."""

    SCHEMA: ClassVar[str] = "egmctl.bringup/2"

    diagnosis: Diagnosis
    """The diagnosis after the bench, if there was one."""
    run: RunReport | None
    """The quick bench; ``None`` if nothing was measured."""
    not_measured: Plain = ""
    """The reason why there was no bench; empty if there was one."""
    no_fabric: Plain = ""
    """The reason why the fabric to the other nodes of the job was not measured; empty if only this node is asked
    about."""
    identity: Identity | None = None
    """The node and the boards that the results are of; only with ``--serials``."""
    answer: Answer = UNANSWERED
    """Whether the node can be handed over (:mod:`egmctl.verdict.answers`)."""

    @property
    def fault(self) -> str | None:
        """The first inconsistency, as half a sentence that begins with the key; ``None`` if there is none."""
        if self.run is not None and (fault := self.run.fault):
            return fault
        count = 0 if self.run is None else len(self.run.measurements)
        if not self.diagnosis.machines:
            return "result.diagnosis.machines: there is none"
        for place, cause in enumerate(self.answer.causes):
            if any(not 0 <= number < count for number in cause.measurements):
                return f"answer.causes[{place}].measurements: a measurement is not there"
        return self.answer.fault
