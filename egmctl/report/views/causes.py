"""The causes of a run in words: what was found, how much of the run it explains, and what to do."""

from __future__ import annotations

from collections.abc import Iterator

from egmctl.model.finding import Finding, RunCause
from egmctl.model.finding import Status as Found
from egmctl.model.measurement import Measurement, RunReport
from egmctl.model.route import LinkKind
from egmctl.report.document import Command, Entry, Hint, KeyValues, Level, Span, Tone, Words
from egmctl.report.views.doctor import TONES, remedy_words, title
from egmctl.units import several, shortened

CAUSES = 3
"""Causes that are told without -v."""
PATHS = 3
"""Paths that a cause names."""
UNEXPLAINED = "nothing that was read explains it"
SEE_DOCTOR = "see what it is about with 'egmctl doctor'"
"""What to do about a cause without a remedy."""


def cause_title(cause: RunCause) -> str:
    """Return what was found, on which node of several, and that the user named its GPUs."""
    node = f"{cause.node}: " if cause.node else ""
    return f"{node}{title(cause.finding)}{asked_words(cause)}"


def asked_words(cause: RunCause) -> str:
    """Return how a sentence on a cause goes on where the user named its GPUs; a failed check says so itself."""
    return f", but --gpus names {cause.asked}" if cause.asked and cause.finding.status is not Found.FAIL else ""


def cause_words(report: RunReport, cause: RunCause) -> str:
    """Return a cause in a sentence, with how much of the run it explains."""
    measurements = [report.measurements[number] for number in cause.explains]
    waived = sum(m.missed_path for m in measurements)
    slow = len(measurements) - waived
    parts = [cause_title(cause)]
    if slow and all(crosses_unknown_links(m) for m in measurements):
        parts.append(f"the links of {several(slow, 'path')} are unknown")
    elif slow:
        parts.append(f"explains {several(slow, 'path')}")
    if waived:
        parts.append(f"{several(waived, 'measurement')} not made")
    return "; ".join(parts)


def cause_advice(cause: RunCause) -> str:
    """Return what to do about a cause, for the line after the answer: with its command, without a full stop."""
    remedy = cause.finding.remedy
    if remedy is None:
        return SEE_DOCTOR
    return remedy_words(remedy).removesuffix(".")


def cause_entries(report: RunReport) -> Iterator[Entry | Hint]:
    """Yield each cause once: what was found, why, what it explains, and what to do unless the answer says it."""
    for place, cause in enumerate(report.causes):
        finding = cause.finding
        rows = cause_rows(finding, fix=place > 0)
        paths = list(dict.fromkeys(report.measurements[number].path for number in cause.explains))
        if paths:
            rows.append(("explains", shortened(paths, PATHS)))
        if finding.explains:
            rows.append(("checks", ", ".join(finding.explains)))
        command = finding.remedy.command if finding.remedy is not None else None
        yield Entry(
            "CAUSE",
            TONES[cause.status] if cause.status is not Found.NOTE else Tone.UNKNOWN,
            (cause_title(cause), Span(f" [{finding.check}]", Tone.DIM)),
            body=(KeyValues(tuple(rows)), *([Command(command)] if command is not None else [])),
            level=Level.SUMMARY if place < CAUSES else Level.VERBOSE,
        )
    if len(report.causes) > CAUSES:
        yield Hint(f"and {several(len(report.causes) - CAUSES, 'more cause')} (-v)", more=True, level=Level.SUMMARY)


def cause_rows(finding: Finding, *, fix: bool = True) -> list[tuple[str, Words]]:
    """Return why something is so, and what to do, as rows of an entry."""
    rows: list[tuple[str, Words]] = [("cause", finding.cause)] if finding.cause else []
    if fix and finding.remedy is not None:
        rows.append(("fix", remedy_words(finding.remedy)))
    return rows


def crosses_unknown_links(measurement: Measurement) -> bool:
    """Say whether nobody knows a link that a measurement's bytes crossed."""
    return any(hop.link is LinkKind.UNKNOWN for flow in measurement.flows for hop in flow.route.hops)
