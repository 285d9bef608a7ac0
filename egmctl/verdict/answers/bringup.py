"""The answer of a bring-up: whether a node can be handed over, by the worst of doctor, the quick bench and the fabric.

:mod:`egmctl.verdict.explain` attributes slow and broken paths to causes. Those without a cause are a cause of their
own.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from egmctl.doctor.causes import WITHHELD
from egmctl.model.answer import WORDS, Answer, Cause, Clauses, CommandQuestion, Gap, GapKind, State, worst
from egmctl.model.bringup import Bringup
from egmctl.model.diagnosis import Diagnosis
from egmctl.model.finding import UNEXPLAINED, Finding, Status, root_causes
from egmctl.model.machine import OriginKind
from egmctl.model.measurement import RunReport
from egmctl.model.remedy import Remedy
from egmctl.units import several
from egmctl.verdict.answers.run import unexplained
from egmctl.verdict.answers.words import advice, cause_words, to_measure
from egmctl.verdict.explain import IN_USE, Shortfalls, explained_by, measurement_cause, shortfalls


def of_bringup(bringup: Bringup, *, before: Diagnosis | None = None) -> Answer:
    """Return whether a node passes its bring-up.

    Parameters
    ----------
    bringup
        The diagnosis and the run, both with their answers.
    before
        The diagnosis before the bench. A finding that is not in it appeared under load, and a warning then fails.
    """
    diagnosis, run = bringup.diagnosis, bringup.run
    causes = _causes(diagnosis, run, before)
    gaps = tuple(_gaps(bringup, causes))
    parts = [diagnosis.answer.state]
    if run is not None:
        parts.append(run.answer.state)
    state = worst([*parts, *(cause.state for cause in causes), *(gap.kind.state for gap in gaps)])
    return Answer(
        state=state,
        word=WORDS[CommandQuestion.BRINGUP][state],
        sentence=_sentence(bringup, state, causes, gaps),
        causes=causes,
        gaps=gaps,
        notes=() if run is None else run.answer.notes,
        next_step=_next_step(bringup, state, causes, gaps),
        counts={**diagnosis.answer.counts, **({} if run is None else run.answer.counts)},
    )


# --- causes ----------------------------------------------------------------------------------------------------------


def _causes(diagnosis: Diagnosis, run: RunReport | None, before: Diagnosis | None) -> tuple[Cause, ...]:
    """Return the causes that doctor and the run found; the most severe first."""
    found = list(_of_diagnosis(diagnosis, run, before))
    if run is not None:
        # Causes in the run that are not its own come from doctor, whose diagnosis reports them.
        found += [cause for cause in run.answer.causes if cause.by_run and cause.finding.check != UNEXPLAINED]
        short = shortfalls(run)
        if left := short.slow.difference(*(cause.measurements for cause in found)):
            found.append(unexplained(run, left, Status.FAIL if left & short.broken else Status.WARN))
    # A note that explains nothing is no cause, but of a GPU that is withheld from here.
    found = [c for c in found if c.status is not Status.NOTE or c.measurements or c.finding.check in WITHHELD]
    return tuple(sorted(found, key=lambda cause: (_ORDER.index(cause.status), -len(cause.measurements))))


def _of_diagnosis(diagnosis: Diagnosis, run: RunReport | None, before: Diagnosis | None) -> Iterator[Cause]:
    shortfall = Shortfalls() if run is None else shortfalls(run)
    # A GPU that --gpus names but that cannot be measured is a failure, whatever the severity of its cause.
    named = {(cause.finding.check, cause.finding.place.ids) for cause in (run.causes if run else ()) if cause.asked}
    for root in root_causes(diagnosis.findings):
        finding = root.finding
        explained = frozenset[int]() if run is None else explained_by(root, run, shortfall)
        under_load = before is not None and not any(_is_known(finding, earlier) for earlier in before.findings)
        cause = replace(measurement_cause(finding, explained, shortfall), under_load=under_load)
        is_named = (finding.check, finding.place.ids) in named and finding.check != IN_USE
        failed = is_named or (under_load and root.status is Status.WARN)
        yield replace(cause, status=Status.FAIL) if failed else cause


def _is_known(finding: Finding, earlier: Finding) -> bool:
    """Return whether an earlier finding was at least as severe and covered everything that this finding is about."""
    return (
        (finding.check, finding.place.kind) == (earlier.check, earlier.place.kind)
        and _ORDER.index(earlier.status) <= _ORDER.index(finding.status)
        and set(finding.place.ids) <= set(earlier.place.ids)
    )


_ORDER = list(Status)


# --- gaps ------------------------------------------------------------------------------------------------------------


def _gaps(bringup: Bringup, causes: Sequence[Cause]) -> Iterator[Gap]:
    run = bringup.run
    if run is None:
        failing = tuple(place for place, cause in enumerate(causes) if cause.state is State.BAD)
        because = bringup.not_measured or "the bench did not run"
        yield Gap(kind=GapKind.NOT_MEASURED, reason=Clauses.explained("nothing was measured", because), causes=failing)
    for gap in () if run is None else run.answer.gaps:
        numbers = {*gap.measurements}
        yield replace(gap, causes=tuple(place for place, cause in enumerate(causes) if numbers & {*cause.measurements}))
    for gap in bringup.diagnosis.answer.gaps:
        yield replace(gap, causes=())
    if bringup.no_fabric:
        reason = Clauses.explained("the fabric between the nodes was not measured", bringup.no_fabric)
        yield Gap(kind=GapKind.FABRIC, reason=reason)


# --- words -----------------------------------------------------------------------------------------------------------


def _sentence(bringup: Bringup, state: State, causes: Sequence[Cause], gaps: Sequence[Gap]) -> str:
    no_fabric = "fabric not measured" if bringup.no_fabric else ""
    bad = [cause for cause in causes if cause.state is State.BAD]
    if bad:
        also = f"and {several(len(bad) - 1, 'more cause')}" if len(bad) > 1 else ""
        return Clauses.of(_words(bringup, bad[0]), also, no_fabric)
    if state is State.BAD and bringup.run is not None:
        return Clauses.of(bringup.run.answer.sentence, no_fabric)
    if gap := next((gap for gap in gaps if gap.kind.state is state), None):
        return gap.reason if gap.kind is GapKind.FABRIC else Clauses.of(gap.reason, no_fabric)
    warnings = sum(cause.state is State.WARN and not cause.by_run for cause in causes)
    also = f", {several(warnings, 'warning')}" if warnings else ""
    measured = "" if bringup.run is None else bringup.run.answer.sentence
    return Clauses.of(f"{bringup.diagnosis.counts[Status.PASS]} checks passed{also}", measured)


def _words(bringup: Bringup, cause: Cause) -> str:
    """Return a sentence with a cause and what it explains; for unexplained paths, the sentence of the bench."""
    if cause.finding.check == UNEXPLAINED and bringup.run is not None:
        return bringup.run.answer.sentence
    return cause_words(bringup.run, cause)


def _next_step(bringup: Bringup, state: State, causes: Sequence[Cause], gaps: Sequence[Gap]) -> Remedy:
    if state is State.GOOD:
        return Remedy(text="hand the node over")
    gap = next((gap for gap in gaps if gap.kind.state is state), None)
    if state is State.BAD or gap is None:
        cause = next((cause for cause in causes if cause.state is state), None)
        if state is State.WARN:
            return Remedy(text="read the warnings, then hand the node over")
        return _of_cause(bringup, cause) if cause else Remedy(text="see what it is about with 'egmctl doctor'")
    if gap.causes:
        remedy = _of_cause(bringup, causes[gap.causes[0]])
        return replace(remedy, text=f"{remedy.text.removesuffix('.')}; then run it again", on_host="")
    machine = bringup.machine
    if gap.kind is GapKind.NOT_MEASURED and machine.origin.kind is OriginKind.LIVE and not machine.gpus:
        return Remedy(text="run it where the GPUs are; if they are here, 'egmctl topo' says what is missing")
    own = to_measure(bringup.run, gap) if bringup.run is not None and gap.kind is GapKind.WAIVED else None
    return Remedy(text=own or _NEXT_STEPS.get(gap.kind, "run it again"))


def _of_cause(bringup: Bringup, cause: Cause) -> Remedy:
    if cause.finding.check == UNEXPLAINED and bringup.run is not None and bringup.run.answer.next_step is not None:
        return bringup.run.answer.next_step
    return cause.finding.remedy or Remedy(text=advice(cause.finding))


_NEXT_STEPS = {
    GapKind.BROKE: "run it again; 'egmctl bench --quick' shows each path",
    GapKind.NOT_MEASURED: "run 'egmctl bringup' on the node itself, where its GPUs can be used",
    GapKind.WAIVED: "run it again when all GPUs are free and can be used from here",
    GapKind.NO_REFERENCE: "learn a profile of healthy nodes (egmctl profile learn), or compare with one of them "
    "(egmctl compare)",
    GapKind.FABRIC: "mend what stopped it, then start all tasks again by an MPI (mpirun, or srun --mpi=pmix)",
    GapKind.NOT_DETERMINED: "see what could not be read with 'egmctl doctor -v'",
}
