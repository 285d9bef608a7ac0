"""What ``egmctl bench`` says first: whether the paths are as fast as they should be, why not, and what to do next.

One screen: the answer, the worst paths, and a row for each class of paths. The matrices and every detail are of
:mod:`egmctl.report.bench_text` (``-v``) and of the page.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from statistics import median

from egmctl.model.finding import Status as Found
from egmctl.model.gpu import FAKE, are_fake
from egmctl.model.measurement import Measurement, Quantity, RunReport, Status
from egmctl.model.verdict import ClassVerdict, Culprit, Grade, Judgement, RunVerdict, Yardstick
from egmctl.report.bench_kernel import grave, sentence
from egmctl.report.bench_parts import exceptions, tally
from egmctl.report.bench_soak import soak_lines
from egmctl.report.bench_warnings import HARMLESS, route_line, seen
from egmctl.report.document import (
    Block,
    Bullets,
    Cell,
    Document,
    Entry,
    KeyValues,
    Level,
    Matrix,
    Paragraph,
    Section,
    Series,
    Span,
    Tone,
    Verdict,
)
from egmctl.report.views.machine import banners
from egmctl.units import format_size
from egmctl.verdict.classes import BROKEN, class_of, is_lost, names, unit_of

_WORST = 5
"""Paths that are named."""
_REASONS = 4
"""Reasons for what failed or was skipped that are told without -v."""
_WARNINGS = 4
_PATHS = 3
_FAULTS = 3
"""Faults of the kernel's log that are told without -v."""
_WHOLE = 1000
"""From here on nobody needs a decimal."""
_BAD = (Grade.FAIL, Grade.WARN)
_TONES = {Grade.FAIL: Tone.BAD, Grade.WARN: Tone.WARN}
_STATUS_TONES = {Found.FAIL: Tone.BAD, Found.WARN: Tone.WARN}
_MARKS = {Grade.FAIL: "!", Grade.WARN: "~"}


def bench_document(report: RunReport) -> Document:
    """Return what there is to say of a run first."""
    counted = Counter(gpu.name or "GPU of unknown name" for gpu in report.gpus)
    subject = ", ".join(f"{number} x {name}" for name, number in counted.items())
    version = report.cuda_driver_version
    cuda = f" (CUDA {version // 1000}.{version % 1000 // 10})" if version else ""
    driver = report.driver_version or "unknown"
    fake = (FAKE,) if are_fake(gpu.name for gpu in report.gpus) else ()
    modelled = tuple(dict.fromkeys(one for machine in report.machines for one in banners(machine.origin)))
    return Document(
        command="egmctl bench",
        subject=subject,
        subtitle=f"{subject}, driver {driver}{cuda}; {tally(report)}, {report.wall_s:.0f} s",
        banners=(*fake, *modelled),
        body=tuple(_body(report)),
    )


def _body(report: RunReport) -> Iterator[Block]:
    yield answer(report)
    yield from _kernel(report)
    yield from _worst_paths(report)
    yield from _broken(report)
    rows = _rows(report)
    if rows:
        yield _summary(rows)
    if lines := tuple(soak_lines(report)):
        yield Section(title="Soak", body=(Bullets(items=lines),))
    told = [f"{sentence} ({len(paths)} path{'s' * (len(paths) != 1)})" for sentence, paths in seen(report).items()]
    if told:
        more = (f"and {len(told) - _WARNINGS} more (-v)",) if len(told) > _WARNINGS else ()
        yield Section(title="Warnings", body=(Bullets(items=(*told[:_WARNINGS], *more)),))
    notes = [*filter(None, [route_line(report)]), *_skipped(report), *report.problems]
    if notes:
        yield Section(title="Notes", body=(Bullets(items=tuple(notes)),))
    yield Paragraph(words="Matrices, settings and references: -v; all of it as a page: -o run.html", tone=Tone.DIM)


