"""What the command and its worker say to each other: one order, then one event for every step."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from egmctl.model.machine import BusId
from egmctl.model.measurement import Settings, Task


class Event(StrEnum):
    """The worker's messages, under the key ``event``."""

    READY = "ready"
    """All GPUs are set up; ``note`` is what a reader of every number has to know, or null."""
    STARTED = "started"
    """``task`` is the number of the one under way."""
    MEASURED = "measured"
    """``task`` is over; ``measurement`` is its outcome."""
    BROKEN = "broken"
    """A context is beyond use after an error: the rest needs a new process."""
    DONE = "done"
    """All tasks are over and everything is released."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OrderedTask:
    """A task and its number in the plan."""

    number: int
    task: Task


@dataclass(frozen=True, slots=True, kw_only=True)
class Order:
    """What a worker is to do."""

    settings: Settings
    gpus: tuple[BusId, ...]
    """All that take part in some task."""
    tasks: tuple[OrderedTask, ...]
