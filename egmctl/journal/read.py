"""Reads a journal: the report that there is so far, and where it ended. Cut at any byte it is read up to there."""

from __future__ import annotations

import io
import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from egmctl.errors import UsageError
from egmctl.files import read_bounded
from egmctl.journal import events
from egmctl.journal.write import FILE_LIMIT, at_work, journal_folder, journals
from egmctl.model.codec import ITEMS_LIMIT, DecodeError, from_json
from egmctl.model.kernel_log import KernelEvent
from egmctl.model.measurement import Measurement, RunReport, Status, Task, finish
from egmctl.model.run_fault import measurement_fault
from egmctl.units import printable

_MOST_BYTES = FILE_LIMIT + (1 << 20)
_MOST_ELEMENTS = 4_000_000
"""Objects, lists and their members in the largest journal that is read. Ours have one in some 15 bytes; of the smallest
ones Python makes 30 times the file's size in memory."""

_SHORT_LINE_BYTES = 256
"""More than the line of a run's end has, or that of its mention."""

_BEGINNING = f'{{"event":"{events.BEGIN}","schema":"{events.JOURNAL_SCHEMA.partition("/")[0]}/'.encode()


Decode = Callable[[Any, str], RunReport]
"""Makes the report of what a document has for it, and of how to call the document in a sentence; raises UsageError."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Kept:
    """What a journal holds."""

    report: RunReport
    """What the run would have given, had it ended there: what was under way is ``crashed``."""
    exit_code: int | None
    """What it ended with; ``None`` where it did not end."""
    under_way: tuple[Task, ...]
    """What was being measured at the journal's end; empty where it ended, or between two steps."""
    mentioned: bool
    """Whether somebody was told that it did not end."""

    @property
    def ending(self) -> str:
        """How it ended, in a few words."""
        if self.exit_code is not None:
            return f"exit code {self.exit_code}"
        if self.under_way:
            more = f" and {len(self.under_way) - 1} more at once" if len(self.under_way) > 1 else ""
            return f"ended while measuring {events.what(self.under_way[0])}{more}"
        return "ended between two steps"


def is_journal(content: bytes) -> bool:
    """Say whether a file's content is a journal's, of any version."""
    return content.startswith(_BEGINNING)


def needs_no_telling(path: Path) -> bool:
    """Say whether a journal's last line is that its run ended, or that somebody was told that it did not.

    Reads that line alone, where it is as short as these two: a run looks at its predecessors before it begins.
    """
    try:
        with path.open("rb") as file:
            file.seek(max(0, file.seek(0, io.SEEK_END) - _SHORT_LINE_BYTES))
            last = b"".join(file.readlines()[-1:])
    except OSError:
        return False
    return any(entry.get("event") in (events.END, events.MENTIONED) for entry in _entries(last))


def read_file(path: Path, decode: Decode) -> Kept:
    """Return what a journal file holds.

    Parameters
    ----------
    decode
        As for :func:`read`.

    Raises
    ------
    UsageError
        If it cannot be read, or as :func:`read`.
    """
    try:
        content = read_bounded(path, _MOST_BYTES)
    except OSError as error:
        raise UsageError(f"journal {printable(str(path))} cannot be read: {error.strerror}") from error
    return read(content, f"journal {path}", decode)


def read(content: bytes, source: str, decode: Decode) -> Kept:
    """Return what a journal holds.

    Parameters
    ----------
    source
        How to call it in a sentence.
    decode
        What reads the report of any document (:func:`egmctl.saved.load_journal`).

    Raises
    ------
    UsageError
        If its first line, which says what was to be measured, is not whole or is of another version, or if it is larger
        than any journal.
    """
    if len(content) > _MOST_BYTES or sum(map(content.count, (b",", b"[", b"{"))) > _MOST_ELEMENTS:
        raise UsageError(f"{source} is larger than any journal of egmctl")
    entries = _entries(content)
    first = next(entries, {})
    if first.get("event") != events.BEGIN:
        raise UsageError(f"{source} ends before its first line does: nothing was measured")
    if (first.get("schema"), first.get("bench")) != (events.JOURNAL_SCHEMA, RunReport.SCHEMA):
        raise UsageError(f"{source} is of another version of egmctl: {printable(str(first.get('egmctl'))[:40])}")
    skeleton = decode(first.get("result"), source)
    if skeleton.measurements or skeleton.verdict is not None or skeleton.causes:
        raise UsageError(f"{source} is not valid: its first line has results")
    return _put_together(skeleton, entries)


