"""The answer of a run: its verdict, the cause, the next step, and warnings that a reader must see first."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from dataclasses import replace

from egmctl.doctor.kernel_faults import Blame, KernelFault, kernel_faults
from egmctl.model.finding import RunCause, Status, WaiverKind
from egmctl.model.finding import Status as Found
from egmctl.model.measurement import (
    BROKEN,
    GpuEvidence,
    LinkEvidence,
    Measurement,
    Quantity,
    RunReport,
    Verdict,
    Verification,
)
from egmctl.model.measurement import Status as MeasurementStatus
from egmctl.model.route import LinkKind
from egmctl.model.verdict import BAD_GRADES, Culprit, Grade, RunVerdict
from egmctl.report.document import Tone
from egmctl.report.document import Verdict as DocumentVerdict
from egmctl.report.views.causes import UNEXPLAINED, cause_advice, cause_title, cause_words, crosses_unknown_links
from egmctl.units import format_size, listed, printable, several, shortened
from egmctl.verdict.explain import HIDDEN, OTHERS, THROTTLED, shortfalls, words
from egmctl.verdict.yardsticks import is_degraded, is_lost


def faults(report: RunReport) -> list[KernelFault]:
    """Return what was logged, by device and kind, the gravest first."""
    logged = report.kernel_messages
    if logged is None or not logged.events or not report.machines:
        return []
    # Under MPI it is the log of rank 0's node, whose machine is the first.
    return sorted(kernel_faults(report.machines[0], logged.events), key=lambda fault: list(Status).index(fault.status))


def grave(report: RunReport) -> list[KernelFault]:
    """Return what calls for an operator."""
    return [fault for fault in faults(report) if fault.status is not Status.PASS]


def logged(fault: KernelFault) -> str:
    """Return what the kernel logged while the bench ran, for a line of its own."""
    return f"logged by the kernel meanwhile: {_named(fault)}"


def _named(fault: KernelFault) -> str:
    """Return ``GPU2: Xid 79, GPU fell off the bus, 2 times (hardware)``."""
    blame = "" if fault.blame is Blame.UNKNOWN else f" ({fault.blame.value})"
    return f"{fault.title}{fault.times}{blame}"


def kernel_sentences(report: RunReport) -> Iterator[str]:
    """Yield a sentence with what to do for each fault that calls for an operator."""
    for fault in grave(report):
        yield f"{logged(fault)}. {fault.remedy.text}"


def kernel_line(report: RunReport) -> str | None:
    """Say in one sentence what else the log held, or why it was not read; ``None`` where not read."""
    logged = report.kernel_messages
    if logged is None:
        return None
    if logged.unread is not None:
        return f"Kernel log while it ran: unknown ({logged.unread.detail or logged.unread.reason.value})."
    harmless = [_named(fault) for fault in faults(report) if fault.status is Status.PASS]
    more = [f"{logged.left_out} more were not kept"] if logged.left_out else []
    lost = ["lines were overwritten before they were read"] if logged.overwritten else []
    told = "; ".join([*harmless, *more, *lost])
    if told:
        return f"Kernel log while it ran: {told}."
    return None if grave(report) else "Kernel log while it ran: no Xid, SXid, PCIe error or fault of the driver."


_FEW = 3
"""Numbers of copies that are told one by one."""
_GATING = {
    "kernel": "queued behind a gate kernel",
    "none": "no gate: the time includes queueing",
}
_VERIFICATION = {
    Verification.GPU_EVERY_SAMPLE: "verified after every sample on the GPU",
    Verification.CHECKSUM_EVERY_SAMPLE: "reads and writes alone by checksum",
    Verification.COUNTERS_EVERY_SAMPLE: "atomic additions by their answers and their counters",
    Verification.WALK_EVERY_SAMPLE: "pointer chases verified by their final index",
}


def how(report: RunReport) -> list[str]:
    """Return how everything was measured, in a few words each."""
    settings = report.settings
    parts = [
        f"buffers of {format_size(settings.size_bytes)}",
        f"median of {several(settings.samples, 'sample')}",
    ]
    measured = [m for m in report.measurements if m.samples]
    if copies := sorted({m.copies for m in measured if m.quantity is Quantity.BANDWIDTH}):
        times = " or ".join(map(str, copies)) if len(copies) <= _FEW else f"{copies[0]} to {copies[-1]}"
        parts.insert(1, f"copied {times} times a sample")
    parts += dict.fromkeys(_GATING[m.gating] for m in measured if m.gating in _GATING)
    parts += dict.fromkeys(_VERIFICATION[m.verification] for m in measured if m.verification)
    return parts


_CASES = 3
"""Cases that took longest that are named."""


def where_time_went(report: RunReport) -> str | None:
    """Return in one line what a run spent its time on, and the cases that took longest; ``None`` where not known."""
    spent = report.seconds
    if spent is None:
        return None
    phases = (
        ("starting", spent.starting_s),
        ("set-up", spent.set_up_s),
        ("warm-up", spent.warm_up_s),
        ("measuring", spent.measuring_s),
        ("verifying", spent.verifying_s),
        ("tear-down", spent.tear_down_s),
        ("waiting", spent.waiting_s),
    )
    longest = sorted(spent.cases, key=lambda one: -one.sum_s)[:_CASES]
    cases = f"; longest: {', '.join(f'{one.case} {one.sum_s:.2f} s' for one in longest)}" if longest else ""
    return f"Time: {', '.join(f'{name} {seconds:.2f} s' for name, seconds in phases)}{cases}."


def exceptions(report: RunReport) -> Iterator[tuple[MeasurementStatus, str, list[str]]]:
    """Yield status and reason of what is not ``ok``, and what it is: whole cases where they were waived, else paths.

    The first path of each case has the case's name before it: many cases take the same paths.
    """
    groups: dict[tuple[MeasurementStatus, str], list[Measurement]] = {}
    for measurement in report.measurements:
        if measurement.status is not MeasurementStatus.OK:
            groups.setdefault((measurement.status, measurement.reason or ""), []).append(measurement)
    for (status, reason), members in groups.items():
        cases = list(dict.fromkeys(m.name for m in members))
        whole = status is MeasurementStatus.WAIVED and len(members) == sum(m.name in cases for m in report.measurements)
        if whole:
            yield status, reason, cases
            continue
        named: list[str] = []
        for case in cases:
            first, *others = dict.fromkeys(m.path for m in members if m.name == case)
            named += [f"{case} {first}", *others]
        yield status, reason, named


def tally(report: RunReport) -> str:
    """Return how many measurements ended how."""
    counts = Counter(measurement.status for measurement in report.measurements)
    words = ", ".join(f"{counts[status]} {status}" for status in MeasurementStatus if counts[status])
    return f"{several(len(report.measurements), 'measurement')}: {words or 'none'}"


HARMLESS = frozenset({"applications-clocks-setting", "display-clock-setting"})
"""Clocks that somebody chose do not make a measurement wrong."""
_SHOWN = 4


def warnings(report: RunReport) -> Iterator[str]:
    """Yield a sentence for each thing that was seen, with the paths that it was seen on."""
    yield from kernel_sentences(report)
    for sentence, paths in seen(report).items():
        yield f"{sentence}: {shortened(paths, _SHOWN)}"


def seen(report: RunReport, *, causes: bool = True) -> dict[str, list[str]]:
    """Return a sentence for each thing that was seen, and the paths that it was seen on.

    Parameters
    ----------
    causes
        Also what a cause of the run tells.
    """
    found: dict[str, dict[str, None]] = {}
    told = frozenset[_Sign]() if causes else frozenset(_told(report))
    for measurement in report.measurements:
        for sentence in _of(measurement, told):
            found.setdefault(sentence, {})[f"{measurement.name} {measurement.path}"] = None
    return {sentence: list(paths) for sentence, paths in found.items()}


def route_line(report: RunReport) -> str | None:
    """Say in one sentence how often the counters showed the expected link; ``None`` if nothing was to be shown."""
    routes = [m.evidence.route for m in report.measurements if m.evidence and m.evidence.route]
    if not routes:
        return None
    proven = [route for route in routes if route.verdict is Verdict.PROVEN]
    parts = [f"{len(proven)} of {len(routes)}"] if proven else []
    if excluded := sum(route.verdict is Verdict.BY_EXCLUSION for route in routes):
        parts.append(f"{excluded} by exclusion: no other link carried the bytes")
    if unknown := sum(route.verdict is Verdict.UNKNOWN for route in routes):
        parts.append(f"{unknown} not confirmed: there are no counters")
    if refuted := sum(route.verdict is Verdict.REFUTED for route in routes):
        parts.append(f"{refuted} refuted, see the warnings")
    return f"Route confirmed by link counters: {', '.join(parts)}."


def staged_lines(report: RunReport) -> Iterator[str]:
    """Yield in a sentence for each reason how many measurements went through host memory for want of peer access."""
    reasons = Counter(
        why
        for m in report.measurements
        for why in dict.fromkeys(flow.route.staged_reason for flow in m.flows if flow.route.staged_reason)
        if m.measured
    )
    for why, count in reasons.items():
        yield f"{several(count, 'measurement')} staged through host memory: {printable(why)}"


_Sign = tuple[str, str, str]
"""What a GPU showed: the id of the finding, the GPU's label, and the finding's sentence."""


def _told(report: RunReport) -> Iterator[_Sign]:
    """Yield what the causes of a run tell of GPUs: one GPU's cause tells nothing of another one."""
    for cause in report.causes:
        finding = cause.finding
        for measurement in report.measurements if finding.check in (OTHERS, THROTTLED) else ():
            for gpu in measurement.evidence.gpus if measurement.evidence else ():
                if gpu.bus_id in finding.place.ids and words(finding.check, gpu) == finding.summary:
                    yield finding.check, gpu.label, finding.summary


