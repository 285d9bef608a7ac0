"""Read a journal: its report so far, and where the run ended. A journal that is cut at any byte is read up to there."""

from __future__ import annotations

import contextlib
import io
from collections.abc import Callable, Iterator
from dataclasses import field, replace
from typing import Any

from egmctl.dataclass import dataclass
from egmctl.errors import UsageError
from egmctl.journal import events
from egmctl.model.answer import State, of_exit_code
from egmctl.model.codec import ITEMS_LIMIT, DecodeError, from_json
from egmctl.model.kernel_log import KernelEvent
from egmctl.model.measurement import Measurement, MeasurementStatus, RunReport, finish, measurement_fault
from egmctl.model.nccl import NcclRun
from egmctl.model.task import Task
from egmctl.units import printable, several, shortened

_MOST_BYTES = events.FILE_LIMIT + (1 << 20)
_MOST_ELEMENTS = 4_000_000
"""The maximum number of objects, lists and their members. A journal has one per about 15 bytes; in a file of the
smallest ones they need 30 times the file's size in Python's memory."""

_MARK = f'"schema":"{events.JOURNAL_SCHEMA.partition("/")[0]}/'.encode()


Decode = Callable[[Any, str], RunReport]
"""A function that decodes a report from JSON data and the document's name for messages. It raises UsageError."""


@dataclass(frozen=True, slots=True)
class JournalContent:
    """The content of a journal."""

    report: RunReport
    """The report of the run up to the journal's end. Tasks in progress are ``crashed``."""
    exit_code: int | None
    """The run's exit code; ``None`` if it did not end, or if that is unknown."""
    state: State
    """What the run answered: it broke if it did not end."""
    under_way: tuple[Task, ...]
    """The tasks in progress at the journal's end; empty if the run ended, or was between two steps."""
    ending: str
    """A phrase that says how the run ended."""
    missing: str | None
    """A sentence on missing measurements; ``None`` if none are missing."""
    damage: str | None
    """A phrase with the number of damaged or missing lines, and of those of other runs; ``None`` if there are none."""


def is_journal(content: bytes) -> bool:
    """Return whether a file is a journal of any version: no other document contains this text."""
    return _MARK in content


_EARLIER = ("egmctl.bench/2",)
"""Earlier schemas of a bench, of which a journal has only what is the same in this version."""


def read_journal(content: bytes, source: str, decode: Decode) -> JournalContent:
    """Return the content of a journal. A damaged line does not affect other lines.

    Parameters
    ----------
    source
        The journal's name in messages.
    decode
        The decoder of reports (:func:`egmctl.saved.load_journal`).

    Raises
    ------
    UsageError
        Both lines that describe the plan are damaged or their content is invalid, the journal is of another version, or
        it is larger than any journal.
    """
    if len(content) > _MOST_BYTES:
        raise UsageError(f"{source} is larger than any journal of egmctl")
    if sum(map(content.count, (b",", b"[", b"{", b"\n"))) > _MOST_ELEMENTS:
        raise UsageError(f"{source} has more values or lines than any journal of egmctl")
    run = _Run()
    for entry in _entries(content, run, _run_of(content)):
        run.take(entry)
    if run.begin is None:
        raise UsageError(f"{source}: the lines that say what was to be measured are damaged: nothing can be shown")
    known = [(events.JOURNAL_SCHEMA, bench) for bench in (RunReport.SCHEMA, *_EARLIER)]
    if (run.begin.get("schema"), run.begin.get("bench")) not in known:
        raise UsageError(f"{source} is of another version of egmctl: {printable(str(run.begin.get('egmctl'))[:40])}")
    skeleton = decode(run.begin.get("result"), source)
    if skeleton.measurements or skeleton.verdict is not None or skeleton.causes:
        raise UsageError(f"{source} is not valid: it begins with results")
    return _put_together(skeleton, run)


def _run_of(content: bytes) -> str:
    """Return the id of the run whose plan the journal has; empty if its lines have no id."""
    for line in io.BytesIO(content):
        entry = events.entry(line)
        if entry is not None and entry.get("event") == events.BEGIN:
            return _id(entry)
    return ""


