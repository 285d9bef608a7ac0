"""What a long command shows while it works: what it is doing, and of a bench the table of path classes as it fills.

All of it goes to standard error: to a terminal a bar and the table, to a log a line at times. The table is drawn at
most once a second and where a step ends, so that it takes no CPU from what is being measured.
"""

from __future__ import annotations

import contextlib
import shutil
import time
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Protocol

from egmctl.cli.output import logs_progress, say, shows_progress

if TYPE_CHECKING:
    from rich.text import Text

    from egmctl.journal.events import Recorder
    from egmctl.model.kernel_log import KernelEvent
    from egmctl.model.machine import Machine, Probe
    from egmctl.model.measurement import Measurement, RunReport, Task

LINE_EVERY_S = 10.0
"""Seconds between two lines of a log: a run that is shorter writes none."""
TABLE_EVERY_S = 1.0
_BESIDE = 4
"""Lines of a terminal that the table leaves free."""


class Shown(Protocol):
    """Shows how far a command is; what it is told of measurements, it may show too."""

    def doing(self, part: float, what: str) -> None:
        """Show that a part of what is under way is over, and what is done now."""

    def __call__(self, part: float, task: Task | None) -> None:
        """Show that a part of the run is over and that a task is being measured."""

    def measured(self, number: int, measurement: Measurement) -> None:
        """Take the outcome of a task."""


class _Nothing:
    def doing(self, part: float, what: str) -> None:
        """Show nothing."""

    def __call__(self, part: float, task: Task | None) -> None:
        """Show nothing."""

    def measured(self, number: int, measurement: Measurement) -> None:
        """Show nothing."""


class Lines:
    """A line every :data:`LINE_EVERY_S` seconds."""

    def __init__(self) -> None:
        self._begun = self._last = time.monotonic()
        self._found: dict[int, Measurement] = {}

    def doing(self, part: float, what: str) -> None:
        """Say what is done now, if the last line is long enough ago."""
        now = time.monotonic()
        if now < self._last + LINE_EVERY_S:
            return
        self._last = now
        measured = f", {len(self._found)} measured" if self._found else ""
        say(f"{100 * part:.0f} %, {now - self._begun:.0f} s{measured}; now {what}")

    def __call__(self, part: float, task: Task | None) -> None:
        """Say what is being measured, if the last line is long enough ago."""
        if task is not None:
            self.doing(part, _words(task))

    def measured(self, number: int, measurement: Measurement) -> None:
        """Count it."""
        self._found[number] = measurement


@contextlib.contextmanager
def show_progress(quiet: bool) -> Iterator[Shown]:
    """Show on standard error how a command goes, unless nobody wants it."""
    if shows_progress(quiet):
        with _table() as table:
            yield table
    else:
        yield Lines() if logs_progress(quiet) else _Nothing()


@contextlib.contextmanager
def _table() -> Iterator[Shown]:
    from rich.console import Console, Group
    from rich.live import Live
    from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (
        TextColumn("{task.percentage:>3.0f} %"),
        BarColumn(),
        TimeRemainingColumn(),
        TextColumn("{task.description}", markup=False),
    )
    console = Console(stderr=True)
    progress = Progress(*columns, console=console)
    bar = progress.add_task("setting up", total=1)
    with Live(progress, console=console, transient=True, refresh_per_second=4) as live:
        found: dict[int, Measurement] = {}
        drawn = time.monotonic()

        class Table:
            def doing(self, part: float, what: str) -> None:
                if part < progress.tasks[bar].completed:
                    # What comes after the probes has a time of its own.
                    progress.reset(bar, total=1)
                progress.update(bar, completed=part, description=what)

            def __call__(self, part: float, task: Task | None) -> None:
                nonlocal drawn
                self.doing(part, _words(task) if task else "")
                if found and task is None and time.monotonic() > drawn + TABLE_EVERY_S:
                    drawn = time.monotonic()
                    live.update(Group(table_text(list(found.values())), progress))

            def measured(self, number: int, measurement: Measurement) -> None:
                found[number] = measurement

        yield Table()


def _words(task: Task) -> str:
    return f"{task.name} {task.path}"


def probing(shown: Shown, machine: Machine) -> Callable[[float, Probe], None]:
    """Return what shows the active probes of doctor: what is tried, and on which GPUs and NUMA node."""
    from egmctl.topology.topology import gpu_label

    labels = {gpu.bus_id: gpu_label(gpu) for gpu in machine.gpus or ()}
    shown.doing(0.0, "doctor: starting CUDA")

    def show(part: float, probe: Probe) -> None:
        where = " -> ".join(labels[gpu] for gpu in probe.gpus)
        node = "" if probe.numa_node is None else f" NUMA{probe.numa_node}"
        shown.doing(part, f"doctor: {probe.kind}{node} {where}")

    return show


def table_text(measurements: Sequence[Measurement]) -> Text:
    """Return the table of the path classes so far, as many of its last lines as the terminal has room for."""
    from rich.text import Text

    from egmctl.report.document import Document
    from egmctl.report.render.text import text
    from egmctl.report.views.bench_classes import path_classes

    size = shutil.get_terminal_size()
    table = path_classes(measurements)
    lines = text(Document(command="", subject="", body=(table,)), width=size.columns).split("\n")
    return Text("\n").join(lines[-max(size.lines - _BESIDE, 1) :])


class Beside:
    """A recorder that tells what shows a run, too."""

    def __init__(self, recorder: Recorder | None, shown: Shown) -> None:
        from egmctl.journal.events import NoRecorder

        self._recorder: Recorder = recorder or NoRecorder()
        self._shown = shown

    def begin(self, report: RunReport, steps: int) -> None:
        """Pass it on."""
        self._recorder.begin(report, steps)

    def step(self, tasks: Sequence[tuple[int, Task]]) -> None:
        """Pass it on."""
        self._recorder.step(tasks)

    def measurement(self, number: int, measurement: Measurement) -> None:
        """Pass it on, and show it."""
        self._recorder.measurement(number, measurement)
        self._shown.measured(number, measurement)

    def kernel(self, logged: Sequence[KernelEvent]) -> None:
        """Pass it on."""
        self._recorder.kernel(logged)

    def note(self, text: str) -> None:
        """Pass it on."""
        self._recorder.note(text)

    def problem(self, text: str) -> None:
        """Pass it on."""
        self._recorder.problem(text)
