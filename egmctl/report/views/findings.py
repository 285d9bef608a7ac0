"""Entries and sentences for findings: what was found, why, and the remedy; and the block of an answer.

No view of a machine imports what a run has measured: that takes a tenth of the time of ``topo``.
"""

from __future__ import annotations

from collections.abc import Iterable

from egmctl.model.answer import TABLE, Answer, State
from egmctl.model.finding import Confidence, Finding, Status
from egmctl.model.remedy import Remedy
from egmctl.report.document import DocumentBlock, Entry, KeyValues, Level, ShellCommand, Span, Tone, Verdict, Words

TONES = {
    Status.FAIL: Tone.BAD,
    Status.WARN: Tone.WARN,
    Status.UNKNOWN: Tone.UNKNOWN,
    Status.NOTE: Tone.UNKNOWN,
    Status.ASSUMED: Tone.ASSUMED,
    Status.PASS: Tone.GOOD,
    Status.SKIP: Tone.DIM,
}


def tone_of(state: State) -> Tone:
    """Return the tone of an answer's state."""
    return Tone(TABLE[state].tone)


def verdict(answer: Answer, *, advice: bool = True) -> Verdict:
    """Return the block of an answer.

    Parameters
    ----------
    advice
        Whether to show the next step. An entry below may already contain it.
    """
    step = answer.next_step if advice else None
    words = "" if step is None else step.words.removesuffix(".")
    # A document may have anything.
    lead = (answer.lead[0], answer.lead[1]) if len(answer.lead) == 2 else None
    return Verdict(answer.word, tone_of(answer.state), answer.sentence, words, answer.clauses, lead)


def commands_of(remedy: Remedy) -> tuple[ShellCommand, ...]:
    """Return the commands of a remedy: what shows more, then what mends."""
    commands = (("look", remedy.look), ("run", remedy.run))
    return tuple(ShellCommand(text, name) for name, text in commands if text is not None)


def finding_entry(
    finding: Finding,
    words: Words = "",
    *,
    word: str = "",
    tone: Tone | None = None,
    cause: bool = True,
    fix: bool = True,
    rows: Iterable[tuple[str, Words]] = (),
    further: tuple[DocumentBlock, ...] = (),
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
    commands: tuple[ShellCommand, ...] = ()
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


def explained_words(finding: Finding) -> Words:
    """Return the words on a finding that another one explains."""
    word = Span(finding.status.upper(), TONES[finding.status])
    return word, f" {finding.title} ", Span(f"[{finding.check}]", Tone.DIM)
