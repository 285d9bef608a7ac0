"""Whether a node can be handed over: doctor's root causes joined with what the bench found on the same paths. Pure.

What explains what is :mod:`egmctl.verdict.explain`. What nothing explains is a cause of its own.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence

from egmctl.model.bringup import Answer, Bringup, Gap, GapKind, JoinedCause
from egmctl.model.diagnosis import Diagnosis
from egmctl.model.finding import Finding
from egmctl.model.finding import Status as Found
from egmctl.model.measurement import RunReport, Status
from egmctl.model.verdict import Grade, Yardstick
from egmctl.verdict.explain import Shortfalls, causes, explained_by, shortfalls
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
    joined = tuple(sorted(_joined(diagnosis, run, before), key=_gravity))
    gaps = tuple(_gaps(diagnosis, run, joined, not_measured))
    failed = any(cause.status is Found.FAIL for cause in joined)
    answer = Answer.NO_GO if failed else Answer.INCOMPLETE if gaps else Answer.GO
    return Bringup(answer=answer, causes=joined, gaps=gaps, diagnosis=diagnosis, run=run)


def _gravity(cause: JoinedCause) -> tuple[int, int]:
    return _ORDER.index(cause.status), -len(cause.slow)


# --- causes ----------------------------------------------------------------------------------------------------------


def _joined(diagnosis: Diagnosis, run: RunReport | None, before: Diagnosis | None) -> Iterator[JoinedCause]:
    short = Shortfalls() if run is None else shortfalls(run)
    places = {id(finding): place for place, finding in enumerate(diagnosis.findings)}
    # What --gpus named and could not be measured fails, however grave its cause is by itself.
    asked = {(one.finding.check, one.finding.place.ids) for one in (run.causes if run else ()) if one.asked}
    told: set[int] = set()
    worst: list[Found] = []
    for cause in causes(diagnosis.findings):
        explained = frozenset[int]() if run is None else explained_by(cause, run, short)
        told |= explained
        named = (cause.finding.check, cause.finding.place.ids) in asked
        under_load = before is not None and not any(_was_there(cause.finding, one) for one in before.findings)
        grave = under_load and cause.status is Found.WARN
        status = Found.FAIL if named or grave or explained & (short.failing | short.lost) else cause.status
        worst.append(status)
        yield JoinedCause(
            status=status,
            findings=tuple(places[id(one)] for one in (cause.finding, *cause.explains)),
            slow=tuple(sorted(explained & (short.slow | short.lost))),
            waived=tuple(sorted(explained & short.waived)),
            under_load=under_load,
        )
    for place, seen in enumerate(() if run is None else run.causes):
        # What doctor finds is told above.
        if not seen.finding.check.startswith("bench."):
            continue
        explained = frozenset(seen.explains)
        told |= explained
        status = Found.FAIL if seen.asked or explained & short.failing else seen.finding.status
        worst.append(status)
        yield JoinedCause(
            status=status,
            findings=(),
            run_cause=place,
            slow=tuple(sorted(explained & short.slow)),
            waived=tuple(sorted(explained & short.waived)),
        )
    left = short.slow - told
    # A run fails too where no single path does: the verdict of a class is its own.
    failed = run is not None and run.verdict is not None and run.verdict.too_slow and Found.FAIL not in worst
    if left or failed:
        yield JoinedCause(
            status=Found.FAIL if failed or left & short.failing else Found.WARN, findings=(), slow=tuple(sorted(left))
        )


def _was_there(finding: Finding, before: Finding) -> bool:
    """Say whether an earlier finding was as grave, and about all that this one is about."""
    same = (finding.check, finding.place.kind) == (before.check, before.place.kind)
    return (
        same
        and _ORDER.index(before.status) <= _ORDER.index(finding.status)
        and (set(finding.place.ids) <= set(before.place.ids))
    )


_ORDER = list(Found)


# --- gaps ------------------------------------------------------------------------------------------------------------


def _gaps(
    diagnosis: Diagnosis, run: RunReport | None, joined: Sequence[JoinedCause], not_measured: str
) -> Iterator[Gap]:
    if run is None:
        yield Gap(kind=GapKind.NOT_MEASURED, reason=not_measured, causes=_stopping(joined))
    else:
        yield from _gaps_of_run(run, joined)
    if diagnosis.nothing is not None or diagnosis.mostly_unknown:
        yield Gap(kind=GapKind.NOT_DETERMINED, reason=diagnosis.nothing or "")


def _stopping(joined: Sequence[JoinedCause]) -> tuple[int, ...]:
    return tuple(place for place, cause in enumerate(joined) if cause.status is Found.FAIL)


def _gaps_of_run(run: RunReport, joined: Sequence[JoinedCause]) -> Iterator[Gap]:
    by_status = {status: [n for n, one in enumerate(run.measurements) if one.status is status] for status in Status}
    lost = [number for number, one in enumerate(run.measurements) if is_lost(one)]
    waived = by_status[Status.WAIVED]
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
        one.measurement
        for one in (run.verdict.judged if run.verdict is not None else ())
        for judgement in one.judgements
        if judgement.yardstick is Yardstick.PROFILE and judgement.grade is Grade.NO_REFERENCE
    ]


def _gap(
    kind: GapKind, run: RunReport, numbers: Collection[int], joined: Sequence[JoinedCause], reason: str = ""
) -> Gap:
    from_ = tuple(place for place, cause in enumerate(joined) if {*cause.waived, *cause.slow} & {*numbers})
    first = next((why for number in numbers if (why := run.measurements[number].reason)), "")
    return Gap(kind=kind, reason=first or reason, measurements=tuple(numbers), causes=from_)
