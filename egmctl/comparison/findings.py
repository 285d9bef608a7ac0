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
    subjects = {subject: None for stated in by_file for subject in stated}
    statements_by_file: list[Statements] = []
    for result, stated in zip(results, by_file, strict=True):
        # The result of a check for things that it does not name: ``pass`` if any of its findings is not ``skip``.
        usual = dict.fromkeys((finding.check for finding in result.findings), Status.SKIP.value)
        usual |= {finding.check: Status.PASS.value for finding in result.findings if finding.status is not Status.SKIP}
        statements_by_file.append({subject: usual.get(subject.what, _NOT_CHECKED) for subject in subjects} | stated)
    return statements_by_file


def outcome_of(_subject: Subject, before: str, after: str) -> Outcome | None:
    """Grade a change of a check's result; ``None`` if both are pass, skip or not checked."""
    old, new = _status(before), _status(after)
    if {old, new} <= {Status.PASS, Status.SKIP, None}:
        return None
    if old in (None, Status.SKIP) or new in (None, Status.SKIP):
        return Outcome.DIFFERENT
    if _GRAVITY[new] > _GRAVITY[old] and new in _FAULTS:
        return Outcome.WORSE
    if new is Status.PASS or (_GRAVITY[new] < _GRAVITY[old] and new in _FAULTS):
        return Outcome.BETTER
    return Outcome.DIFFERENT


def _by_subject(result: Diagnosis, names: GpuNames, file: int) -> dict[Subject, str]:
    by_subject: dict[Subject, list[Finding]] = {}
    for finding in result.findings:
        kind = _KINDS.get(finding.place.kind, "")
        for bus_ids in finding.place.ids or ("",):
            name = ">".join(names.name(file, bus_id) for bus_id in bus_ids.split(">"))
            by_subject.setdefault(Subject(kind, name, finding.check), []).append(finding)
    return {subject: _text(findings) for subject, findings in by_subject.items()}


def _text(findings: Sequence[Finding]) -> str:
    """Return the worst status, and for a status other than pass and skip also the summaries."""
    worst = max((finding.status for finding in findings), key=lambda status: _GRAVITY.get(status, -1))
    if worst in (Status.PASS, Status.SKIP):
        return str(worst)
    return f"{worst.value}: {'; '.join(sorted({finding.summary for finding in findings if finding.status is worst}))}"


def _status(text: str) -> Status | None:
    return None if text == _NOT_CHECKED else Status(text.partition(":")[0])


def causes_of_worse(
    names: Sequence[str], runs: Sequence[RunReport], differences: Sequence[PathDifference]
) -> tuple[ComparisonCause, ...]:
    """Return the causes of the paths that are worse; for each node, those that explain most first.

    A cause that the first of two runs also has, or that more than half of several nodes have, is left out.
    """
    # The causes of the same paths are found in every run: a cause that the reference also has explains no difference.
    worse = {index: path for index, path in enumerate(differences) if path.outcome is Outcome.WORSE}
    if not worse:
        return ()
    labels = {path.path for path in worse.values()}
    by_run: list[tuple[RunCause, ...]] = []
    for run in runs:
        numbers = frozenset(number for number, m in enumerate(run.measurements) if m.path in labels)
        by_run.append(with_causes(run, short=Shortfalls(failing=numbers)).causes)
    common = Counter(_identity(cause) for causes in by_run for cause in causes)
    most_runs = 1 if len(runs) == 2 else len(runs) / 2
    result: list[ComparisonCause] = []
    for name, run, causes in zip(names, runs, by_run, strict=True):
        for cause in causes:
            paths = {(run.measurements[number].case, run.measurements[number].path) for number in cause.explains}
            explains = tuple(i for i, path in worse.items() if path.node == name and (path.case, path.path) in paths)
            if explains and common[_identity(cause)] <= most_runs:
                result.append(ComparisonCause(node=name, finding=cause.finding, explains=explains))
    return tuple(result)


def _identity(cause: RunCause) -> tuple[str, tuple[str, ...], str]:
    return cause.finding.check, cause.finding.place.ids, cause.node
