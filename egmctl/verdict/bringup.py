"""Decide whether a node can be handed over: join the root causes of doctor with the results of the bench. Pure.

:mod:`egmctl.verdict.explain` attributes slow and broken paths to causes. Those without a cause are a cause of their
own.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import replace

from egmctl.model.bringup import Answer, Bringup, Gap, GapKind
from egmctl.model.finding import UNEXPLAINED, Diagnosis, Finding, RunCause, root_causes
from egmctl.model.finding import Status as Found
from egmctl.model.measurement import RunReport, Status
from egmctl.model.remedy import Remedy
from egmctl.model.verdict import Grade, Yardstick
from egmctl.units import several
from egmctl.verdict.explain import Shortfalls, cause_of, explained_by, shortfalls
from egmctl.verdict.yardsticks import is_lost


def bringup(
    diagnosis: Diagnosis,
    run: RunReport | None,
    *,
    before: Diagnosis | None = None,
    not_measured: str = "",
    no_fabric: str = "",
) -> Bringup:
    """Decide whether a node passes its bring-up.

    Parameters
    ----------
    diagnosis
        The diagnosis after the bench, if there was one.
    run
        The bench on the same node, with its verdict; ``None`` if there was none.
    before
        The diagnosis before the bench. A finding that is not in it appeared under load, and a warning then fails.
    not_measured
        The reason why there was no bench.
    no_fabric
        The reason why the fabric to other nodes was not measured; empty if only this node is asked about.
    """
    all_causes = _causes(diagnosis, run, before)
    gaps = tuple(_gaps(diagnosis, run, all_causes, not_measured))
    gaps += (Gap(kind=GapKind.FABRIC, reason=no_fabric),) * bool(no_fabric)
    failed = any(cause.status is Found.FAIL for cause in all_causes)
    answer = Answer.NO_GO if failed else Answer.INCOMPLETE if gaps else Answer.GO
    return Bringup(answer=answer, causes=all_causes, gaps=gaps, diagnosis=diagnosis, run=run)


# --- causes ----------------------------------------------------------------------------------------------------------


def _causes(diagnosis: Diagnosis, run: RunReport | None, before: Diagnosis | None) -> tuple[RunCause, ...]:
    """Return the causes that doctor and the run found, and one for unexplained slow paths; the most severe first."""
    result = list(_doctor_causes(diagnosis, run, before))
    if run is not None:
        # Causes in the run that are not its own come from doctor, whose diagnosis reports them.
        result += [cause for cause in run.causes if cause.by_run]
        shortfall = shortfalls(run)
        left = shortfall.slow.difference(*(cause.explains for cause in result))
        # A run can fail without a slow path: the verdict of a path class may be a failure by itself.
        too_slow = run.verdict is not None and run.verdict.too_slow
        failed = too_slow and all(cause.status is not Found.FAIL for cause in result)
        if left or failed:
            result.append(_unexplained(run, left, Found.FAIL if failed or left & shortfall.broken else Found.WARN))
    return tuple(sorted(result, key=lambda cause: (_ORDER.index(cause.status), -len(cause.explains))))


def _doctor_causes(diagnosis: Diagnosis, run: RunReport | None, before: Diagnosis | None) -> Iterator[RunCause]:
    shortfall = Shortfalls() if run is None else shortfalls(run)
    # A GPU that --gpus names but that cannot be measured is a failure, whatever the severity of its cause.
    requested = {(cause.finding.check, cause.finding.place.ids) for cause in (run.causes if run else ()) if cause.asked}
    for cause in root_causes(diagnosis.findings):
        finding = cause.finding
        explained = frozenset[int]() if run is None else explained_by(cause, run, shortfall)
        under_load = before is not None and not any(_is_known(finding, earlier) for earlier in before.findings)
        result = replace(cause_of(finding, explained, shortfall), under_load=under_load)
        failed = (finding.check, finding.place.ids) in requested or (under_load and cause.status is Found.WARN)
        yield replace(result, status=Found.FAIL) if failed else result


def _unexplained(run: RunReport, numbers: Collection[int], status: Found) -> RunCause:
    """Return the cause of unexplained slow or broken paths, without measurements if only the run's verdict is bad."""
    measurements = [run.measurements[number] for number in numbers]
    noun = "slow path" if all(m.measured for m in measurements) else "slow or broken path"
    summary = f"{several(len({m.path for m in measurements}), noun)}, cause unknown"
    remedy = Remedy(text="Inspect these GPUs and their links, then run it again.")
    finding = Finding(check=UNEXPLAINED, status=status, summary=summary, remedy=remedy)
    return RunCause(status=status, finding=finding, explains=tuple(sorted(numbers)))