def _of(measurement: Measurement, told: Collection[_Sign]) -> Iterator[str]:
    for placement in measurement.placements:
        if placement.right is False:
            yield f"memory of {placement.label} is elsewhere ({printable(placement.detail)})"
    evidence = measurement.evidence
    if measurement.measured and is_degraded(measurement):
        yield _degraded(measurement)
    if evidence is None:
        return
    for gpu in evidence.gpus:
        for name, rise in gpu.errors.items():
            yield f"{name} of {gpu.label} rose by {rise}"
        if gpu.other_processes and not _is_told(OTHERS, gpu, told):
            pids = ", ".join(map(str, gpu.other_processes[:_SHOWN]))
            yield f"other processes used {gpu.label} meanwhile ({pids})"
        slowed = sorted(set(gpu.throttle_reasons or ()) - HARMLESS)
        if slowed and not _is_told(THROTTLED, gpu, told):
            yield f"clocks of {gpu.label} throttled: {', '.join(slowed)}"
    if evidence.route is not None and evidence.route.verdict is Verdict.REFUTED:
        yield _refuted(evidence.route)


def _is_told(check: str, gpu: GpuEvidence, told: Collection[_Sign]) -> bool:
    """Say whether a cause tells this of this GPU; who uses one changes from one measurement to the next."""
    said = words(check, gpu)
    return any(
        (one, label) == (check, gpu.label) and (sentence == said or check == OTHERS) for one, label, sentence in told
    )


