"""Findings and causes that differ between results."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence

from egmctl.comparison.facts import Statement, Subject
from egmctl.comparison.paths import GpuNames
from egmctl.model.comparison import ComparisonCause, Outcome, PathDifference
from egmctl.model.diagnosis import Diagnosis
from egmctl.model.finding import Finding, PlaceKind, RunCause, Status
from egmctl.model.measurement import RunReport
from egmctl.verdict.explain import Shortfalls, run_causes

_NOT_CHECKED = "not checked"
_KINDS = {PlaceKind.GPU: "GPU", PlaceKind.PAIR: "pair", PlaceKind.NUMA: "NUMA", PlaceKind.NIC: "NIC"}
_GRAVITY = {Status.PASS: 0, Status.NOTE: 1, Status.UNKNOWN: 1, Status.WARN: 2, Status.FAIL: 3}
_FAULTS = (Status.WARN, Status.FAIL)


def statements(results: Sequence[Diagnosis], names: GpuNames) -> list[Mapping[Subject, Statement]]:
    """Return what each file's checks say of each thing that a finding of any file is about.

    A check names what it has something against, and the node where it has nothing: of a thing that only other files'
    findings name, a file says ``pass`` if the check ran.
    """
    found = [_found(result, names, file) for file, result in enumerate(results)]
    labels = {subject: statement.label for one in found for subject, statement in one.items()}
    ran = [_ran(result) for result in results]
    whole: list[Mapping[Subject, Statement]] = []
    for mine, checks in zip(found, ran, strict=True):
        words = {subject: _unnamed(checks.get(subject.what)) for subject in labels}
        whole.append({subject: mine.get(subject, Statement(words[subject], labels[subject])) for subject in labels})
    return whole


def judge(_subject: Subject, before: str, after: str) -> Outcome | None:
    """Say what it means that a check says something else; ``None`` where neither is a fault or unknown."""
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


def _found(result: Diagnosis, names: GpuNames, file: int) -> dict[Subject, Statement]:
    found: dict[Subject, list[Finding]] = {}
    labels: dict[Subject, str] = {}
    for finding in result.findings:
        for kind, name, label in _things(finding, names, file):
            subject = Subject(kind, name, finding.check)
            found.setdefault(subject, []).append(finding)
            labels[subject] = label
    return {subject: Statement(_words(those), labels[subject]) for subject, those in found.items()}


def _things(finding: Finding, names: GpuNames, file: int) -> Iterator[tuple[str, str, str]]:
    """Yield kind, name and label of each thing that a finding is about."""
    kind = _KINDS.get(finding.place.kind, "")
    if not finding.place.ids:
        yield "", "", ""
    for one in finding.place.ids:
        if finding.place.kind in (PlaceKind.GPU, PlaceKind.PAIR):
            ends = one.split(">")
            yield kind, ">".join(names.name(file, end) for end in ends), ">".join(names.label(file, e) for e in ends)
        else:
            yield kind, one, f"NUMA{one}" if finding.place.kind is PlaceKind.NUMA else one


def _words(those: Sequence[Finding]) -> str:
    """Return the gravest findings as words: the status, and of a fault or an unknown what it is."""
    worst = max((finding.status for finding in those), key=lambda status: _GRAVITY.get(status, -1))
    if worst in (Status.PASS, Status.SKIP):
        return str(worst)
    return f"{worst.value}: {'; '.join(sorted({f.summary for f in those if f.status is worst}))}"


def _ran(result: Diagnosis) -> dict[str, bool]:
    """Return the checks that a file has, and whether each did more than skip."""
    ran: dict[str, bool] = {}
    for finding in result.findings:
        ran[finding.check] = ran.get(finding.check, False) or finding.status is not Status.SKIP
    return ran


def _unnamed(ran: bool | None) -> str:
    """Return what a file says of a thing that none of its findings names."""
    if ran is None:
        return _NOT_CHECKED
    return Status.PASS.value if ran else Status.SKIP.value


def _status(words: str) -> Status | None:
    return None if words == _NOT_CHECKED else Status(words.partition(":")[0])


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
