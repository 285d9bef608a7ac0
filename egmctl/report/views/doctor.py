"""The views of ``egmctl doctor`` and ``--list``: the answer, the causes with remedies, every check.

It contains no host names or times: nodes in the same state print identical output, so that the outputs can be grouped.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial

from egmctl.model.answer import TABLE, State
from egmctl.model.diagnosis import Diagnosis
from egmctl.model.finding import TOLD, Finding, Guard, RootCause, Status, root_causes
from egmctl.model.listing import CheckEntry, CheckList
from egmctl.report import document as doc
from egmctl.report.document import Level, Tone, Words
from egmctl.report.views.causes import TONES, finding_entry, verdict
from egmctl.report.views.machine import banners, machine_section, subject
from egmctl.report.views.topo import node_diagram
from egmctl.topology.topology import topology
from egmctl.units import grouped, shortened

_TITLES = {Status.UNKNOWN: "Not determined", Status.PASS: "Passed", Status.SKIP: "Does not apply"}
_NAMED = 12
"""The number of undetermined checks named without ``-v``."""


def doctor_document(diagnosis: Diagnosis) -> doc.Document:
    """Return the document of a diagnosis."""
    machine = diagnosis.machine
    return doc.Document(
        command="egmctl doctor",
        subject=subject(machine),
        subtitle=diagnosis.platform,
        banners=banners(machine.origin),
        body=tuple(_body(diagnosis)),
    )


def _body(diagnosis: Diagnosis) -> Iterator[doc.Block]:
    # The entries below contain the remedies of what was found.
    yield verdict(diagnosis.answer, advice=diagnosis.answer.state is State.INCOMPLETE)
    for other in diagnosis.answer.purposes[1:]:
        yield doc.Verdict(other.word, Tone(TABLE[other.state].tone), other.sentence)
    process = diagnosis.machine.process
    if process is not None and process.pid:
        yield doc.Paragraph(f"Process {process.pid}; NVML and CUDA were queried from outside of it.", tone=Tone.DIM)
    roots = root_causes(diagnosis.findings)
    for cause in roots:
        yield _problem(cause)
    yield from _notes(diagnosis, roots)
    yield doc.Section("Topology", partial(_drawing, diagnosis), level=Level.PAGE)
    for status, name in _TITLES.items():
        body = _table if status is Status.UNKNOWN else _by_area
        yield doc.Section(name, partial(body, diagnosis, status), level=Level.VERBOSE)
    yield doc.Section("What was read", partial(_evidence, diagnosis), level=Level.ALL)
    yield machine_section(diagnosis.machine)


def _problem(cause: RootCause) -> doc.Entry:
    finding = cause.finding
    rows: list[tuple[str, Words]] = [("explains", _explained(other)) for other in cause.explains]
    rows += [("note", finding.note)] if finding.note else []
    evidence = doc.KeyValues(tuple(("seen", words) for words in _seen(finding)), level=Level.VERBOSE)
    return finding_entry(finding, rows=rows, further=(evidence,))


def _explained(finding: Finding) -> Words:
    word = doc.Span(finding.status.upper(), TONES[finding.status])
    return word, f" {finding.title} ", doc.Span(f"[{finding.check}]", Tone.DIM)


def _seen(finding: Finding) -> Iterator[Words]:
    """Yield a line for each piece of evidence."""
    for evidence in finding.evidence:
        errno = f" ({evidence.errno})" if evidence.errno and evidence.errno not in evidence.value else ""
        yield doc.Span(evidence.source, code=True), f": {evidence.value}{errno}"


def _notes(diagnosis: Diagnosis, roots: Sequence[RootCause]) -> Iterator[doc.Block]:
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
        yield node_diagram(lambda: shown)


def _by_area(diagnosis: Diagnosis, status: Status) -> Iterator[doc.Block]:
    """Yield a line per area with the names of the checks with a status, and the table for ``-vv``, folded on pages."""
    checks = dict.fromkeys(finding.check for finding in diagnosis.findings if finding.status is status)
    areas = grouped(check.partition(".")[::2] for check in checks)
    yield doc.KeyValues(tuple((area, f"{len(names)}: {', '.join(names)}") for area, names in areas.items()))
    yield doc.Section("Each of them", partial(_table, diagnosis, status), level=Level.ALL)


def _table(diagnosis: Diagnosis, status: Status) -> Iterator[doc.Matrix]:
    """Yield the table of the findings with a status."""
    rows = (
        (
            doc.Span(finding.check, code=True),
            finding.place.label or "node",
            "; ".join(filter(None, (finding.summary, finding.note))),
        )
        for finding in diagnosis.findings
        if finding.status is status
    )
    yield doc.table(("check", "where", "what"), rows, wrap=("where", "what"))


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