def answer(
    report: RunReport, *, next_step: str = "look for the cause with 'egmctl doctor', then measure again"
) -> Verdict:
    """Return the answer: whether the run is whole, and whether the paths are as fast as they should be.

    Parameters
    ----------
    next_step
        What to do where the run itself shows no cause.
    """
    made = sum(m.measured for m in report.measurements)
    lost = [m for m in report.measurements if is_lost(m)]
    verdict = report.verdict
    if report.interrupted:
        return _incomplete(f"interrupted with {made} of {len(report.measurements)} measurements made", "run it again")
    if lost or report.problems:
        why = next((m.reason for m in lost if m.reason), None) or next(iter(report.problems), "")
        count = f"{len(lost)} of {len(report.measurements)} measurements"
        done = f"{count} crashed, timed out or broke" if lost else "the run broke"
        return _incomplete(f"{done}: {why}", "run 'egmctl doctor', then measure again")
    if not made and not any(m.status in BROKEN for m in report.measurements):
        why = next((m.reason for m in report.measurements if m.reason), "there was nothing to measure")
        return _incomplete(f"nothing was measured: {why}", "see what stops it with 'egmctl doctor'")
    broken = [m for m in report.measurements if m.status in BROKEN]
    if broken:
        sentence = f"{len(broken)} of {len(report.measurements)} measurements failed: {broken[0].reason}"
        return Verdict(word="FAIL", tone=Tone.BAD, sentence=sentence, advice=_advice(report, broken, next_step))
    if verdict is not None and (verdict.grade is Grade.FAIL or verdict.failed):
        return Verdict(
            word="FAIL", tone=Tone.BAD, sentence=_why(report, verdict), advice=_advice(report, broken, next_step)
        )
    if verdict is None:
        return Verdict(word="NO REFERENCE", tone=Tone.PLAIN, sentence=f"{made} measurements, not judged (--no-verdict)")
    counts = Counter(one.grade for one in verdict.classes)
    unknown = f", {counts[Grade.NO_REFERENCE]} without a reference" if counts[Grade.NO_REFERENCE] else ""
    all_of = "all" if counts[Grade.PASS] == len(verdict.classes) else f"{counts[Grade.PASS]} of"
    of = f"{all_of} {len(verdict.classes)} path classes are as fast as profile {verdict.profile} expects"
    if verdict.grade is Grade.WARN:
        sentence = _why(report, verdict) if counts[Grade.WARN] else f"{of}{unknown}; {verdict.warnings[0]}"
        return Verdict(
            word="PASS", tone=Tone.WARN, sentence=f"with warnings: {sentence}", advice=_advice(report, [], next_step)
        )
    if verdict.grade is Grade.PASS:
        return Verdict(word="PASS", tone=Tone.GOOD, sentence=f"{of}{unknown}")
    return Verdict(
        word="NO REFERENCE",
        tone=Tone.UNKNOWN,
        sentence=f"{made} measurements and nothing to judge them by: {verdict.profile_reason or verdict.reason}",
        advice="compare with another run (egmctl compare), or make a profile of healthy nodes (egmctl profile learn)",
    )


def _incomplete(sentence: str, advice: str) -> Verdict:
    return Verdict(word="INCOMPLETE", tone=Tone.WARN, sentence=sentence, advice=advice)


def _why(report: RunReport, verdict: RunVerdict) -> str:
    """Say in one sentence what is slow, and what was seen there meanwhile."""
    bad = [one for one in verdict.classes if one.grade in _BAD]
    counted = f"{len(bad)} of {len(verdict.classes)} path classes are slower than expected"
    if all(one.grade is Grade.WARN for one in bad):
        counted = f"{len(bad)} of {len(verdict.classes)} path classes are a little slower than usual"
    return "; ".join(filter(None, (counted, _where(verdict.culprits), _seen(report, _gpus_of(verdict)))))


def _where(culprits: Sequence[Culprit]) -> str:
    """Say which GPUs, or else which pairs, the outliers of the most classes have in common."""
    gpus = Counter(one.label for one in culprits if len(one.gpus) == 1)
    pairs = Counter(one.label for one in culprits if len(one.gpus) > 1)
    if gpus:
        return f"the outliers touch {_listed([label for label, _ in gpus.most_common(_PATHS)])}"
    return f"outliers: {_listed([label for label, _ in pairs.most_common(_PATHS)])}" if pairs else ""


def _listed(labels: Sequence[str]) -> str:
    return labels[0] if len(labels) == 1 else f"{', '.join(labels[:-1])} and {labels[-1]}"


def _gpus_of(verdict: RunVerdict) -> frozenset[str]:
    return frozenset(gpu for one in verdict.culprits for gpu in one.gpus)


def _seen(report: RunReport, gpus: frozenset[str]) -> str:
    """Say what the GPUs themselves showed meanwhile: other processes, throttled clocks."""
    busy: dict[str, set[int]] = {}
    throttled: dict[str, set[str]] = {}
    for measurement in report.measurements:
        for gpu in measurement.evidence.gpus if measurement.evidence else ():
            if gpu.other_processes:
                busy.setdefault(gpu.label, set()).update(gpu.other_processes)
            if slowed := set(gpu.throttle_reasons or ()) - HARMLESS:
                throttled.setdefault(gpu.label, set()).update(slowed)
    told = []
    if busy:
        pids = sorted(set().union(*busy.values()))
        which = ", ".join(map(str, pids[:_PATHS])) + (" ..." if len(pids) > _PATHS else "")
        told.append(f"other processes ({which}) used {_listed(sorted(busy))} meanwhile")
    if throttled:
        reasons = ", ".join(sorted(set().union(*throttled.values())))
        told.append(f"clocks of {_listed(sorted(throttled))} were throttled ({reasons})")
    down = _links_down(report, gpus)
    return "; ".join([*told, *down])


