"""Findings and causes in words: what was found, why, what it explains, and what to do."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from egmctl.model.finding import Confidence, Finding, Remedy, RunCause, Status
from egmctl.model.measurement import Measurement, RunReport
from egmctl.model.route import LinkKind
from egmctl.report.document import Block, Command, Entry, Hint, KeyValues, Level, Tone, Words, limited
from egmctl.units import several, shortened

CAUSES = 3
"""Causes that are told without -v."""
PATHS = 3
"""Paths that a cause names."""
UNEXPLAINED = "nothing that was read explains it"
TONES = {
    Status.FAIL: Tone.BAD,
    Status.WARN: Tone.WARN,
    Status.UNKNOWN: Tone.UNKNOWN,
    Status.NOTE: Tone.UNKNOWN,
    Status.PASS: Tone.GOOD,
    Status.SKIP: Tone.DIM,
}


def title(finding: Finding) -> str:
    """Return what was found, and where."""
    return f"{finding.place.label}: {finding.summary}" if finding.place.label else finding.summary


def remedy_words(remedy: Remedy) -> str:
    """Return what to do, and what it needs."""
    needs = [word for word, true in (("as root", remedy.needs_root), ("needs a reboot", remedy.needs_reboot)) if true]
    return f"{remedy.text.removesuffix('.')} ({', '.join(needs)})." if needs else remedy.text


def advice(finding: Finding) -> str:
    """Return what to do about a finding, for the line after the answer, without a full stop."""
    if finding.remedy is None:
        return "see what it is about with 'egmctl doctor'"
    return remedy_words(finding.remedy).removesuffix(".")


def finding_entry(
    finding: Finding,
    words: Words = "",
    *,
    word: str = "",
    tone: Tone | None = None,
    cause: bool = True,
    fix: bool = True,
    rows: Iterable[tuple[str, Words]] = (),
    further: tuple[Block, ...] = (),
    level: Level = Level.SUMMARY,
) -> Entry:
    """Return a finding with its cause, what to do, and the command that does it.

    Parameters
    ----------
    words, word, tone
        In place of the finding's title and its status.
    cause, fix
        Whether to say why it is so and what to do: the answer may have said it, or a screen be too short.
    rows, further
        What else to show below it.
    """
    sure = "" if finding.confidence is Confidence.HIGH else f" ({finding.confidence} confidence)"
    reasons: list[tuple[str, Words]] = [("cause", finding.cause + sure)] if finding.cause and cause else []
    command: tuple[Command, ...] = ()
    if (remedy := finding.remedy) is not None:
        reasons += [("fix", remedy_words(remedy))] * fix
        command = () if remedy.command is None else (Command(remedy.command),)
    return Entry(
        word or finding.status.upper(),
        TONES[finding.status] if tone is None else tone,
        words or title(finding),
        id=finding.check,
        body=(KeyValues(tuple(reasons)), *command, KeyValues(tuple(rows)), *further),
        level=level,
    )


def cause_title(cause: RunCause) -> str:
    """Return what was found, on which node of several, and that the user named its GPUs."""
    node = f"{cause.node}: " if cause.node else ""
    return f"{node}{title(cause.finding)}{asked_words(cause)}"


def asked_words(cause: RunCause) -> str:
    """Return how a sentence on a cause goes on where the user named its GPUs; a failed check says so itself."""
    return f", but --gpus names {cause.asked}" if cause.asked and cause.finding.status is not Status.FAIL else ""


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


def cause_entries(report: RunReport) -> Iterator[Entry | Hint]:
    """Yield each cause once: what was found, why, what it explains, and what to do unless the answer says it."""
    return limited(_cause_entries(report), CAUSES, "cause", Level.SUMMARY)


def _cause_entries(report: RunReport) -> Iterator[Entry]:
    for place, cause in enumerate(report.causes):
        paths = list(dict.fromkeys(report.measurements[number].path for number in cause.explains))
        rows = (("explains", shortened(paths, PATHS)), ("checks", ", ".join(cause.finding.explains)))
        yield finding_entry(
            cause.finding,
            cause_title(cause),
            word="CAUSE",
            tone=TONES[cause.status],
            fix=place > 0,
            rows=[row for row in rows if row[1]],
        )


def crosses_unknown_links(measurement: Measurement) -> bool:
    """Say whether nobody knows a link that a measurement's bytes crossed."""
    return any(hop.link is LinkKind.UNKNOWN for flow in measurement.flows for hop in flow.route.hops)
