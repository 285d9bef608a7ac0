"""The view of ``egmctl bringup``: GO, NO-GO or INCOMPLETE, the causes with their remedies, and a line per part."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import replace
from functools import partial

from egmctl.model.answer import Answer
from egmctl.model.bringup import Board, Bringup
from egmctl.model.evidence import EvidenceReport, EvidenceState
from egmctl.model.finding import UNEXPLAINED
from egmctl.report import document as doc
from egmctl.report.document import Level, Tone, Words, plain
from egmctl.report.views.bench import bench_banners, bench_document, drawings, on_paper, pairs
from egmctl.report.views.bench_answer import alarm_line, seen_by_bench, tally
from egmctl.report.views.bench_classes import main_rates
from egmctl.report.views.causes import CAUSES, PATHS, cause_entry
from egmctl.report.views.doctor import doctor_document
from egmctl.report.views.findings import tone_of, verdict
from egmctl.report.views.machine import banners, machine_section, node_diagram, page_facts, subject
from egmctl.report.views.topo import CONNECTED, topo_document
from egmctl.topology.platform import PlatformKind, platform
from egmctl.topology.topology import topology
from egmctl.units import counted, gpu_name, printable, several, shortened


def bringup_document(bringup: Bringup) -> doc.Document:
    """Return the document of a bring-up, with those of doctor, topo and bench as sections."""
    return _document("egmctl bringup", bringup, (*summary(bringup), *_evidence(bringup)))


def _document(command: str, result: Bringup | EvidenceReport, blocks: Iterable[doc.DocumentBlock]) -> doc.Document:
    """Return the document of blocks, then the documents of topo, doctor and bench as sections."""
    machine, run = result.machine, result.run
    checks = len(result.diagnosis.verdicts)
    devices = f"{several(len(machine.gpus or ()), 'GPU')}, {several(len(machine.nics or ()), 'NIC')}: links, routes"
    parts: dict[tuple[str, str], Callable[[], doc.Document]] = {
        ("Topology", devices): lambda: topo_document(topology(machine)),
        ("Doctor", f"{several(checks, 'check')} by area"): lambda: doctor_document(result.diagnosis),
    }
    if run is not None:
        parts["Bench", tally(run)] = lambda: bench_document(run)
    measured = () if run is None else bench_banners(run)
    shown = {plain(cause.title) for cause in result.answer.causes} | {
        plain(cause.finding.title) for cause in result.answer.causes
    }
    sections = (
        doc.Section(name, partial(part, make, shown), level=Level.VERBOSE, folded=True, note=note)
        for (name, note), make in parts.items()
    )
    at, took = ("", None) if run is None else (run.started_at, run.wall_s)
    return doc.Document(
        command=command,
        subject=_name(result) if isinstance(result, Bringup) else subject(machine),
        facts=page_facts(machine, at=at, took_s=took),
        banners=tuple(dict.fromkeys((*banners(machine.origin), *measured))),
        body=(*blocks, *sections, machine_section(machine)),
    )


_TONES = {
    EvidenceState.CONTRADICTED: Tone.BAD,
    EvidenceState.SETTLED: Tone.GOOD,
    EvidenceState.NOT_SETTLED: Tone.UNKNOWN,
}


def evidence_document(report: EvidenceReport) -> doc.Document:
    """Return what a node settles: how many questions, which claims it contradicts, and each answer."""
    return _document("egmctl snapshot --evidence", report, _answers(report))


def _answers(report: EvidenceReport) -> Iterator[doc.DocumentBlock]:
    yield verdict(report.answer)
    for answer in sorted(report.answers, key=lambda each: list(_TONES).index(each.state)):
        rows = ((each.value, shortened(each.locations, PATHS)) for each in answer.observations)
        points = doc.Bullets(tuple(": ".join(filter(None, row)) for row in rows))
        word = answer.state.upper().replace("-", " ")
        yield doc.Entry(word, _TONES[answer.state], answer.claim, answer.question, body=(points,))


def part(make: Callable[[], doc.Document], shown: Collection[str] = ()) -> Iterator[doc.DocumentBlock]:
    """Yield the blocks of a part's document, without the sections that other parts also have.

    Parameters
    ----------
    shown
        The titles of causes that the page shows above, beside the answer and the drawing: it omits them here.
    """
    for block in make().body:
        if isinstance(block, doc.Section):
            if block.title not in _SHARED:
                yield block
            continue
        above = isinstance(block, (doc.Verdict, doc.Diagram)) or (isinstance(block, doc.Bars) and block.beside)
        above = above or (isinstance(block, doc.Entry) and plain(block.title) in shown)
        # The sentences on the topology are beside its drawing, which the page shows above.
        yield replace(block, paged=not (above and shown) if above or isinstance(block, doc.Paragraph) else block.paged)


_SHARED = ("Machine", "Topology", "Where", CONNECTED)
"""The titles of sections that a bring-up shows once for all of its parts."""


def summary(bringup: Bringup) -> Iterator[doc.DocumentBlock]:
    """Yield the answer, the causes, and one line each for doctor, topo and bench, which pages show first."""
    yield verdict(bringup.answer)
    parts = doc.Parts(tuple(_parts(bringup)))
    yield replace(parts, level=Level.PAGE)
    if any(cause.is_broken_part for cause in bringup.answer.causes):
        # Before the causes: a reset, which may be the first remedy, takes the state of the GPU away.
        collect = doc.Span(_REPORT, code=True)
        where = "" if bringup.identity else "; serial numbers: --serials"
        words = ("Before a reset or a reboot, run ", collect, f" as root{where}")
        yield doc.Entry("RMA", Tone.PLAIN, words)
    # The answer already contains the remedy of the first cause; of unexplained paths the command says enough.
    entries = (
        cause_entry(
            bringup.run,
            cause,
            cause.status.upper(),
            fix=place > 0 and cause.finding.check != UNEXPLAINED,
            with_cause=False,
            findings=bringup.diagnosis.findings,
        )
        for place, cause in enumerate(bringup.answer.causes)
    )
    yield from doc.limited(entries, CAUSES)
    yield replace(parts, paged=False)
    yield doc.Hint("All checks and paths: -v; all of it as a page: -o node.html")


_REPORT = "nvidia-bug-report.sh"
"""The script of the driver that collects its logs and the state of the GPUs, which vendors ask for; it needs root."""


def _parts(bringup: Bringup) -> Iterator[doc.Part]:
    run = bringup.run
    yield _part("doctor", bringup.diagnosis.answer)
    yield doc.Part(name="topo", sentence=platform(bringup.machine).line)
    yield doc.Part(name="bench", sentence="not run") if run is None else _part("bench", run.answer)
    if run is not None and (words := alarm_line(run)) is not None:
        yield doc.Part(name="alarms", sentence=words)
    # Evidence of the run that no cause reports.
    warnings = {} if run is None else seen_by_bench(run, causes=False)
    sentences = [f"{sentence} ({several(len(paths), 'path')})" for sentence, paths in warnings.items()]
    if sentences:
        yield doc.Part(name="warned", tone=Tone.WARN, sentence=shortened(sentences, 1))


def _part(name: str, answer: Answer) -> doc.Part:
    return doc.Part(name=name, word=answer.word, tone=tone_of(answer.state), sentence=answer.sentence)


def _evidence(bringup: Bringup) -> Iterator[doc.Section]:
    """Yield what a page shows below the causes: the rates that are reached, where it is wrong, and the record."""
    run, machine, causes = bringup.run, bringup.machine, bringup.answer.causes
    node = topology(machine)
    if node.missing is None:
        if run is None:
            where: tuple[doc.DocumentBlock, ...] = (node_diagram(lambda: node, causes=causes),)
        else:
            yield doc.Section("What it reaches", (main_rates(run),), level=Level.PAGE)
            where = (*drawings(run, causes), *pairs(run))
        yield doc.Section("Where", where, beside=run is not None, level=Level.PAGE)
    beside = run is None and node.missing is None
    yield doc.Section("Record", (doc.KeyValues(tuple(_record(bringup))),), beside=beside, level=Level.PAGE)
    blank = doc.KeyValues((("Handed over by", ""), ("Accepted by", ""), ("Date", "")))
    yield doc.Section("Signed", (blank,), on_paper=True, level=Level.PAGE)
    if run is not None:
        yield from on_paper(run)


def _record(bringup: Bringup) -> Iterator[tuple[str, Words]]:
    """Yield what identifies the node and the run for who keeps the page."""
    machine, run = bringup.machine, bringup.run
    driver = machine.driver
    yield "Node", _name(bringup)
    yield "GPUs", counted(gpu_name(gpu.name) for gpu in machine.gpus or ()) or "none"
    if driver is not None and (version := driver.driver_version or driver.module_version):
        yield "Driver", f"{version}, {driver.module_flavour}" if driver.module_flavour else version
    known = platform(machine)
    yield "Platform", known.line
    if known.kind is not PlatformKind.UNKNOWN:
        yield "EGM", f"on, {known.able} of {several(len(machine.gpus or ()), 'GPU')}" if known.able else "off"
    if known.clique_id is not None:
        yield "NVLink domain", f"clique {known.clique_id}"
    if run is not None and run.verdict is not None:
        yield "Profile", run.verdict.profile or f"none: {run.verdict.profile_reason}"
    if bringup.not_measured:
        yield "Not measured", bringup.not_measured
    yield "Exit code", str(int(bringup.answer.exit_code))
    for board in () if bringup.identity is None else bringup.identity.boards:
        yield f"{board.gpu} board", _board(board)


def _board(board: Board) -> str:
    """Return the numbers by which a vendor knows the board of a GPU."""
    numbers = {
        "serial": board.serial or "not reported",
        "part": board.part_number,
        "chassis": board.chassis_serial,
        "slot": board.slot,
        "tray": board.tray,
    }
    return ", ".join(f"{name} {printable(str(value))}" for name, value in numbers.items() if value is not None)


def _name(bringup: Bringup) -> str:
    """Return the real name of the node where the user asked for it, or else its title."""
    return (bringup.identity and printable(bringup.identity.hostname)) or subject(bringup.machine)
