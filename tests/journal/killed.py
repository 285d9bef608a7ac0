"""A bench that tells a pipe of each thing that is in its journal: what a test holds the journal against.

Its arguments are the pipe's descriptor and those of ``egmctl``.
"""

from __future__ import annotations

import os
import sys

from egmctl.cli import app
from egmctl.journal import events
from egmctl.journal.events import JournalEvent, StepBegun, TaskOutcome
from egmctl.model.answer import Answer

PIPE = int(sys.argv.pop(1))


class Told(events.Journal):
    """The journal, and a line for each event after it."""

    def __call__(self, event: JournalEvent) -> None:
        super().__call__(event)
        if isinstance(event, StepBegun):
            os.write(PIPE, f"step {' '.join(str(numbered.number) for numbered in event.tasks)}\n".encode())
        if isinstance(event, TaskOutcome):
            os.write(PIPE, f"measurement {event.number}\n".encode())

    def end(self, answer: Answer) -> None:
        super().end(answer)
        os.write(PIPE, b"end\n")


events.Journal = Told  # type: ignore[misc]
sys.exit(app.run_command(sys.argv[1:]))
