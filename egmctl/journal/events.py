"""The events of a run and their journal lines: JSON with a line number and a checksum.

The first line is the run's state. It has a fixed length and is overwritten in place, so that the end of a run can be
recorded on a full disk. All other lines are appended.
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
"""The values of ``event`` that are not in :data:`RECORDS`."""

STATE_BYTES = 512
"""The length of the first line, padded with spaces."""

BEGIN_LINES = (1, 2)
"""The numbers of the two lines that describe the plan. Both have the same content: without it nothing can be shown."""

_CHECKSUM = b',"crc32":"%08x"}'


@dataclass(frozen=True, slots=True, kw_only=True)
class State:
    """The state of a run: the other keys of the line whose ``event`` is ``state``."""

    exit_code: int | None = None
    """The run's exit code; ``None`` if it has not ended."""
    lines: int | None = None
    """The number of lines of the journal, including this one; ``None`` while lines may be added."""
    cut: str | None = None
    """The reason why later lines of the run are missing, such as a full disk."""
    mentioned: bool = False
    """Whether a later command has reported that this run did not end."""


def line(number: int, event: str, content: Mapping[str, Any]) -> bytes:
    """Return a line of a journal. Its checksum covers everything before the checksum."""
    text = json.dumps({"line": number, "event": event, **content}, allow_nan=False, separators=(",", ":"))
    body = text[:-1].encode()
    return body + _CHECKSUM % zlib.crc32(body) + b"\n"


def state_line(state: State) -> bytes:
    """Return the first line of a journal."""
    return line(0, STATE, to_json(state)).rstrip(b"\n").ljust(STATE_BYTES - 1) + b"\n"


def entry(line: bytes) -> dict[str, Any] | None:
    """Return the content of a line; ``None`` if it is damaged or incomplete."""
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
    """Return the state from the first line of a journal; ``None`` if the line is damaged."""
    content = entry(first_line) or {}
    try:
        return from_json(State, content) if (content.get("line"), content.get("event")) == (0, STATE) else None
    except DecodeError:
        return None


def _refuse(word: str) -> None:
    raise ValueError(f"JSON has no number for {word}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Begin:
    """The run begins."""

    report: RunReport
    """A report without measurements."""
    steps: int


@dataclass(frozen=True, slots=True, kw_only=True)
class StepBegun:
    """A step begins. A recorder returns only when this event and all earlier ones are on disk."""

    tasks: tuple[NumberedTask, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """The outcome of a task, which replaces an earlier one with the same number."""

    number: int
    measurement: Measurement


@dataclass(frozen=True, slots=True, kw_only=True)
class Logged:
    """New messages of the kernel log. A recorder returns only when they are on disk."""

    events: tuple[KernelEvent, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Note:
    """A new note of the run."""

    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem:
    """A problem outside of the measurements."""

    text: str


Event = Begin | StepBegun | Outcome | Logged | Note | Problem
Recorder = Callable[[Event], None]
"""A function that is called with the events of a run in order, :class:`Begin` first."""

RECORDS: Mapping[str, type[StepBegun | Outcome | Logged | Note | Problem]] = {
    "step": StepBegun,
    "measurement": Outcome,
    "kernel": Logged,
    "note": Note,
    "problem": Problem,
}
"""The record that the other keys of a line form, by the line's ``event``."""


def forget(_event: Event) -> None:
    """Discard an event: the recorder of a run without a journal."""


ENGINE_WORDS = {"ce": "copy engine", "sm-write": "SM write", "sm-read": "SM read"}


def what(task: Task) -> str:
    """Return a task's path, engine and name: ``GPU2 -> GPU3 by SM write (device_to_device_memcpy_write_sm)``."""
    engine = ENGINE_WORDS.get(task.engine.value, task.engine.value)
    return f"{task.path} by {engine} ({task.name})"
