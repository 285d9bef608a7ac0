"""How long ``egmctl --version`` and ``--help`` take, beside the bare import of the libraries they are made with.

Run as ``python -m benchmarks.startup [RUNS]``. The commands take turns, so that whatever else the machine does
touches all of them, and the fastest run of each counts: everything that disturbs a run makes it longer. Only the
ratios of one measurement mean something.
"""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

BASELINE = "import typer, rich.console"
LIMITS = {"--version": 1.6, "--help": 2.0}
"""Times the baseline."""

_ROOT = Path(__file__).resolve().parent.parent


def main() -> None:
    """Measure, and print one line a command."""
    seconds = measure(int(sys.argv[1]) if len(sys.argv) > 1 else 20)
    width = max(map(len, seconds))
    for name, time_s in seconds.items():
        limit = f"at most {LIMITS[name]:.1f}" if name in LIMITS else ""
        sys.stdout.write(f"{name:<{width}} {time_s * 1e3:7.1f} ms {time_s / seconds[BASELINE]:6.2f} {limit}\n")


def measure(runs: int) -> Mapping[str, float]:
    """Return the seconds of the fastest of ``runs`` runs: of the baseline and of the command with each option."""
    commands: dict[str, Sequence[str]] = {BASELINE: ("-c", BASELINE)}
    commands |= {option: ("-m", "egmctl", option) for option in LIMITS}
    fastest = dict.fromkeys(commands, float("inf"))
    for _ in range(runs):
        for name, arguments in commands.items():
            start = time.perf_counter()
            command = [sys.executable, *arguments]
            subprocess.run(command, cwd=_ROOT, stdout=subprocess.DEVNULL, check=True)
            fastest[name] = min(fastest[name], time.perf_counter() - start)
    return fastest


if __name__ == "__main__":
    main()
