"""The words of a run's answer: its word, its sentence and the next step, from what was decided."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence

from egmctl.bench.path_class import is_lost
from egmctl.dataclass import dataclass
from egmctl.model.answer import WORDS, Cause, Clauses, CommandQuestion, Gap, GapKind, State
from egmctl.model.finding import UNEXPLAINED, Finding, Status, WaiverKind
from egmctl.model.measurement import BROKEN, Measurement, MeasurementStatus, RunReport
from egmctl.model.nccl import NcclRun, NcclStatus
from egmctl.model.remedy import Remedy
from egmctl.model.verdict import BAD_GRADES, Culprit, Grade, RunVerdict
from egmctl.units import listed, several
from egmctl.verdict.answers.words import advice, cause_words, first_causes, to_measure
from egmctl.verdict.explain import Shortfalls
from egmctl.verdict.nccl import NCCL_CHECK


@dataclass(frozen=True, slots=True, kw_only=True)
class Decided:
    """What is decided of a run."""

    report: RunReport
    state: State
    causes: Sequence[Cause]
    gaps: Sequence[Gap]
    short: Shortfalls
    whole_node: bool
    """Whether it is asked if all of the node can be handed over (:func:`egmctl.verdict.answers.run.of_run`)."""

    @property
    def gap(self) -> Gap | None:
        """The first gap that has the state of the answer."""
        return next((gap for gap in self.gaps if gap.kind.state is self.state), None)

    @property
    def measured(self) -> int:
        """The number of measurements that were made."""
        return sum(m.measured for m in self.report.measurements)

    @property
    def explaining_slow(self) -> list[Cause]:
        """The causes of measurements that are slow or broke, without causes that explain only missing paths."""
        return [cause for cause in self.causes if self.short.slow & {*cause.measurements}]

    @property
    def broken(self) -> list[Measurement]:
        """The measurements that failed for a known reason, those with corrupt data first."""
        broken = (m for m in self.report.measurements if m.status in BROKEN and not is_lost(m))
        return sorted(broken, key=lambda m: m.status is not MeasurementStatus.CORRUPT)

    @property
    def corrupt(self) -> Cause | None:
        """The cause that data arrived corrupt by NCCL; ``None`` if it did not. Links' are in :attr:`broken`."""
        is_corrupt = self.report.nccl is not None and self.report.nccl.status is NcclStatus.CORRUPT
        return next((cause for cause in self.causes if is_corrupt and cause.finding.check == NCCL_CHECK), None)

    @property
    def kernel_tells(self) -> bool:
        """Whether the kernel logged a fault during the run that requires action by an operator."""
        return any(fault.status is not Status.PASS for fault in self.report.logged)


def run_word(run: Decided) -> str:
    """Return the word for it: usually that of the state, but what nothing judged does not pass."""
    verdict = run.report.verdict
    if run.state is State.GOOD and (verdict is None or not run.report.measurements):
        return "MEASURED"
    if run.state is State.INCOMPLETE and {gap.kind for gap in run.gaps} == {GapKind.NO_REFERENCE}:
        return "NO REFERENCE"
    if run.state in (State.GOOD, State.WARN) and not _judges(verdict):
        return "NO REFERENCE" if run.state is State.GOOD else "NO REFERENCE, WITH WARNINGS"
    return WORDS[CommandQuestion.BENCH][run.state]


def sentence(run: Decided) -> str:
    """Return one sentence with the numbers: what is wrong, otherwise what is not known, otherwise what is slow."""
    if run.state is State.BAD:
        return _what_is_bad(run)
    if gap := run.gap:
        nothing_made = gap.kind is GapKind.NOT_MEASURED or not run.report.measurements
        return gap.reason if nothing_made else Clauses.of(gap.reason, _rest(run, gap))
    if not run.report.measurements and (notes := [*nccl_notes(run.report.nccl)]):
        return notes[0]
    verdict, measured = run.report.verdict, several(run.measured, "measurement")
    not_made = tuple(left_out(run))
    if verdict is None:
        return Clauses.of(f"{measured}, not judged (--no-verdict)", *not_made)
    grades = Counter(path_class.grade for path_class in verdict.classes)
    if not grades[Grade.PASS] and not grades[Grade.WARN]:
        them = "it" if run.measured == 1 else "them"
        unjudged = Clauses.explained(f"{measured} and nothing to judge {them} by", _why_no_reference(verdict))
        return Clauses.of(unjudged, *not_made, *_warned(run, verdict))
    if grades[Grade.WARN]:
        return Clauses.of(_slow(run, verdict), *not_made)
    unknown = f", {grades[Grade.NO_REFERENCE]} without a reference" if grades[Grade.NO_REFERENCE] else ""
    warned = _warned(run, verdict) if run.state is State.WARN else ()
    return Clauses.of(f"{_as_fast(verdict)}{unknown}", *not_made, *warned)


