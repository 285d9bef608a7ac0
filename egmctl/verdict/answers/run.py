"""The answer of a run of the bench: what is proven to be wrong with its paths, and what of them is not known."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace

from egmctl.bench.path_class import is_lost
from egmctl.doctor.job import of_others
from egmctl.doctor.kernel_faults import Blame, kernel_faults
from egmctl.model.answer import WORDS, Answer, Asked, Cause, Gap, GapKind, State, worst
from egmctl.model.doubt import DoubtReason, Effect
from egmctl.model.finding import TOLD, UNEXPLAINED, Finding, Status, Waiver, WaiverKind
from egmctl.model.kernel_log import LoggedFault
from egmctl.model.measurement import BROKEN, Measurement, RunReport
from egmctl.model.measurement import Status as Ended
from egmctl.model.remedy import Remedy
from egmctl.model.route import Egm, LinkKind
from egmctl.model.verdict import BAD_GRADES, Culprit, Grade, RunVerdict, Yardstick
from egmctl.topology.platform import in_rack
from egmctl.units import listed, several, shortened
from egmctl.verdict.answers.words import advice, cause_words, crosses_unknown_links, doubt_words, first_causes
from egmctl.verdict.explain import CHANGED, EXCUSES, IN_USE, Shortfalls, shortfalls
from egmctl.verdict.trust import with_effect

NOTHING_EXPLAINS = "nothing that was read explains it"
_LOOK = "look for the cause with 'egmctl doctor --active', then measure again"
_AGAIN = "run it again"
_PATHS = 3
"""The number of outliers and of links without a reference that a sentence names."""


def of_run(report: RunReport, *, whole_node: bool = False) -> Answer:
    """Return what a run answers.

    Parameters
    ----------
    whole_node
        Whether it is asked if all of the node can be handed over, as by a bring-up: a GPU that CUDA_VISIBLE_DEVICES
        hides and a link without a reference are gaps then. For a bench the first is a selection and the second a note,
        with ``--strict`` a gap.
    """
    short = shortfalls(report)
    causes = tuple(_causes(report, short))
    gaps = tuple(_gaps(report, causes, short, whole_node=whole_node))
    verdict = report.verdict
    states = [cause.state for cause in causes] + [gap.kind.state for gap in gaps]
    doubted = any(doubt.effect is Effect.WARN for doubt in report.doubts)
    if doubted or (verdict is not None and (verdict.warnings or short.warned)):
        strict = verdict is not None and verdict.strict
        states.append(State.BAD if strict else State.WARN)
    state = worst(states)
    return Answer(
        state=state,
        word=_word(state, verdict, gaps),
        sentence=_sentence(report, state, causes, gaps, whole_node=whole_node),
        causes=causes,
        gaps=gaps,
        notes=(*_doubted(report), *_left_out(report, causes, gaps)),
        next_step=_next_step(report, state, causes, gaps, whole_node=whole_node),
        counts=counts(report),
    )


def logged_faults(report: RunReport) -> tuple[LoggedFault, ...]:
    """Return what the kernel logged during a run, by device and kind, the most severe first."""
    log = report.kernel_messages
    if log is None or not log.events or not report.machines:
        return report.logged
    # Under MPI this is the log of rank 0's node, which is the first machine.
    faults = sorted(kernel_faults(report.machines[0], log.events), key=lambda fault: list(Status).index(fault.status))
    return tuple(
        LoggedFault(
            status=fault.status,
            words=f"{fault.title}{fault.times}" + ("" if fault.blame is Blame.UNKNOWN else f" ({fault.blame.value})"),
            remedy=fault.remedy,
        )
        for fault in faults
    )


def counts(report: RunReport) -> Mapping[str, int]:
    """Return what a run counts: paths, which are pairs of ends; measurements by status; classes of paths by grade."""
    statuses = Counter(m.status for m in report.measurements)
    grades = Counter(path_class.grade for path_class in (report.verdict.classes if report.verdict else ()))
    return {
        "paths": len({m.path for m in report.measurements}),
        "measurements": len(report.measurements),
        **{f"measurements_{status}": statuses[status] for status in Ended if statuses[status]},
        "classes": sum(grades.values()),
        **{f"classes_{grade}": grades[grade] for grade in Grade if grades[grade]},
    }


def _doubted(report: RunReport) -> Iterator[str]:
    """Yield a sentence on the measurements that are doubted and still count; causes and gaps name the others."""
    doubted = [doubt for doubt in report.doubts if doubt.effect is Effect.WARN]
    if doubted:
        count = len({doubt.measurement for doubt in doubted})
        yield f"{several(count, 'measurement')} doubted: {doubt_words(report, doubted[0])}"


# --- causes ----------------------------------------------------------------------------------------------------------


def _causes(report: RunReport, short: Shortfalls) -> Iterator[Cause]:
    """Yield the causes, the most severe first; one of them for all paths that are slow or broken for no known reason.

    What others do on a GPU or the host is never a failure, also if ``--gpus`` names the GPU.
    """
    strict = report.verdict is not None and report.verdict.strict
    found = list(report.causes)
    # What is not the number of its path says nothing about the path: it is a gap.
    void = with_effect(report.doubts, Effect.VOID) - short.failing
    if left := short.slow.difference(void, *(cause.measurements for cause in found)):
        found.append(unexplained(report, left, Status.FAIL if left & short.broken else Status.WARN))
    graded = [replace(cause, status=_status(cause, strict=strict)) for cause in found]

    def place(cause: Cause) -> tuple[bool, int, int]:
        # What changed during the run comes first: the other causes may only be its effects.
        return cause.finding.check != CHANGED, list(Status).index(cause.status), -len(cause.measurements)

    yield from sorted(graded, key=place)


def _status(cause: Cause, *, strict: bool) -> Status:
    if cause.finding.check == IN_USE or cause.finding.check in EXCUSES:
        return cause.finding.status
    return Status.FAIL if strict and cause.status in TOLD else cause.status


def unexplained(report: RunReport, numbers: Collection[int], status: Status) -> Cause:
    """Return the cause of slow or broken measurements that no known cause explains."""
    measurements = [report.measurements[number] for number in numbers]
    noun = "slow path" if all(m.measured for m in measurements) else "slow or broken path"
    summary = f"{several(len({m.path for m in measurements}), noun)}, cause unknown"
    flapping = [
        doubt for doubt in report.doubts if doubt.measurement in numbers and doubt.reason is DoubtReason.WORST_SAMPLE
    ]
    if len({doubt.measurement for doubt in flapping}) == len(numbers):
        others = f", and {several(len(flapping) - 1, 'more path')}" if len(flapping) > 1 else ""
        summary = f"{doubt_words(report, flapping[0])}{others}, cause unknown"
    remedy = Remedy(text="Inspect these GPUs and their links, then run it again.")
    finding = Finding(check=UNEXPLAINED, status=status, summary=summary, remedy=remedy)
    return Cause(status=status, finding=finding, measurements=tuple(sorted(numbers)))


# --- gaps ------------------------------------------------------------------------------------------------------------

_GAPS = frozenset(
    {
        *(WaiverKind.GPU_UNUSABLE, WaiverKind.GPU_BUSY, WaiverKind.NO_PEER_ACCESS, WaiverKind.NO_NUMA_MEMORY),
        *(WaiverKind.EGM_BLOCKED, WaiverKind.NO_ROOM, WaiverKind.GIVEN_UP, WaiverKind.INTERRUPTED),
    }
)
"""The waivers that leave something unknown. For the others, the GPU or the driver lacks the feature, or the user chose
the GPUs: there is nothing to measure."""
VISIBLE = "env.visible-devices"
"""The check of CUDA_VISIBLE_DEVICES."""
_OF_DOMAIN = frozenset({WaiverKind.NO_IMEX_CHANNEL, WaiverKind.NO_NVLINK})
"""The waivers that are gaps where an NVLink domain of several nodes is expected."""


def _gaps(report: RunReport, causes: Sequence[Cause], short: Shortfalls, *, whole_node: bool) -> Iterator[Gap]:
    """Yield what a run does not know, in the order of :class:`GapKind`."""
    measurements, verdict = report.measurements, report.verdict
    made = sum(m.measured for m in measurements)
    if report.interrupted:
        waived = tuple(number for number, m in enumerate(measurements) if m.status is Ended.WAIVED)
        reason = f"stopped with {made} of {len(measurements)} measurements made"
        yield Gap(kind=GapKind.INTERRUPTED, reason=reason, measurements=waived)
    if short.lost or report.problems:
        yield _broke(report, sorted(short.lost), causes)
    if not any(m.status is not Ended.WAIVED for m in measurements):
        if not report.interrupted:
            yield _nothing(report, causes)
    elif not report.interrupted and (missed := _missed(report, causes, whole_node=whole_node)):
        yield _of(GapKind.WAIVED, report, missed, causes, f"{len(missed)} of {len(measurements)} measurements")
    unread = [place for place, cause in enumerate(causes) if _hides_links(report, cause)]
    if unread:
        numbers = sorted({number for place in unread for number in causes[place].measurements})
        reason = first_causes(report, [causes[place] for place in unread])
        yield Gap(kind=GapKind.UNREADABLE, reason=reason, measurements=tuple(numbers), causes=tuple(unread))
    if void := sorted(with_effect(report.doubts, Effect.VOID)):
        first = next(doubt for doubt in report.doubts if doubt.measurement == void[0] and doubt.effect is Effect.VOID)
        reason = f"{several(len(void), 'measurement')} not believed: {doubt_words(report, first)}"
        yield Gap(kind=GapKind.NOT_BELIEVED, reason=reason, measurements=tuple(void))
    changed = [place for place, cause in enumerate(causes) if cause.finding.check == CHANGED]
    if changed:
        numbers = sorted({number for place in changed for number in causes[place].measurements})
        reason = first_causes(report, [causes[place] for place in changed])
        yield Gap(kind=GapKind.CHANGED, reason=reason, measurements=tuple(numbers), causes=tuple(changed))
    if excused := _excused(causes, short):
        reason = f"{several(len(excused), 'measurement')} slow only while others used the GPUs or the host"
        gap = _of(GapKind.EXCUSED, report, excused, causes, "")
        yield replace(gap, reason=f"{reason}: {gap.reason}")
    if (whole_node or (verdict is not None and verdict.strict)) and made:
        yield from _without_reference(report)


def _broke(report: RunReport, lost: Sequence[int], causes: Sequence[Cause]) -> Gap:
    """Return the gap of measurements that crashed, hung or broke, with the cause if it is known."""
    known = [place for place, cause in enumerate(causes) if {*cause.measurements} & {*lost}]
    known = [place for place in known if causes[place].finding.check != UNEXPLAINED]
    reasons = [report.measurements[number].reason for number in lost]
    because = cause_words(report, causes[known[0]]) if known else next(filter(None, (*reasons, *report.problems)), "")
    what = f"{len(lost)} of {len(report.measurements)} measurements crashed, timed out or broke" if lost else ""
    reason = f"{what or 'the run broke'}: {because}"
    return Gap(kind=GapKind.BROKE, reason=reason, measurements=tuple(lost), causes=tuple(known))


def _nothing(report: RunReport, causes: Sequence[Cause]) -> Gap:
    """Return the gap if nothing was measured: the first cause, and a reason for measurements without a cause."""
    explained = {number for cause in causes for number in cause.measurements}
    numbers = tuple(range(len(report.measurements)))
    reasons = Counter(m.reason for n, m in enumerate(report.measurements) if n not in explained and m.reason)
    if causes:
        rest = "".join(f"; {count} more: {reason}" for reason, count in reasons.most_common(1))
        reason = f"nothing was measured: {causes[0].title}{rest}"
        return Gap(kind=GapKind.NOT_MEASURED, reason=reason, measurements=numbers, causes=(0,))
    reason = f"nothing was measured: {next(iter(reasons), 'there was nothing to measure')}"
    return Gap(kind=GapKind.NOT_MEASURED, reason=reason, measurements=numbers)


def _missed(report: RunReport, causes: Sequence[Cause], *, whole_node: bool) -> list[int]:
    """Return the measurements that were not made on the planned path and that leave something unknown.

    A measurement leaves nothing unknown if one of its waivers says that there is nothing to measure. For a bench that
    is also so with a GPU that somebody else's job has.
    """
    kinds = {*_GAPS, *((WaiverKind.GPU_HIDDEN,) if whole_node else ())}
    if any(in_rack(machine, gpu) for machine in report.machines for gpu in machine.gpus or ()):
        kinds |= _OF_DOMAIN
    # CUDA_VISIBLE_DEVICES that does not do what it says is no choice.
    mistaken = {
        n
        for cause in causes
        if cause.finding.check == VISIBLE and cause.state is not State.GOOD
        for n in cause.measurements
    }
    others = frozenset[str]() if whole_node else _of_others(report)

    def leaves_unknown(waiver: Waiver) -> bool:
        of_another_job = waiver.kind is WaiverKind.GPU_UNUSABLE and waiver.gpus and others.issuperset(waiver.gpus)
        return waiver.kind in kinds and not of_another_job

    return [
        number
        for number, m in enumerate(report.measurements)
        if m.missed_path and (number in mistaken or all(map(leaves_unknown, m.waivers)))
    ]


def _of_others(report: RunReport) -> frozenset[str]:
    """Return the bus ids of the GPUs of other jobs; none in a run on several nodes, where bus ids repeat."""
    return of_others(report.machines[0]) if len(report.machines) == 1 else frozenset()


def _of(kind: GapKind, report: RunReport, numbers: Sequence[int], causes: Sequence[Cause], what: str) -> Gap:
    """Return the gap of some measurements with the causes that explain them, otherwise the first reason."""
    found = [place for place, cause in enumerate(causes) if {*cause.measurements} & {*numbers}]
    reasons = [report.measurements[number].reason for number in numbers]
    words = first_causes(report, [causes[place] for place in found])
    because = words or f"{what} were not made: {next(filter(None, reasons), 'the reason is not known')}"
    return Gap(kind=kind, reason=because, measurements=tuple(numbers), causes=tuple(found))


def _hides_links(report: RunReport, cause: Cause) -> bool:
    """Return whether a cause is that driver libraries could not be read, so that links of paths are unknown."""
    unreadable = "drv.libraries" in (cause.finding.check, *cause.finding.explains)
    return unreadable and any(crosses_unknown_links(report.measurements[number]) for number in cause.measurements)


def _excused(causes: Sequence[Cause], short: Shortfalls) -> list[int]:
    """Return the measurements that fail, but only while others used the GPUs or the host."""
    excuses = [cause for cause in causes if cause.finding.check in EXCUSES and cause.finding.check != CHANGED]
    excusing = {n for cause in excuses for n in cause.measurements}
    proven = {n for cause in causes if cause.state is State.BAD for n in cause.measurements}
    return sorted(short.failing & excusing - proven)


def _without_reference(report: RunReport) -> Iterator[Gap]:
    """Yield the gap of the links of GPUs on which the profile judged no measurement."""
    verdict = report.verdict
    if verdict is None or verdict.profile is None:
        because = f": {verdict.profile_reason}" if verdict is not None and verdict.profile_reason else ""
        reason = (
            "measured, but not judged" if verdict is None else f"measured, but there is nothing to judge by{because}"
        )
        yield Gap(kind=GapKind.NO_REFERENCE, reason=reason)
        return
    judged = {
        each.measurement
        for each in verdict.judged
        for judgement in each.judgements
        if judgement.yardstick is Yardstick.PROFILE and judgement.grade is not Grade.NO_REFERENCE
    }
    valued = [number for number, m in enumerate(report.measurements) if m.headline is not None]
    known = {link for number in judged for link in _links(report.measurements[number])}
    unknown = {link: None for number in valued for link in _links(report.measurements[number]) if link not in known}
    numbers = tuple(n for n in valued if not known.issuperset(_links(report.measurements[n])))
    if unknown:
        names = shortened([" ".join(link[1:]) for link in unknown], _PATHS)
        reason = f"profile {verdict.profile} has no reference for {several(len(unknown), 'link')} of GPUs: {names}"
        yield Gap(kind=GapKind.NO_REFERENCE, reason=reason, measurements=numbers)


_LINKS = {LinkKind.NVLINK: "NVLink", LinkKind.C2C: "C2C", LinkKind.PCIE: "PCIe", LinkKind.UNKNOWN: "unknown link"}


def _links(m: Measurement) -> Iterator[tuple[str, str, str]]:
    """Yield the links of GPUs that a measurement uses: bus id, label, kind of link with EGM apart from other memory."""
    for flow in m.flows:
        link = flow.route.first_link
        if link is None:
            continue
        kind = f"{_LINKS[link]}{' to EGM' if flow.route.egm is Egm.YES else ''}"
        for end in (flow.source, flow.destination):
            if end.bus_id is not None:
                yield f"{end.rank}:{end.bus_id}", end.label, kind


# --- words -----------------------------------------------------------------------------------------------------------


def _word(state: State, verdict: RunVerdict | None, gaps: Sequence[Gap]) -> str:
    if state is State.GOOD and verdict is None:
        return "MEASURED"
    judged = verdict is not None and any(path_class.grade is not Grade.NO_REFERENCE for path_class in verdict.classes)
    if state is State.INCOMPLETE and {gap.kind for gap in gaps} == {GapKind.NO_REFERENCE}:
        return "NO REFERENCE"
    if state in (State.GOOD, State.WARN) and not judged:
        return "NO REFERENCE" if state is State.GOOD else "NO REFERENCE, WITH WARNINGS"
    return WORDS[Asked.BENCH][state]


def _sentence(
    report: RunReport, state: State, causes: Sequence[Cause], gaps: Sequence[Gap], *, whole_node: bool
) -> str:
    if state is State.BAD:
        if stopped := next((gap for gap in gaps if gap.kind is GapKind.NOT_MEASURED and gap.causes), None):
            # Its first cause is the most severe one, which is what is wrong.
            return stopped.reason
        fault = _fault(report, causes, whole_node=whole_node)
        lacking = next((gap for gap in gaps if gap.reason not in fault), None)
        return fault if lacking is None else f"{fault}; {WORDS[Asked.BENCH][lacking.kind.state]}: {lacking.reason}"
    if gap := next((gap for gap in gaps if gap.kind.state is state), None):
        nothing = gap.kind is GapKind.NOT_MEASURED
        return gap.reason if nothing else f"{gap.reason}; {_rest(report)}"
    verdict, made = report.verdict, sum(m.measured for m in report.measurements)
    left_out = "".join(f"; {words}" for words in _left_out(report, causes, gaps))
    if verdict is None:
        return f"{several(made, 'measurement')}, not judged (--no-verdict){left_out}"
    grades = Counter(path_class.grade for path_class in verdict.classes)
    if not grades[Grade.PASS] and not grades[Grade.WARN]:
        why = f"{several(made, 'measurement')} and nothing to judge them by: {_why_no_reference(verdict)}"
        return f"{why}{left_out}{_warned(report, verdict, causes)}"
    if grades[Grade.WARN]:
        return f"{_slow(report, verdict, causes, whole_node=whole_node)}{left_out}"
    unknown = f", {grades[Grade.NO_REFERENCE]} without a reference" if grades[Grade.NO_REFERENCE] else ""
    warned = _warned(report, verdict, causes) if state is State.WARN else ""
    return f"{_as_fast(verdict)}{unknown}{left_out}{warned}"


def _as_fast(verdict: RunVerdict) -> str:
    passed = sum(path_class.grade is Grade.PASS for path_class in verdict.classes)
    some = "all" if passed == len(verdict.classes) else f"{passed} of"
    return f"{some} {len(verdict.classes)} path classes are as fast as profile {verdict.profile} expects"


def _fault(report: RunReport, causes: Sequence[Cause], *, whole_node: bool) -> str:
    """Return what is proven to be wrong: what failed, slow paths, or what kept paths from being measured."""
    broken = _broken(report)
    if broken:
        return f"{len(broken)} of {len(report.measurements)} measurements failed: {broken[0].reason}"
    verdict = report.verdict
    slow = shortfalls(report)
    # What the user named comes first.
    proven = sorted((cause for cause in causes if cause.state is State.BAD), key=lambda cause: not cause.asked)
    if verdict is not None and (not proven or any(slow.slow & {*cause.measurements} for cause in proven)):
        return _slow(report, verdict, causes, whole_node=whole_node)
    return first_causes(report, proven)


def _broken(report: RunReport) -> list[Measurement]:
    """Return the measurements that failed for a known reason, those with corrupt data first."""
    broken = (m for m in report.measurements if m.status in BROKEN and not is_lost(m))
    return sorted(broken, key=lambda m: m.status is not Ended.CORRUPT)


def _rest(report: RunReport) -> str:
    """Return the words on the completed measurements of an incomplete run, none of which failed."""
    verdict, made = report.verdict, sum(m.measured for m in report.measurements)
    measured = f"the {several(made, 'measurement')} made"
    if verdict is None:
        return f"{measured} {'were' if made != 1 else 'was'} not judged"
    grades = Counter(path_class.by_speed for path_class in verdict.classes)
    if any(each.grade is Grade.PASS for each in verdict.classes) and not grades[Grade.FAIL]:
        warned = " with warnings" if grades[Grade.WARN] or verdict.warnings else ""
        return f"PASS{warned} for {measured}: {_as_fast(verdict)}"
    if grades[Grade.FAIL] or grades[Grade.WARN]:
        return f"{grades[Grade.FAIL] + grades[Grade.WARN]} of {len(verdict.classes)} path classes are slow"
    return f"{measured} {'have' if made != 1 else 'has'} no reference: {_why_no_reference(verdict)}"


def _why_no_reference(verdict: RunVerdict) -> str:
    """Return why no path class has a reference: the profile lacks these cases, or there is no profile."""
    if verdict.profile is not None:
        return f"profile {verdict.profile} has no reference for these cases"
    return verdict.profile_reason or "it was not judged by a profile"


_NOT_HERE = {
    *(WaiverKind.UNSUPPORTED_MEMORY, WaiverKind.UNSUPPORTED_HANDLE, WaiverKind.UNSUPPORTED_ENGINE),
    *(WaiverKind.NO_PAGES, WaiverKind.REFUSED, WaiverKind.GPU_HIDDEN),
}
"""The kinds of waivers that no one needs to be told of: GPU or driver lack the feature, or the user has hidden the
GPU."""


def _left_out(report: RunReport, causes: Sequence[Cause], gaps: Sequence[Gap]) -> Iterator[str]:
    """Yield words on waived measurements that are neither a gap nor :data:`_NOT_HERE`, with the first reason."""
    missing = {number for gap in gaps for number in gap.measurements}
    left_out = [
        number
        for number, m in enumerate(report.measurements)
        if m.status is Ended.WAIVED and number not in missing and not (m.waivers and m.waivers[0].kind in _NOT_HERE)
    ]
    if left_out and not report.interrupted:
        known = (cause_words(report, cause) for cause in causes if left_out[0] in cause.measurements)
        what = f"{several(len(left_out), 'measurement')} not made: {report.measurements[left_out[0]].reason}"
        yield next(known, what)


def _slow(report: RunReport, verdict: RunVerdict, causes: Sequence[Cause], *, whole_node: bool) -> str:
    """Return a sentence with the number of slow path classes, the GPUs that they have in common, and the cause."""
    bad = [path_class for path_class in verdict.classes if path_class.by_speed in BAD_GRADES]
    if not bad:
        words = verdict.warnings or tuple(cause_words(report, cause) for cause in causes)
        return f"{next(iter(words), 'a warning')}{' (--strict)' if verdict.strict else ''}"
    little = all(path_class.by_speed is Grade.WARN for path_class in bad)
    how = "a little slower than usual" if little else "slower than expected"
    known = [cause for cause in _explaining_slow(report, causes) if cause.finding.check != UNEXPLAINED]
    explained = first_causes(report, known, 1)
    if not known and report.machines and not _kernel_tells(report) and not whole_node:
        # Of a bring-up, the diagnosis may explain it.
        explained = NOTHING_EXPLAINS
    sentence = f"{len(bad)} of {len(verdict.classes)} path classes are {how}"
    return "; ".join(filter(None, (sentence, _where(verdict.culprits), explained)))


def _where(culprits: Sequence[Culprit]) -> str:
    """Return the words on the GPUs that are outliers in the most classes, or on pairs if no single GPU is."""
    gpus = Counter(culprit.label for culprit in culprits if len(culprit.gpus) == 1)
    labels = [label for label, _ in (gpus or Counter(culprit.label for culprit in culprits)).most_common(_PATHS)]
    return f"{'the outliers touch' if gpus else 'outliers:'} {listed(labels)}" if labels else ""


def _warned(report: RunReport, verdict: RunVerdict, causes: Sequence[Cause]) -> str:
    """Return the first warning that is not about speed, and the first cause of slow paths, if there is one."""
    telling = _explaining_slow(report, causes) or [cause for cause in causes if cause.state is State.WARN]
    words = (cause_words(report, cause) for cause in telling[:1])
    return "".join(f"; {each}" for each in (*verdict.warnings[:1], *words))


def _explaining_slow(report: RunReport, causes: Sequence[Cause]) -> list[Cause]:
    """Return the causes of measurements that are slow or broke, without causes that explain only missing paths."""
    slow = shortfalls(report).slow
    return [cause for cause in causes if slow & {*cause.measurements}]


def _kernel_tells(report: RunReport) -> bool:
    """Return whether the kernel logged a fault during the run that requires action by an operator."""
    return any(fault.status is not Status.PASS for fault in logged_faults(report))


# --- the next step ---------------------------------------------------------------------------------------------------


def _next_step(
    report: RunReport, state: State, causes: Sequence[Cause], gaps: Sequence[Gap], *, whole_node: bool
) -> Remedy | None:
    if state is State.GOOD:
        if report.verdict is None or any(each.grade is not Grade.NO_REFERENCE for each in report.verdict.classes):
            return None
        return Remedy(text=_TO_JUDGE)
    gap = next((gap for gap in gaps if gap.kind.state is state), None)
    if state is State.BAD or gap is None:
        return _to_repair(report, causes, whole_node=whole_node)
    if gap.kind is GapKind.INTERRUPTED:
        return Remedy(text=_AGAIN)
    if gap.causes:
        return _of_finding(causes[gap.causes[0]].finding)
    if gap.kind is GapKind.NO_REFERENCE:
        return Remedy(text=_TO_JUDGE)
    kinds = {waiver.kind for m in report.measurements for waiver in m.waivers}
    if gap.kind is GapKind.NOT_MEASURED and kinds == {WaiverKind.UNSUPPORTED_ENGINE}:
        # No check covers the software or the GPU features that a case requires.
        return Remedy(text="choose other cases: 'egmctl bench --list' shows them")
    if gap.kind is GapKind.BROKE:
        return Remedy(text="run 'egmctl doctor', then measure again")
    return Remedy(text="see what stops it with 'egmctl doctor'")


_TO_JUDGE = "compare with another run (egmctl compare), or make a profile of healthy nodes (egmctl profile learn)"


def _to_repair(report: RunReport, causes: Sequence[Cause], *, whole_node: bool) -> Remedy:
    """Return what to do about slow or broken paths."""
    broken = _broken(report)
    if any(m.status is Ended.CORRUPT for m in broken):
        return Remedy(text="drain the node: data arrived corrupt; 'egmctl doctor --active' shows where")
    known = [cause for cause in _explaining_slow(report, causes) or causes if cause.finding.check != UNEXPLAINED]
    if known:
        return _of_finding(known[0].finding)
    if _kernel_tells(report):
        return Remedy(text="act on the kernel's message below, then measure again")
    if whole_node and causes:
        # A bring-up has run doctor already.
        return _of_finding(causes[0].finding)
    return Remedy(text="see what stops them with 'egmctl doctor'" if broken else _LOOK)


def _of_finding(finding: Finding) -> Remedy:
    return finding.remedy or Remedy(text=advice(finding))
