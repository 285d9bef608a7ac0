"""A diagnosis for a ticket: problems open, with their remedies; the rest folded."""

from __future__ import annotations

from collections.abc import Iterator

from egmctl.model.diagnosis import Diagnosis
from egmctl.model.finding import Finding, Status
from egmctl.report.doctor_html import told
from egmctl.report.markdown import block, code, details, escaped, table, warning
from egmctl.report.origin import origin_banner


def doctor_markdown(diagnosis: Diagnosis) -> str:
    """Return the text."""
    return "\n".join(part for part in _parts(diagnosis) if part)


def _parts(diagnosis: Diagnosis) -> Iterator[str]:
    banner = origin_banner(diagnosis.machine.origin)
    _, word, sentence = told(diagnosis)
    yield f"## egmctl doctor: {escaped(word)}\n"
    yield warning([banner] if banner else [])
    yield f"{escaped(diagnosis.platform)}\n"
    yield f"{escaped(sentence)}\n"
    for status in Status:
        findings = [finding for finding in diagnosis.findings if finding.status is status]
        if status in (Status.FAIL, Status.WARN):
            yield from map(_finding, findings)
        elif findings:
            rows = [(code(one.check), escaped(one.place.label or "node"), escaped(one.summary)) for one in findings]
            yield details(f"{len(findings)} {status}", table(("check", "where", "what"), rows))


def _finding(finding: Finding) -> str:
    place = f"{finding.place.label}: " if finding.place.label else ""
    lines = [f"### {finding.status.upper()} {code(finding.check)} {escaped(place + finding.summary)}\n"]
    if finding.cause:
        lines.append(f"- cause: {escaped(finding.cause)}\n")
    if finding.remedy is not None:
        lines.append(f"- fix: {escaped(finding.remedy.text)}\n")
        if finding.remedy.command is not None:
            lines.append("\n" + block(finding.remedy.command, "sh"))
    seen = [f"{code(one.source)}: {escaped(one.value)}" for one in finding.evidence]
    if seen:
        lines.append("\n" + details("seen", "".join(f"- {line}\n" for line in seen)))
    return "".join(lines)
