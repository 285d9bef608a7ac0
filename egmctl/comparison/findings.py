"""Findings and causes that differ between results."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from egmctl.comparison.facts import Statements, Subject
from egmctl.comparison.paths import GpuNames
from egmctl.model.comparison import ComparisonCause, Outcome, PathDifference
from egmctl.model.finding import Diagnosis, Finding, PlaceKind, RunCause, Status
from egmctl.model.measurement import RunReport
from egmctl.verdict.explain import Shortfalls, with_causes

_NOT_CHECKED = "not checked"
_KINDS = {PlaceKind.GPU: "GPU", PlaceKind.PAIR: "pair", PlaceKind.NUMA: "NUMA", PlaceKind.NIC: "NIC"}
_GRAVITY = {Status.PASS: 0, Status.NOTE: 1, Status.UNKNOWN: 1, Status.WARN: 2, Status.FAIL: 3}
_FAULTS = (Status.WARN, Status.FAIL)


def statements(results: Sequence[Diagnosis], names: GpuNames) -> list[Statements]:
    """Return each file's check results for every thing that a finding of any file names.

    A check names the thing only for a problem and the node otherwise. So for a thing that only findings of other files
    name, the value is ``pass`` if the check ran.
    """
    by_file = [_by_subject(result, names, file) for file, result in enumerate(results)]
    subjects = {subject: None for named in by_file for subject in named}
    whole: list[Statements] = []
    for result, named in zip(results, by_file, strict=True):
        # The result of a check for things that it does not name: ``pass`` if any of its findings is not ``skip``.
        usual = dict.fromkeys((finding.check for finding in result.findings), Status.SKIP.value)
        usual |= {finding.check: Status.PASS.value for finding in result.findings if finding.status is not Status.SKIP}
        whole.append({subject: usual.get(subject.what, _NOT_CHECKED) for subject in subjects} | named)
    return whole


def outcome_of(_subject: Subject, before: str, after: str) -> Outcome | None:
    """Grade a change of a check's result; ``None`` if both are pass, skip or not checked."""
    was, now = _status(before), _status(after)
    if {was, now} <= {Status.PASS, Status.SKIP, None}:
        return None
    if was in (None, Status.SKIP) or now in (None, Status.SKIP):
        return Outcome.DIFFERENT
    if _GRAVITY[now] > _GRAVITY[was] and now in _FAULTS:
        return Outcome.WORSE
    if now is Status.PASS or (_GRAVITY[now] < _GRAVITY[was] and now in _FAULTS):
        return Outcome.BETTER
    return Outcome.DIFFERENT


def _by_subject(result: Diagnosis, names: GpuNames, file: int) -> dict[Subject, str]:
    about: dict[Subject, list[Finding]] = {}
    for finding in result.findings:
        kind = _KINDS.get(finding.place.kind, "")
        for place in finding.place.ids or ("",):
            name = ">".join(names.name(file, end) for end in place.split(">"))
            about.setdefault(Subject(kind, name, finding.check), []).append(finding)
    return {subject: _words(same) for subject, same in about.items()}


def _words(findings: Sequence[Finding]) -> str:
    """Return the worst status, and for a status other than pass and skip also the summaries."""
    worst = max((finding.status for finding in findings), key=lambda status: _GRAVITY.get(status, -1))
    if worst in (Status.PASS, Status.SKIP):
        return str(worst)
    return f"{worst.value}: {'; '.join(sorted({f.summary for f in findings if f.status is worst}))}"


def _status(words: str) -> Status | None:
    return None if words == _NOT_CHECKED else Status(words.partition(":")[0])


def causes_of_worse(
    names: Sequence[str], runs: Sequence[RunReport], differences: Sequence[PathDifference]
) -> tuple[ComparisonCause, ...]:
    """Return the causes of the paths that are worse; for each node, those that explain most first.

    A cause that the first of two runs also has, or that more than half of several nodes have, is left out.
    """
    # The causes of the same paths are found in every run: a cause that the reference also has explains no difference.
    worse = {place: path for place, path in enumerate(differences) if path.outcome is Outcome.WORSE}
    if not worse:
        return ()
    labels = {path.path for path in worse.values()}
    by_run: list[tuple[RunCause, ...]] = []
    for run in runs:
        numbers = frozenset(number for number, m in enumerate(run.measurements) if m.path in labels)
        by_run.append(with_causes(run, short=Shortfalls(failing=numbers)).causes)
    common = Counter(_what(cause) for of_run in by_run for cause in of_run)
    most = 1 if len(runs) == 2 else len(runs) / 2
    result: list[ComparisonCause] = []
    for name, run, of_run in zip(names, runs, by_run, strict=True):
        for cause in of_run:
            paths = {(run.measurements[number].case, run.measurements[number].path) for number in cause.explains}
            explains = tuple(p for p, path in worse.items() if path.node == name and (path.case, path.path) in paths)
            if explains and common[_what(cause)] <= most:
                result.append(ComparisonCause(node=name, finding=cause.finding, explains=explains))
    return tuple(result)


def _what(cause: RunCause) -> tuple[str, tuple[str, ...], str]:
    return cause.finding.check, cause.finding.place.ids, cause.node