def _id(entry: dict[str, Any]) -> str:
    return str(entry.get("run", ""))


def _entries(content: bytes, run: _Run, own: str) -> Iterator[dict[str, Any]]:
    """Yield the contents of intact lines in order; count the damaged lines after the last intact one in ``run``.

    Parameters
    ----------
    own
        The id of the run: lines with another id are counted only.
    """
    number = -1
    for line in io.BytesIO(content):
        entry = events.entry(line)
        if entry is not None and _id(entry) != own:
            run.strange += 1
        elif entry is not None and number < entry["line"] < events.FILE_LIMIT:
            number, run.damaged_at_end = entry["line"], 0
            run.lines = number + 1
            yield entry
        elif line.endswith(b"\n"):
            run.damaged_at_end += 1


@dataclass(slots=True)
class _Run:
    """The state that the lines of a journal add up to."""

    state: events.RunState | None = None
    begin: dict[str, Any] | None = None
    outcomes: dict[int, Measurement] = field(default_factory=dict)
    under_way: dict[int, Task] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)
    kernel: list[KernelEvent] = field(default_factory=list)
    nccl: NcclRun | None = None
    taken: set[int] = field(default_factory=set)
    """The numbers of the lines that are intact and valid."""
    lines: int = 0
    """The number of lines up to the last intact one."""
    damaged_at_end: int = 0
    strange: int = 0
    """The number of intact lines of other runs."""

    def take(self, entry: dict[str, Any]) -> None:
        """Apply a line. A line is ignored if the rules for documents make it invalid."""
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
        record = events.RunState if event == events.STATE else events.RECORDS.get(event)
        if record is None:
            raise DecodeError("there is no such event")
        match from_json(record, entry):
            case events.RunState() as state:
                self.state = state
            case events.StepBegun(tasks=tasks):
                for numbered in tasks:
                    _check(numbered.number, finish(numbered.task, MeasurementStatus.CRASHED))
                self.under_way = {numbered.number: numbered.task for numbered in tasks}
            case events.TaskOutcome(number=number, measurement=measurement):
                _check(number, measurement)
                self.outcomes[number] = measurement
                self.under_way.pop(number, None)
            case events.Logged(events=logged):
                self.kernel += logged
            case events.Note(text=text):
                self.notes.append(text)
            case events.Problem(text=text):
                self.problems.append(text)
            case events.NcclOutcome(nccl=nccl):
                self.nccl = nccl

    @property
    def damaged(self) -> int:
        """The number of damaged or missing lines whose content is in no other line."""
        lines = self.lines + self.damaged_at_end
        if self.state is not None and self.state.lines is not None:
            lines = self.state.lines
        return max(0, lines - len(self.taken) - (not self.taken.issuperset(events.BEGIN_LINES)))


def _check(number: int, measurement: Measurement) -> None:
    if not 0 <= number < ITEMS_LIMIT:
        raise DecodeError(f"number: expected a number below {ITEMS_LIMIT}, not {number}")
    if fault := measurement_fault(measurement):
        raise DecodeError(fault)


def _put_together(skeleton: RunReport, run: _Run) -> JournalContent:
    state = run.state or events.RunState()
    notes, problems = [*skeleton.notes, *run.notes], [*skeleton.problems, *run.problems]
    cut = None
    damages = []
    if run.damaged:
        held = "it held" if run.damaged == 1 else "they held"
        damages.append(f"{several(run.damaged, 'line')} damaged: what {held} is missing")
    if run.strange:
        damages.append(f"{several(run.strange, 'line')} of another run: lines of this run may be missing")
    problems += [f"read from a journal: {damage}" for damage in damages]
    damage = "; ".join(damages) or None
    # Whether tasks were in progress is known only if the journal reaches the end of the run.
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
    crashed = {number: finish(task, MeasurementStatus.CRASHED, reason=reason) for number, task in under_way.items()}
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
        nccl=run.nccl,
    )
    missing = "; ".join(filter(None, (cut, damage))) or None
    answered = of_exit_code(state.exit_code) if state.answer is None else state.answer
    return JournalContent(report, state.exit_code, answered, tuple(under_way.values()), ending, missing, damage)
