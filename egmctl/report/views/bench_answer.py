"""The answer of a run: whether it is whole, whether its paths are as fast as expected, why not, and what to do next."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

from egmctl.model.cause import RunCause
from egmctl.model.finding import Status as Found
from egmctl.model.measurement import BROKEN, Measurement, RunReport, Status
from egmctl.model.verdict import BAD_GRADES, Culprit, Grade, RunVerdict
from egmctl.model.waiver import WaiverKind
from egmctl.report.document import Tone, Verdict
from egmctl.report.views.bench_kernel import grave
from egmctl.report.views.causes import UNEXPLAINED, cause_advice, cause_title, cause_words, crosses_unknown_links
from egmctl.verdict.classes import is_lost
from egmctl.verdict.explain import shortfalls
from egmctl.verdict.seen import HIDDEN
from egmctl.wording import listed, several

_PATHS = 3


def was_run(measurement: Measurement) -> bool:
    """Say whether a measurement was tried, however it ended."""
    return measurement.status is not Status.WAIVED


def answer(
    report: RunReport,
    *,
    next_step: str = "look for the cause with 'egmctl doctor --active', then measure again",
    alone: bool = True,
) -> Verdict:
    """Return the answer: whether the run is whole, and whether the paths are as fast as they should be.

    Parameters
    ----------
    next_step
        What to do where nothing explains what is slow.
    alone
        Whether the causes are told here; else whoever shows the answer does.
    """
    if not alone:
        report = replace(report, machines=(), causes=())
    made = sum(m.measured for m in report.measurements)
    lost = [m for m in report.measurements if is_lost(m)]
    verdict = report.verdict
    broken = sorted(
        (m for m in report.measurements if m.status in BROKEN and m not in lost),
        key=lambda m: m.status is not Status.CORRUPT,
    )
    if report.interrupted:
        done = f"interrupted with {made} of {len(report.measurements)} measurements made"
        return _fault(report, broken, next_step, done) or _incomplete(done, "run it again")
    if lost or report.problems:
        why = next((m.reason for m in lost if m.reason), None) or next(iter(report.problems), "")
        known = [cause for cause in report.causes if any(is_lost(report.measurements[n]) for n in cause.explains)]
        why = cause_words(report, known[0]) if known else why
        advice = cause_advice(known[0]) if known else "run 'egmctl doctor', then measure again"
        count = f"{len(lost)} of {len(report.measurements)} measurements"
        done = f"{count} crashed, timed out or broke: {why}" if lost else f"the run broke: {why}"
        return _fault(report, broken, next_step, done) or _incomplete(done, advice)
    if not any(was_run(m) for m in report.measurements):
        return _nothing(report)
    if fault := _fault(report, broken, next_step):
        return fault
    if missing := _missing(report):
        return _incomplete(f"{_told(report, missing)}; {_rest(made, verdict)}", cause_advice(missing[0]))
    if verdict is None:
        return Verdict(
            word="NO REFERENCE",
            tone=Tone.PLAIN,
            sentence=f"{several(made, 'measurement')}, not judged (--no-verdict){_not_made(report)}",
        )
    counts = Counter(one.grade for one in verdict.classes)
    unknown = f", {counts[Grade.NO_REFERENCE]} without a reference" if counts[Grade.NO_REFERENCE] else ""
    all_of = "all" if counts[Grade.PASS] == len(verdict.classes) else f"{counts[Grade.PASS]} of"
    of = f"{all_of} {len(verdict.classes)} path classes are as fast as profile {verdict.profile} expects"
    if verdict.grade is Grade.WARN and (counts[Grade.PASS] or counts[Grade.WARN]):
        sentence = f"{of}{unknown}{_not_made(report)}{_warned(report, verdict)}"
        if counts[Grade.WARN]:
            sentence = f"{_why(report, verdict)}{_not_made(report)}"
        return Verdict(
            word="PASS", tone=Tone.WARN, sentence=f"with warnings: {sentence}", advice=_advice(report, [], next_step)
        )
    if verdict.grade is Grade.PASS:
        return Verdict(word="PASS", tone=Tone.GOOD, sentence=f"{of}{unknown}{_not_made(report)}")
    return Verdict(
        word="NO REFERENCE",
        tone=Tone.UNKNOWN,
        sentence=f"{several(made, 'measurement')} and nothing to judge them by: {_why_no_reference(verdict)}"
        + _not_made(report)
        + _warned(report, verdict),
        advice="compare with another run (egmctl compare), or make a profile of healthy nodes (egmctl profile learn)",
    )


def _fault(report: RunReport, broken: Sequence[Measurement], next_step: str, lacking: str = "") -> Verdict | None:
    """Return the answer where measurements failed or are too slow, the gravest first; ``None`` where none did.

    Parameters
    ----------
    broken
        What failed, what arrived corrupt first.
    lacking
        Why the run is not whole, told after that; otherwise what was left out is.
    """
    verdict = report.verdict
    if broken:
        sentence = f"{len(broken)} of {len(report.measurements)} measurements failed: {broken[0].reason}"
        besides: Sequence[RunCause] = ()
    elif verdict is not None and verdict.too_slow:
        sentence, besides = _why(report, verdict), _explaining_slow(report)[:1]
    else:
        return None
    less = f"; INCOMPLETE: {lacking}" if lacking else _less(report, besides)
    return Verdict(word="FAIL", tone=Tone.BAD, sentence=sentence + less, advice=_advice(report, broken, next_step))


def _nothing(report: RunReport) -> Verdict:
    """Return the answer where nothing was measured: the first cause, and why else not what that does not explain."""
    if not report.causes:
        why = next((m.reason for m in report.measurements if m.reason), "there was nothing to measure")
        kinds = {waiver.kind for m in report.measurements for waiver in m.waivers}
        # No check is about what a case needs to be installed, or of a GPU.
        other = "choose other cases: 'egmctl bench --list' shows them"
        advice = other if kinds == {WaiverKind.UNSUPPORTED_ENGINE} else "see what stops it with 'egmctl doctor'"
        return _incomplete(f"nothing was measured: {why}", advice)
    explained = {number for cause in report.causes for number in cause.explains}
    reasons = Counter(m.reason for n, m in enumerate(report.measurements) if n not in explained and m.reason)
    rest = "".join(f"; {count} more: {reason}" for reason, count in reasons.most_common(1))
    return _incomplete(f"nothing was measured: {cause_title(report.causes[0])}{rest}", _fix(report))


def _missing(report: RunReport) -> list[RunCause]:
    """Return what makes a run incomplete, what the user named first.

    It is a GPU that was not measured, paths that a fault kept from being measured, or links that nobody knows.

    That CUDA_VISIBLE_DEVICES hides a GPU was somebody's choice: it counts only where the user named the GPU.
    """
    found = []
    for cause in report.causes:
        explained = [report.measurements[number] for number in cause.explains]
        blind = any(map(crosses_unknown_links, explained))
        chosen = cause.finding.check == HIDDEN and cause.status is not Found.FAIL
        stops = _is_of_gpus(cause) or cause.status is Found.FAIL
        left_out = any(m.missed_path for m in explained) and stops and not chosen
        if left_out or (blind and _is_of_libraries(cause)):
            found.append(cause)
    return sorted(found, key=lambda cause: not cause.asked)


def _is_of_gpus(cause: RunCause) -> bool:
    """Say whether a cause takes GPUs away, and not single paths."""
    return cause.finding.check.startswith(("bench.gpu-", "dev.", "drv.", "env.visible-devices", "gpu."))


def _is_of_libraries(cause: RunCause) -> bool:
    return "drv.libraries" in (cause.finding.check, *cause.finding.explains)


def _less(report: RunReport, besides: Sequence[RunCause] = ()) -> str:
    """Say what makes a run incomplete that failed too.

    Parameters
    ----------
    besides
        Told already, with what was not measured because of them.
    """
    missing = [cause for cause in _missing(report) if cause not in besides]
    return f"; INCOMPLETE: {_told(report, missing)}" if missing else ""


def _told(report: RunReport, causes: Sequence[RunCause]) -> str:
    """Tell the first two of some causes, and how many more there are."""
    more = [f"and {several(len(causes) - 2, 'more cause')}"] if len(causes) > 2 else []
    return "; ".join([*(cause_words(report, cause) for cause in causes[:2]), *more])


def _rest(made: int, verdict: RunVerdict | None) -> str:
    """Say what became of the rest of a run of which something is missing, none of which failed."""
    measured = f"the {several(made, 'measurement')} made"
    if verdict is None:
        return f"{measured} {'were' if made != 1 else 'was'} not judged"
    counts = Counter(one.grade for one in verdict.classes)
    passed = f"{counts[Grade.PASS]} of {len(verdict.classes)} path classes"
    if verdict.grade is Grade.PASS:
        return f"PASS for {measured}: {passed} are as fast as profile {verdict.profile} expects"
    if verdict.grade is Grade.WARN and verdict.profile is not None:
        return f"PASS with warnings for {measured}: {passed} are as fast as profile {verdict.profile} expects"
    return f"{measured} {'have' if made != 1 else 'has'} no reference: {_why_no_reference(verdict)}"


def _why_no_reference(verdict: RunVerdict) -> str:
    """Say why no path class has a reference: there is no profile, or it has none of these cases."""
    if verdict.profile is not None:
        return f"profile {verdict.profile} has no reference for these cases"
    return verdict.profile_reason or verdict.reason


_NOT_HERE = frozenset(
    {
        WaiverKind.UNSUPPORTED_MEMORY,
        WaiverKind.NO_PAGES,
        WaiverKind.UNSUPPORTED_HANDLE,
        WaiverKind.UNSUPPORTED_ENGINE,
        WaiverKind.REFUSED,
    }
)
"""What these GPUs and this driver do not have: nothing is missing there."""


def _not_made(report: RunReport) -> str:
    """Say what was not measured that these GPUs could do, and why; not what somebody chose to hide."""
    stopped = {n: cause for cause in reversed(report.causes) for n in cause.explains}
    left = [
        number
        for number, one in enumerate(report.measurements)
        if one.status is Status.WAIVED
        and not (one.waivers and one.waivers[0].kind in {*_NOT_HERE, WaiverKind.GPU_HIDDEN})
    ]
    if not left:
        return ""
    if left[0] in stopped:
        return f"; {cause_words(report, stopped[left[0]])}"
    return f"; {several(len(left), 'measurement')} not made: {report.measurements[left[0]].reason}"


def _fix(report: RunReport) -> str:
    return cause_advice(report.causes[0])


def _incomplete(sentence: str, advice: str) -> Verdict:
    return Verdict(word="INCOMPLETE", tone=Tone.WARN, sentence=sentence, advice=advice)


def _why(report: RunReport, verdict: RunVerdict) -> str:
    """Say in one sentence what is slow, and what was seen there meanwhile."""
    bad = [one for one in verdict.classes if one.by_speed in BAD_GRADES]
    if not bad and verdict.warnings:
        return f"{verdict.warnings[0]} (--strict)"
    counted = f"{len(bad)} of {len(verdict.classes)} path classes are slower than expected"
    if all(one.by_speed is Grade.WARN for one in bad):
        counted = f"{len(bad)} of {len(verdict.classes)} path classes are a little slower than usual"
    return "; ".join(filter(None, (counted, _where(verdict.culprits), _explained(report))))


def _where(culprits: Sequence[Culprit]) -> str:
    """Say which GPUs, or else which pairs, the outliers of the most classes have in common."""
    gpus = Counter(one.label for one in culprits if len(one.gpus) == 1)
    pairs = Counter(one.label for one in culprits if len(one.gpus) > 1)
    if gpus:
        return f"the outliers touch {listed([label for label, _ in gpus.most_common(_PATHS)])}"
    return f"outliers: {listed([label for label, _ in pairs.most_common(_PATHS)])}" if pairs else ""


def _explained(report: RunReport) -> str:
    """Say what explains the slow paths, the causes that explain most first; or that nothing that was read does."""
    told = _explaining_slow(report)
    if not told:
        return UNEXPLAINED if report.machines and not grave(report) else ""
    more = f"; and {several(len(told) - 1, 'more cause')}" if len(told) > 1 else ""
    return cause_words(report, told[0]) + more


def _warned(report: RunReport, verdict: RunVerdict) -> str:
    """Return the first warning that no yardstick measures, and its cause where there is one."""
    told = _explaining_slow(report)
    return "".join(f"; {words}" for words in (*verdict.warnings[:1], *(cause_words(report, one) for one in told[:1])))


def _explaining_slow(report: RunReport) -> list[RunCause]:
    """Return the causes of what was tried and is slow or broke; what was staged in place of a path may be neither."""
    slow = shortfalls(report).slow
    return [cause for cause in report.causes if slow & set(cause.explains)]


def _advice(report: RunReport, broken: Sequence[Measurement], next_step: str) -> str:
    if any(m.status is Status.CORRUPT for m in broken):
        return "drain the node: data arrived corrupt; 'egmctl doctor --active' shows where"
    told = _explaining_slow(report)
    if told:
        return cause_advice(told[0])
    if grave(report):
        return "act on the kernel's message below, then measure again"
    return "see what stops them with 'egmctl doctor'" if broken else next_step
