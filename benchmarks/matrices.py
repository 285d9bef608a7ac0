"""Matrices beside nvbandwidth's: each cell's ratio, and the wall time of one process each.

python benchmarks/matrices.py                            egmctl alone: the seven between GPUs
python benchmarks/matrices.py PATH/TO/nvbandwidth        both, one after the other
python benchmarks/matrices.py --host PATH/TO/nvbandwidth --rounds 5
                                                         host memory to GPUs and back; in turns, each five times
python benchmarks/matrices.py --all PATH/TO/nvbandwidth --rounds 3
                                                         every case that nvbandwidth 0.8 has too
python benchmarks/matrices.py --output nvb.txt           egmctl beside an nvbandwidth output that was kept

Needs GPUs. Ends with 1 if a cell's median is below 0.995 of nvbandwidth's, or a latency differs by more than 5 %.
Over PCIe both tools' numbers drift by half a per cent within minutes: only taking turns tells them apart.
"""

from __future__ import annotations

import argparse
import json
import re
import statistics
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
HOST_CASES = (
    "host_to_device_memcpy_ce",
    "device_to_host_memcpy_ce",
    "host_to_device_memcpy_sm",
    "device_to_host_memcpy_sm",
)
ALL_CASES = (
    *HOST_CASES,
    *CASES,
    *(
        f"{case}_{engine}"
        for case in (
            "host_to_device_bidirectional_memcpy",
            "host_to_all_memcpy",
            "all_to_host_memcpy",
            "host_to_all_bidirectional_memcpy",
            "device_to_device_bidirectional_memcpy_read",
            "all_to_one_write",
            "all_to_one_read",
            "one_to_all_write",
            "one_to_all_read",
        )
        for engine in ("ce", "sm")
    ),
    "device_local_copy",
    "host_device_latency_sm",
)
"""Without those of several nodes. device_to_host_bidirectional_* is the other direction of the same case here."""
LEAST = 0.995
LATENCY = 0.05

Cells = dict[tuple[int, int], float]
"""By row and column: GPUs, and 0 for the host."""


def main(arguments: list[str]) -> int:
    """Return the exit code."""
    parser = argparse.ArgumentParser(description="Matrices beside nvbandwidth's.")
    parser.add_argument("nvbandwidth", nargs="?", help="its executable")
    which = parser.add_mutually_exclusive_group()
    which.add_argument("--host", action="store_true", help="pinned memory in place of the seven between GPUs")
    which.add_argument("--all", action="store_true", help="every case that both have")
    parser.add_argument("--output", type=Path, help="what it printed for the same cases")
    parser.add_argument("--rounds", type=int, default=1, help="how often both run, in turns")
    chosen = parser.parse_args(arguments)
    cases = HOST_CASES if chosen.host else ALL_CASES if chosen.all else CASES
    command = [sys.executable, "-m", "egmctl", "bench", "--json", "--samples", "3"]
    command += ["--numa", "local", *(word for case in cases for word in ("--case", case))]
    ours: list[list[dict[str, Any]]] = []
    theirs = [read_nvbandwidth(chosen.output.read_text())] if chosen.output else []
    for _ in range(chosen.rounds):
        ours.append(json.loads(timed("egmctl", command))["result"]["measurements"])
        if chosen.nvbandwidth:
            theirs.append(read_nvbandwidth(timed("nvbandwidth", [chosen.nvbandwidth, "-t", *cases])))
    good = True
    for case in cases:
        measured = [[m for m in measurements if m["case"] == case] for measurements in ours]
        good &= compare(case, measured, [matrices[case] for matrices in theirs if case in matrices])
    return 0 if good else 1


def timed(name: str, command: list[str]) -> str:
    """Return what a command prints, and say how long it took."""
    started = time.perf_counter()
    printed = run(command)
    say(f"{name:12} {time.perf_counter() - started:7.2f} s")
    return printed


def say(line: str) -> None:
    """Print a line."""
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


def run(command: list[str]) -> str:
    """Return what a command prints; what it has to tell on standard error is shown."""
    return subprocess.run(command, stdout=subprocess.PIPE, text=True, check=False).stdout


