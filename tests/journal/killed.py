"""A bench that tells a pipe of each thing that is in its journal: what a test holds the journal against.

Its arguments are the pipe's descriptor and those of ``egmctl``.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence

from egmctl.cli import app
from egmctl.journal import write
from egmctl.model.measurement import Measurement, Task

PIPE = int(sys.argv.pop(1))


class Told(write.Journal):
    """The journal, and a line for each event after it."""

    def step(self, tasks: Sequence[tuple[int, Task]]) -> None:
        super().step(tasks)
        os.write(PIPE, f"step {' '.join(str(number) for number, _ in tasks)}\n".encode())

    def measurement(self, number: int, measurement: Measurement) -> None:
        super().measurement(number, measurement)
        os.write(PIPE, f"measurement {number}\n".encode())

    def end(self, exit_code: int) -> None:
        super().end(exit_code)
        os.write(PIPE, b"end\n")


write.Journal = Told  # type: ignore[misc]
sys.exit(app.run(sys.argv[1:]))
