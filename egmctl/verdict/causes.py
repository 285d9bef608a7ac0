"""The root causes among the problems that checks found, each with what follows from it.

Which explains which was judged where the findings were made (:mod:`egmctl.doctor.causes`), and stands in them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from egmctl.model.finding import TOLD, Finding, Status


@dataclass(frozen=True, slots=True)
class RootCause:
    """A problem that no other explains, and the findings that it does."""

    finding: Finding
    explains: tuple[Finding, ...]

    @property
    def status(self) -> Status:
        """The gravest of them all."""
        return min((one.status for one in (self.finding, *self.explains)), key=list(Status).index)


def causes(findings: Sequence[Finding]) -> tuple[RootCause, ...]:
    """Return the root causes of all failures, warnings and notes, the gravest first; each finding is in one of them.

    What could not be determined is among what they explain.
    """
    roots = [one for one in findings if one.status in TOLD and not one.explained_by]
    below: dict[int, list[Finding]] = {id(root): [] for root in roots}
    for finding in findings:
        if finding.explained_by:
            known = [root for check in finding.explained_by for root in roots if root.check == check]
            # A check may have found several: the one of the same GPUs explains it.
            if root := next((one for one in known if one.place.meets(finding.place)), next(iter(known), None)):
                below[id(root)].append(finding)
    gravity = list(Status)
    found = [RootCause(root, tuple(below[id(root)])) for root in roots]
    return tuple(sorted(found, key=lambda cause: gravity.index(cause.status)))