def _is_known(finding: Finding, earlier: Finding) -> bool:
    """Return whether an earlier finding was at least as severe and covered everything that this finding is about."""
    return (
        (finding.check, finding.place.kind) == (earlier.check, earlier.place.kind)
        and _ORDER.index(earlier.status) <= _ORDER.index(finding.status)
        and set(finding.place.ids) <= set(earlier.place.ids)
    )


_ORDER = list(Found)


# --- gaps ------------------------------------------------------------------------------------------------------------


def _gaps(
    diagnosis: Diagnosis, run: RunReport | None, all_causes: Sequence[RunCause], not_measured: str
) -> Iterator[Gap]:
    if run is None:
        failing = tuple(index for index, cause in enumerate(all_causes) if cause.status is Found.FAIL)
        yield Gap(kind=GapKind.NOT_MEASURED, reason=not_measured, causes=failing)
    else:
        yield from run_gaps(run, all_causes)
    if diagnosis.nothing is not None or diagnosis.mostly_unknown:
        yield Gap(kind=GapKind.NOT_DETERMINED, reason=diagnosis.nothing or "")


def run_gaps(run: RunReport, all_causes: Sequence[RunCause]) -> Iterator[Gap]:
    """Yield what a run did not measure, or measured without a reference."""
    waived = [number for number, m in enumerate(run.measurements) if m.status is Status.WAIVED]
    lost = [number for number, m in enumerate(run.measurements) if is_lost(m)]
    if run.interrupted:
        yield Gap(kind=GapKind.INTERRUPTED, measurements=tuple(waived))
    if lost or run.problems:
        yield _gap(GapKind.BROKE, run, lost, all_causes, next(iter(run.problems), ""))
    if waived and not run.interrupted:
        yield _gap(GapKind.WAIVED, run, waived, all_causes)
    if not run.measurements:
        yield Gap(kind=GapKind.NOT_MEASURED, reason="there was nothing to measure")
    elif len(waived) < len(run.measurements) and (run.verdict is None or run.verdict.profile is None):
        yield Gap(kind=GapKind.NO_REFERENCE, reason="" if run.verdict is None else run.verdict.profile_reason)
    elif unjudged := _unjudged(run):
        yield Gap(kind=GapKind.NO_REFERENCE, measurements=tuple(unjudged))


def _unjudged(run: RunReport) -> list[int]:
    """Return the measurements for which the profile has no reference."""
    return [
        judged.measurement
        for judged in (run.verdict.judged if run.verdict is not None else ())
        for judgement in judged.judgements
        if judgement.yardstick is Yardstick.PROFILE and judgement.grade is Grade.NO_REFERENCE
    ]


def _gap(
    kind: GapKind, run: RunReport, numbers: Collection[int], all_causes: Sequence[RunCause], reason: str = ""
) -> Gap:
    causes = tuple(index for index, cause in enumerate(all_causes) if {*cause.explains} & {*numbers})
    reasons = [run.measurements[number].reason for number in numbers]
    first_reason = next(filter(None, reasons), reason)
    return Gap(kind=kind, reason=first_reason, measurements=tuple(numbers), causes=causes)
