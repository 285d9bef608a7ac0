"""Whether a node can be handed over: what doctor, topology and the quick bench say of it together."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from egmctl.compat import StrEnum
from egmctl.errors import ExitCode
from egmctl.model.finding import Diagnosis, RunCause, Status
from egmctl.model.machine import Machine
from egmctl.model.measurement import RunReport
from egmctl.model.record import Plain


class Answer(StrEnum):
    """Whether the node can be handed over."""

    GO = "go"
    """All was checked and measured, and is as it should be; there may be warnings."""
    NO_GO = "no-go"
    """A check failed, or a path is slow, broken or corrupt."""
    INCOMPLETE = "incomplete"
    """Nothing failed, but something was not measured or not determined: it is not known to be good."""


class GapKind(StrEnum):
    """Why something is not known, the reason that matters most first."""

    INTERRUPTED = "interrupted"
    BROKE = "broke"
    """Measurements crashed, timed out or failed for no known cause, or the run itself did."""
    NOT_MEASURED = "not-measured"
    """There was no bench: the machine is recorded, or has no GPU to measure."""
    WAIVED = "waived"
    """Measurements were not made: a GPU cannot be used from here, or others use it."""
    NO_REFERENCE = "no-reference"
    """Measured, and nothing to judge all or some of it by."""
    NOT_DETERMINED = "not-determined"
    """Too many checks could not tell anything."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Gap:
    """Something that is not known of the node."""

    kind: GapKind
    reason: Plain = ""
    measurements: tuple[int, ...] = ()
    """Places in ``run.measurements``."""
    causes: tuple[int, ...] = ()
    """Places in ``causes``: what it comes from."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Bringup:
    """The key ``result`` of what ``egmctl bringup`` writes."""

    SCHEMA: ClassVar[str] = "egmctl.bringup/1"

    answer: Answer
    causes: tuple[RunCause, ...]
    """What doctor or the bench found and nothing else explains, the gravest first; of equally grave ones those that
    explain most."""
    gaps: tuple[Gap, ...]
    """By :class:`GapKind`, the first of which is the answer's reason where nothing failed."""
    diagnosis: Diagnosis
    run: RunReport | None
    """The quick bench; ``None`` where nothing was measured."""

    @property
    def machine(self) -> Machine:
        """The node."""
        return self.diagnosis.machine

    @property
    def machines(self) -> tuple[Machine, ...]:
        """The node alone."""
        return (self.machine,)

    @property
    def blamed(self) -> RunCause | None:
        """The cause that the answer names: what failed, or what something is not known for; ``None`` where none is."""
        if self.answer is Answer.NO_GO:
            return next((cause for cause in self.causes if cause.status is Status.FAIL), None)
        places = self.gaps[0].causes if self.gaps else ()
        return next((self.causes[place] for place in places), None)

    @property
    def nagios_state(self) -> int:
        """0 OK, 1 WARNING, 2 CRITICAL, 3 UNKNOWN, as :attr:`egmctl.model.finding.Diagnosis.nagios_state`."""
        warns = any(cause.status is Status.WARN for cause in self.causes)
        return {Answer.GO: int(warns), Answer.NO_GO: 2, Answer.INCOMPLETE: 3}[self.answer]

    @property
    def exit_code(self) -> ExitCode:
        """The command's exit code (``docs/exit-codes.md``): a run that was interrupted or broke outranks the answer."""
        code = ExitCode.OK if self.run is None else self.run.exit_code
        if code in (ExitCode.INTERRUPTED, ExitCode.CRASHED):
            return code
        return {Answer.GO: ExitCode.OK, Answer.NO_GO: ExitCode.FAILED, Answer.INCOMPLETE: ExitCode.NOTHING}[self.answer]

    @property
    def fault(self) -> str | None:
        """The first inconsistency, as half a sentence that names the place; ``None`` where all fits together."""
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
