"""What is kept and shown while a command works: the journal of a run, and its progress.

Progress is the current activity and, for a bench, the table of path classes as it fills. It goes to standard error: a
bar and the table on a terminal, a line now and then in a log. The table is drawn between two tasks and at most once a
second, so that it takes no CPU time from a measurement.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

from egmctl.api.options import option
from egmctl.cli.output import Outputs, is_terminal, say
from egmctl.dataclass import dataclass
from egmctl.errors import UsageError

if TYPE_CHECKING:
    from rich.text import Text

    from egmctl.journal.events import Journal, JournalEvent, Recorder
    from egmctl.model.answer import Answer
    from egmctl.model.machine import Machine
    from egmctl.model.measurement import Measurement
    from egmctl.model.probes import Probe
    from egmctl.model.task import Task

LINE_EVERY_S = 10.0
"""Seconds between two lines in a log. A shorter run writes none."""
TABLE_EVERY_S = 1.0
_BESIDE = 4
"""Lines of a terminal that the table leaves free."""


class ProgressDisplay:
    """The progress display of a command. This base class shows nothing."""

    def __init__(self) -> None:
        self.measured: dict[int, Measurement] = {}
        """The measurements of the run so far, by task number."""

    def doing(self, part: float, what: str) -> None:
        """Show the completed part of the current phase, 0 to 1, and the current activity."""

    def __call__(self, part: float, task: Task | None) -> None:
        """Show the completed part of the run, 0 to 1, and the task being measured; ``None`` between two tasks."""
        if task is not None:
            self.doing(part, f"{task.name} {task.path}")

    def recorder(self, recorder: Recorder) -> Recorder:
        """Return a recorder that forwards events to ``recorder`` and collects the measurements."""
        from egmctl.journal.events import TaskOutcome

        def record(event: JournalEvent) -> None:
            recorder(event)
            if isinstance(event, TaskOutcome):
                self.measured[event.number] = event.measurement

        return record


class Lines(ProgressDisplay):
    """A display that writes at most one line every :data:`LINE_EVERY_S` seconds."""

    def __init__(self) -> None:
        super().__init__()
        self._begun = self._last = time.monotonic()

    def doing(self, part: float, what: str) -> None:
        """Write the completed part and the current activity if the last line is old enough."""
        now = time.monotonic()
        if now < self._last + LINE_EVERY_S:
            return
        self._last = now
        measured = f", {len(self.measured)} measured" if self.measured else ""
        say(f"{100 * part:.0f} %, {now - self._begun:.0f} s{measured}; now {what}")


@contextlib.contextmanager
def show_progress(quiet: bool) -> Iterator[ProgressDisplay]:
    """Yield a progress display on standard error; it shows nothing with ``quiet`` or EGMCTL_NO_PROGRESS."""
    if quiet or os.environ.get("EGMCTL_NO_PROGRESS") or sys.stderr is None:
        yield ProgressDisplay()
    elif is_terminal(sys.stderr):
        with _table() as table:
            yield table
    else:
        yield Lines()


@contextlib.contextmanager
def _table() -> Iterator[ProgressDisplay]:
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
        drawn = time.monotonic()

        class Table(ProgressDisplay):
            def doing(self, part: float, what: str) -> None:
                if part < progress.tasks[bar].completed:
                    # The phase after the probes has its own time estimate.
                    progress.reset(bar, total=1)
                progress.update(bar, completed=part, description=what)

            def __call__(self, part: float, task: Task | None) -> None:
                nonlocal drawn
                super().__call__(part, task)
                if task is not None:
                    return
                self.doing(part, "")
                if self.measured and time.monotonic() > drawn + TABLE_EVERY_S:
                    drawn = time.monotonic()
                    live.update(Group(table_text(list(self.measured.values())), progress))

        yield Table()


def probing(shown: ProgressDisplay, machine: Machine) -> Callable[[float, Probe], None]:
    """Return a callback that shows the active probe of doctor that runs, with its GPUs and NUMA node."""
    from egmctl.topology.topology import gpu_label

    labels = {gpu.bus_id: gpu_label(gpu) for gpu in machine.gpus or ()}
    shown.doing(0.0, "doctor: starting CUDA")

    def show(part: float, probe: Probe) -> None:
        where = " -> ".join(labels[gpu] for gpu in probe.gpus)
        node = "" if probe.numa_node is None else f" NUMA{probe.numa_node}"
        shown.doing(part, f"doctor: {probe.kind}{node} {where}")

    return show


def table_text(measurements: Sequence[Measurement]) -> Text:
    """Return the table of the path classes so far, cut to the last lines that fit in the terminal."""
    from rich.text import Text

    from egmctl.report.document import Document
    from egmctl.report.render.text import text
    from egmctl.report.views.bench_classes import path_classes

    size = shutil.get_terminal_size()
    table = path_classes(measurements)
    lines = text(Document(command="", subject="", body=(table,)), width=size.columns).split("\n")
    return Text("\n").join(lines[-max(size.lines - _BESIDE, 1) :])


# --- journal ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class JournalOptions:
    """Whether and where the journal of a run is kept."""

    HEADINGS: ClassVar[dict[str, str]] = {"Journal": "journal no_journal"}
    journal: Path | None = option("Where to keep the run's journal. Default: ~/.local/state/egmctl/journal.", "DIR")
    no_journal: bool = option("Keep no journal; a killed run then loses its results.", default=False)


def open_journal(options: JournalOptions, outputs: Outputs, machine: Machine | None = None) -> Journal:
    """Open the journal of a new run, one that records nothing if disabled, and report an unfinished earlier run once.

    Without ``--journal``, it is in the user's state folder or, if that is not writable, beside the first output file.

    Parameters
    ----------
    machine
        The node, whose private names are redacted in the journal.
    """
    from egmctl.facts.redact import part_redactor
    from egmctl.journal.events import Journal, earlier, is_unmentioned, journal_folder, mention

    if options.no_journal or (options.journal is None and os.environ.get("EGMCTL_NO_JOURNAL")):
        return Journal((), str)
    folders = [options.journal] if options.journal else [journal_folder(), *(file.parent for file in outputs.files[:1])]
    if not outputs.options.quiet:
        path = next(filter(is_unmentioned, reversed(earlier(folders[0])[-3:])), None)
        if path is not None:
            from egmctl.saved import load_journal

            mention(path)
            with contextlib.suppress(UsageError):
                say(f"an earlier bench {load_journal(path).ending}; 'egmctl show {path}' shows its results")
    return Journal(folders, part_redactor(machine))


def end_journal(journal: Journal, answer: Answer, *, quiet: bool) -> None:
    """Record in a run's journal that its result is written; if the journal ended early, report the reason."""
    journal.end(answer)
    if journal.failure and not quiet:
        what = "the run has no journal" if journal.path is None else "the run's journal ends early"
        say(f"{what}: {journal.failure}")
