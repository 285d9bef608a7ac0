"""Cases between processes on a node with one GPU: both ranks work that GPU, each in its own context.

The driver shares the GPU between the two contexts by turns, so the numbers mean nothing. But each call that exports,
imports, maps, orders and verifies runs as between two GPUs. Round trips by flags are left out: both sides would poll in
turns of milliseconds.
"""

from __future__ import annotations

from dataclasses import replace

import pytest

from egmctl.bench.plan.make import SECTIONS, make_plan
from egmctl.bench.suites import CASES
from egmctl.bench.supervisor import supervise
from egmctl.facts.collect import collect
from egmctl.model.measurement import Measurement, MeasurementStatus, RunReport, Settings
from egmctl.model.task import Engine, HandleKind
from egmctl.units import MIB

pytestmark = pytest.mark.gpu

FABRIC = (HandleKind.FABRIC, HandleKind.POOL_FABRIC)
IPC = [case for case in CASES if case.family == "ipc" and case.engine is not Engine.PING_PONG]


def measured(*, fabric: bool) -> tuple[Measurement, ...]:
    """Measure the cases between two ranks on the first GPU, without those beside them."""
    machine = collect(SECTIONS)
    cases = [replace(case, in_process=None) for case in IPC if (case.handle in FABRIC) is fabric]
    gpu = (machine.gpus or ())[0]
    settings = Settings(size_bytes=64 * MIB, copies=2, samples=2, timeout_s=30, serial=True)
    plan = make_plan(machine, [gpu, gpu], [0], cases, settings)
    report: RunReport = supervise(plan, machine, on_progress=lambda _part, _task: None)
    assert report.problems == ()
    assert {m.case for m in report.measurements} == {case.name for case in cases}
    return report.measurements


def complaints(measurements: tuple[Measurement, ...]) -> list[str]:
    return [
        f"{m.case}: {m.status}: {m.reason}"
        for m in measurements
        if m.status not in (MeasurementStatus.OK, MeasurementStatus.UNSTABLE)
    ]


def test_every_kind_of_handle_between_two_processes_on_one_gpu_is_measured_and_verified() -> None:
    measurements = measured(fabric=False)
    assert complaints(measurements) == []
    assert {m.verification for m in measurements if m.bandwidth_gb_s} == {"gpu-every-sample"}


@pytest.mark.needs_root
@pytest.mark.usefixtures("imex_channel")
def test_fabric_handles_between_two_processes_on_one_gpu() -> None:
    assert complaints(measured(fabric=True)) == []
