"""The events of a run, and the lines of JSON that a journal keeps of them, each with its number and checksum.

The first line is the run's state. It has a fixed length and is written again in its place, so that the end of a run can
be stated on a disk that is full. The others are only ever appended.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from egmctl.model.codec import DecodeError, from_json, to_json
from egmctl.model.kernel_log import KernelEvent
from egmctl.model.measurement import Measurement, RunReport
from egmctl.model.task import NumberedTask, Task

JOURNAL_SCHEMA = "egmctl.journal/1"
SUFFIX = ".journal"

STATE, BEGIN = "state", "begin"
"""The values of ``event`` whose lines are no record of :data:`RECORDS`."""

STATE_BYTES = 512
"""Length of the first line, with spaces before its end."""

BEGIN_LINES = (1, 2)
"""Numbers of the lines that say what is to be measured: there are two of them, as without it nothing can be shown."""

_CHECKSUM = b',"crc32":"%08x"}'


@dataclass(frozen=True, slots=True, kw_only=True)
class State:
    """How far a run is: the other keys of the line whose ``event`` is ``state``."""

    exit_code: int | None = None
    """What it ended with; ``None`` where it did not end."""
    lines: int | None = None
    """How many lines the journal has, this one too; ``None`` while more may come."""
    cut: str | None = None
    """Why there are no lines of what the run did later, such as a full disk."""
    mentioned: bool = False
    """Whether a later command has told of a run that did not end."""


def line(number: int, event: str, content: Mapping[str, Any]) -> bytes:
    """Return a line of a journal. Its checksum is that of all that stands before it."""
    text = json.dumps({"line": number, "event": event, **content}, allow_nan=False, separators=(",", ":"))
    body = text[:-1].encode()
    return body + _CHECKSUM % zlib.crc32(body) + b"\n"


def state_line(state: State) -> bytes:
    """Return the first line of a journal."""
    return line(0, STATE, to_json(state)).rstrip(b"\n").ljust(STATE_BYTES - 1) + b"\n"


def entry(line: bytes) -> dict[str, Any] | None:
    """Return what a line holds; ``None`` where it is damaged, or has no end."""
    place = line.rfind(b',"crc32":')
    body = line[:place]
    if place < 0 or not line.endswith(b"\n") or line[place:].rstrip(b" \n") != _CHECKSUM % zlib.crc32(body):
        return None
    try:
        content = json.loads(body + b"}", parse_constant=_refuse)
    except (ValueError, RecursionError):
        return None
    return content if isinstance(content, dict) and type(content.get("line")) is int else None


def read_state(first_line: bytes) -> State | None:
    """Return the state in the first line of a journal; ``None`` where it is damaged."""
    content = entry(first_line) or {}
    try:
        return from_json(State, content) if (content.get("line"), content.get("event")) == (0, STATE) else None
    except DecodeError:
        return None


def _refuse(word: str) -> None:
    raise ValueError(f"JSON has no number for {word}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Begin:
    """The run begins: what is known before its first step."""

    report: RunReport
    """A report without measurements."""
    steps: int


@dataclass(frozen=True, slots=True, kw_only=True)
class StepBegun:
    """A step begins; a recorder has all events before it on disk when it returns."""

    tasks: tuple[NumberedTask, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """A task has an outcome, in place of an earlier one with the same number."""

    number: int
    measurement: Measurement


@dataclass(frozen=True, slots=True, kw_only=True)
class Logged:
    """The kernel has logged this since it was asked last; a recorder has it on disk when it returns."""

    events: tuple[KernelEvent, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Note:
    """The run has one more note."""

    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem:
    """Something went wrong outside of any measurement."""

    text: str


Event = Begin | StepBegun | Outcome | Logged | Note | Problem
Recorder = Callable[[Event], None]
"""Takes the events of a run in their order, :class:`Begin` first."""

RECORDS: Mapping[str, type[StepBegun | Outcome | Logged | Note | Problem]] = {
    "step": StepBegun,
    "measurement": Outcome,
    "kernel": Logged,
    "note": Note,
    "problem": Problem,
}
"""The values of ``event``, and the record that the other keys of such a line are."""


def forget(_event: Event) -> None:
    """Keep nothing: the recorder of a run that nobody follows."""


ENGINE_WORDS = {"ce": "copy engine", "sm-write": "SM write", "sm-read": "SM read"}


def what(task: Task) -> str:
    """Return what a task measures, for people: ``GPU2 -> GPU3 by SM write (device_to_device_memcpy_write_sm)``."""
    engine = ENGINE_WORDS.get(task.engine.value, task.engine.value)
    return f"{task.path} by {engine} ({task.name})"