def _entries(content: bytes) -> Iterator[dict[str, Any]]:
    """Yield the events of all lines that are whole; one that was cut has no end, or is no JSON."""
    for line in io.BytesIO(content):
        if line == b"\n" or not line.endswith(b"\n"):
            continue
        try:
            entry = json.loads(line, parse_constant=_refuse)
        except (ValueError, RecursionError):
            # A line that was cut when the run died, before the one that tells that somebody heard of it.
            continue
        if isinstance(entry, dict):
            yield entry


def _refuse(word: str) -> None:
    raise ValueError(f"JSON has no number for {word}")


@dataclass(slots=True)
class _Run:
    """What a journal's lines add up to."""

    found: dict[int, Measurement] = field(default_factory=dict)
    under_way: dict[int, Task] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)
    kernel: list[KernelEvent] = field(default_factory=list)
    exit_code: int | None = None
    mentioned: bool = False

    def take(self, entry: dict[str, Any]) -> None:
        """Take a line; one of an unknown event is a newer writer's.

        Raises
        ------
        DecodeError
            If it does not fit: by the same rules as a document that has the same in it.
        """
        match entry.get("event"):
            case events.STEP:
                step = from_json(events.Step, entry)
                begun = {_number(one.number): one.task for one in step.tasks}
                for task in begun.values():
                    _check(finish(task, Status.CRASHED))
                self.under_way = begun
            case events.MEASUREMENT:
                outcome = from_json(events.Outcome, entry)
                _check(outcome.measurement)
                self.found[_number(outcome.number)] = outcome.measurement
                self.under_way.pop(outcome.number, None)
            case events.KERNEL:
                self.kernel += from_json(events.Logged, entry).events
            case events.NOTE:
                self.notes.append(from_json(events.Text, entry).text)
            case events.PROBLEM:
                self.problems.append(from_json(events.Text, entry).text)
            case events.FULL:
                self.notes.append("the journal was full here")
            case events.END:
                self.exit_code, self.under_way = from_json(events.End, entry).exit_code, {}
            case events.MENTIONED:
                self.mentioned = True
        if max(len(self.kernel), len(self.notes), len(self.problems)) > ITEMS_LIMIT:
            raise DecodeError(f"more than {ITEMS_LIMIT} lines of one kind")


def _check(measurement: Measurement) -> None:
    if fault := measurement_fault(measurement):
        raise DecodeError(fault)


def _number(number: int) -> int:
    if not 0 <= number < ITEMS_LIMIT:
        raise DecodeError(f"number: expected one below {ITEMS_LIMIT}, found {number}")
    return number


def _put_together(skeleton: RunReport, entries: Iterator[dict[str, Any]]) -> Kept:
    run = _Run(notes=list(skeleton.notes), problems=list(skeleton.problems))
    try:
        for entry in entries:
            run.take(entry)
    except DecodeError:
        # What is damaged, and all after it, is passed over.
        run.problems.append("the rest of the journal cannot be read")
    crashed = {
        number: finish(task, Status.CRASHED, reason="the command ended while this was measured")
        for number, task in run.under_way.items()
    }
    kept = Kept(
        report=skeleton, exit_code=run.exit_code, under_way=tuple(run.under_way.values()), mentioned=run.mentioned
    )
    if run.exit_code is None:
        run.problems.append(f"read from a journal: the run {kept.ending}")
    found = crashed | run.found
    report = replace(
        skeleton,
        notes=tuple(run.notes),
        problems=tuple(run.problems),
        measurements=tuple(found[number] for number in sorted(found)),
    )
    if (messages := skeleton.kernel_messages) is not None and run.kernel:
        ended_s = max(messages.ended_s, run.kernel[-1].time_s)
        report = replace(report, kernel_messages=replace(messages, events=tuple(run.kernel), ended_s=ended_s))
    return replace(kept, report=report)


def earlier(folder: Path | None = None) -> list[Path]:
    """Return the journals of runs that are over, the oldest first."""
    return [path for path in journals(folder or journal_folder()) if not at_work(path)]
