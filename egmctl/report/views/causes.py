"""Entries and sentences for findings and causes: what was found, why, what it explains, and the remedy."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from egmctl.model.finding import Confidence, Finding, RunCause, Status
from egmctl.model.measurement import Measurement, RunReport
from egmctl.model.remedy import Need, Remedy
from egmctl.model.route import LinkKind
from egmctl.report.document import Block, Command, Entry, Hint, KeyValues, Level, Tone, Words, limited
from egmctl.units import several, shortened

CAUSES = 3
"""The number of causes shown without ``-v``."""
PATHS = 3
"""The number of paths named per cause."""
NO_EXPLANATION = "nothing that was read explains it"
TONES = {
    Status.FAIL: Tone.BAD,
    Status.WARN: Tone.WARN,
    Status.UNKNOWN: Tone.UNKNOWN,
    Status.NOTE: Tone.UNKNOWN,
    Status.PASS: Tone.GOOD,
    Status.SKIP: Tone.DIM,
}


def title(finding: Finding) -> str:
    """Return a finding's summary, after its place if it has one."""
    return f"{finding.place.label}: {finding.summary}" if finding.place.label else finding.summary


_NEEDS = {
    Need.ROOT: "as root",
    Need.IDLE_GPUS: "{idle} idle first",
    Need.GPU_RESET: "resets {idle}, idle first",
    Need.NO_JOBS: "no job on {idle}",
    Need.NO_DOMAIN_JOBS: "no job that shares memory across the domain",
    Need.DRIVER_RELOAD: "reloads the driver, {idle} idle first",
    Need.REBOOT: "needs a reboot",
}


def remedy_words(remedy: Remedy) -> str:
    """Return a remedy's text and what it needs."""
    needs = [_NEEDS[need].format(idle=remedy.idle or "every GPU") for need in remedy.needs]
    return f"{remedy.text.removesuffix('.')} ({', '.join(needs)})." if needs else remedy.text


def commands_of(remedy: Remedy) -> tuple[Command, ...]:
    """Return the commands of a remedy: what shows more, then what mends."""
    commands = (("look", remedy.look), ("run", remedy.run))
    return tuple(Command(text, name) for name, text in commands if text is not None)


def advice(finding: Finding) -> str:
    """Return the next step for a finding, without a full stop."""
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
    """Return the entry of a finding, with its cause, remedy and commands.

    Parameters
    ----------
    words, word, tone
        Replacements for the finding's title, its status and the tone of the status.
    cause, fix
        Whether to show the cause and the remedy's text. The answer may already contain them.
    rows, further
        Further rows and blocks below the entry.
    """
    sure = "" if finding.confidence is Confidence.HIGH else f" ({finding.confidence} confidence)"
    reasons: list[tuple[str, Words]] = [("cause", finding.cause + sure)] if finding.cause and cause else []
    commands: tuple[Command, ...] = ()
    if (remedy := finding.remedy) is not None:
        reasons += [("fix", remedy_words(remedy))] * fix
        commands = commands_of(remedy)
    return Entry(
        word or finding.status.upper(),
        TONES[finding.status] if tone is None else tone,
        words or title(finding),
        id=finding.check,
        body=(KeyValues(tuple(reasons)), *commands, KeyValues(tuple(rows)), *further),
        level=level,
    )


def cause_title(cause: RunCause) -> str:
    """Return the title of a cause: its node in a run over several, the finding, and whether it is new in the bench."""
    node = f"{cause.node}: " if cause.node else ""
    new = " (appeared during the bench)" if cause.under_load else ""
    return f"{node}{title(cause.finding)}{asked_words(cause)}{new}"


def asked_words(cause: RunCause) -> str:
    """Return the words on GPUs that the user named with ``--gpus``; empty for a failed check, which contains them."""
    return f", but --gpus names {cause.asked}" if cause.asked and cause.finding.status is not Status.FAIL else ""


def cause_words(report: RunReport | None, cause: RunCause) -> str:
    """Return a sentence with a cause and the number of paths and measurements that it explains."""
    measurements = _explained(report, cause)
    measured, broke, missed = (_paths(measurements, end) for end in _ENDS)
    parts = [cause_title(cause)]
    if measured and all(map(crosses_unknown_links, measurements)):
        parts.append(f"the links of {several(len(measured), 'path')} are unknown")
    elif measured:
        parts.append(f"explains {several(len(measured), 'path')}")
    if broke:
        parts.append(f"{several(len(broke), 'path')} broke")
    if missed:
        parts.append(f"{several(sum(m.missed_path for m in measurements), 'measurement')} not made")
    return "; ".join(parts)


_ENDS = ("paths", "broke", "not made")
"""The rows of a cause: slow paths, paths that broke, and paths that were not measured as planned."""


def _end(measurement: Measurement) -> str:
    if measurement.missed_path:
        return "not made"
    return "paths" if measurement.measured else "broke"


def _explained(report: RunReport | None, cause: RunCause) -> list[Measurement]:
    return [] if report is None else [report.measurements[number] for number in cause.explains]


def _paths(measurements: Iterable[Measurement], end: str) -> list[str]:
    return list(dict.fromkeys(m.path for m in measurements if _end(m) == end))


def cause_entries(report: RunReport) -> Iterator[Entry | Hint]:
    """Yield the entries of a run's causes. The first one omits the text of its remedy, which the answer contains."""
    entries = (cause_entry(report, cause, "CAUSE", fix=place > 0) for place, cause in enumerate(report.causes))
    return limited(entries, CAUSES, "cause", Level.SUMMARY)


def cause_entry(report: RunReport | None, cause: RunCause, word: str, *, fix: bool, with_cause: bool = True) -> Entry:
    """Return the entry of a cause, with the paths and the checks that it explains.

    Parameters
    ----------
    word
        The word shown for its status.
    fix, with_cause
        Whether to show the remedy's text and the finding's cause.
    """
    measurements = _explained(report, cause)
    lists = {end: _paths(measurements, end) for end in _ENDS} | {"explains": list(cause.finding.explains)}
    rows = [(name, shortened(items, PATHS)) for name, items in lists.items() if items]
    tone = TONES[cause.status]
    return finding_entry(cause.finding, cause_title(cause), word=word, tone=tone, cause=with_cause, fix=fix, rows=rows)


def crosses_unknown_links(measurement: Measurement) -> bool:
    """Return whether a route of a measurement contains an unknown link."""
    return any(hop.link is LinkKind.UNKNOWN for flow in measurement.flows for hop in flow.route.hops)
