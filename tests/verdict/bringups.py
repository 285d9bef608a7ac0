"""Runs and findings by hand, of which a bringup makes one answer."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from egmctl.doctor.check import EVERYTHING
from egmctl.doctor.findings import failed
from egmctl.doctor.runner import CHECKS
from egmctl.model.diagnosis import Diagnosis
from egmctl.model.finding import Finding, on_gpus
from egmctl.model.machine import Machine
from egmctl.model.measurement import RunReport
from egmctl.model.remedy import Remedy
from egmctl.model.task import Flow, Task
from egmctl.verdict.judge import with_verdict
from egmctl.verdict.profiles import load_profile
from tests.answers import diagnose
from tests.doctor.builders import check, diagnosis
from tests.doctor.machines import shipped
from tests.verdict.runs import H2D, WRITE, run, usual

H200 = shipped("hgx-h200x4")
GPUS = H200.gpus or ()
LINKS = failed(
    "2 of 18 NVLinks down (links 4, 11)",
    Remedy(text="Reseat the GPU or replace it.", look="nvidia-smi nvlink -s -i 2"),
    place=on_gpus(GPUS[2:3]),
)

WELL = diagnose(H200, EVERYTHING, CHECKS)
PROFILE = load_profile("hgx-h200")


def healthy(machine: Machine = H200) -> Diagnosis:
    return WELL if machine is H200 else diagnose(machine, EVERYTHING, CHECKS)


def sick(*findings: tuple[str, Finding]) -> Diagnosis:
    """A healthy node but for these."""
    well = healthy()
    made = diagnosis(*(check(name, finding) for name, finding in findings), machine=H200)
    names = {name for name, _ in findings}
    rest = tuple(one for one in well.findings if one.check not in names)
    return replace(well, findings=(*made.findings, *rest))


def measured(
    *cases: str, value: Callable[[Task, Flow], float] = usual, machine: Machine = H200, known: bool = True
) -> RunReport:
    made = run(*(cases or (WRITE, H2D)), value=value, machine=machine)
    return judged(made, known=known)


def judged(made: RunReport, *, known: bool = True) -> RunReport:
    return with_verdict(made, PROFILE if known else None, profile_reason="GPU name NVIDIA H200")
