"""Two versions of egmctl beside each other on one machine, in turns: does a change of the code change the numbers?

python benchmarks/versions.py OLD_CHECKOUT NEW_CHECKOUT --rounds 3 -- --suite matrices
python benchmarks/versions.py OLD_CHECKOUT NEW_CHECKOUT --rounds 3 -- --suite ipc

What follows ``--`` are options of ``egmctl bench``. Needs GPUs. Each round runs both versions, in alternating order, as
whole processes, with the modules compiled before, as those of an installed egmctl are. A cell is one measurement of one
case; its figure is the median over the rounds of the run's median. Ends with 1 if a bandwidth differs by more than
0.5 %, a latency by more than 1 %, or a cell is missing in one of them.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from pathlib import Path
from typing import Any, NamedTuple

BANDWIDTH, LATENCY = 0.005, 0.01


class Cell(NamedTuple):
    """What is compared: a case on its path."""

    case: str
    path: str
    size_bytes: int
    figure: str


def main(arguments: list[str]) -> int:
    """Return the exit code."""
    options = arguments[arguments.index("--") + 1 :] if "--" in arguments else []
    parser = argparse.ArgumentParser(description="Two versions of egmctl in turns.")
    parser.add_argument("old", type=Path)
    parser.add_argument("new", type=Path)
    parser.add_argument("--rounds", type=int, default=3)
    chosen = parser.parse_args(arguments[: arguments.index("--")] if "--" in arguments else arguments)
    checkouts = {"old": chosen.old.resolve(), "new": chosen.new.resolve()}
    with tempfile.TemporaryDirectory(prefix="versions-") as bytecode:
        environment = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
        environment["PYTHONPYCACHEPREFIX"] = bytecode
        return show(*compared(checkouts, chosen.rounds, options, environment))


def compared(
    checkouts: dict[str, Path], rounds: int, options: list[str], environment: dict[str, str]
) -> tuple[dict[str, dict[Cell, list[float]]], dict[str, list[float]]]:
    """Return each version's figures of all rounds, and the seconds of its runs."""
    for checkout in checkouts.values():
        subprocess.run(
            [sys.executable, "-m", "compileall", "-q", str(checkout / "egmctl")], env=environment, check=True
        )
    cells: dict[str, dict[Cell, list[float]]] = {name: defaultdict(list) for name in checkouts}
    seconds: dict[str, list[float]] = {name: [] for name in checkouts}
    for number in range(rounds):
        for name in ("old", "new") if number % 2 == 0 else ("new", "old"):
            document, took = run(checkouts[name], options, environment)
            seconds[name].append(took)
            for cell, value in figures(document).items():
                cells[name][cell].append(value)
    return cells, seconds


def run(checkout: Path, options: list[str], environment: dict[str, str]) -> tuple[dict[str, Any], float]:
    """Return the document of one run of ``egmctl bench`` and how many seconds it took."""
    started = time.perf_counter()
    done = subprocess.run(
        [sys.executable, "-m", "egmctl", "bench", "--json", *options],
        cwd=checkout,
        env={**environment, "PYTHONPATH": str(checkout)},
        stdout=subprocess.PIPE,
        check=False,
    )
    return json.loads(done.stdout), time.perf_counter() - started


def figures(document: dict[str, Any]) -> dict[Cell, float]:
    """Return the median of each measurement that has one; a load of no blocks has moved nothing, and is left out."""
    found = {}
    for measured in document["result"]["measurements"]:
        path = ", ".join(
            f"{flow['source']['label']}>{flow['destination']['label']} by {flow['initiator_label']}"
            for flow in measured["flows"]
        )
        for figure in ("bandwidth_gb_s", "latency_ns"):
            if (value := measured[figure]) is not None and value["median"]:
                found[Cell(measured["case"], path, measured["size_bytes"], figure)] = value["median"]
    return found


def show(cells: dict[str, dict[Cell, list[float]]], seconds: dict[str, list[float]]) -> int:
    """Print the ratios, case by case, and return the exit code."""
    old, new = cells["old"], cells["new"]
    ratios: dict[tuple[str, str], list[float]] = defaultdict(list)
    apart = []
    for cell in sorted(old.keys() & new.keys()):
        before, after = statistics.median(old[cell]), statistics.median(new[cell])
        ratio = after / before
        ratios[cell.case, cell.figure].append(ratio)
        if abs(ratio - 1) > (LATENCY if cell.figure == "latency_ns" else BANDWIDTH):
            apart.append((cell, before, after))
    print(f"{'case':58} {'cells':>5} {'new/old':>8} {'min':>7} {'max':>7}")
    for (case, figure), found in ratios.items():
        name = case if figure == "bandwidth_gb_s" else f"{case} (ns)"
        print(f"{name:58} {len(found):5} {statistics.median(found):8.4f} {min(found):7.4f} {max(found):7.4f}")
    for cell, before, after in apart:
        runs = "/".join(f"{value:.5g}" for value in old[cell]), "/".join(f"{value:.5g}" for value in new[cell])
        print(f"APART {cell.case} {cell.path}: {before:.5g} {after:.5g}; runs {runs[0]} and {runs[1]}")
    missing = sorted(old.keys() ^ new.keys())
    for cell in missing:
        print(f"ONLY IN {'old' if cell in old else 'new'}: {cell.case} {cell.path} {cell.size_bytes}")
    for name, took in seconds.items():
        print(f"{name}: {', '.join(f'{each:.1f}' for each in took)} s")
    print(f"{len(old.keys() & new.keys())} cells, {len(apart)} apart, {len(missing)} in one only")
    return 1 if apart or missing else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
