"""The view of ``egmctl bringup``: GO, NO-GO or INCOMPLETE, the causes with their remedies, and a line per part."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from functools import partial

from egmctl.model.answer import Answer
from egmctl.model.bringup import Bringup
from egmctl.model.evidence import EvidenceReport, State
from egmctl.model.finding import UNEXPLAINED
from egmctl.report import document as doc
from egmctl.report.document import Level, Tone, Words
from egmctl.report.views.bench import bench_banners, bench_document
from egmctl.report.views.bench_answer import seen as seen_by_bench
from egmctl.report.views.causes import CAUSES, PATHS, cause_entry, verdict
from egmctl.report.views.doctor import doctor_document
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
    yield verdict(report.answer)
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
    yield verdict(bringup.answer)
    causes = bringup.answer.causes
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
        ("doctor", _line(bringup.diagnosis.answer)),
        ("topo", platform(bringup.machine).line),
        ("bench", "not run" if run is None else _line(run.answer)),
    ]
    # Evidence of the run that no cause reports.
    warnings = {} if run is None else seen_by_bench(run, causes=False)
    sentences = [f"{sentence} ({several(len(paths), 'path')})" for sentence, paths in warnings.items()]
    rows += [("warned", shortened(sentences, 1))] * bool(sentences)
    yield doc.KeyValues(tuple(rows))
    yield doc.Hint("All checks and paths: -v; all of it as a page: -o node.html")


def _line(answer: Answer) -> str:
    return f"{answer.word}: {answer.sentence}"
