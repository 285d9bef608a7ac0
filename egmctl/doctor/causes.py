"""Which fault explains which: one cause is told once, with all that it explains.

By the rules of :mod:`egmctl.doctor.cause_rules`. Nothing else is concluded: faults without a rule stay faults of their
own, and two causes stay two.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from fnmatch import fnmatchcase

from egmctl.doctor.cause_rules import RULES
from egmctl.model.finding import TOLD, Finding, PlaceKind, Status
from egmctl.model.machine import Machine


def explained(machine: Machine, findings: Sequence[Finding]) -> tuple[Finding, ...]:
    """Return the findings with who explains whom; a cause of a cause explains what that one does.

    What could not be determined is explained too. A cause becomes as grave as what it explains: what was tried and
    failed shows that it does harm.
    """
    faults = [place for place, finding in enumerate(findings) if finding.status in TOLD]
    untold = [place for place, finding in enumerate(findings) if finding.status is Status.UNKNOWN]
    if machine.peers and machine.peers.problem:
        # That MPI did not start is why the nodes were not compared, whatever is wrong with this one.
        untold = [place for place in untold if not findings[place].check.startswith("peers.")]
    by: dict[int, list[int]] = {}
    for effect in (*faults, *untold):
        causes = [
            cause
            for cause in faults
            if cause != effect
            and _explains(machine, findings[cause], findings[effect])
            # Of two that could explain each other one stays the cause.
            and not _leads_to(by, cause, effect)
        ]
        if causes and _covers(findings, causes, effect):
            by[effect] = causes
    roots = {effect: _roots(effect, by) for effect in by}
    told: dict[int, Finding] = dict(enumerate(findings))
    for effect, found in roots.items():
        if found:
            ids = tuple(dict.fromkeys(findings[cause].check for cause in sorted(found)))
            told[effect] = replace(told[effect], explained_by=ids)
            for cause in found:
                known = told[cause].explains
                grave = told[cause].status
                if findings[effect].status in TOLD:
                    grave = min(grave, findings[effect].status, key=TOLD.index)
                ids = tuple(dict.fromkeys((*known, findings[effect].check)))
                told[cause] = replace(told[cause], explains=ids, status=grave)
    return tuple(told[place] for place in range(len(findings)))


def _explains(machine: Machine, cause: Finding, effect: Finding) -> bool:
    return any(
        rule.cause == cause.check
        and any(fnmatchcase(effect.check, pattern) for pattern in rule.effects)
        and rule.holds(machine, cause, effect)
        for rule in RULES
    )


def _covers(findings: Sequence[Finding], causes: Sequence[int], effect: int) -> bool:
    """Say whether all GPUs or pairs that an effect is about are touched by one of the causes, or one is the node's."""
    place = findings[effect].place
    if place.gpus is None or any(findings[cause].check in _WHOLE for cause in causes):
        return True
    touched: set[str] = set()
    for cause in causes:
        gpus = findings[cause].place.gpus
        if gpus is None:
            return True
        touched |= gpus
    if place.kind is PlaceKind.PAIR:
        return all(touched.intersection(pair.split(">")) for pair in place.ids)
    return place.gpus <= touched


_WHOLE = ("drv.libraries",)
"""What takes all GPUs, whichever one it was found on."""


def _leads_to(by: Mapping[int, list[int]], start: int, goal: int) -> bool:
    """Say whether one fault is explained by another, through whatever lies between."""
    return any(cause == goal or _leads_to(by, cause, goal) for cause in by.get(start, ()))


def _roots(effect: int, by: Mapping[int, list[int]]) -> set[int]:
    """Return the causes of a fault that nothing explains."""
    found = (_roots(cause, by) if cause in by else {cause} for cause in by[effect])
    return {root for roots in found for root in roots}
