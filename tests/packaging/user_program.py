"""A program of a user, which CI type-checks (mypy --strict) against the installed wheel, and runs."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

import egmctl


def failing(machine: egmctl.Machine) -> Sequence[str]:
    """Return the checks that fail on a machine."""
    diagnosis: egmctl.Diagnosis = egmctl.Doctor(purposes="p2p").diagnose(machine)
    return [finding.check for finding in diagnosis.findings if finding.status == "fail"]


def bandwidths(run: Path) -> dict[str, float]:
    """Return the bandwidths of a saved run in GB/s, by path."""
    report = egmctl.load_result(run, egmctl.RunReport)
    return {str(m.path): m.bandwidth_gb_s.median for m in report.measurements if m.bandwidth_gb_s is not None}


def main(run: Path) -> int:
    """Print what the node lacks and what a run has measured."""
    machine = egmctl.read_machine("h200-links-down")
    topology: egmctl.Topology = egmctl.topology_of(machine, gpus="0,1")
    plan: egmctl.Plan = egmctl.Bench(suites=["quick"]).plan(machine)
    try:
        egmctl.Bench(samples=0)
    except egmctl.EgmctlError as error:
        code: str = error.code
        sys.stdout.write(f"{code}: {error}\n")
    sys.stdout.write(f"{len(topology.gpus)} {len(plan.runnable)} {failing(machine)} {len(bandwidths(run))}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
