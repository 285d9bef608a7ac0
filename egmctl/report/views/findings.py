"""Entries and sentences for findings: what was found, why, and the remedy; an answer's block; the faults of a drawing.

No view of a machine imports what a run has measured: that takes a tenth of the time of ``topo``.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

from egmctl.dataclass import dataclass
from egmctl.model.answer import TABLE, Answer, Cause, State
from egmctl.model.finding import Confidence, Finding, PlaceKind, Status
from egmctl.model.remedy import Remedy
from egmctl.report.document import DocumentBlock, Entry, KeyValues, Level, ShellCommand, Span, Tone, Verdict, Words

if TYPE_CHECKING:
    from egmctl.topology.topology import Topology

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


@dataclass(frozen=True, slots=True)
class Fault:
    """What is wrong with a device."""

    tone: Tone
    words: str


FAULT_SIGNS: Mapping[Tone, str] = {Tone.BAD: "✕", Tone.WARN: "▲"}
"""The signs of devices that fail and warn, in every drawing."""
Faults = Mapping[str, Fault]
"""The faults by the labels of devices: ``GPU0``, ``NUMA1``, ``NIC2``. Of several, the most severe."""


def faults(topology: Topology, causes: Iterable[Cause]) -> Faults:
    """Return what the causes find to be wrong with the devices of a node, for each its most severe failure or warning.

    A cause that is about the whole node marks no device.
    """
    wrong = [cause for cause in causes if cause.status in (Status.FAIL, Status.WARN)]
    known: dict[str, Fault] = {}
    for cause in sorted(wrong, key=lambda cause: list(Status).index(cause.status)):
        for label in _labels(topology, cause):
            known.setdefault(label, Fault(TONES[cause.status], cause.title))
    return known


def _labels(topology: Topology, cause: Cause) -> list[str]:
    place = cause.finding.place
    if (gpus := place.gpus) is not None:
        return [label for label, gpu in topology.gpus.items() if gpu.bus_id in gpus]
    match place.kind:
        case PlaceKind.NUMA:
            return [f"NUMA{number}" for number in place.ids]
        case PlaceKind.NIC:
            return [label for label, nic in topology.nics.items() if nic.name in place.ids]
        case _:
            return []
