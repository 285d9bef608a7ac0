"""What a journal is made of: a line of JSON for each event, with its number and checksum, and who is told of them.

The first line is the run's state. It has a fixed length and is written again in its place, so that the end of a run can
be stated on a disk that is full. The others are only ever appended.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from egmctl.model.codec import DecodeError, from_json, to_json
from egmctl.model.kernel_log import KernelEvent
from egmctl.model.measurement import Measurement, RunReport, Task

JOURNAL_SCHEMA = "egmctl.journal/1"
SUFFIX = ".journal"

STATE, BEGIN, STEP, MEASUREMENT, KERNEL, NOTE, PROBLEM = (
    "state",
    "begin",
    "step",
    "measurement",
    "kernel",
    "note",
    "problem",
)
"""The values of ``event``."""

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


def state_of(first_line: bytes) -> State | None:
    """Return what the first line of a journal says; ``None`` where it is damaged."""
    content = entry(first_line) or {}
    try:
        return from_json(State, content) if (content.get("line"), content.get("event")) == (0, STATE) else None
    except DecodeError:
        return None


def _refuse(word: str) -> None:
    raise ValueError(f"JSON has no number for {word}")


@dataclass(frozen=True, slots=True, kw_only=True)
class NumberedTask:
    """A task, and its place in the plan."""

    number: int
    task: Task


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """The other keys of a line whose ``event`` is ``step``; the classes below are those of the other events."""

    tasks: tuple[NumberedTask, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """Of ``measurement``."""

    number: int
    measurement: Measurement


@dataclass(frozen=True, slots=True, kw_only=True)
class Logged:
    """Of ``kernel``."""

    events: tuple[KernelEvent, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Text:
    """Of ``note`` and ``problem``."""

    text: str


class Recorder(Protocol):
    """Who is told of what a run does, in this order."""

    def begin(self, report: RunReport, steps: int) -> None:
        """Take what is known before the first step: a report without measurements."""

    def step(self, tasks: Sequence[tuple[int, Task]]) -> None:
        """A step begins; all that was told before is on disk when this returns."""

    def measurement(self, number: int, measurement: Measurement) -> None:
        """A task has an outcome, in place of an earlier one with the same number."""

    def kernel(self, logged: Sequence[KernelEvent]) -> None:
        """The kernel has logged this since it was asked last; it is on disk when this returns."""

    def note(self, text: str) -> None:
        """The run has a note more."""

    def problem(self, text: str) -> None:
        """Something went wrong outside of any measurement."""


class NoRecorder:
    """Keeps nothing."""

    def begin(self, report: RunReport, steps: int) -> None:
        """Forget it."""

    def step(self, tasks: Sequence[tuple[int, Task]]) -> None:
        """Forget it."""

    def measurement(self, number: int, measurement: Measurement) -> None:
        """Forget it."""

    def kernel(self, logged: Sequence[KernelEvent]) -> None:
        """Forget it."""

    def note(self, text: str) -> None:
        """Forget it."""

    def problem(self, text: str) -> None:
        """Forget it."""


ENGINE_WORDS = {"ce": "copy engine", "sm-write": "SM write", "sm-read": "SM read"}


def what(task: Task) -> str:
    """Return what a task measures, for people: ``GPU2 -> GPU3 by SM write (device_to_device_memcpy_write_sm)``."""
    engine = ENGINE_WORDS.get(task.engine.value, task.engine.value)
    return f"{task.path} by {engine} ({task.name})"
