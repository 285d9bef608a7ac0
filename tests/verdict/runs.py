"""Runs with numbers made by hand, on machines that ship: for tests of what is judged of them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from egmctl.bench.plan.make import make_plan
from egmctl.bench.results import summarize
from egmctl.bench.suites import CASES
from egmctl.model.listing import PlannedTask
from egmctl.model.machine import Machine
from egmctl.model.measurement import Measurement, MeasurementStatus, RunReport, Settings, finish
from egmctl.model.task import Flow, Quantity, Task
from egmctl.units import MIB
from tests.bench.reports import report
from tests.doctor.machines import shipped

WRITE, READ = "device_to_device_memcpy_write_ce", "device_to_device_memcpy_read_ce"
BOTH = "device_to_device_bidirectional_memcpy_write_ce"
H2D, D2H = "host_numa_to_device_memcpy_ce", "device_to_host_numa_memcpy_ce"
LOCAL, LATENCY, RING = "device_local_copy", "device_to_device_latency_sm", "ring_write_ce"
USUAL = {WRITE: 396.2, READ: 393.8, BOTH: 391.4, H2D: 55.4, D2H: 55.3, LOCAL: 2099.0, LATENCY: 834.0, RING: 391.2}
"""Of one flow on HGX H200."""

OF_GPU2 = {f"GPU{a} -> GPU{b}" for a in range(4) for b in range(4) if a != b and 2 in (a, b)}
"""Paths between GPUs of which GPU2 is one."""

Value = Callable[[Task, Flow], float]
H200 = shipped("hgx-h200x4")


def usual(task: Task, flow: Flow) -> float:  # noqa: ARG001
    """Return what a healthy HGX H200 gives."""
    return USUAL[task.case]


def busy(task: Task, flow: Flow) -> float:
    """Return what is reached while something else pushes from GPU0 to GPU1."""
    shared = 0.5 if flow.source.label == "GPU0" or flow.destination.label == "GPU1" else 1.0
    return usual(task, flow) / shared if task.case == LATENCY else usual(task, flow) * shared


def slow_at(*labels: str, source: bool = True, destination: bool = True) -> Value:
    """Return what is reached where a flow has one of these GPUs as its source or destination, at half its speed."""

    def value(task: Task, flow: Flow) -> float:
        slow = (source and flow.source.label in labels) or (destination and flow.destination.label in labels)
        return usual(task, flow) * (0.5 if slow else 1)

    return value


def run(
    *cases: str,
    value: Value = usual,
    machine: Machine = H200,
    gpus: int | None = None,
    nodes: Sequence[int] = (0,),
    size_bytes: int = 512 * MIB,
    waives: bool = False,
) -> RunReport:
    """Return the report of a run in which each flow gives ``value(task, flow)`` in GB/s, or ns.

    What cannot be measured on this machine is waived only where the run ``waives``.
    """
    settings = Settings(size_bytes=size_bytes, copies=16, samples=3, timeout_s=60)
    chosen = [case for case in CASES if case.name in cases]
    plan = make_plan(machine, (machine.gpus or ())[:gpus], list(nodes), chosen, settings)
    made = [_waived(task) if waives and task.waivers else measured(task, value) for task in plan.tasks]
    return replace(report(plan, made), machines=(machine,))


def _waived(task: PlannedTask) -> Measurement:
    return finish(task, MeasurementStatus.WAIVED, reason=task.waiver, waivers=task.waivers)


def measured(task: Task, value: Value) -> Measurement:
    """Return the measurement of a task."""
    values = [value(task, flow) for flow in task.flows]
    if task.quantity is Quantity.LATENCY:
        return finish(task, MeasurementStatus.OK, latency_ns=summarize(values[:1]))
    return finish(
        task,
        MeasurementStatus.OK,
        bandwidth_gb_s=summarize([sum(values)]),
        flows_gb_s=tuple(summarize([one]) for one in values),
    )


def with_status(report: RunReport, status: MeasurementStatus, numbers: Sequence[int]) -> RunReport:
    """Return the report with another status for some measurements."""
    changed = tuple(
        replace(m, status=status, reason="as the test wants it") if number in numbers else m
        for number, m in enumerate(report.measurements)
    )
    return replace(report, measurements=changed)
