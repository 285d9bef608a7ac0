"""A diagnosis as one HTML page: problems first, each with its cause, its remedy and what was seen."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from egmctl.model.diagnosis import Diagnosis
from egmctl.model.finding import Confidence, Finding, Remedy, Status
from egmctl.report.machine_html import machine_facts
from egmctl.report.markup import Child, element
from egmctl.report.origin import origin_banner
from egmctl.report.page import Section, page, rows
from egmctl.report.topo_html import parts
from egmctl.report.verdict_html import call
from egmctl.topology.topology import topology

LOOKS = {Status.FAIL: "fail", Status.WARN: "warn", Status.UNKNOWN: "plain", Status.PASS: "pass", Status.SKIP: "plain"}
_TITLES = {
    Status.FAIL: "Failures",
    Status.WARN: "Warnings",
    Status.UNKNOWN: "Could not be told",
    Status.PASS: "Passed",
    Status.SKIP: "Skipped",
}


def doctor_html(diagnosis: Diagnosis) -> str:
    """Return the page."""
    machine = diagnosis.machine
    banners = [text for text in [origin_banner(machine.origin)] if text]
    return page(
        "egmctl doctor", machine.origin.name or "this node", diagnosis.platform, banners, list(_sections(diagnosis))
    )


def told(diagnosis: Diagnosis) -> tuple[str, str, str]:
    """Return the verdict's look, word and sentence."""
    counts = ", ".join(f"{number} {status}" for status, number in diagnosis.counts.items())
    sentence = f"{sum(diagnosis.counts.values())} checks: {counts}"
    if diagnosis.failed:
        return "fail", "Something is wrong", sentence
    if diagnosis.nothing is not None:
        return "plain", "Nothing could be determined", f"{diagnosis.nothing} {sentence}"
    if diagnosis.counts[Status.WARN]:
        return "warn", "It works, with warnings", sentence
    return "pass", "No fault was found", sentence


def _sections(diagnosis: Diagnosis) -> Iterator[Section]:
    yield Section("verdict", "Verdict", (call(*told(diagnosis)),))
    for status in Status:
        findings = [finding for finding in diagnosis.findings if finding.status is status]
        if findings:
            body = map(_finding, findings) if status in (Status.FAIL, Status.WARN) else [_table(findings)]
            yield Section(status.value, f"{_TITLES[status]} ({len(findings)})", tuple(body))
    machine = diagnosis.machine
    yield Section("machine", "Machine", tuple(machine_facts(machine)))
    if machine.gpus:
        yield Section("topology", "Topology", tuple(parts(topology(machine))))


def _finding(finding: Finding) -> Child:
    place = f"{finding.place.label}: " if finding.place.label else ""
    label = element("span", finding.status.value, class_=f"word-{LOOKS[finding.status]}")
    return element(
        "article",
        element("h3", label, element("span", place + finding.summary), element("code", finding.check)),
        list(_lines(finding)),
        class_="finding",
    )


def _lines(finding: Finding) -> Iterator[Child]:
    if finding.cause:
        sure = "" if finding.confidence is Confidence.HIGH else f" ({finding.confidence} confidence)"
        yield _line("cause", finding.cause + sure)
    if finding.remedy is not None:
        yield from _remedy(finding.remedy)
    if finding.note:
        yield _line("note", finding.note)
    for seen in finding.evidence:
        errno = f" ({seen.errno})" if seen.errno and seen.errno not in seen.value else ""
        yield _line("seen", element("code", seen.source), f": {seen.value}{errno}")
    if finding.docs:
        yield _line("more", element("code", f"egmctl doctor --explain {finding.check}"))


def _remedy(remedy: Remedy) -> Iterator[Child]:
    needs = [word for word, true in (("as root", remedy.needs_root), ("needs a reboot", remedy.needs_reboot)) if true]
    yield _line("fix", remedy.text + (f" ({', '.join(needs)})" if needs else ""))
    if remedy.command is not None:
        yield element("pre", element("code", remedy.command))


def _line(label: str, *words: Child) -> Child:
    return element("p", element("span", label, class_="label"), element("span", words))


def _table(findings: Sequence[Finding]) -> Child:
    found = [
        (
            element("code", finding.check),
            finding.place.label or "node",
            (finding.summary, element("p", finding.note, class_="dim") if finding.note else None),
        )
        for finding in findings
    ]
    return rows(("check", "where", "what"), found)
