"""How long ``egmctl --version`` and ``--help`` take, beside the bare import of the libraries they are made with.

Run as ``python -m benchmarks.startup [TURNS]``. The commands take turns, so that whatever else the machine does
touches all of them, and the run of each with the least processor time counts: everything that disturbs a run makes it
longer. Only the ratios of one measurement mean something.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from itertools import islice
from pathlib import Path

BASELINE = "import typer, rich.console"
LIMITS = {"--version": 1.6, "--help": 2.0}
"""Times the baseline."""

_ROOT = Path(__file__).resolve().parent.parent


def main() -> None:
    """Measure, and print one line a command."""
    turns = int(sys.argv[1]) if len(sys.argv) > 1 else 20
    *_, seconds = islice(fastest(), turns)
    width = max(map(len, seconds))
    for name, cpu_s in seconds.items():
        limit = f"at most {LIMITS[name]:.1f}" if name in LIMITS else ""
        sys.stdout.write(f"{name:<{width}} {cpu_s * 1e3:7.1f} ms {cpu_s / seconds[BASELINE]:6.2f} {limit}\n")


def fastest() -> Iterator[Mapping[str, float]]:
    """Yield after each turn the least processor time so far: of the baseline and of the command with each option."""
    commands: dict[str, Sequence[str]] = {BASELINE: ("-c", BASELINE)}
    commands |= {option: ("-m", "egmctl", option) for option in LIMITS}
    least = dict.fromkeys(commands, float("inf"))
    while True:
        for name, arguments in commands.items():
            process = subprocess.Popen([sys.executable, *arguments], cwd=_ROOT, stdout=subprocess.DEVNULL)
            _, status, used = os.wait4(process.pid, 0)
            process.returncode = os.waitstatus_to_exitcode(status)
            if process.returncode:
                raise subprocess.CalledProcessError(process.returncode, process.args)
            least[name] = min(least[name], used.ru_utime + used.ru_stime)
        yield least


if __name__ == "__main__":
    main()
