"""What the journal costs: ``egmctl bench --quick`` with one and without, in turns, as whole processes.

python benchmarks/journal.py [ROUNDS]

Needs GPUs. Ends with 1 if the medians differ by more than 1 % of the run.
"""

from __future__ import annotations

import statistics
import subprocess
import sys
import tempfile
import time


def main(rounds: int) -> int:
    """Return the exit code."""
    seconds: dict[str, list[float]] = {"with": [], "without": []}
    with tempfile.TemporaryDirectory() as folder:
        options = {"with": ["--journal", folder], "without": ["--no-journal"]}
        for number in range(rounds):
            for name in ("with", "without") if number % 2 == 0 else ("without", "with"):
                started = time.perf_counter()
                command = [sys.executable, "-m", "egmctl", "bench", "--quick", "-q", "--json", *options[name]]
                subprocess.run(command, stdout=subprocess.DEVNULL, check=False)
                seconds[name].append(time.perf_counter() - started)
    medians = {name: statistics.median(times) for name, times in seconds.items()}
    for name, times in seconds.items():
        print(f"{name:8} {medians[name]:.3f} s  ({', '.join(f'{one:.3f}' for one in times)})")
    share = medians["with"] / medians["without"] - 1
    print(f"the journal costs {100 * share:.2f} % of the run")
    return 1 if share > 0.01 else 0


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1]) if len(sys.argv) > 1 else 6))
