"""Reads a journal: the report that there is so far, and where it ended. Cut at any byte it is read up to there."""

from __future__ import annotations

import contextlib
import io
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from egmctl.errors import UsageError
from egmctl.files import open_regular
from egmctl.journal import events
from egmctl.journal.write import FILE_LIMIT, at_work, journal_folder, journals
from egmctl.model.codec import ITEMS_LIMIT, DecodeError, from_json
from egmctl.model.kernel_log import KernelEvent
from egmctl.model.measurement import Measurement, RunReport, Status, finish, measurement_fault
from egmctl.model.task import Task
from egmctl.units import printable, several, shortened

_MOST_BYTES = FILE_LIMIT + (1 << 20)
_MOST_ELEMENTS = 4_000_000
"""Lines, objects, lists and their members in the largest journal that is read. Ours have one in some 15 bytes; of the
smallest ones Python makes 30 times the file's size in memory."""

_MARK = f'"schema":"{events.JOURNAL_SCHEMA.partition("/")[0]}/'.encode()


Decode = Callable[[Any, str], RunReport]
"""Makes the report of what a document has for it, and of how to call the document in a sentence; raises UsageError."""


@dataclass(frozen=True, slots=True)
class Kept:
    """The content of a journal."""

    report: RunReport
    """What the run would have given, had it ended there: what was under way is ``crashed``."""
    exit_code: int | None
    """What it ended with; ``None`` where it did not end, or that is unknown."""
    under_way: tuple[Task, ...]
    """What was being measured at the journal's end; empty where it ended, or between two steps."""
    ending: str
    """How it ended, in a few words."""
    missing: str | None
    """A sentence about measurements that are not in it; ``None`` where none is missing."""
    damage: str | None
    """How many lines are damaged or missing; ``None``: no line that held anything."""


def is_journal(content: bytes) -> bool:
    """Say whether a file's content is a journal's, of any version: the text of no other document has this in it."""
    return _MARK in content


def ended(path: Path) -> bool:
    """Say whether a journal's run came to its end: its first line alone is read."""
    state = _state(path)
    return state is not None and state.exit_code is not None


def is_unmentioned(path: Path) -> bool:
    """Say whether a run did not come to its end, and nobody was told of it: the journal's first line alone is read."""
    state = _state(path)
    return state is not None and state.exit_code is None and not state.mentioned


def _state(path: Path) -> events.State | None:
    try:
        with open(open_regular(path), "rb") as file:
            return events.read_state(file.read(events.STATE_BYTES))
    except OSError:
        return None


def read(content: bytes, source: str, decode: Decode) -> Kept:
    """Return what a journal holds. A line that is damaged costs what it held, and no other.

    Parameters
    ----------
    source
        How to call it in a sentence.
    decode
        What reads the report of any document (:func:`egmctl.saved.load_journal`).

    Raises
    ------
    UsageError
        If neither line that says what was to be measured is whole, if it is of another version, or if it is larger than
        any journal.
    """
    if len(content) > _MOST_BYTES or sum(map(content.count, (b",", b"[", b"{", b"\n"))) > _MOST_ELEMENTS:
        raise UsageError(f"{source} is larger than any journal of egmctl")
    run = _Run()
    for entry in _entries(content, run):
        run.take(entry)
    if run.begin is None:
        raise UsageError(f"{source}: the lines that say what was to be measured are damaged: nothing can be shown")
    if (run.begin.get("schema"), run.begin.get("bench")) != (events.JOURNAL_SCHEMA, RunReport.SCHEMA):
        raise UsageError(f"{source} is of another version of egmctl: {printable(str(run.begin.get('egmctl'))[:40])}")
    skeleton = decode(run.begin.get("result"), source)
    if skeleton.measurements or skeleton.verdict is not None or skeleton.causes:
        raise UsageError(f"{source} is not valid: it begins with results")
    return _put_together(skeleton, run)


def _entries(content: bytes, run: _Run) -> Iterator[dict[str, Any]]:
    """Yield what the whole lines hold in their order, and count those that are damaged after the last of them."""
    number = -1
    for line in io.BytesIO(content):
        entry = events.entry(line)
        if entry is not None and number < entry["line"] < FILE_LIMIT:
            number, run.damaged_at_end = entry["line"], 0
            run.lines = number + 1
            yield entry
        elif line.endswith(b"\n"):
            run.damaged_at_end += 1


