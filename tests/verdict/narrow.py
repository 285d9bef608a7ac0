"""Runs on links that are down or slow, for tests of what explains them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from egmctl.model.machine import Machine
from egmctl.model.measurement import GpuEvidence, Measurement, RunReport, TaskEvidence
from egmctl.verdict.explain import with_causes
from egmctl.verdict.judge import with_verdict
from egmctl.verdict.profiles import load_profile
from tests.doctor.machines import patched, shipped
from tests.verdict.runs import H2D, WRITE, run, slow_at

H200 = shipped("hgx-h200x4")
PROFILE = load_profile("hgx-h200")
Change = Callable[[RunReport], RunReport]


def as_measured(report: RunReport) -> RunReport:
    return report


def explained(machine: Machine, *slow: str, change: Change = as_measured) -> RunReport:
    """A run on which paths that touch some GPUs are slow, with its causes; the plan is that of a healthy node."""
    made = change(replace(run(WRITE, H2D, value=slow_at(*slow), machine=H200), machines=(machine,)))
    return with_causes(with_verdict(made, PROFILE))


def links_down(machine: Machine = H200, gpu: int = 2) -> Machine:
    for link in (0, 1):
        machine = patched(machine, f"gpus[{gpu}].nvml.nvlinks[{link}]", active=False)
    return machine


def narrow(gpu: int) -> Machine:
    """A PCIe link with half its lanes, as sysfs and NVML show it."""
    machine = patched(H200, f"gpus[{gpu}].pci.link", width=8)
    nvml = (machine.gpus or ())[gpu].nvml
    return patched(machine, f"gpus[{gpu}].nvml.link", width=8) if nvml is not None and nvml.link else machine


def beside(report: RunReport, *labels: str, **seen: object) -> RunReport:
    """Let the GPUs with these labels show something while they are measured."""

    def one(m: Measurement) -> Measurement:
        ends = {end.label: end.bus_id for flow in m.flows for end in (flow.source, flow.destination)}
        gpus = tuple(
            GpuEvidence(bus_id=ends[label] or "", label=label, **seen)  # type: ignore[arg-type]
            for label in labels
            if label in ends
        )
        return replace(m, evidence=TaskEvidence(gpus=gpus))

    return replace(report, measurements=tuple(map(one, report.measurements)))
