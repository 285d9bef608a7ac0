"""Reads a journal: the report that there is so far, and where it ended. Cut at any byte it is read up to there."""

from __future__ import annotations

import io
import json
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from egmctl.errors import UsageError
from egmctl.files import read_bounded
from egmctl.journal import events
from egmctl.journal.write import FILE_LIMIT, at_work, journal_folder, journals
from egmctl.model.codec import DecodeError, from_json
from egmctl.model.kernel_log import KernelEvent
from egmctl.model.measurement import BENCH_SCHEMA, Measurement, RunReport, Status, Task, finish
from egmctl.units import printable

_MOST_BYTES = FILE_LIMIT + (1 << 20)
_MOST_ELEMENTS = 4_000_000
"""Objects, lists and their members in the largest journal that is read. Ours have one in some 15 bytes; of the smallest
ones Python makes 30 times the file's size in memory."""

_BEGINNING = f'{{"event":"{events.BEGIN}","schema":"{events.JOURNAL_SCHEMA.partition("/")[0]}/'.encode()


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


def read_file(path: Path) -> Kept:
    """Return what a journal file holds.

    Raises
    ------
    UsageError
        If it cannot be read, or as :func:`read`.
    """
    try:
        content = read_bounded(path, _MOST_BYTES)
    except OSError as error:
        raise UsageError(f"journal {printable(str(path))} cannot be read: {error.strerror}") from error
    return read(content, f"journal {path}")


def read(content: bytes, source: str) -> Kept:
    """Return what a journal holds.

    Parameters
    ----------
    source
        How to call it in a sentence.

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
    if (first.get("schema"), first.get("bench")) != (events.JOURNAL_SCHEMA, BENCH_SCHEMA):
        raise UsageError(f"{source} is of another version of egmctl: {printable(str(first.get('egmctl'))[:40])}")
    try:
        skeleton = from_json(RunReport, first.get("result"), "result")
    except DecodeError as error:
        raise UsageError(f"{source} is not valid: {printable(str(error)[:200])}") from error
    return _put_together(skeleton, entries)


def _entries(content: bytes) -> Iterator[dict[str, Any]]:
    """Yield the events up to the first line that is none; a line that was cut has no end."""
    for line in io.BytesIO(content):
        if line == b"\n" or not line.endswith(b"\n"):
            continue
        try:
            entry = json.loads(line)
        except (ValueError, RecursionError):
            # A line that was cut when the run died, before the one that tells that somebody heard of it.
            continue
        if isinstance(entry, dict):
            yield entry


def _put_together(skeleton: RunReport, entries: Iterator[dict[str, Any]]) -> Kept:
    found: dict[int, Measurement] = {}
    under_way: dict[int, Task] = {}
    notes, problems = list(skeleton.notes), list(skeleton.problems)
    kernel: list[KernelEvent] = []
    exit_code: int | None = None
    mentioned = False
    try:
        for entry in entries:
            match entry:
                case {"event": events.STEP, "tasks": list(tasks)}:
                    under_way = {int(one["number"]): from_json(Task, one["task"]) for one in tasks}
                case {"event": events.MEASUREMENT, "number": int(number), "measurement": measurement}:
                    found[number] = from_json(Measurement, measurement)
                    under_way.pop(number, None)
                case {"event": events.KERNEL, "events": list(logged)}:
                    kernel += [from_json(KernelEvent, one) for one in logged]
                case {"event": events.NOTE, "text": str(text)}:
                    notes.append(text)
                case {"event": events.PROBLEM, "text": str(text)}:
                    problems.append(text)
                case {"event": events.FULL}:
                    notes.append("the journal was full here")
                case {"event": events.END, "exit_code": int(code)}:
                    exit_code, under_way = code, {}
                case {"event": events.MENTIONED}:
                    mentioned = True
    except (DecodeError, KeyError, OverflowError, TypeError, ValueError):
        # What is damaged, and all after it, is passed over.
        problems.append("the rest of the journal cannot be read")
    kept = Kept(report=skeleton, exit_code=exit_code, under_way=tuple(under_way.values()), mentioned=mentioned)
    if exit_code is None:
        problems.append(f"read from a journal: the run {kept.ending}")
        for number, task in under_way.items():
            reason = "the command ended while this was measured"
            found.setdefault(number, finish(task, Status.CRASHED, reason=reason))
    measurements = tuple(found[number] for number in sorted(found))
    report = replace(skeleton, notes=tuple(notes), problems=tuple(problems), measurements=measurements)
    if (messages := skeleton.kernel_messages) is not None and kernel:
        ended_s = max(messages.ended_s, kernel[-1].time_s)
        report = replace(report, kernel_messages=replace(messages, events=tuple(kernel), ended_s=ended_s))
    return replace(kept, report=report)


def earlier(folder: Path | None = None) -> list[Path]:
    """Return the journals of runs that are over, the oldest first."""
    return [path for path in journals(folder or journal_folder()) if not at_work(path)]