@dataclass(slots=True)
class _Run:
    """The sum of a journal's lines so far."""

    state: events.State | None = None
    begin: dict[str, Any] | None = None
    outcomes: dict[int, Measurement] = field(default_factory=dict)
    under_way: dict[int, Task] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)
    kernel: list[KernelEvent] = field(default_factory=list)
    taken: set[int] = field(default_factory=set)
    """Numbers of the lines that are whole and fit."""
    lines: int = 0
    """How many there are up to the last whole one."""
    damaged_at_end: int = 0

    def take(self, entry: dict[str, Any]) -> None:
        """Take a line, unless it does not fit: by the same rules as a document that has the same in it."""
        with contextlib.suppress(DecodeError):
            self._take(entry)
            self.taken.add(entry["line"])

    def _take(self, entry: dict[str, Any]) -> None:
        if max(len(self.kernel), len(self.notes), len(self.problems)) >= ITEMS_LIMIT:
            raise DecodeError(f"more than {ITEMS_LIMIT} lines of one kind")
        event = str(entry.get("event"))
        if event == events.BEGIN:
            self.begin = self.begin or entry
            return
        record = events.State if event == events.STATE else events.RECORDS.get(event)
        if record is None:
            raise DecodeError("there is no such event")
        match from_json(record, entry):
            case events.State() as state:
                self.state = state
            case events.StepBegun(tasks=tasks):
                for numbered in tasks:
                    _check(numbered.number, finish(numbered.task, Status.CRASHED))
                self.under_way = {numbered.number: numbered.task for numbered in tasks}
            case events.Outcome(number=number, measurement=measurement):
                _check(number, measurement)
                self.outcomes[number] = measurement
                self.under_way.pop(number, None)
            case events.Logged(events=logged):
                self.kernel += logged
            case events.Note(text=text):
                self.notes.append(text)
            case events.Problem(text=text):
                self.problems.append(text)

    @property
    def damaged(self) -> int:
        """How many lines are damaged or missing that held something which no other line holds."""
        lines = self.lines + self.damaged_at_end
        if self.state is not None and self.state.lines is not None:
            lines = self.state.lines
        return max(0, lines - len(self.taken) - (not self.taken.issuperset(events.BEGIN_LINES)))


def _check(number: int, measurement: Measurement) -> None:
    if not 0 <= number < ITEMS_LIMIT:
        raise DecodeError(f"number: expected a number below {ITEMS_LIMIT}, not {number}")
    if fault := measurement_fault(measurement):
        raise DecodeError(fault)


def _put_together(skeleton: RunReport, run: _Run) -> Kept:
    state = run.state or events.State()
    notes, problems = [*skeleton.notes, *run.notes], [*skeleton.problems, *run.problems]
    cut = damage = None
    if run.damaged:
        held = "it held" if run.damaged == 1 else "they held"
        damage = f"{several(run.damaged, 'line')} damaged: what {held} is missing"
        problems.append(f"read from a journal: {damage}")
    # What the run did after the journal's end is unknown, unless it is the run's end too.
    under_way: dict[int, Task] = {}
    if state.exit_code is not None:
        ending = f"exit code {state.exit_code}"
    elif run.state is None:
        ending = "ended in an unknown way: the journal's first line is damaged"
    elif state.cut is None:
        under_way = run.under_way
        tasks = [*map(events.what, under_way.values())]
        ending = f"ended while measuring {shortened(tasks, 1, 'at once')}" if tasks else "ended between two steps"
    else:
        ending = "ended at an unknown place"
    if state.cut is not None:
        cut = f"the journal was cut off ({printable(state.cut)}): what was measured afterwards is unknown"
        notes.append(cut)
    if state.exit_code is None:
        problems.append(f"read from a journal: the run {ending}")
    reason = "the command ended while this was measured"
    crashed = {number: finish(task, Status.CRASHED, reason=reason) for number, task in under_way.items()}
    messages = skeleton.kernel_messages
    if messages is not None and run.kernel:
        ended_s = max(messages.ended_s, run.kernel[-1].time_s)
        messages = replace(messages, events=tuple(run.kernel), ended_s=ended_s)
    report = replace(
        skeleton,
        notes=tuple(notes),
        problems=tuple(problems),
        measurements=tuple(measurement for _, measurement in sorted((crashed | run.outcomes).items())),
        kernel_messages=messages,
    )
    missing = "; ".join(filter(None, (cut, damage))) or None
    return Kept(report, state.exit_code, tuple(under_way.values()), ending, missing, damage)


def earlier(folder: Path | None = None) -> list[Path]:
    """Return the journals of runs that are over, the oldest first."""
    return [path for path in journals(folder or journal_folder()) if not at_work(path)]