def _degraded(measurement: Measurement) -> str:
    route = measurement.evidence.route if measurement.evidence is not None else None
    why = next(flow.route.egm_reason for flow in measurement.flows if flow.route.degraded)
    if route is None or route.verdict in (Verdict.UNKNOWN, Verdict.REFUTED):
        carried = "no counter shows which link carried the bytes"
    else:
        how = "by its counters" if route.verdict is Verdict.PROVEN else "by exclusion"
        carried = f"{_LINKS[route.link]} carried the bytes, {how}"
    return f"degraded, not EGM ({printable(why)}); {carried}"


_LINKS = {LinkKind.NVLINK: "NVLink", LinkKind.C2C: "C2C", LinkKind.PCIE: "PCIe"}


def _refuted(route: LinkEvidence) -> str:
    if route.carried_bytes is None:
        return f"another link than {route.link} carried the bytes"
    share = 100 * route.carried_bytes / route.expected_bytes
    return f"{route.link} carried only {share:.0f} % of the bytes"


_PATHS = 3


def was_run(measurement: Measurement) -> bool:
    """Say whether a measurement was tried, however it ended."""
    return measurement.status is not MeasurementStatus.WAIVED


def answer(
    report: RunReport,
    *,
    next_step: str = "look for the cause with 'egmctl doctor --active', then measure again",
    alone: bool = True,
) -> DocumentVerdict:
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
        key=lambda m: m.status is not MeasurementStatus.CORRUPT,
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
        return _incomplete(f"{_bench_answer_told(report, missing)}; {_rest(made, verdict)}", cause_advice(missing[0]))
    if verdict is None:
        return DocumentVerdict(
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
        return DocumentVerdict(
            word="PASS", tone=Tone.WARN, sentence=f"with warnings: {sentence}", advice=_advice(report, [], next_step)
        )
    if verdict.grade is Grade.PASS:
        return DocumentVerdict(word="PASS", tone=Tone.GOOD, sentence=f"{of}{unknown}{_not_made(report)}")
    return DocumentVerdict(
        word="NO REFERENCE",
        tone=Tone.UNKNOWN,
        sentence=f"{several(made, 'measurement')} and nothing to judge them by: {_why_no_reference(verdict)}"
        + _not_made(report)
        + _warned(report, verdict),
        advice="compare with another run (egmctl compare), or make a profile of healthy nodes (egmctl profile learn)",
    )


def _fault(
    report: RunReport, broken: Sequence[Measurement], next_step: str, lacking: str = ""
) -> DocumentVerdict | None:
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
    return DocumentVerdict(
        word="FAIL", tone=Tone.BAD, sentence=sentence + less, advice=_advice(report, broken, next_step)
    )


def _nothing(report: RunReport) -> DocumentVerdict:
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
    return _incomplete(f"nothing was measured: {cause_title(report.causes[0])}{rest}", cause_advice(report.causes[0]))


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
    return f"; INCOMPLETE: {_bench_answer_told(report, missing)}" if missing else ""


def _bench_answer_told(report: RunReport, causes: Sequence[RunCause]) -> str:
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
        if one.status is MeasurementStatus.WAIVED
        and not (one.waivers and one.waivers[0].kind in {*_NOT_HERE, WaiverKind.GPU_HIDDEN})
    ]
    if not left:
        return ""
    if left[0] in stopped:
        return f"; {cause_words(report, stopped[left[0]])}"
    return f"; {several(len(left), 'measurement')} not made: {report.measurements[left[0]].reason}"


def _incomplete(sentence: str, advice: str) -> DocumentVerdict:
    return DocumentVerdict(word="INCOMPLETE", tone=Tone.WARN, sentence=sentence, advice=advice)


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
    if any(m.status is MeasurementStatus.CORRUPT for m in broken):
        return "drain the node: data arrived corrupt; 'egmctl doctor --active' shows where"
    told = _explaining_slow(report)
    if told:
        return cause_advice(told[0])
    if grave(report):
        return "act on the kernel's message below, then measure again"
    return "see what stops them with 'egmctl doctor'" if broken else next_step
