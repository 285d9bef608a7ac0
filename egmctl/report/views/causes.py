"""Entries and sentences for findings and causes: what was found, why, what it explains, and the remedy."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from egmctl.model.answer import Answer, Cause
from egmctl.model.finding import Confidence, Finding, Status
from egmctl.model.measurement import Measurement, RunReport
from egmctl.model.remedy import Remedy
from egmctl.model.task import Quantity
from egmctl.report.document import (
    Block,
    Command,
    Entry,
    Hint,
    KeyValues,
    Level,
    Span,
    Tone,
    Verdict,
    Words,
    limited,
    number,
)
from egmctl.report.views.bench_classes import plain_name
from egmctl.report.views.marks import tone_of
from egmctl.units import several, shortened

CAUSES = 3
"""The number of causes shown without ``-v``."""
COSTS = 3
"""The number of classes of paths for which the cost of a cause is shown."""
EXPLAINED = 2
"""The number of findings that are named where a cause explains them; doctor has all."""
PATHS = 3
"""The number of paths named per cause."""
TONES = {
    Status.FAIL: Tone.BAD,
    Status.WARN: Tone.WARN,
    Status.UNKNOWN: Tone.UNKNOWN,
    Status.NOTE: Tone.UNKNOWN,
    Status.ASSUMED: Tone.ASSUMED,
    Status.PASS: Tone.GOOD,
    Status.SKIP: Tone.DIM,
}


def verdict(answer: Answer, *, advice: bool = True) -> Verdict:
    """Return the block of an answer.

    Parameters
    ----------
    advice
        Whether to show the next step. An entry below may already contain it.
    """
    step = answer.next_step if advice else None
    words = "" if step is None else step.words.removesuffix(".")
    return Verdict(answer.word, tone_of(answer.state), answer.sentence, words, answer.clauses)


def commands_of(remedy: Remedy) -> tuple[Command, ...]:
    """Return the commands of a remedy: what shows more, then what mends."""
    commands = (("look", remedy.look), ("run", remedy.run))
    return tuple(Command(text, name) for name, text in commands if text is not None)


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
        Whether to show the cause and the remedy's text. The answer may already contain them; a page has space for them
        beside each cause.
    rows, further
        Further rows and blocks below the entry.
    """
    sure = "" if finding.confidence is Confidence.HIGH else f" ({finding.confidence} confidence)"
    because: list[tuple[str, Words]] = [("cause", finding.cause + sure)] if finding.cause else []
    reasons = because.copy() if cause else []
    commands: tuple[Command, ...] = ()
    on_page = [] if cause else because.copy()
    if (remedy := finding.remedy) is not None:
        (reasons if fix else on_page).append(("fix", remedy.words))
        commands = commands_of(remedy)
    return Entry(
        word or finding.status.upper(),
        TONES[finding.status] if tone is None else tone,
        words or finding.title,
        id=finding.check,
        body=(
            KeyValues(tuple(on_page), level=Level.PAGE),
            KeyValues(tuple(reasons)),
            *commands,
            KeyValues(tuple(rows)),
            *further,
        ),
        level=level,
    )


_ENDS = ("paths", "broke", "not made")
"""The rows of a cause: slow paths, paths that broke, and paths that were not measured as planned."""


def _end(measurement: Measurement) -> str:
    if measurement.missed_path:
        return "not made"
    return "paths" if measurement.measured else "broke"


def _explained(report: RunReport | None, cause: Cause) -> list[Measurement]:
    return [] if report is None else [report.measurements[number] for number in cause.measurements]


def _paths(measurements: Iterable[Measurement], end: str) -> list[str]:
    return list(dict.fromkeys(m.path for m in measurements if _end(m) == end))


def cause_entries(report: RunReport) -> Iterator[Entry | Hint]:
    """Yield the entries of a run's causes. The first one omits the text of its remedy, which the answer contains."""
    entries = (cause_entry(report, cause, "CAUSE", fix=place > 0) for place, cause in enumerate(report.causes))
    return limited(entries, CAUSES, "cause", Level.SUMMARY)


def explained_words(finding: Finding) -> Words:
    """Return the words on a finding that another one explains."""
    word = Span(finding.status.upper(), TONES[finding.status])
    return word, f" {finding.title} ", Span(f"[{finding.check}]", Tone.DIM)


def cause_entry(
    report: RunReport | None,
    cause: Cause,
    word: str,
    *,
    fix: bool,
    with_cause: bool = True,
    findings: Iterable[Finding] = (),
) -> Entry:
    """Return the entry of a cause, with what it costs, and the paths and the findings that it explains.

    Parameters
    ----------
    word
        The word shown for its status.
    fix, with_cause
        Whether to show the remedy's text and the finding's cause.
    findings
        The findings of doctor, of which it may explain some.
    """
    measurements = _explained(report, cause)
    lists = {end: _paths(measurements, end) for end in _ENDS}
    rows: list[tuple[str, Words]] = [("costs", words) for words in ([] if report is None else costs(report, cause))]
    rows += [(name, shortened(items, PATHS)) for name, items in lists.items() if items]
    check, place = cause.finding.check, cause.finding.place
    own = [each for each in findings if check in each.explained_by and each.check in cause.finding.explains]
    explained = [each for each in own if place.meets(each.place)]
    rows += [("explains", explained_words(each)) for each in explained[:EXPLAINED]]
    if more := len(explained[EXPLAINED:]):
        rows.append(("explains", f"and {several(more, 'more finding')}"))
    tone = TONES[cause.status]
    return finding_entry(cause.finding, cause.title, word=word, tone=tone, cause=with_cause, fix=fix, rows=rows)


def costs(report: RunReport, cause: Cause) -> list[str]:
    """Return what a cause costs, for each class of its slow paths, the slowest first: how many, and how fast they are.

    Only classes with an expected value have a cost.
    """
    chosen = frozenset(cause.measurements)
    lines: list[tuple[float, str]] = []
    for entry in () if report.verdict is None else report.verdict.classes:
        slow = [m for n in entry.measurements if n in chosen and (m := report.measurements[n]).headline is not None]
        if not entry.expected or not slow or any(m.missed_path for m in slow):
            continue
        shares = [m.headline.median / entry.expected for m in slow if m.headline is not None]
        worst = min(shares) if slow[0].quantity is Quantity.BANDWIDTH else max(shares)
        low, high = (f"{100 * share:.0f}" for share in (min(shares), max(shares)))
        percent = low if low == high else f"{low} to {high}"
        of_all = f"{len(slow)} of {several(len(entry.measurements), 'path')}"
        expected = f"{number(entry.expected)} {slow[0].quantity.unit}"
        lines.append((abs(1 - worst), f"{plain_name(slow[0])}: {of_all} at {percent} % of the expected {expected}"))
    return [words for _, words in sorted(lines, reverse=True)[:COSTS]]
