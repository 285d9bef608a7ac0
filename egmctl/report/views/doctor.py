"""The views of ``egmctl doctor`` and ``--list``: the answer, the causes with remedies, every check.

It contains no host names or times: nodes in the same state print identical output, so that the outputs can be grouped.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial

from egmctl.model.answer import Answer, State
from egmctl.model.diagnosis import Diagnosis
from egmctl.model.finding import TOLD, Finding, Guard, PlaceKind, RootCause, Status, root_causes
from egmctl.model.listing import CheckEntry, CheckList
from egmctl.report import document as doc
from egmctl.report.document import Level, Tone, Words
from egmctl.report.views.findings import TONES, explained_words, finding_entry, tone_of, verdict
from egmctl.report.views.machine import banners, machine_section, node_diagram, page_facts, subject
from egmctl.topology.topology import topology
from egmctl.units import grouped, shortened

_TITLES = {
    Status.UNKNOWN: "Not determined",
    Status.PASS: "Passed",
    Status.ASSUMED: "Assumed: the model's sources do not state it",
    Status.SKIP: "Does not apply",
}
_NAMED = 12
"""The number of undetermined checks named without ``-v``."""


def doctor_document(diagnosis: Diagnosis) -> doc.Document:
    """Return the document of a diagnosis."""
    machine = diagnosis.machine
    return doc.Document(
        command="egmctl doctor",
        subject=subject(machine),
        subtitle=diagnosis.platform,
        facts=page_facts(machine, diagnosis.platform),
        banners=banners(machine.origin),
        body=tuple(_body(diagnosis)),
    )


def _on_page(answer: Answer) -> doc.Verdict:
    """Return the answer with its cause, which is the largest text of a page, before the numbers of findings."""
    cause = answer.blamed if answer.state in (State.BAD, State.WARN) and not answer.purposes else None
    if cause is None:
        return verdict(answer)
    clauses = (cause.title, *(answer.clauses or (answer.sentence,)))
    return verdict(replace(answer, sentence="; ".join(clauses), clauses=clauses, lead=()))


def _body(diagnosis: Diagnosis) -> Iterator[doc.DocumentBlock]:
    # The entries below contain the remedies of what was found. A page has the next step in the first lines, too.
    yield replace(verdict(diagnosis.answer, advice=diagnosis.answer.state is State.INCOMPLETE), paged=False)
    yield replace(_on_page(diagnosis.answer), level=Level.PAGE)
    for other in diagnosis.answer.purposes[1:]:
        yield doc.Verdict(other.word, tone_of(other.state), other.sentence)
    process = diagnosis.machine.process
    if process is not None and process.pid:
        yield doc.Paragraph(f"Process {process.pid}; NVML and CUDA were queried from outside of it.", tone=Tone.DIM)
    roots = root_causes(diagnosis.findings)
    for cause in roots:
        yield _problem(cause)
    yield from _notes(diagnosis, roots)
    marked = any(cause.finding.place.kind is not PlaceKind.NODE for cause in diagnosis.answer.causes)
    yield doc.Section("Where", partial(_drawing, diagnosis), folded=not marked, note="the node", level=Level.PAGE)
    yield doc.Section(f"All {len(diagnosis.verdicts)} checks by area", partial(_areas, diagnosis), level=Level.PAGE)
    for status, name in _TITLES.items():
        body = _table if status is Status.UNKNOWN else _by_area
        yield doc.Section(name, partial(body, diagnosis, status), level=Level.VERBOSE, paged=False)
    read = partial(_evidence, diagnosis)
    yield doc.Section("What was read", read, folded=True, note="by each check", level=Level.ALL)
    yield machine_section(diagnosis.machine)


def _problem(cause: RootCause) -> doc.Entry:
    finding = cause.finding
    rows: list[tuple[str, Words]] = [("explains", explained_words(other)) for other in cause.explains]
    rows += [("note", finding.note)] if finding.note else []
    evidence = doc.KeyValues(tuple(("seen", words) for words in _seen(finding)), level=Level.VERBOSE)
    return finding_entry(finding, rows=rows, further=(evidence,))


def _seen(finding: Finding) -> Iterator[Words]:
    """Yield a line for each piece of evidence."""
    for evidence in finding.evidence:
        errno = f" ({evidence.errno})" if evidence.errno and evidence.errno not in evidence.value else ""
        yield doc.Span(evidence.source, code=True), f": {evidence.value}{errno}"


def _notes(diagnosis: Diagnosis, roots: Sequence[RootCause]) -> Iterator[doc.DocumentBlock]:
    """Yield the remedies of undetermined checks, then a hint that names the other undetermined checks."""
    explained = {id(finding) for cause in roots for finding in cause.explains}
    unknown = [f for f in diagnosis.findings if f.status is Status.UNKNOWN and id(f) not in explained]
    alike = grouped(((finding.title, finding.remedy), finding) for finding in unknown if finding.remedy is not None)
    for findings in alike.values():
        checks = ", ".join(dict.fromkeys(finding.check for finding in findings))
        yield replace(finding_entry(findings[0], level=Level.NORMAL), id=checks)
    if rest := list(dict.fromkeys(finding.check for finding in unknown if finding.remedy is None)):
        yield doc.Hint(f"Not determined (-v says why): {shortened(rest, _NAMED)}")


def _drawing(diagnosis: Diagnosis) -> Iterator[doc.Diagram]:
    """Yield the drawing of the node, if its topology is known."""
    shown = topology(diagnosis.machine)
    if shown.missing is None:
        yield node_diagram(lambda: shown, causes=diagnosis.answer.causes, large=True)


_AREAS = {
    "dev": "Devices",
    "drv": "Driver",
    "cuda": "CUDA",
    "env": "Environment",
    "ns": "Container",
    "mps": "MPS",
    "gpu": "GPU health",
    "cpu": "CPU",
    "egm": "EGM",
    "numa": "NUMA and memory",
    "uvm": "Unified memory",
    "nvlink": "NVLink",
    "c2c": "NVLink-C2C",
    "p2p": "P2P",
    "pcie": "PCIe",
    "fabric": "Fabric",
    "imex": "IMEX",
    "ipc": "IPC",
    "rdma": "RDMA",
    "kernel": "Kernel log",
    "peers": "Nodes of the job",
}
"""The names of the areas of checks, by the part of their ids before the dot."""
_COUNTED = {
    Status.FAIL: "failed",
    Status.WARN: "warned",
    Status.NOTE: "noted",
    Status.UNKNOWN: "not determined",
    Status.PASS: "passed",
    Status.ASSUMED: "assumed",
    Status.SKIP: "not applicable",
}


def _areas(diagnosis: Diagnosis) -> Iterator[doc.DocumentBlock]:
    """Yield a folded section with the findings of each area, the areas with faults first: a square for each check."""
    order = list(Status)
    areas = grouped((check.partition(".")[0], status) for check, status in diagnosis.verdicts.items())
    yield doc.Paragraph("A square is a check. Open a line to read what each found.", tone=Tone.DIM)
    for area, found in sorted(areas.items(), key=lambda item: min(map(order.index, item[1]))):
        statuses = sorted(found, key=order.index)
        counts = [f"{statuses.count(status)} {words}" for status, words in _COUNTED.items() if status in statuses]
        yield doc.Section(
            _AREAS.get(area, area),
            partial(_area, diagnosis, area),
            folded=True,
            note=" · ".join(counts),
            marks=tuple(TONES[status] for status in statuses),
        )


def _area(diagnosis: Diagnosis, area: str) -> Iterator[doc.Matrix]:
    """Yield the table of the findings of an area, the most severe first."""
    found = [finding for finding in diagnosis.findings if finding.check.partition(".")[0] == area]
    yield _findings(sorted(found, key=lambda finding: list(Status).index(finding.status)), with_status=True)


def _by_area(diagnosis: Diagnosis, status: Status) -> Iterator[doc.DocumentBlock]:
    """Yield a line per area with the names of the checks with a status, and the table for ``-vv``, folded on pages."""
    checks = dict.fromkeys(finding.check for finding in diagnosis.findings if finding.status is status)
    areas = grouped(check.partition(".")[::2] for check in checks)
    yield doc.KeyValues(tuple((area, f"{len(names)}: {', '.join(names)}") for area, names in areas.items()))
    yield doc.Section("Each of them", partial(_table, diagnosis, status), level=Level.ALL)


def _table(diagnosis: Diagnosis, status: Status) -> Iterator[doc.Matrix]:
    """Yield the table of the findings with a status."""
    yield _findings([finding for finding in diagnosis.findings if finding.status is status])


def _findings(findings: Sequence[Finding], *, with_status: bool = False) -> doc.Matrix:
    """Return the table of findings; with their statuses, if these are not the same."""
    rows = []
    for finding in findings:
        status = (doc.Span(finding.status, TONES[finding.status]),) if with_status else ()
        what = "; ".join(filter(None, (finding.summary, finding.note)))
        rows.append((doc.Span(finding.check, code=True), *status, finding.place.label or "node", what))
    heads = ("check", "status", "where", "what") if with_status else ("check", "where", "what")
    return doc.table(heads, rows, wrap=("where", "what"))


def _evidence(diagnosis: Diagnosis) -> Iterator[doc.KeyValues]:
    """Yield the evidence of the findings that are not shown one by one as problems."""
    fine = [finding for finding in diagnosis.findings if finding.status not in TOLD]
    yield doc.KeyValues(tuple((each.check, words) for each in fine for words in _seen(each)), level=Level.ALL)


def checks_document(checks: CheckList) -> doc.Document:
    """Return the list of checks with their conditions and guarded features, or the explanation of a single one."""
    if len(checks.checks) == 1:
        return check_document(checks.checks[0])
    rows = ((check.id, check.title, _guards(check)) for check in checks.checks)
    listed = doc.table(("check", "condition", "guards"), rows, wrap=("condition",))
    return doc.Document(body=(listed,))


def check_document(check: CheckEntry) -> doc.Document:
    """Return the explanation of a check."""
    parts = (("Why it matters", check.why), ("How it is read", check.read), ("How to fix it", check.fix))
    return doc.Document(
        body=(
            doc.Paragraph((doc.Span(check.id, Tone.STRONG), f": {check.title}")),
            doc.Paragraph(f"guards {', '.join(check.guards)}", tone=Tone.DIM),
            *(doc.Section(title, (doc.Bullets((body,)),)) for title, body in parts),
        ),
    )


def _guards(check: CheckEntry) -> str:
    guards = [guard for guard in Guard if guard in check.guards]
    return "all" if guards == list(Guard) else ",".join(guards)
