"""The answer of a run: its verdict, the cause, the next step, and the most important warnings."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from dataclasses import replace

from egmctl.doctor.kernel_faults import Blame, KernelFault, kernel_faults
from egmctl.doctor.remedies import fitted_remedy
from egmctl.model.finding import RunCause, Status, WaiverKind
from egmctl.model.measurement import BROKEN, LinkEvidence, LinkProof, Measurement, RunReport, Verification
from egmctl.model.measurement import Status as MeasurementStatus
from egmctl.model.route import LinkKind
from egmctl.model.task import Quantity
from egmctl.model.verdict import BAD_GRADES, Culprit, Grade, RunVerdict
from egmctl.report import document as doc
from egmctl.report.document import Tone
from egmctl.report.views.causes import (
    NO_EXPLANATION,
    PATHS,
    advice,
    cause_title,
    cause_words,
    crosses_unknown_links,
    remedy_words,
)
from egmctl.units import format_size, grouped, listed, printable, several, shortened
from egmctl.verdict.explain import HIDDEN, OTHERS, THROTTLED, gpu_sentence, shortfalls
from egmctl.verdict.yardsticks import is_degraded, is_lost


def faults(report: RunReport) -> list[KernelFault]:
    """Return the faults in the kernel log of a run, one per device and kind, the most severe first."""
    log = report.kernel_messages
    if log is None or not log.events or not report.machines:
        return []
    # Under MPI this is the log of rank 0's node, which is the first machine.
    machine = report.machines[0]
    logged_faults = (
        replace(fault, remedy=fitted_remedy(machine, fault.place, fault.remedy))
        for fault in kernel_faults(machine, log.events)
    )
    return sorted(logged_faults, key=lambda fault: list(Status).index(fault.status))


def grave(report: RunReport) -> list[KernelFault]:
    """Return the faults that require action by an operator."""
    return [fault for fault in faults(report) if fault.status is not Status.PASS]


def logged(fault: KernelFault) -> str:
    """Return the words for a fault: ``GPU2: Xid 79, GPU fell off the bus, 2 times (hardware)``."""
    blame = "" if fault.blame is Blame.UNKNOWN else f" ({fault.blame.value})"
    return f"{fault.title}{fault.times}{blame}"


def kernel_line(report: RunReport) -> str | None:
    """Return a sentence on the harmless part of the kernel log; ``None`` if it was not watched or has only faults."""
    log = report.kernel_messages
    if log is None:
        return None
    if log.unread is not None:
        return f"Kernel log while it ran: unknown ({log.unread.detail or log.unread.reason.value})."
    parts = [logged(fault) for fault in faults(report) if fault.status is Status.PASS]
    parts += [f"{log.left_out} more were not kept"] * bool(log.left_out)
    parts += ["lines were overwritten before they were read"] * log.overwritten
    if not parts and grave(report):
        return None
    none = "no Xid, SXid, PCIe error or fault of the driver"
    return f"Kernel log while it ran: {'; '.join(parts) or none}."


_FEW = 3
"""The number of copy counts that are listed; for more, the range is given."""
_GATING = {"kernel": "queued behind a gate kernel", "none": "no gate: the time includes queueing"}
_VERIFICATION = {
    Verification.GPU_EVERY_SAMPLE: "verified after every sample on the GPU",
    Verification.CHECKSUM_EVERY_SAMPLE: "reads and writes alone by checksum",
    Verification.COUNTERS_EVERY_SAMPLE: "atomic additions by their answers and their counters",
    Verification.WALK_EVERY_SAMPLE: "pointer chases verified by their final index",
}


def how(report: RunReport) -> list[str]:
    """Return the settings of a run as short phrases: size, copies, samples, gating and verification."""
    settings = report.settings
    parts = [f"buffers of {format_size(settings.size_bytes)}", f"median of {several(settings.samples, 'sample')}"]
    measured = [m for m in report.measurements if m.samples]
    if copies := sorted({m.copies for m in measured if m.quantity is Quantity.BANDWIDTH}):
        times = " or ".join(map(str, copies)) if len(copies) <= _FEW else f"{copies[0]} to {copies[-1]}"
        parts.insert(1, f"copied {times} times a sample")
    parts += dict.fromkeys(_GATING[m.gating] for m in measured if m.gating in _GATING)
    parts += dict.fromkeys(_VERIFICATION[m.verification] for m in measured if m.verification)
    return parts


_CASES = 3
"""The number of slowest cases that are named."""
_PHASES = ("starting", "set_up", "warm_up", "measuring", "verifying", "tear_down", "waiting")


def where_time_went(report: RunReport) -> str | None:
    """Return a line with the time of each phase of a run and the slowest cases; ``None`` if it is unknown."""
    spent = report.seconds
    if spent is None:
        return None
    phases = ", ".join(f"{phase.replace('_', '-')} {getattr(spent, f'{phase}_s'):.2f} s" for phase in _PHASES)
    longest = sorted(spent.cases, key=lambda case: -case.sum_s)[:_CASES]
    cases = f"; longest: {', '.join(f'{case.case} {case.sum_s:.2f} s' for case in longest)}" if longest else ""
    return f"Time: {phases}{cases}."


def exceptions(report: RunReport) -> Iterator[tuple[MeasurementStatus, str, list[str]]]:
    """Yield status, reason and names of measurements that are not ``ok``: fully waived cases, otherwise paths."""
    bad = [m for m in report.measurements if m.status is not MeasurementStatus.OK]
    groups = grouped(((m.status, m.reason or ""), m) for m in bad)
    for (status, reason), members in groups.items():
        cases = list(dict.fromkeys(m.name for m in members))
        whole = status is MeasurementStatus.WAIVED and len(members) == sum(m.name in cases for m in report.measurements)
        yield status, reason, cases if whole else list(dict.fromkeys(f"{m.name} {m.path}" for m in members))


def tally(report: RunReport) -> str:
    """Return the number of measurements by status, in words."""
    counts = Counter(measurement.status for measurement in report.measurements)
    words = ", ".join(f"{counts[status]} {status}" for status in MeasurementStatus if counts[status])
    return f"{several(len(report.measurements), 'measurement')}: {words or 'none'}"


HARMLESS = frozenset({"applications-clocks-setting", "display-clock-setting"})
"""Throttle reasons that come from settings and do not invalidate a measurement."""
_SHOWN = 4


def warnings(report: RunReport) -> Iterator[str]:
    """Yield a sentence for each fault in the kernel log with its remedy, and for each warning with its paths."""
    yield from (
        f"logged by the kernel meanwhile: {logged(fault)}. {remedy_words(fault.remedy)}" for fault in grave(report)
    )
    yield from (f"{sentence}: {shortened(paths, _SHOWN)}" for sentence, paths in seen(report).items())


def seen(report: RunReport, *, causes: bool = True) -> dict[str, list[str]]:
    """Return the warnings in the evidence of measurements, with their paths.

    Parameters
    ----------
    causes
        Whether to include warnings that the causes of the run already report.
    """
    known = frozenset[_Sign]() if causes else frozenset(_signs(report))
    paths = grouped((words, f"{m.name} {m.path}") for m in report.measurements for words in _seen_on(m, known))
    return {words: list(dict.fromkeys(names)) for words, names in paths.items()}


def route_line(report: RunReport) -> str | None:
    """Return a sentence on how often link counters confirmed the expected route; ``None`` if none was checked."""
    counts = Counter(m.evidence.route.verdict for m in report.measurements if m.evidence and m.evidence.route)
    if not counts:
        return None
    meanings = {
        LinkProof.PROVEN: f"of {sum(counts.values())}",
        LinkProof.BY_EXCLUSION: "by exclusion: no other link carried the bytes",
        LinkProof.UNKNOWN: "not confirmed: no counters, or ones that contradict each other",
        LinkProof.REFUTED: "refuted, see the warnings",
    }
    parts = [f"{counts[verdict]} {meaning}" for verdict, meaning in meanings.items() if counts[verdict]]
    return f"Route confirmed by link counters: {', '.join(parts)}."


def egm_line(report: RunReport) -> str | None:
    """Return a sentence on EGM beside other host memory; ``None`` if no GPU read EGM memory of its own CPU."""
    if report.verdict is None or (egm := report.verdict.egm) is None:
        return None
    local = f"local {egm.local_gb_s:.1f} GB/s"
    ratios = egm.of_pinned, egm.of_system, egm.remote_of_local
    pinned, plain, far = ("not measured" if ratio is None else f"{ratio:.2f}" for ratio in ratios)
    return f"EGM by copy engines: {local}; ratio to pinned {pinned}, to plain memory {plain}; remote to local {far}."


def staged_lines(report: RunReport) -> Iterator[str]:
    """Yield for each reason the number of measurements staged through host memory without peer access."""
    reasons = Counter(
        reason
        for m in report.measurements
        for reason in {flow.route.staged_reason: None for flow in m.flows if flow.route.staged_reason}
        if m.measured
    )
    for reason, count in reasons.items():
        yield f"{several(count, 'measurement')} staged through host memory: {printable(reason)}"


_Sign = tuple[str, str, str]
"""A symptom of a GPU: the id of the finding, the GPU's label, and the finding's sentence, "" for any."""


def _signs(report: RunReport) -> Iterator[_Sign]:
    """Yield the symptoms that the causes of a run report, each for the GPUs that the cause names."""
    for cause in report.causes:
        finding = cause.finding
        for measurement in report.measurements if finding.check in (OTHERS, THROTTLED) else ():
            for gpu in measurement.evidence.gpus if measurement.evidence else ():
                if gpu.bus_id in finding.place.ids and gpu_sentence(finding.check, gpu) == finding.summary:
                    # The processes that use a GPU differ between measurements.
                    yield finding.check, gpu.label, "" if finding.check == OTHERS else finding.summary


def _seen_on(measurement: Measurement, known: Collection[_Sign]) -> Iterator[str]:
    for placement in measurement.placements:
        if placement.right is False:
            yield f"memory of {placement.label} is elsewhere ({printable(placement.detail)})"
    evidence = measurement.evidence
    route = evidence.route if evidence is not None else None
    if measurement.measured and is_degraded(measurement):
        reason = next(flow.route.egm_reason for flow in measurement.flows if flow.route.degraded)
        yield f"degraded, not EGM ({printable(reason)}); {_carried(route)}"
    for gpu in evidence.gpus if evidence is not None else ():
        yield from (f"{name} of {gpu.label} rose by {rise}" for name, rise in gpu.errors.items())
        if gpu.other_processes and (OTHERS, gpu.label, "") not in known:
            yield f"other processes used {gpu.label} meanwhile ({', '.join(map(str, gpu.other_processes[:_SHOWN]))})"
        slowed = sorted(set(gpu.throttle_reasons or ()) - HARMLESS)
        if slowed and (THROTTLED, gpu.label, gpu_sentence(THROTTLED, gpu)) not in known:
            yield f"clocks of {gpu.label} throttled: {', '.join(slowed)}"
    if route is not None and route.verdict is LinkProof.REFUTED:
        if route.carried_bytes is None:
            yield f"another link than {route.link} carried the bytes"
        else:
            yield f"{route.link} carried only {100 * route.carried_bytes / route.expected_bytes:.0f} % of the bytes"


def _carried(route: LinkEvidence | None) -> str:
    if route is None or route.verdict in (LinkProof.UNKNOWN, LinkProof.REFUTED):
        return "no counter shows which link carried the bytes"
    how = "by its counters" if route.verdict is LinkProof.PROVEN else "by exclusion"
    return f"{_LINKS[route.link]} carried the bytes, {how}"


_LINKS = {LinkKind.NVLINK: "NVLink", LinkKind.C2C: "C2C", LinkKind.PCIE: "PCIe"}


def was_run(measurement: Measurement) -> bool:
    """Return whether a measurement was attempted, whatever its status."""
    return measurement.status is not MeasurementStatus.WAIVED


def answer(
    report: RunReport,
    *,
    next_step: str = "look for the cause with 'egmctl doctor --active', then measure again",
    alone: bool = True,
) -> doc.Verdict:
    """Return the answer: whether the run is complete, and whether the paths are as fast as expected.

    Parameters
    ----------
    next_step
        The next step if no cause is known for slow paths.
    alone
        Whether the answer contains the causes. If not, the caller shows them.
    """
    if not alone:
        report = replace(report, machines=(), causes=())
    verdict = report.verdict
    made = sum(m.measured for m in report.measurements)
    lost = [m for m in report.measurements if is_lost(m)]
    broken = sorted(
        (m for m in report.measurements if m.status in BROKEN and m not in lost),
        key=lambda m: m.status is not MeasurementStatus.CORRUPT,
    )
    lacking, remedy = "", ""
    if report.interrupted:
        lacking = f"interrupted with {made} of {len(report.measurements)} measurements made"
        remedy = "run it again"
    elif lost or report.problems:
        lacking, remedy = _lost(report, lost)
    elif not any(was_run(m) for m in report.measurements):
        return _nothing(report)
    if fault := _fault(report, broken, next_step, lacking):
        return fault
    if lacking:
        return _incomplete(lacking, remedy)
    if missing := _missing(report):
        return _incomplete(f"{_first_causes(report, missing)}; {_rest(made, verdict)}", advice(missing[0].finding))
    left_out = _not_made(report)
    if verdict is None:
        sentence = f"{several(made, 'measurement')}, not judged (--no-verdict){left_out}"
        return doc.Verdict("NO REFERENCE", Tone.PLAIN, sentence)
    counts = Counter(path_class.grade for path_class in verdict.classes)
    unknown = f", {counts[Grade.NO_REFERENCE]} without a reference" if counts[Grade.NO_REFERENCE] else ""
    passed = "all" if counts[Grade.PASS] == len(verdict.classes) else f"{counts[Grade.PASS]} of"
    sentence = f"{passed} {_as_fast(verdict)}{unknown}{left_out}"
    if verdict.grade is Grade.PASS:
        return doc.Verdict("PASS", Tone.GOOD, sentence)
    if verdict.grade is Grade.WARN and (counts[Grade.PASS] or counts[Grade.WARN]):
        sentence = f"{_slow(report, verdict)}{left_out}" if counts[Grade.WARN] else sentence + _warned(report, verdict)
        return doc.Verdict("PASS", Tone.WARN, f"with warnings: {sentence}", _advice(report, [], next_step))
    return doc.Verdict(
        "NO REFERENCE",
        Tone.UNKNOWN,
        f"{several(made, 'measurement')} and nothing to judge them by: {_why_no_reference(verdict)}{left_out}"
        + _warned(report, verdict),
        "compare with another run (egmctl compare), or make a profile of healthy nodes (egmctl profile learn)",
    )


def _as_fast(verdict: RunVerdict) -> str:
    return f"{len(verdict.classes)} path classes are as fast as profile {verdict.profile} expects"


def _lost(report: RunReport, lost: Sequence[Measurement]) -> tuple[str, str]:
    """Return why a run broke or lost measurements, with the cause if it is known, and the next step."""
    known = [cause for cause in report.causes if any(is_lost(report.measurements[n]) for n in cause.explains)]
    reason = next((m.reason for m in lost if m.reason), None) or next(iter(report.problems), "")
    next_step = "run 'egmctl doctor', then measure again"
    if known:
        reason, next_step = cause_words(report, known[0]), advice(known[0].finding)
    if not lost:
        return f"the run broke: {reason}", next_step
    return f"{len(lost)} of {len(report.measurements)} measurements crashed, timed out or broke: {reason}", next_step


def _fault(report: RunReport, broken: Sequence[Measurement], next_step: str, lacking: str) -> doc.Verdict | None:
    """Return the answer ``FAIL`` if measurements failed or are too slow, otherwise ``None``.

    Parameters
    ----------
    broken
        The failed measurements, those with corrupt data first.
    lacking
        Why the run is incomplete, for the end of the sentence; if it is empty, the causes of missing paths.
    """
    verdict = report.verdict
    named: Sequence[RunCause] = ()
    if broken:
        sentence = f"{len(broken)} of {len(report.measurements)} measurements failed: {broken[0].reason}"
    elif verdict is not None and verdict.too_slow:
        sentence, named = _slow(report, verdict), _explaining_slow(report)[:1]
    else:
        return None
    missing = [cause for cause in _missing(report) if cause not in named]
    lacking = lacking or (_first_causes(report, missing) if missing else "")
    incomplete = f"; INCOMPLETE: {lacking}" if lacking else ""
    return doc.Verdict("FAIL", Tone.BAD, sentence + incomplete, _advice(report, broken, next_step))


def _nothing(report: RunReport) -> doc.Verdict:
    """Return the answer if nothing was measured: the first cause, and a reason for measurements without a cause."""
    explained = {number for cause in report.causes for number in cause.explains}
    reasons = Counter(m.reason for n, m in enumerate(report.measurements) if n not in explained and m.reason)
    if report.causes:
        rest = "".join(f"; {count} more: {reason}" for reason, count in reasons.most_common(1))
        title = cause_title(report.causes[0])
        return _incomplete(f"nothing was measured: {title}{rest}", advice(report.causes[0].finding))
    kinds = {waiver.kind for m in report.measurements for waiver in m.waivers}
    # No check covers the software or the GPU features that a case requires.
    other = "choose other cases: 'egmctl bench --list' shows them"
    stopped = "see what stops it with 'egmctl doctor'"
    return _incomplete(
        f"nothing was measured: {next(iter(reasons), 'there was nothing to measure')}",
        other if kinds == {WaiverKind.UNSUPPORTED_ENGINE} else stopped,
    )


def _missing(report: RunReport) -> list[RunCause]:
    """Return the causes that make a run incomplete, those about GPUs that the user named first.

    The causes are GPUs that were not measured, faults that prevented measurements, and unknown links. A GPU that
    CUDA_VISIBLE_DEVICES hides is the user's choice, and counts only if the user also named it.
    """
    return sorted((cause for cause in report.causes if _is_gap(report, cause)), key=lambda cause: not cause.asked)


def _is_gap(report: RunReport, cause: RunCause) -> bool:
    explained = [report.measurements[number] for number in cause.explains]
    failed = cause.status is Status.FAIL
    check = cause.finding.check
    unreadable = "drv.libraries" in (check, *cause.finding.explains)
    if unreadable and any(map(crosses_unknown_links, explained)):
        return True
    stops = failed or check.startswith(("bench.gpu-", "dev.", "drv.", "env.visible-devices", "gpu."))
    chosen = check == HIDDEN and not failed
    return stops and not chosen and any(m.missed_path for m in explained)


def _first_causes(report: RunReport, causes: Sequence[RunCause], most: int = 2) -> str:
    """Return the words for the first ``most`` causes, and the number of the others."""
    more = [f"and {several(len(causes) - most, 'more cause')}"] if len(causes) > most else []
    return "; ".join([*(cause_words(report, cause) for cause in causes[:most]), *more])


def _rest(made: int, verdict: RunVerdict | None) -> str:
    """Return the words on the completed measurements of an incomplete run, none of which failed."""
    measured = f"the {several(made, 'measurement')} made"
    if verdict is None:
        return f"{measured} {'were' if made != 1 else 'was'} not judged"
    warned = verdict.grade is Grade.WARN and verdict.profile is not None
    if verdict.grade is Grade.PASS or warned:
        passed = sum(path_class.grade is Grade.PASS for path_class in verdict.classes)
        return f"PASS{' with warnings' if warned else ''} for {measured}: {passed} of {_as_fast(verdict)}"
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
"""The kinds of waivers that leave a run complete: GPU or driver lack the feature, or the user has hidden the GPU."""


def _not_made(report: RunReport) -> str:
    """Return the words on waived measurements that are not :data:`_NOT_HERE`, with the first reason."""
    left_out = [
        number
        for number, m in enumerate(report.measurements)
        if m.status is MeasurementStatus.WAIVED and not (m.waivers and m.waivers[0].kind in _NOT_HERE)
    ]
    if not left_out:
        return ""
    for cause in report.causes:
        if left_out[0] in cause.explains:
            return f"; {cause_words(report, cause)}"
    return f"; {several(len(left_out), 'measurement')} not made: {report.measurements[left_out[0]].reason}"


def _incomplete(sentence: str, advice: str) -> doc.Verdict:
    return doc.Verdict("INCOMPLETE", Tone.WARN, sentence, advice)


def _slow(report: RunReport, verdict: RunVerdict) -> str:
    """Return a sentence with the number of slow path classes, the GPUs that they have in common, and the cause."""
    bad = [path_class for path_class in verdict.classes if path_class.by_speed in BAD_GRADES]
    if not bad and verdict.warnings:
        return f"{verdict.warnings[0]} (--strict)"
    little = all(path_class.by_speed is Grade.WARN for path_class in bad)
    how = "a little slower than usual" if little else "slower than expected"
    causes = _explaining_slow(report)
    explained = _first_causes(report, causes, 1)
    if not causes and report.machines and not grave(report):
        explained = NO_EXPLANATION
    sentence = f"{len(bad)} of {len(verdict.classes)} path classes are {how}"
    return "; ".join(filter(None, (sentence, _where(verdict.culprits), explained)))


def _where(culprits: Sequence[Culprit]) -> str:
    """Return the words on the GPUs that are outliers in the most classes, or on pairs if no single GPU is."""
    gpus = Counter(culprit.label for culprit in culprits if len(culprit.gpus) == 1)
    labels = [label for label, _ in (gpus or Counter(culprit.label for culprit in culprits)).most_common(PATHS)]
    return f"{'the outliers touch' if gpus else 'outliers:'} {listed(labels)}" if labels else ""


def _warned(report: RunReport, verdict: RunVerdict) -> str:
    """Return the first warning that is not about speed, and the first cause of slow paths, if there is one."""
    causes = (cause_words(report, cause) for cause in _explaining_slow(report)[:1])
    return "".join(f"; {words}" for words in (*verdict.warnings[:1], *causes))


def _explaining_slow(report: RunReport) -> list[RunCause]:
    """Return the causes of measurements that are slow or broke, without causes that explain only missing paths."""
    slow = shortfalls(report).slow
    return [cause for cause in report.causes if slow & set(cause.explains)]


def _advice(report: RunReport, broken: Sequence[Measurement], next_step: str) -> str:
    if any(m.status is MeasurementStatus.CORRUPT for m in broken):
        return "drain the node: data arrived corrupt; 'egmctl doctor --active' shows where"
    if causes := _explaining_slow(report):
        return advice(causes[0].finding)
    if grave(report):
        return "act on the kernel's message below, then measure again"
    return "see what stops them with 'egmctl doctor'" if broken else next_step