def _links_down(report: RunReport, gpus: frozenset[str]) -> Iterator[str]:
    for machine in report.machines:
        for gpu in machine.gpus or ():
            links, count = (gpu.nvml.nvlinks, gpu.nvml.nvlink_count) if gpu.nvml else (None, None)
            active = None if links is None else sum(bool(link.active) for link in links)
            if active is not None and count and active < count and (not gpus or gpu.bus_id in gpus):
                yield f"GPU{gpu.index} runs {active} of {count} NVLinks"


def _advice(report: RunReport, broken: Sequence[Measurement], next_step: str) -> str:
    evidence = [gpu for m in report.measurements if m.evidence for gpu in m.evidence.gpus]
    if any(m.status is Status.CORRUPT for m in broken):
        return "drain the node: data arrived corrupt; 'egmctl doctor --active' shows where"
    if any(gpu.other_processes for gpu in evidence):
        return "measure again when the GPUs are idle"
    if any(set(gpu.throttle_reasons or ()) - HARMLESS for gpu in evidence):
        return "check power and cooling: nvidia-smi -q -d PERFORMANCE,TEMPERATURE"
    if grave(report):
        return "act on the kernel's message below, then measure again"
    if broken:
        return "see what stops them with 'egmctl doctor'"
    return next_step


def _kernel(report: RunReport) -> Iterator[Entry]:
    """Yield what the kernel logged meanwhile that calls for an operator."""
    found = grave(report)
    for fault in found[:_FAULTS]:
        fix = fault.remedy.text + (f" ({fault.remedy.command})" if fault.remedy.command else "")
        yield Entry(
            word=fault.status.upper(),
            tone=_STATUS_TONES[fault.status],
            title=f"logged by the kernel meanwhile: {sentence(fault)}",
            body=(KeyValues(rows=(("fix", fix),)),),
            level=Level.SUMMARY,
        )
    if len(found) > _FAULTS:
        yield Entry(
            word="",
            tone=Tone.PLAIN,
            title=Span(f"{len(found) - _FAULTS} more in the kernel's log (-v)", Tone.DIM),
            level=Level.SUMMARY,
        )


def _worst_paths(report: RunReport) -> Iterator[Entry]:
    """Yield the paths that are farthest from what is expected."""
    verdict = report.verdict
    if verdict is None:
        return
    classes = {number: one for one in verdict.classes for number in one.measurements}
    found: list[tuple[float, Grade, Measurement, ClassVerdict, Judgement]] = []
    for judged in verdict.judged:
        bad = [one for one in judged.judgements if one.grade in _BAD]
        if bad:
            grade = min((one.grade for one in bad), key=list(Grade).index)
            first = min(bad, key=lambda one: (list(Grade).index(one.grade), list(Yardstick).index(one.yardstick)))
            measurement = report.measurements[judged.measurement]
            share = first.value / first.expected if first.expected else 1.0
            slower = 1 / share if measurement.quantity is Quantity.LATENCY and share else share
            found.append((slower, grade, measurement, classes[judged.measurement], first))
    found.sort(key=lambda item: (list(Grade).index(item[1]), item[0]))
    for _, grade, measurement, of, judgement in found[:_WORST]:
        unit = unit_of(measurement)
        against = ""
        if judgement.expected:
            by = {Yardstick.PROFILE: "expected", Yardstick.LINK: "its link's", Yardstick.PEERS: "its peers'"}
            against = f", {100 * judgement.value / judgement.expected:.0f} % of the {by[judgement.yardstick]}"
            against += f" {_number(judgement.expected)}"
        yield Entry(
            word=grade.upper(),
            tone=_TONES[grade],
            title=(f"{measurement.path}: {_number(judgement.value)} {unit}{against} ", Span(of.case, Tone.DIM)),
            level=Level.SUMMARY,
        )
    if len(found) > _WORST:
        more = f"{len(found) - _WORST} more paths are slow (-v)"
        yield Entry(word="", tone=Tone.PLAIN, title=Span(more, Tone.DIM), level=Level.SUMMARY)


