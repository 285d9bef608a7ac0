"""Doctor's diagnosis: the findings of all checks on one machine. Apart from findings, which answers are made of."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field
from typing import ClassVar

from egmctl.dataclass import dataclass
from egmctl.model.answer import UNANSWERED, Answer
from egmctl.model.finding import Finding, Guard, Status
from egmctl.model.machine import Machine
from egmctl.model.record import BusId, Plain, Shown


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Diagnosis(Shown):
    """The results of all checks on a machine: the key ``result`` of the document."""

    SCHEMA: ClassVar[str] = "egmctl.doctor/1"

    platform: str
    """The platform in one line."""
    gpus_asked: tuple[BusId, ...] | None
    """The GPUs that were named with ``--gpus``; null if all GPUs count."""
    numa_asked: tuple[int, ...] | None
    """The NUMA nodes that were named with ``--numa``; null if all nodes count."""
    purposes: tuple[Guard, ...]
    """The purposes that the findings are about."""
    purposes_asked: tuple[Guard, ...] | None = None
    """The purposes that were named with ``--for``: the answer is for them, and not for the node. Null if none was
    named."""
    counts: Mapping[str, int] = field(init=False)
    """The number of checks by status, each by its most severe finding. ``explained`` counts the checks whose faults
    another check explains; ``assumed`` is there only for a model."""
    findings: tuple[Finding, ...]
    """The findings, in the order of the checks."""
    undecided: tuple[Plain, ...] = ()
    """The checks that had no data on what ``--expect`` states."""
    strict: bool = False
    """Whether warnings and notes are failures."""
    machines: tuple[Machine, ...] = ()
    """The node that was checked, with pseudonyms for private data."""
    answer: Answer = UNANSWERED
    """What the command answers (:mod:`egmctl.verdict.answers`)."""

    def __post_init__(self) -> None:
        statuses = list(self.verdicts.values())
        counts = {status.value: statuses.count(status) for status in Status}
        if not counts[Status.ASSUMED]:
            del counts[Status.ASSUMED]
        if explained := len({finding.check for finding in self.findings}) - len(statuses):
            counts["explained"] = explained
        object.__setattr__(self, "counts", counts)

    @property
    def machine(self) -> Machine:
        """The node that was checked.

        Raises
        ------
        IndexError
            The document is of a version that stored no machine.
        """
        return self.machines[0]

    @property
    def verdicts(self) -> Mapping[str, Status]:
        """The status of each check: that of its most severe finding that no other check explains."""
        gravity = list(Status)
        worst: dict[str, Status] = {}
        for finding in self.findings:
            if not finding.explained_by:
                worst[finding.check] = min(worst.get(finding.check, Status.SKIP), finding.status, key=gravity.index)
        return worst

    @property
    def failures(self) -> tuple[str, ...]:
        """The ids of the checks that failed."""
        faults = (Status.FAIL, Status.WARN, Status.NOTE) if self.strict else (Status.FAIL,)
        return tuple(check for check, status in self.verdicts.items() if status in faults)


class AboutDiagnosed(Shown):
    """A result that contains the diagnosis of its node."""

    __slots__ = ()
    diagnosis: Diagnosis

    @property
    def machine(self) -> Machine:
        """The node."""
        return self.diagnosis.machine

    @property
    def machines(self) -> tuple[Machine, ...]:
        """The node as the only item; empty in a document that lacks it."""
        return self.diagnosis.machines
