"""The seven GPU matrices beside nvbandwidth: each cell's ratio, and the wall time of one process each.

python benchmarks/matrices.py                            egmctl alone
python benchmarks/matrices.py PATH/TO/nvbandwidth        both, one after the other
python benchmarks/matrices.py --output nvb.txt           egmctl beside an nvbandwidth output that was kept

Needs GPUs. Ends with 1 if a cell's median is below 0.995 of nvbandwidth's, or a latency differs by more than 5 %.
"""

from __future__ import annotations

import argparse
import json
import re
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

CASES = (
    "device_to_device_memcpy_write_ce",
    "device_to_device_memcpy_read_ce",
    "device_to_device_memcpy_write_sm",
    "device_to_device_memcpy_read_sm",
    "device_to_device_bidirectional_memcpy_write_ce",
    "device_to_device_bidirectional_memcpy_write_sm",
    "device_to_device_latency_sm",
)
LEAST = 0.995
LATENCY = 0.05

Cells = dict[tuple[int, int], float]
"""By row and column, which are GPUs."""


def main(arguments: list[str]) -> int:
    """Return the exit code."""
    parser = argparse.ArgumentParser(description="The seven GPU matrices beside nvbandwidth.")
    parser.add_argument("nvbandwidth", nargs="?", help="its executable")
    parser.add_argument("--output", type=Path, help="what it printed for the same seven cases")
    chosen = parser.parse_args(arguments)
    started = time.perf_counter()
    ours = run([sys.executable, "-m", "egmctl", "bench", "--suite", "matrices", "--json"])
    say(f"egmctl       {time.perf_counter() - started:7.2f} s")
    theirs = chosen.output.read_text() if chosen.output else ""
    if chosen.nvbandwidth:
        started = time.perf_counter()
        theirs = run([chosen.nvbandwidth, "-t", *CASES])
        say(f"nvbandwidth  {time.perf_counter() - started:7.2f} s")
    measurements = json.loads(ours)["result"]["measurements"]
    matrices = read_nvbandwidth(theirs)
    good = True
    for case in CASES:
        good &= compare(case, [m for m in measurements if m["case"] == case], matrices.get(case))
    return 0 if good else 1


def say(line: str) -> None:
    """Print a line."""
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


def run(command: list[str]) -> str:
    """Return what a command prints; what it has to tell on standard error is shown."""
    return subprocess.run(command, stdout=subprocess.PIPE, text=True, check=False).stdout  # noqa: S603


def compare(case: str, measurements: list[dict[str, Any]], theirs: tuple[str, Cells] | None) -> bool:
    """Print one line for a case; return whether every cell is as good as nvbandwidth's."""
    latency = case.endswith("latency_sm")
    arrow = theirs[0] if theirs else "->"
    ours = read_egmctl(measurements, arrow)
    statuses = sorted({m["status"] for m in measurements})
    line = (
        f"{case:47} {min(ours.values(), default=0):8.2f} .. {max(ours.values(), default=0):8.2f} {' '.join(statuses)}"
    )
    if theirs is None:
        say(line)
        return statuses == ["ok"]
    missing = set(theirs[1]) - set(ours)
    ratios = [ours[cell] / theirs[1][cell] for cell in set(ours) & set(theirs[1])]
    say(
        f"{line}, of nvbandwidth's {min(ratios, default=0):.4f} .. {max(ratios, default=0):.4f}, {len(missing)} missing"
    )
    if latency:
        return not missing and all(abs(ratio - 1) <= LATENCY for ratio in ratios)
    return not missing and all(ratio >= LEAST for ratio in ratios)


def read_egmctl(measurements: list[dict[str, Any]], arrow: str) -> Cells:
    """Return the medians by row and column.

    Parameters
    ----------
    arrow
        How the bytes go: ``->`` from the row to the column, ``<-`` to the row, ``<->`` both, which is their sum.
    """
    cells = {}
    for m in measurements:
        for place, flow in enumerate(m["flows"]):
            ends = [int(flow[end]["label"].removeprefix("GPU")) for end in ("source", "destination")]
            row, column = ends[::-1] if arrow == "<-" else ends
            if m["latency_ns"]:
                # The thread that reads is the row's.
                cells[column, row] = m["latency_ns"]["median"]
            elif arrow == "<->":
                cells[row, column] = m["bandwidth_gb_s"]["median"]
            elif m["flows_gb_s"]:
                cells[row, column] = m["flows_gb_s"][place]["median"]
    return cells


def read_nvbandwidth(text: str) -> dict[str, tuple[str, Cells]]:
    """Return for each case the arrow of its caption and its last matrix, which of several is the total."""
    found: dict[str, tuple[str, Cells]] = {}
    case, arrow, cells = "", "", Cells()
    for line in text.splitlines():
        if match := re.fullmatch(r"Running (\w+)\.", line):
            case = match[1]
        elif match := re.search(r"GPU\(row\) (<->|<-|->) GPU\(column\)", line):
            arrow, cells = match[1], {}
            found[case] = arrow, cells
        elif case and re.fullmatch(r"\s*\d+(\s+(N/A|[0-9.]+))+", line):
            row, *values = line.split()
            if any("." in value or value == "N/A" for value in values):
                cells.update({(int(row), i): float(v) for i, v in enumerate(values) if v != "N/A"})
    return found


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
