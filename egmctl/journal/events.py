"""What a journal is made of: a line of JSON for each event, and who is told of them."""

from __future__ import annotations

from collections.abc import Sequence
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
