"""What the journal costs: the time that ``egmctl bench`` spends in it, as a share of the run; and the run without one.

python benchmarks/journal.py [ROUNDS] [-- BENCH OPTIONS]       without options: --quick

Needs GPUs. Both runs go in turns, as whole processes. Two runs differ by more than a journal costs, so what counts is
the clock around each of its calls. Ends with 1 if their sum's median is above 1 % of the run.
"""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
import tempfile
import time

CLOCKED = """
import json, sys, time
from egmctl.cli import app, bench
from egmctl.journal.events import Journal

spent = {}


def clocked(owner, name):
    call = getattr(owner, name)

    def timed(*arguments, **options):
        started = time.perf_counter()
        try:
            return call(*arguments, **options)
        finally:
            so_far, calls = spent.get(name, (0, 0))
            spent[name] = so_far + time.perf_counter() - started, calls + 1

    setattr(owner, name, timed)


clocked(bench, "open_journal")
for name in ("__call__", "end"):
    clocked(Journal, name)
sys.argv[0] = "egmctl"
try:
    app.main()
finally:
    sys.stderr.write("\\n" + json.dumps(spent))
"""


def main(rounds: int, options: list[str]) -> int:
    """Return the exit code."""
    seconds: dict[str, list[float]] = {"with": [], "without": []}
    shares = []
    with tempfile.TemporaryDirectory() as folder:
        journal = {"with": ["--journal", folder], "without": ["--no-journal"]}
        for number in range(rounds):
            for name in ("with", "without") if number % 2 == 0 else ("without", "with"):
                command = [sys.executable, "-c", CLOCKED, "bench", *options, "-q", "--json", *journal[name]]
                started = time.perf_counter()
                ran = subprocess.run(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, check=False)
                seconds[name].append(time.perf_counter() - started)
                if name == "with":
                    spent = json.loads(ran.stderr.rstrip().rpartition("\n")[2])
                    shares.append(sum(seconds_spent for seconds_spent, _ in spent.values()) / seconds[name][-1])
                    parts = (f"{call} {1000 * total:.1f} ms in {calls}" for call, (total, calls) in spent.items())
                    sys.stdout.write(f"{100 * shares[-1]:.2f} %: {', '.join(parts)}\n")
    for name, times in seconds.items():
        each = ", ".join(f"{time_s:.3f}" for time_s in times)
        sys.stdout.write(f"{name:8} {statistics.median(times):.3f} s  ({each})\n")
    share = statistics.median(shares)
    sys.stdout.write(f"the journal costs {100 * share:.2f} % of the run\n")
    return 1 if share > 0.01 else 0


if __name__ == "__main__":
    words = sys.argv[1:]
    given = words[words.index("--") + 1 :] if "--" in words else []
    counts = words[: words.index("--")] if "--" in words else words
    sys.exit(main(int(counts[0]) if counts else 6, given or ["--quick"]))
