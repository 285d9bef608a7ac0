"""The views of ``egmctl doctor`` and ``--list``: the answer, the causes with remedies, every check.

It contains no host names or times: nodes in the same state print identical output, so that the outputs can be grouped.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial

from egmctl.model.finding import TOLD, Cause, Diagnosis, Finding, Guard, Status, root_causes
from egmctl.model.listing import CheckEntry, CheckList
from egmctl.model.machine import OriginKind
from egmctl.report import document as doc
from egmctl.report.document import Level, Tone, Words
from egmctl.report.views.causes import TONES, finding_entry, title
from egmctl.report.views.machine import banners, machine_section, subject
from egmctl.report.views.topo import node_diagram
from egmctl.topology.topology import topology
from egmctl.units import grouped, several, shortened

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


def verdict(diagnosis: Diagnosis) -> doc.Verdict:
    """Return the answer: ``OK`` (exit code 0), ``PROBLEMS`` (1) or ``NOT DETERMINED`` (3).

    ``NOT DETERMINED`` means that nothing failed, but there is no GPU, or at least as many checks had no data as passed:
    a machine that is mostly unknown is not reported as healthy.
    """
    roots = [cause for cause in root_causes(diagnosis.findings) if cause.status is not Status.NOTE]
    number = diagnosis.counts
    statuses = [finding.status for finding in diagnosis.findings]
    counts = {"failure": statuses.count(Status.FAIL), "warning": statuses.count(Status.WARN)}
    problems = " and ".join(several(count, what) for what, count in counts.items() if count)
    if problems and len(roots) < sum(counts.values()):
        problems += f", {several(len(roots), 'root cause')}"
    rest = _counted(number, Status.NOTE, Status.PASS, Status.UNKNOWN, Status.SKIP)
    known = list(filter(None, (problems, rest)))
    if diagnosis.failed:
        return doc.Verdict("PROBLEMS", Tone.BAD, "; ".join(known))
    if not diagnosis.undetermined:
        return doc.Verdict("OK", Tone.WARN if problems else Tone.GOOD, ", ".join(known))
    if diagnosis.nothing is not None:
        reason = diagnosis.nothing.removesuffix(".")
        sentence = "; ".join((f"{reason[:1].lower()}{reason[1:]}", *known))
    else:
        applied = number[Status.UNKNOWN] + number[Status.PASS] + number[Status.WARN]
        lacking = f"{number[Status.UNKNOWN]} of {several(applied, 'check')} had no data"
        sentence = "; ".join(filter(None, (lacking, problems, _counted(number, Status.PASS, Status.SKIP))))
    return doc.Verdict("NOT DETERMINED", Tone.UNKNOWN, sentence, _how_to_know(diagnosis))


def _how_to_know(diagnosis: Diagnosis) -> str:
    """Return the next step for a machine about which too little is known."""
    if diagnosis.machine.origin.kind is not OriginKind.LIVE:
        return "take a new 'egmctl snapshot' of the node; -v says what this one does not state"
    if not diagnosis.machine.gpus:
        return "run it where the GPUs are; 'lspci -d 10de:' lists those on this node's bus"
    return "run it as root on the host, outside of containers; -v says what could not be read"


def _counted(number: Mapping[str, int], *statuses: Status) -> str:
    words = {
        Status.NOTE: ("note", "notes"),
        Status.PASS: ("check passed", "checks passed"),
        Status.UNKNOWN: ("not determined", "not determined"),
        Status.SKIP: ("does not apply", "do not apply"),
    }
    counts = ((number.get(status, 0), words[status]) for status in statuses)
    return ", ".join(f"{count} {singular if count == 1 else plural}" for count, (singular, plural) in counts if count)


def _body(diagnosis: Diagnosis) -> Iterator[doc.Block]:
    yield verdict(diagnosis)
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


def _problem(cause: Cause) -> doc.Entry:
    finding = cause.finding
    rows: list[tuple[str, Words]] = [("explains", _explained(other)) for other in cause.explains]
    rows += [("note", finding.note)] if finding.note else []
    evidence = doc.KeyValues(tuple(("seen", words) for words in _seen(finding)), level=Level.VERBOSE)
    return finding_entry(finding, rows=rows, further=(evidence,))


def _explained(finding: Finding) -> Words:
    word = doc.Span(finding.status.upper(), TONES[finding.status])
    return word, f" {title(finding)} ", doc.Span(f"[{finding.check}]", Tone.DIM)


def _seen(finding: Finding) -> Iterator[Words]:
    """Yield a line for each piece of evidence."""
    for evidence in finding.evidence:
        errno = f" ({evidence.errno})" if evidence.errno and evidence.errno not in evidence.value else ""
        yield doc.Span(evidence.source, code=True), f": {evidence.value}{errno}"


def _notes(diagnosis: Diagnosis, roots: Sequence[Cause]) -> Iterator[doc.Block]:
    """Yield the remedies of undetermined checks, then a hint that names the other undetermined checks."""
    explained = {id(finding) for cause in roots for finding in cause.explains}
    unknown = [f for f in diagnosis.findings if f.status is Status.UNKNOWN and id(f) not in explained]
    alike = grouped(((title(finding), finding.remedy), finding) for finding in unknown if finding.remedy is not None)
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
