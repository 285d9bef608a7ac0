"""What a journal is made of: a line of JSON for each event, and who is told of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from egmctl.model.kernel_log import KernelEvent
from egmctl.model.measurement import Measurement, RunReport, Task

JOURNAL_SCHEMA = "egmctl.journal/1"
SUFFIX = ".journal"

BEGIN, STEP, MEASUREMENT, KERNEL, NOTE, PROBLEM, FULL, END, MENTIONED = (
    "begin",
    "step",
    "measurement",
    "kernel",
    "note",
    "problem",
    "full",
    "end",
    "mentioned",
)
"""The values of ``event``. ``mentioned`` is written by a later command that has told of a run which did not end."""


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


@dataclass(frozen=True, slots=True, kw_only=True)
class End:
    """Of ``end``."""

    exit_code: int


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
    return f"{task.path} by {engine} ({task.case})"