def compare(case: str, ours: list[list[dict[str, Any]]], theirs: list[tuple[str, Cells]]) -> bool:
    """Print one line for a case; return whether every cell is as good as nvbandwidth's.

    Parameters
    ----------
    ours
        The measurements of each round.
    theirs
        The arrow and the cells of each round.
    """
    latency = case.endswith("latency_sm")
    arrow = theirs[0][0] if theirs else "->"
    mine = medians([read_egmctl(measurements, arrow) for measurements in ours])
    statuses = sorted({m["status"] for measurements in ours for m in measurements})
    line = (
        f"{case:47} {min(mine.values(), default=0):8.2f} .. {max(mine.values(), default=0):8.2f} {' '.join(statuses)}"
    )
    if not theirs:
        say(line)
        return statuses == ["ok"]
    other = medians([cells for _, cells in theirs])
    missing = set(other) - set(mine)
    ratios = [mine[cell] / other[cell] for cell in set(mine) & set(other)]
    say(
        f"{line}, of nvbandwidth's {min(ratios, default=0):.4f} .. {max(ratios, default=0):.4f}, {len(missing)} missing"
    )
    if latency:
        return not missing and all(abs(ratio - 1) <= LATENCY for ratio in ratios)
    return not missing and all(ratio >= LEAST for ratio in ratios)


def medians(rounds: list[Cells]) -> Cells:
    """Return of each cell the median of the rounds."""
    return {cell: statistics.median(cells[cell] for cells in rounds if cell in cells) for cell in rounds[0]}


def read_egmctl(measurements: list[dict[str, Any]], arrow: str) -> Cells:
    """Return the medians by row and column.

    Parameters
    ----------
    arrow
        How the bytes go: ``->`` from the row to the column, ``<-`` to the row, ``<->`` both, which is their sum; empty
        within a GPU.
    """
    cells = {}
    for m in measurements:
        if m["pattern"] in ("one-to-all", "all-to-one"):
            # The sum is told of the one, in a matrix of one row.
            one = {"one-to-all": "source", "all-to-one": "destination"}[m["pattern"]]
            cells[0, place(m["flows"][0][one])] = m["bandwidth_gb_s"]["median"]
            continue
        for number, flow in enumerate(m["flows"]):
            # All host memory is one row to nvbandwidth.
            ends = [place(flow[end]) for end in ("source", "destination")]
            row, column = ends[::-1] if arrow == "<-" else ends
            from_host = flow["source"]["numa_node"] is not None
            if m["latency_ns"]:
                # Between GPUs the thread that reads is the row's.
                cells[(row, column) if from_host else (column, row)] = m["latency_ns"]["median"]
            elif not arrow:
                cells[0, column] = m["bandwidth_gb_s"]["median"]
            elif "host" in m["case"] and arrow == "<->":
                # Of both directions it tells the one to the GPU.
                if from_host:
                    cells[row, column] = m["flows_gb_s"][number]["median"]
            elif arrow == "<->":
                cells[row, column] = m["bandwidth_gb_s"]["median"]
            elif m["flows_gb_s"]:
                cells[row, column] = m["flows_gb_s"][number]["median"]
    return cells


def place(end: dict[str, Any]) -> int:
    """Return the row or column of one end of a flow: a GPU's memory, or the registers of the one that reads."""
    return int(end["label"].removeprefix("GPU")) if end["label"].startswith("GPU") else 0


def read_nvbandwidth(text: str) -> dict[str, tuple[str, Cells]]:
    """Return for each case the arrow of its caption and its last matrix, which of several is the total."""
    found: dict[str, tuple[str, Cells]] = {}
    case, arrow, cells = "", "", Cells()
    for line in text.splitlines():
        if match := re.fullmatch(r"Running (\w+)\.", line):
            case = match[1]
        elif match := re.search(r"(?:[CG]PU\(row\) (<->|<-|->)|memcpy local) GPU\(column\)", line):
            arrow, cells = match[1] or "", {}
            found[case] = arrow, cells
        elif case and re.fullmatch(r"\s*\d+(\s+(N/A|[0-9.]+))+", line):
            row, *values = line.split()
            if any("." in value or value == "N/A" for value in values):
                cells.update({(int(row), i): float(v) for i, v in enumerate(values) if v != "N/A"})
    return found


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