_NOT_HERE = {
    *(WaiverKind.UNSUPPORTED_MEMORY, WaiverKind.UNSUPPORTED_HANDLE, WaiverKind.UNSUPPORTED_ENGINE),
    *(WaiverKind.NO_PAGES, WaiverKind.REFUSED, WaiverKind.GPU_HIDDEN),
}
"""The kinds of waivers that no one needs to be told of: GPU or driver lack the feature, or the user has hidden the
GPU."""


def left_out(run: Decided) -> Iterator[str]:
    """Yield words on waived measurements that are neither a gap nor :data:`_NOT_HERE`, with the first reason."""
    missing = {number for gap in run.gaps for number in gap.measurements}
    numbers = [
        number
        for number, m in enumerate(run.report.measurements)
        if m.status is MeasurementStatus.WAIVED
        and number not in missing
        and not (m.waivers and m.waivers[0].kind in _NOT_HERE)
    ]
    if numbers and not run.report.interrupted:
        known = (cause_words(run.report, cause) for cause in run.causes if numbers[0] in cause.measurements)
        what = f"{several(len(numbers), 'measurement')} not made: {run.report.measurements[numbers[0]].reason}"
        yield next(known, what)


def nccl_notes(nccl: NcclRun | None) -> Iterator[str]:
    """Yield NCCL's bus bandwidth beside the links: a note, because nobody has published what share is healthy."""
    if nccl is None or not nccl.results:
        return
    shares = [f"{each.name} {each.bus_gb_s:.1f} GB/s{_share(each.share)}" for each in nccl.results]
    beside = " of the slowest link direction measured in this run" if nccl.slowest is not None else ""
    yield Clauses.explained("NCCL's bus bandwidth", f"{', '.join(shares)}{beside}")


def _share(share: float | None) -> str:
    return "" if share is None else f" ({100 * share:.0f} %)"


def _judges(verdict: RunVerdict | None) -> bool:
    return verdict is not None and any(path_class.grade is not Grade.NO_REFERENCE for path_class in verdict.classes)


def _as_fast(verdict: RunVerdict) -> str:
    passed = sum(path_class.grade is Grade.PASS for path_class in verdict.classes)
    some = "all" if passed == len(verdict.classes) else f"{passed} of"
    return f"{some} {len(verdict.classes)} path classes are as fast as profile {verdict.profile} expects"


def _what_is_bad(run: Decided) -> str:
    """Return what is proven to be wrong, and the first gap that it does not name."""
    if stopped := next((gap for gap in run.gaps if gap.kind is GapKind.NOT_MEASURED and gap.causes), None):
        # Its first cause is the most severe one, which is what is wrong.
        return stopped.reason
    fault = _fault(run)
    lacking = next((gap for gap in run.gaps if gap.reason not in fault), None)
    if lacking is None:
        return fault
    return Clauses.of(fault, f"{WORDS[CommandQuestion.BENCH][lacking.kind.state]}: {lacking.reason}")


def _fault(run: Decided) -> str:
    """Return what is proven to be wrong: what failed, slow paths, or what kept paths from being measured."""
    broken = run.broken
    if run.corrupt is not None and not (broken and broken[0].status is MeasurementStatus.CORRUPT):
        # Slow and failed paths come after it, as after corrupt data of a link.
        return cause_words(run.report, run.corrupt)
    if broken:
        what = f"{len(broken)} of {len(run.report.measurements)} measurements failed"
        return Clauses.explained(what, broken[0].reason or "")
    verdict = run.report.verdict
    # What the user named comes first.
    proven = sorted((cause for cause in run.causes if cause.state is State.BAD), key=lambda cause: not cause.asked)
    if verdict is not None and (not proven or any(run.short.slow & {*cause.measurements} for cause in proven)):
        return _slow(run, verdict)
    return first_causes(run.report, proven)


def _rest(run: Decided, gap: Gap) -> str:
    """Return the words on the completed measurements of an incomplete run, none of which failed.

    Empty if the gap says that they have no reference.
    """
    verdict, is_one = run.report.verdict, run.measured == 1
    measured = f"the {several(run.measured, 'measurement')} made"
    if verdict is None:
        return f"{measured} {'was' if is_one else 'were'} not judged"
    grades = Counter(path_class.by_speed for path_class in verdict.classes)
    if any(each.grade is Grade.PASS for each in verdict.classes) and not grades[Grade.FAIL]:
        warned = " with warnings" if grades[Grade.WARN] or verdict.warnings else ""
        return f"PASS{warned} for {measured}: {_as_fast(verdict)}"
    if grades[Grade.FAIL] or grades[Grade.WARN]:
        return f"{grades[Grade.FAIL] + grades[Grade.WARN]} of {len(verdict.classes)} path classes are slow"
    if gap.kind is GapKind.NO_REFERENCE:
        return ""
    return f"{measured} {'has' if is_one else 'have'} no reference: {_why_no_reference(verdict)}"


