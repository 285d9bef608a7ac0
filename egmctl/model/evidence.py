"""What a node settles of the claims that no coherent machine has confirmed: ``egmctl snapshot --evidence``."""

from __future__ import annotations

from typing import ClassVar

from egmctl.compat import StrEnum
from egmctl.dataclass import dataclass
from egmctl.model.answer import UNANSWERED, Answer
from egmctl.model.diagnosis import AboutDiagnosed, Diagnosis
from egmctl.model.measurement import RunReport
from egmctl.model.record import Plain, Sentence


class EvidenceState(StrEnum):
    """Whether a node settles a question."""

    SETTLED = "settled"
    """All observations confirm the claim or state the value, at least one; each check passes."""
    CONTRADICTED = "contradicted"
    NOT_SETTLED = "not-settled"


@dataclass(frozen=True, slots=True, kw_only=True)
class Observation:
    """One thing that the node showed."""

    agrees: bool | None
    """Whether it agrees with the claim, or is the requested value; ``None``: it decides nothing."""
    value: Sentence
    locations: tuple[Plain, ...] = ()
    """The paths of the bench, GPUs or NUMA nodes; empty if it is about the node."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Reply:
    """What a node says on a question of ``egmctl/verdict/evidence.toml``."""

    question: Plain
    claim: Plain
    """What egmctl assumes, from documents or source code."""
    state: EvidenceState
    observations: tuple[Observation, ...]
    """At least one; those that decide come first, before them how many agree if those are not all."""


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class EvidenceReport(AboutDiagnosed):
    """The key ``result`` of the document of ``egmctl snapshot --evidence``."""

    SCHEMA: ClassVar[str] = "egmctl.evidence/1"

    answers: tuple[Reply, ...]
    diagnosis: Diagnosis
    """All checks of doctor, with those of its active probes."""
    run: RunReport | None
    """The cases that settle questions; ``None`` if nothing was measured."""
    answer: Answer = UNANSWERED
    """What the command answers (:mod:`egmctl.verdict.answers`)."""

    @property
    def fault(self) -> str | None:
        """The first inconsistency, as half a sentence that begins with the key; ``None`` if there is none."""
        return self.run.fault if self.run is not None else None
