"""The acceptance verdict on a node, from the results of doctor, topology and the quick bench."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from egmctl.compat import StrEnum
from egmctl.errors import ExitCode
from egmctl.model.diagnosis import AboutDiagnosed, Diagnosis
from egmctl.model.finding import RunCause, Status
from egmctl.model.measurement import RunReport
from egmctl.model.record import Plain


class Answer(StrEnum):
    """The answer to whether the node can be handed over."""

    GO = "go"
    """Everything was checked and measured, and nothing failed. There may be warnings."""
    NO_GO = "no-go"
    """A check failed, or a path is slow, broken or corrupt."""
    INCOMPLETE = "incomplete"
    """Nothing failed, but something was not measured or not determined, so the node is not known to be good."""


ANSWER_CODES = {Answer.GO: ExitCode.OK, Answer.NO_GO: ExitCode.FAILED, Answer.INCOMPLETE: ExitCode.NOTHING}
"""The exit code of each answer."""


class GapKind(StrEnum):
    """The reasons why something is unknown, the most important first."""

    INTERRUPTED = "interrupted"
    BROKE = "broke"
    """Measurements crashed, timed out or failed for an unknown reason, or the run itself did."""
    NOT_MEASURED = "not-measured"
    """The bench did not run: the machine is recorded, or it has no GPU to measure."""
    WAIVED = "waived"
    """Measurements were waived: this process cannot use a GPU, or other processes use it."""
    NO_REFERENCE = "no-reference"
    """Some or all measured values have no reference."""
    NOT_DETERMINED = "not-determined"
    """Too many checks had no data."""
    FABRIC = "fabric"
    """The node is one of a job whose tasks could not measure the fabric between them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Gap:
    """Something that is unknown about the node."""

    kind: GapKind
    reason: Plain = ""
    measurements: tuple[int, ...] = ()
    """Indices into ``run.measurements``."""
    causes: tuple[int, ...] = ()
    """Indices into the result's ``causes``."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Bringup(AboutDiagnosed):
    """The key ``result`` of the document of ``egmctl bringup``."""

    SCHEMA: ClassVar[str] = "egmctl.bringup/1"

    answer: Answer
    causes: tuple[RunCause, ...]
    """The findings of doctor or the bench without a further cause, by severity, then by the number of effects."""
    gaps: tuple[Gap, ...]
    """In the order of :class:`GapKind`. If nothing failed, the first is the reason for the answer."""
    diagnosis: Diagnosis
    run: RunReport | None
    """The quick bench; ``None`` if nothing was measured."""

    @property
    def blamed(self) -> RunCause | None:
        """The first failed cause or that of the first gap, depending on the answer; ``None`` if there is none."""
        if self.answer is Answer.NO_GO:
            return next((cause for cause in self.causes if cause.status is Status.FAIL), None)
        places = self.gaps[0].causes if self.gaps else ()
        return next((self.causes[place] for place in places), None)

    @property
    def nagios_state(self) -> int:
        """The Nagios state, as in :attr:`egmctl.model.diagnosis.Diagnosis.nagios_state`."""
        warns = any(cause.status is Status.WARN for cause in self.causes)
        return {Answer.GO: int(warns), Answer.NO_GO: 2, Answer.INCOMPLETE: 3}[self.answer]

    @property
    def exit_code(self) -> ExitCode:
        """The exit code (``docs/exit-codes.md``); that of an interrupted or crashed run takes precedence over the
        answer."""
        code = ExitCode.OK if self.run is None else self.run.exit_code
        if code in (ExitCode.INTERRUPTED, ExitCode.CRASHED):
            return code
        return ANSWER_CODES[self.answer]

    @property
    def fault(self) -> str | None:
        """The first inconsistency, as half a sentence that begins with the key; ``None`` if there is none."""
        if self.run is not None and (fault := self.run.fault):
            return fault
        count = 0 if self.run is None else len(self.run.measurements)
        if not self.diagnosis.machines:
            return "result.diagnosis.machines: there is none"
        for place, cause in enumerate(self.causes):
            if any(not 0 <= number < count for number in cause.explains):
                return f"result.causes[{place}].explains: a measurement is not there"
        if any(not 0 <= number < len(self.causes) for gap in self.gaps for number in gap.causes):
            return "result.gaps: one is of a cause that is not there"
        if not self.gaps and self.answer is Answer.INCOMPLETE:
            return "result.gaps: there is none"
        if self.answer is Answer.NO_GO and not any(cause.status is Status.FAIL for cause in self.causes):
            return "result.causes: none failed"
        return None