def _why_no_reference(verdict: RunVerdict) -> str:
    """Return why no path class has a reference: the profile lacks these cases, or there is no profile."""
    if verdict.profile is not None:
        return f"profile {verdict.profile} has no reference for these cases"
    return verdict.profile_reason or "it was not judged by a profile"


def _slow(run: Decided, verdict: RunVerdict) -> str:
    """Return a sentence with the number of slow path classes, the GPUs that they have in common, and the cause."""
    bad = [path_class for path_class in verdict.classes if path_class.by_speed in BAD_GRADES]
    if not bad:
        words = verdict.warnings or tuple(cause_words(run.report, cause) for cause in run.causes)
        first = next(iter(words), "a warning")
        return f"{first} (--strict)" if verdict.strict else first
    little = all(path_class.by_speed is Grade.WARN for path_class in bad)
    how = "a little slower than usual" if little else "slower than expected"
    known = [cause for cause in run.explaining_slow if cause.finding.check != UNEXPLAINED]
    explained: str = first_causes(run.report, known, 1)
    if not known and run.report.machines and not run.kernel_tells and not run.whole_node:
        # In a bring-up, the diagnosis may explain it.
        explained = "nothing that was read explains it"
    slow = f"{len(bad)} of {len(verdict.classes)} path classes are {how}"
    return Clauses.of(slow, _where(verdict.culprits), explained)


_OUTLIERS = 3
"""The number of outliers that a sentence names."""


def _where(culprits: Sequence[Culprit]) -> str:
    """Return the words on the GPUs that are outliers in the most classes, or on pairs if no single GPU is."""
    gpus = Counter(culprit.label for culprit in culprits if len(culprit.gpus) == 1)
    labels = [label for label, _ in (gpus or Counter(culprit.label for culprit in culprits)).most_common(_OUTLIERS)]
    if not labels:
        return ""
    return f"the outliers touch {listed(labels)}" if gpus else f"outliers: {listed(labels)}"


def _warned(run: Decided, verdict: RunVerdict) -> tuple[str, ...]:
    """Return the first warning that is not about speed, and the first cause of slow paths, if there is one."""
    telling = run.explaining_slow or [cause for cause in run.causes if cause.state is State.WARN]
    words = (cause_words(run.report, cause) for cause in telling[:1])
    return *verdict.warnings[:1], *words


# --- the next step ---------------------------------------------------------------------------------------------------

_LOOK = "look for the cause with 'egmctl doctor --active', then measure again"
_TO_JUDGE = "compare with another run (egmctl compare), or make a profile of healthy nodes (egmctl profile learn)"


def next_step(run: Decided) -> Remedy | None:
    """Return what to do next; ``None`` if there is nothing to do."""
    report, gap = run.report, run.gap
    if run.state is State.GOOD:
        judged = report.verdict is None or not report.measurements or _judges(report.verdict)
        return None if judged else Remedy(text=_TO_JUDGE)
    if run.state is State.BAD or gap is None:
        return _to_repair(run)
    if gap.kind is GapKind.INTERRUPTED:
        return Remedy(text="run it again")
    if gap.causes:
        return _of_finding(run.causes[gap.causes[0]].finding)
    if gap.kind is GapKind.NO_REFERENCE:
        return Remedy(text=_TO_JUDGE)
    kinds = {waiver.kind for m in report.measurements for waiver in m.waivers}
    if gap.kind is GapKind.NOT_MEASURED and kinds == {WaiverKind.UNSUPPORTED_ENGINE}:
        # No check covers the software or the GPU features that a case requires.
        return Remedy(text="choose other cases: 'egmctl bench --list' shows them")
    if gap.kind is GapKind.BROKE:
        return Remedy(text="run 'egmctl doctor', then measure again")
    return Remedy(text=to_measure(report, gap) or "see what stops it with 'egmctl doctor'")


def _to_repair(run: Decided) -> Remedy:
    """Return what to do about slow or broken paths."""
    if any(m.status is MeasurementStatus.CORRUPT for m in run.broken):
        return Remedy(text="drain the node: data arrived corrupt; 'egmctl doctor --active' shows where")
    if run.corrupt is not None:
        return _of_finding(run.corrupt.finding)
    known = [cause for cause in run.explaining_slow or run.causes if cause.finding.check != UNEXPLAINED]
    if known:
        return _of_finding(known[0].finding)
    if run.kernel_tells:
        return Remedy(text="act on the kernel's message below, then measure again")
    if run.whole_node and run.causes:
        # A bring-up has run doctor already.
        return _of_finding(run.causes[0].finding)
    if run.broken:
        return Remedy(text="see what stops them with 'egmctl doctor'")
    unexplained = next((cause for cause in run.causes if cause.finding.check == UNEXPLAINED), None)
    return _of_finding(unexplained.finding) if unexplained is not None else Remedy(text=_LOOK)


def _of_finding(finding: Finding) -> Remedy:
    return finding.remedy or Remedy(text=advice(finding))
