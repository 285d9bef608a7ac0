"""Whether a node can be handed over: doctor's root causes joined with what the bench found on the same paths. Pure.

What explains what is :mod:`egmctl.verdict.explain`. What nothing explains is a cause of its own.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import replace

from egmctl.model.bringup import Answer, Bringup, Gap, GapKind, JoinedCause
from egmctl.model.diagnosis import Diagnosis
from egmctl.model.finding import Finding, causes
from egmctl.model.finding import Status as Found
from egmctl.model.measurement import RunReport, Status
from egmctl.model.verdict import Grade, Yardstick
from egmctl.verdict.explain import Shortfalls, explained_by, shortfalls
from egmctl.verdict.yardsticks import is_lost


def bringup(
    diagnosis: Diagnosis, run: RunReport | None, *, before: Diagnosis | None = None, not_measured: str = ""
) -> Bringup:
    """Judge a node.

    Parameters
    ----------
    diagnosis
        After the bench, where there was one.
    run
        The bench on the same node, with its verdict; ``None`` where there was none.
    before
        The diagnosis before the bench: what is not in it appeared under load, and a warning fails then.
    not_measured
        Why there was none.
    """
    joined = _joined(diagnosis, run, before)
    gaps = tuple(_gaps(diagnosis, run, joined, not_measured))
    failed = any(cause.status is Found.FAIL for cause in joined)
    answer = Answer.NO_GO if failed else Answer.INCOMPLETE if gaps else Answer.GO
    return Bringup(answer=answer, causes=joined, gaps=gaps, diagnosis=diagnosis, run=run)


# --- causes ----------------------------------------------------------------------------------------------------------


def _joined(diagnosis: Diagnosis, run: RunReport | None, before: Diagnosis | None) -> tuple[JoinedCause, ...]:
    """Return the causes that doctor and the run found, and what is slow for no known cause; the gravest first."""
    short = Shortfalls() if run is None else shortfalls(run)
    joined = [*_by_doctor(diagnosis, run, before, short), *_by_run(run, short)]
    left = short.slow.difference(*(cause.slow for cause in joined))
    # A run fails too where no single path does: the verdict of a class is its own.
    too_slow = run is not None and run.verdict is not None and run.verdict.too_slow
    failed = too_slow and all(cause.status is not Found.FAIL for cause in joined)
    if left or failed:
        joined.append(_cause(Found.FAIL if failed else Found.WARN, left, short))
    return tuple(sorted(joined, key=lambda cause: (_ORDER.index(cause.status), -len(cause.slow))))


def _by_doctor(
    diagnosis: Diagnosis, run: RunReport | None, before: Diagnosis | None, short: Shortfalls
) -> Iterator[JoinedCause]:
    places = {id(finding): place for place, finding in enumerate(diagnosis.findings)}
    # What --gpus named and could not be measured fails, however grave its cause is by itself.
    asked = {(cause.finding.check, cause.finding.place.ids) for cause in (run.causes if run else ()) if cause.asked}
    for cause in causes(diagnosis.findings):
        finding = cause.finding
        under_load = before is not None and not any(_was_there(finding, earlier) for earlier in before.findings)
        failed = (finding.check, finding.place.ids) in asked or (under_load and cause.status is Found.WARN)
        joined = _cause(
            Found.FAIL if failed else cause.status,
            frozenset() if run is None else explained_by(cause, run, short),
            short,
        )
        findings = tuple(places[id(member)] for member in (finding, *cause.explains))
        yield replace(joined, findings=findings, under_load=under_load)


def _by_run(run: RunReport | None, short: Shortfalls) -> Iterator[JoinedCause]:
    for place, cause in enumerate(run.causes if run else ()):
        # What doctor finds is told by its own diagnosis.
        if cause.finding.check.startswith("bench."):
            yield replace(_cause(cause.status, frozenset(cause.explains), short), run_cause=place)


def _cause(status: Found, explained: frozenset[int], short: Shortfalls) -> JoinedCause:
    """Return a cause that fails where a measurement that it explains did."""
    return JoinedCause(
        status=Found.FAIL if explained & short.broken else status,
        findings=(),
        slow=tuple(sorted(explained & (short.slow | short.lost))),
        waived=tuple(sorted(explained & short.waived)),
    )


def _was_there(finding: Finding, before: Finding) -> bool:
    """Say whether an earlier finding was as grave, and about all that this one is about."""
    return (
        (finding.check, finding.place.kind) == (before.check, before.place.kind)
        and _ORDER.index(before.status) <= _ORDER.index(finding.status)
        and set(finding.place.ids) <= set(before.place.ids)
    )


_ORDER = list(Found)


# --- gaps ------------------------------------------------------------------------------------------------------------


def _gaps(
    diagnosis: Diagnosis, run: RunReport | None, joined: Sequence[JoinedCause], not_measured: str
) -> Iterator[Gap]:
    if run is None:
        failing = tuple(place for place, cause in enumerate(joined) if cause.status is Found.FAIL)
        yield Gap(kind=GapKind.NOT_MEASURED, reason=not_measured, causes=failing)
    else:
        yield from _gaps_of_run(run, joined)
    if diagnosis.nothing is not None or diagnosis.mostly_unknown:
        yield Gap(kind=GapKind.NOT_DETERMINED, reason=diagnosis.nothing or "")


def _gaps_of_run(run: RunReport, joined: Sequence[JoinedCause]) -> Iterator[Gap]:
    waived = [number for number, m in enumerate(run.measurements) if m.status is Status.WAIVED]
    lost = [number for number, m in enumerate(run.measurements) if is_lost(m)]
    if run.interrupted:
        yield Gap(kind=GapKind.INTERRUPTED, measurements=tuple(waived))
    if lost or run.problems:
        yield _gap(GapKind.BROKE, run, lost, joined, next(iter(run.problems), ""))
    if waived and not run.interrupted:
        yield _gap(GapKind.WAIVED, run, waived, joined)
    if not run.measurements:
        yield Gap(kind=GapKind.NOT_MEASURED, reason="there was nothing to measure")
    elif len(waived) < len(run.measurements) and (run.verdict is None or run.verdict.profile is None):
        yield Gap(kind=GapKind.NO_REFERENCE, reason="" if run.verdict is None else run.verdict.profile_reason)
    elif without := _without_reference(run):
        yield Gap(kind=GapKind.NO_REFERENCE, measurements=tuple(without))


def _without_reference(run: RunReport) -> list[int]:
    """Return the measurements whose profile does not say how fast they should be."""
    return [
        judged.measurement
        for judged in (run.verdict.judged if run.verdict is not None else ())
        for judgement in judged.judgements
        if judgement.yardstick is Yardstick.PROFILE and judgement.grade is Grade.NO_REFERENCE
    ]


def _gap(
    kind: GapKind, run: RunReport, numbers: Collection[int], joined: Sequence[JoinedCause], reason: str = ""
) -> Gap:
    from_ = tuple(place for place, cause in enumerate(joined) if {*cause.waived, *cause.slow} & {*numbers})
    first = next((why for number in numbers if (why := run.measurements[number].reason)), "")
    return Gap(kind=kind, reason=first or reason, measurements=tuple(numbers), causes=from_)
