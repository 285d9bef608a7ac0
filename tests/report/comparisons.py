"""Comparisons of each kind, for tests of the forms."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from egmctl.comparison import compare
from egmctl.doctor.check import Scope
from egmctl.doctor.runner import CHECKS
from egmctl.model.comparison import Comparison
from egmctl.model.diagnosis import Diagnosis
from egmctl.model.finding import Guard
from egmctl.model.measurement import MeasurementStatus
from egmctl.model.record import Command
from egmctl.saved import Saved
from egmctl.topology.platform import platform
from tests.answers import diagnose
from tests.comparison.runs import changed, ended, from_gpu, on_path, run, saved, times
from tests.doctor.machines import shipped
from tests.report.runs import HOSTILE


def two_runs() -> Comparison:
    """Return a run in which what leaves GPU2 is slower, a path from the host faster, and one path corrupt."""
    slow = changed(run(seed=2), times(0.8, from_gpu("GPU2")))
    mixed = changed(slow, times(1.3, on_path("NUMA0 -> GPU0")))
    broken = changed(mixed, ended(MeasurementStatus.CORRUPT, "byte 64 of 1048576 differs", on_path("GPU0 -> GPU1")))
    newer = replace(broken.machines[0], driver=replace(broken.machines[0].driver, driver_version="999.1"))  # type: ignore[type-var]
    return compare([saved("monday", run(seed=1)), saved("today", replace(broken, machines=(newer,)))])


def nodes() -> Comparison:
    """Return eight nodes, of which in the fifth what leaves GPU2 is slower."""
    found = [run(seed=seed) for seed in range(8)]
    found[4] = changed(found[4], times(0.8, from_gpu("GPU2")))
    return compare([saved(f"node{number}", one) for number, one in enumerate(found, 1)])


def findings() -> Comparison:
    """Return what doctor says of two kinds of machines."""
    return compare([_diagnosed("hgx-h200x4", "before"), _diagnosed("dgx-h100", "after")])


def hostile() -> Comparison:
    """Return a run of which all words that a machine or a file gives are hostile."""
    made = changed(run(seed=2), ended(MeasurementStatus.FAILED, HOSTILE, from_gpu("GPU2")))
    machine = made.machines[0]
    driver = replace(machine.driver, driver_version=HOSTILE) if machine.driver else None
    made = replace(made, machines=(replace(machine, driver=driver),), started_at=HOSTILE)
    return compare([saved("before", run(seed=1)), replace(saved("after", made), name=HOSTILE, tool=HOSTILE)])


def _diagnosed(machine: str, name: str) -> Saved:
    node = shipped(machine)
    result = Diagnosis(
        platform=platform(node).line,
        gpus_asked=None,
        numa_asked=None,
        purposes=tuple(Guard),
        findings=diagnose(node, Scope(), CHECKS).findings,
        machines=(node,),
    )
    return Saved(path=Path(f"{name}.json"), kind=Command.DOCTOR, name=name, result=result, tool="egmctl 0.1.0")