def _broken(report: RunReport) -> Iterator[Section]:
    """Yield what was not measured, or not steadily, with why."""
    told = [one for one in exceptions(report) if one[0] not in (Status.WAIVED, Status.UNSTABLE)]
    entries = [
        Entry(word=status.upper(), tone=Tone.BAD, title=f"{_few(paths)}: {reason}")
        for status, reason, paths in told[:_REASONS]
    ]
    if len(told) > _REASONS:
        more = Span(f"{len(told) - _REASONS} more reasons (-v)", Tone.DIM)
        entries.append(Entry(word="", tone=Tone.PLAIN, title=more))
    unstable = [f"{m.case} {m.path}" for m in report.measurements if m.status is Status.UNSTABLE]
    if unstable:
        title = f"{_few(unstable)}: the samples differ too much"
        entries.append(Entry(word="UNSTABLE", tone=Tone.WARN, title=title))
    if entries:
        yield Section(title="Failed or unstable", body=tuple(entries))


def _few(paths: Sequence[str]) -> str:
    more = f" and {len(paths) - _PATHS} more" if len(paths) > _PATHS else ""
    return f"{', '.join(paths[:_PATHS])}{more}"


def _skipped(report: RunReport) -> Iterator[str]:
    waived = [m for m in report.measurements if m.status is Status.WAIVED]
    if waived:
        reasons = Counter(m.reason or "" for m in waived)
        told = "; ".join(reason for reason, _ in reasons.most_common(2))
        yield f"{len(waived)} measurements skipped: {told}{' ...' if len(reasons) > 2 else ''}"


_Row = tuple[str, str, Sequence[Measurement], ClassVerdict | None]
"""Case, link, its measurements, and what was judged of them."""


def _rows(report: RunReport) -> list[_Row]:
    verdict = report.verdict
    if verdict is not None:
        return [
            (
                f"{one.case} {format_size(one.size_bytes)}" if one.size_bytes else one.case,
                one.link,
                [report.measurements[number] for number in one.measurements],
                one,
            )
            for one in verdict.classes
        ]
    members: dict[object, list[Measurement]] = {}
    classes = [class_of(m) for m in report.measurements if m.headline is not None]
    sized = {one: name for one, name in names(classes).items() if ", " in name}
    for m in report.measurements:
        if m.headline is not None:
            members.setdefault(class_of(m), []).append(m)
    return [
        (f"{one.case} {format_size(one.size_bytes)}" if one in sized else one.case, one.link, those, None)
        for those in members.values()
        for one in (class_of(those[0]),)
    ]


def _summary(rows: Sequence[_Row]) -> Matrix:
    """Return a row for each class of paths, those over the same links together."""
    labels: list[str] = []
    cells: list[tuple[Cell, ...]] = []
    for link in dict.fromkeys(link for _, link, _, _ in rows):
        labels.append(link)
        cells.append((Cell(text=""),) * 5)
        for case, of, measurements, verdict in rows:
            if of == link:
                labels.append(f" {case}")
                cells.append(_cells(measurements, verdict))
    heads = ("paths", "median", "worst", "expect", "link")
    return Matrix(
        caption="Path classes (GB/s; latencies in ns)",
        notes=(
            "median and worst of the paths; expected by the profile; link: the median's share of its nominal rate; "
            "! fails, ~ warns",
        ),
        rows=tuple(labels),
        groups=(
            tuple(Series(header=(head,), cells=tuple(row[place] for row in cells)) for place, head in enumerate(heads)),
        ),
    )


def _cells(measurements: Sequence[Measurement], verdict: ClassVerdict | None) -> tuple[Cell, ...]:
    values = [m.headline.median for m in measurements if m.headline is not None]
    latency = measurements[0].quantity is Quantity.LATENCY
    grade = verdict.grade if verdict is not None else Grade.NO_REFERENCE
    worst = (max(values) if latency else min(values)) if values else None
    rates = [
        m.headline.median / rate
        for m in measurements
        if m.headline is not None and not latency and len(m.flows) == 1 and (rate := m.flows[0].route.at_most_gb_s)
    ]
    return (
        Cell(text=str(len(measurements))),
        Cell(text=_number(median(values)) if values else "-"),
        Cell(text=_number(worst), tone=_TONES.get(grade, Tone.PLAIN), mark=_MARKS.get(grade, "")),
        Cell(text=_number(verdict.expected if verdict is not None else None)),
        Cell(text=f"{100 * median(rates):.0f} %" if rates else "-"),
    )


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.1f}" if value < _WHOLE else f"{value:.0f}"
