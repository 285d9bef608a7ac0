"""What explains that paths of a run are worse than the reference: what holds on that node, and not on the others."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from egmctl.model.cause import RunCause
from egmctl.model.comparison import ComparisonCause, Outcome, PathDifference
from egmctl.model.measurement import RunReport
from egmctl.verdict.explain import Shortfalls, run_causes


def causes(
    names: Sequence[str], runs: Sequence[RunReport], differences: Sequence[PathDifference]
) -> tuple[ComparisonCause, ...]:
    """Return the causes of the paths that are worse, of each node those that explain most first.

    What the first of two runs has too, or most of several nodes, does not explain why one is worse.
    """
    # In every run the same paths, that of the reference included: what holds there as well is no difference.
    worse = {one.path for one in differences if one.outcome is Outcome.WORSE}
    if not worse:
        return ()
    found = [run_causes(run, Shortfalls(failing=_numbers(run, worse))) for run in runs]
    common = Counter(_what(cause) for those in found for cause in those)
    most = 1 if len(runs) == 2 else len(runs) / 2
    told: list[ComparisonCause] = []
    for name, run, those in zip(names, runs, found, strict=True):
        mine = {place: one for place, one in enumerate(differences) if one.node == name and _is_worse(one)}
        for cause in those:
            paths = {(run.measurements[number].case, run.measurements[number].path) for number in cause.explains}
            explains = tuple(place for place, one in mine.items() if (one.case, one.path) in paths)
            if explains and common[_what(cause)] <= most:
                told.append(ComparisonCause(node=name, finding=cause.finding, explains=explains))
    return tuple(told)


def _is_worse(difference: PathDifference) -> bool:
    return difference.outcome is Outcome.WORSE


def _numbers(run: RunReport, paths: set[str]) -> frozenset[int]:
    return frozenset(number for number, one in enumerate(run.measurements) if one.path in paths)


def _what(cause: RunCause) -> tuple[str, tuple[str, ...], str]:
    return cause.finding.check, cause.finding.place.ids, cause.node
