"""The view of ``egmctl bringup``: GO, NO-GO or INCOMPLETE, the causes with their remedies, and a line per part."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from functools import partial

from egmctl.doctor.causes import WITHHELD
from egmctl.model.bringup import Answer, Bringup, Gap, GapKind
from egmctl.model.evidence import EvidenceReport, State
from egmctl.model.finding import UNEXPLAINED, RunCause, Status
from egmctl.model.machine import OriginKind
from egmctl.model.verdict import RunVerdict
from egmctl.report import document as doc
from egmctl.report.document import Level, Tone, Words
from egmctl.report.views.bench import bench_banners, bench_document
from egmctl.report.views.bench_answer import answer as bench_answer
from egmctl.report.views.bench_answer import seen as seen_by_bench
from egmctl.report.views.causes import CAUSES, PATHS, advice, cause_entry, title
from egmctl.report.views.causes import cause_words as words_of_cause
from egmctl.report.views.doctor import doctor_document
from egmctl.report.views.doctor import verdict as doctor_verdict
from egmctl.report.views.machine import banners, machine_section, subject
from egmctl.report.views.topo import topo_document
from egmctl.topology.platform import platform
from egmctl.topology.topology import topology
from egmctl.units import several, shortened


def bringup_document(bringup: Bringup) -> doc.Document:
    """Return the document of a bring-up, with those of doctor, topo and bench as sections."""
    return _document("egmctl bringup", bringup, summary(bringup))


def _document(command: str, result: Bringup | EvidenceReport, blocks: Iterable[doc.Block]) -> doc.Document:
    """Return the document of blocks, then the documents of topo, doctor and bench as sections."""
    machine, run = result.machine, result.run
    parts: dict[str, Callable[[], doc.Document]] = {
        "Topology": lambda: topo_document(topology(machine)),
        "Doctor": lambda: doctor_document(result.diagnosis),
    }
    if run is not None:
        parts["Bench"] = lambda: bench_document(run)
    measured = () if run is None else bench_banners(run)
    sections = (doc.Section(name, partial(part, make), level=Level.VERBOSE) for name, make in parts.items())
    return doc.Document(
        command=command,
        subject=subject(machine),
        banners=tuple(dict.fromkeys((*banners(machine.origin), *measured))),
        body=(*blocks, *sections, machine_section(machine)),
    )


_TONES = {State.CONTRADICTED: Tone.BAD, State.SETTLED: Tone.GOOD, State.NOT_SETTLED: Tone.UNKNOWN}


def evidence_document(report: EvidenceReport) -> doc.Document:
    """Return what a node settles: how many questions, which claims it contradicts, and each answer."""
    return _document("egmctl snapshot --evidence", report, _answers(report))


def _answers(report: EvidenceReport) -> Iterator[doc.Block]:
    names = {state: [each.question for each in report.answers if each.state is state] for state in _TONES}
    wrong = f"contradicted: {', '.join(names[State.CONTRADICTED])}; " if names[State.CONTRADICTED] else ""
    yield doc.Verdict(
        f"{len(names[State.SETTLED])} of {several(len(report.answers), 'question')} are settled",
        Tone.WARN if wrong or names[State.NOT_SETTLED] else Tone.GOOD,
        f"{wrong}not settled: {', '.join(names[State.NOT_SETTLED]) or 'none'}",
        "send the file: 'egmctl docs first-grace'",
    )
    for answer in sorted(report.answers, key=lambda each: list(_TONES).index(each.state)):
        rows = ((each.value, shortened(each.locations, PATHS)) for each in answer.observations)
        points = doc.Bullets(tuple(": ".join(filter(None, row)) for row in rows))
        word = answer.state.upper().replace("-", " ")
        yield doc.Entry(word, _TONES[answer.state], answer.claim, answer.question, body=(points,))


def part(make: Callable[[], doc.Document]) -> Iterator[doc.Block]:
    """Yield the blocks of a part's document, without the sections that other parts also have."""
    shared = ("Machine", "Topology")
    return (block for block in make().body if not isinstance(block, doc.Section) or block.title not in shared)


def summary(bringup: Bringup) -> Iterator[doc.Block]:
    """Yield the answer, the causes, and one line each for doctor, topo and bench."""
    yield verdict(bringup)
    shown_notes = [cause for cause in bringup.causes if cause.explains or cause.finding.check in WITHHELD]
    causes = [cause for cause in bringup.causes if cause.status is not Status.NOTE or cause in shown_notes]
    # The answer already contains the remedy of the first cause, and that for unexplained paths.
    entries = (
        cause_entry(
            bringup.run,
            cause,
            cause.status.upper(),
            fix=place > 0 and cause.finding.check != UNEXPLAINED,
            with_cause=False,
        )
        for place, cause in enumerate(causes)
    )
    yield from doc.limited(entries, CAUSES)
    run = bringup.run
    rows: list[tuple[str, Words]] = [
        ("doctor", _line(doctor_verdict(bringup.diagnosis))),
        ("topo", platform(bringup.machine).line),
        ("bench", "not run" if run is None else _line(bench_answer(run, alone=False))),
    ]
    # Evidence of the run that no cause reports.
    warnings = {} if run is None else seen_by_bench(run, causes=False)
    sentences = [f"{sentence} ({several(len(paths), 'path')})" for sentence, paths in warnings.items()]
    rows += [("warned", shortened(sentences, 1))] * bool(sentences)
    yield doc.KeyValues(tuple(rows))
    yield doc.Hint("All checks and paths: -v; all of it as a page: -o node.html")


def _line(answered: doc.Verdict) -> str:
    return f"{answered.word}: {doc.plain(answered.sentence)}"


def verdict(bringup: Bringup) -> doc.Verdict:
    """Return the answer in one sentence, and the next step."""
    no_fabric = "; fabric not measured" if any(gap.kind is GapKind.FABRIC for gap in bringup.gaps) else ""
    if bringup.answer is Answer.NO_GO:
        first, *others = (cause for cause in bringup.causes if cause.status is Status.FAIL)
        also = f"; and {several(len(others), 'more cause')}" if others else ""
        sentence = cause_words(bringup, first) + also + no_fabric
        return doc.Verdict("NO-GO", Tone.BAD, sentence, advice=_advice(bringup, first))
    if bringup.answer is Answer.INCOMPLETE:
        gap = bringup.gaps[0]
        sentence = _gap(bringup, gap) + no_fabric * (gap.kind is not GapKind.FABRIC)
        return doc.Verdict("INCOMPLETE", Tone.WARN, sentence, advice=_next_step(bringup, gap))
    answered = None if bringup.run is None else bench_answer(bringup.run)
    warnings = sum(cause.status is Status.WARN and not cause.by_run for cause in bringup.causes)
    measured = "" if answered is None else doc.plain(answered.sentence)
    also = f", {several(warnings, 'warning')}" if warnings else ""
    checked = f"{bringup.diagnosis.counts[Status.PASS]} checks passed{also}"
    warned = warnings or (answered is not None and answered.tone is Tone.WARN)
    return doc.Verdict(
        "GO",
        Tone.WARN if warned else Tone.GOOD,
        f"{checked}; {measured}",
        advice="read the warnings, then hand the node over" if warned else "hand the node over",
    )


def cause_words(bringup: Bringup, cause: RunCause) -> str:
    """Return a sentence with a cause and what it explains; for unexplained paths, the sentence of the bench."""
    if cause.finding.check == UNEXPLAINED and bringup.run is not None:
        return doc.plain(bench_answer(bringup.run, alone=False).sentence)
    return words_of_cause(bringup.run, cause)


def _advice(bringup: Bringup, cause: RunCause) -> str:
    if cause.finding.check == UNEXPLAINED and bringup.run is not None:
        return doc.plain(bench_answer(bringup.run, next_step=advice(cause.finding)).advice)
    return advice(cause.finding)


def _gap(bringup: Bringup, gap: Gap) -> str:
    number = 0 if bringup.run is None else len(bringup.run.measurements)
    count = f"{len(gap.measurements)} of {number} measurements"
    reason = _because(bringup, gap)
    match gap.kind:
        case GapKind.INTERRUPTED:
            return f"interrupted with {number - len(gap.measurements)} of {number} measurements made"
        case GapKind.BROKE:
            return f"{count if gap.measurements else 'the run'} broke: {reason}"
        case GapKind.NOT_MEASURED:
            return f"nothing was measured: {reason}"
        case GapKind.WAIVED:
            return f"{count} were not made: {reason}"
        case GapKind.NO_REFERENCE if gap.measurements and bringup.run is not None and bringup.run.verdict is not None:
            return _without_reference(bringup.run.verdict, gap)
        case GapKind.NO_REFERENCE:
            return f"measured, but there is nothing to judge by: {reason}" if reason else "measured, but not judged"
        case GapKind.NOT_DETERMINED:
            return doc.plain(doctor_verdict(bringup.diagnosis).sentence).removesuffix(".")
        case GapKind.FABRIC:
            return f"the fabric between the nodes was not measured: {reason}"


def _without_reference(verdict: RunVerdict, gap: Gap) -> str:
    """Return a sentence on the path classes for which the profile has no reference."""
    numbers = set(gap.measurements)
    without = [judged.path_class for judged in verdict.classes if numbers.intersection(judged.measurements)]
    return (
        f"profile {verdict.profile} has no reference for {len(without)} of {len(verdict.classes)} path classes: "
        f"{shortened(without, PATHS)}"
    )


def _because(bringup: Bringup, gap: Gap) -> str:
    """Return the cause of a gap if one is known, otherwise the reason that the bench gives."""
    if not gap.causes or (gap.reason and gap.kind is GapKind.NOT_MEASURED):
        return gap.reason
    return title(bringup.causes[gap.causes[0]].finding)


def _next_step(bringup: Bringup, gap: Gap) -> str:
    if gap.causes:
        return f"{_advice(bringup, bringup.causes[gap.causes[0]])}; then run it again"
    if gap.kind is GapKind.NOT_MEASURED and bringup.machine.origin.kind is OriginKind.LIVE and not bringup.machine.gpus:
        return "run it where the GPUs are; if they are here, 'egmctl topo' says what is missing"
    return _NEXT_STEPS[gap.kind]


_NEXT_STEPS = {
    GapKind.INTERRUPTED: "run it again",
    GapKind.BROKE: "run it again; 'egmctl bench --quick' shows each path",
    GapKind.NOT_MEASURED: "run 'egmctl bringup' on the node itself, where its GPUs can be used",
    GapKind.WAIVED: "run it again when all GPUs are free and can be used from here",
    GapKind.NO_REFERENCE: "learn a profile of healthy nodes (egmctl profile learn), or compare with one of them "
    "(egmctl compare)",
    GapKind.FABRIC: "start the tasks with an MPI that runs between them (mpirun, or srun --mpi=pmix)",
    GapKind.NOT_DETERMINED: "see what could not be read with 'egmctl doctor -v'",
}
