"""Runs and machines made by hand, for tests of the forms."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import replace

from egmctl.bench.plan.make import make_plan
from egmctl.bench.results import summarize
from egmctl.bench.suites import CASES
from egmctl.model.machine import Machine
from egmctl.model.measurement import Measurement, MeasurementStatus, RunReport, Sample, Settings, finish
from egmctl.model.task import Point, Quantity, Task
from egmctl.model.verdict import ClassVerdict, Culprit, Direction, Grade, Judged, Judgement, RunVerdict, Yardstick
from tests.bench.reports import report
from tests.doctor.machines import shipped

HOSTILE = '<script>alert(1)</script><img src=x onerror=alert(2)>"onload="alert(3)\x00\x1b[31m\u202egnp.exe\n`|`</style>'
"""A name that a careless page would run, break on, or show as something else."""


def run(
    machine: str = "hgx-h200x4",
    *,
    cases: Sequence[str] = (),
    gpus: int = 8,
    sizes: Sequence[int] = (),
    points: Sequence[Point] = (),
    node: Machine | None = None,
) -> RunReport:
    """Return a run of cases (all of one process, if none are named) whose n-th task reaches 100 + n."""
    points = (*points, *(Point(size=size) for size in sizes))
    if node is None:
        return _run_on_shipped(machine, tuple(cases), gpus, points)
    return _run(node, cases, gpus, points)


@functools.cache
def _run_on_shipped(machine: str, cases: tuple[str, ...], gpus: int, points: tuple[Point, ...]) -> RunReport:
    return _run(shipped(machine), cases, gpus, points)


def _run(seen: Machine, cases: Sequence[str], gpus: int, points: tuple[Point, ...]) -> RunReport:
    chosen = [case for case in CASES if (case.name in cases or not cases) and case.family != "ipc"]
    chosen = [replace(case, points=points or case.points) for case in chosen]
    settings = Settings(size_bytes=512 << 20, copies=16, samples=3, timeout_s=60)
    plan = make_plan(seen, (seen.gpus or ())[:gpus], [0, 1], chosen, settings)
    found = [_measured(planned, 100.0 + n) for n, planned in enumerate(plan.tasks)]
    return replace(report(plan, found), machines=(seen,), notes=("a note",))


@functools.cache
def hostile_run() -> RunReport:
    """Return a run on a machine all of whose words are hostile."""
    node = shipped("hgx-h200x4")
    gpus = tuple(
        replace(gpu, nvml=replace(gpu.nvml, name=HOSTILE, vbios=HOSTILE) if gpu.nvml else None)
        for gpu in node.gpus or ()
    )
    host = replace(node.host, hostname=HOSTILE, cpu_model=HOSTILE, kernel=HOSTILE) if node.host else None
    node = replace(node, gpus=gpus, host=host, origin=replace(node.origin, name=HOSTILE))
    made = run(node=node, cases=("device_to_device_memcpy_write_ce", "host_numa_to_device_memcpy_ce"))
    first, second, *others = made.measurements
    broken = (
        replace(first, status=MeasurementStatus.FAILED, reason=HOSTILE, bandwidth_gb_s=None, flows_gb_s=()),
        replace(second, status=MeasurementStatus.WAIVED, reason=HOSTILE, bandwidth_gb_s=None, flows_gb_s=()),
    )
    return replace(
        made,
        measurements=(*broken, *others),
        notes=(HOSTILE,),
        problems=(HOSTILE,),
        driver_version=HOSTILE,
        started_at=HOSTILE,
    )


def judged(made: RunReport) -> RunReport:
    """Return the run with a verdict in which the last measurement fails and its GPU's egress is weak."""
    last = len(made.measurements) - 1
    flow = made.measurements[last].flows[0]
    judgement = Judgement(yardstick=Yardstick.PROFILE, grade=Grade.FAIL, reason="101.0 is below 350.0", value=101.0)
    one = ClassVerdict(
        path_class=f"{made.measurements[last].case} over NV18",
        case=made.measurements[last].case,
        link="NV18",
        grade=Grade.FAIL,
        reason="101.0 is below 350.0",
        by_profile=Grade.FAIL,
        by_link=Grade.WARN,
        by_peers=Grade.NO_REFERENCE,
        measurements=(last,),
        median=101.0,
        worst=101.0,
        unit="GB/s",
        expected=396.0,
        source="measured on 2 machines",
    )
    culprit = Culprit(
        path_class=one.path_class,
        gpus=(flow.source.bus_id or "0000:00:00.0",),
        label=flow.source.label,
        direction=Direction.EGRESS,
        ratio=0.25,
        grade=Grade.FAIL,
        reason="all of its row is weak",
    )
    verdict = RunVerdict(
        profile="hgx-h200",
        profile_reason="4 NVIDIA H200 with 18 links each",
        classes=(one,),
        culprits=(culprit,),
        judged=(Judged(measurement=last, judgements=(judgement,)),),
        warnings=("nvlink-replays of GPU0 rose by 3",),
    )
    return replace(made, verdict=verdict)


def _measured(task: Task, value: float) -> Measurement:
    flows = [value + place for place in range(len(task.flows))]
    if task.quantity is Quantity.LATENCY:
        sample = Sample(latency_ns=value, p50_ns=value, p99_ns=value + 50, elapsed_ms=20, wall_ms=21)
        load = summarize([value]) if task.point.load else None
        return finish(task, MeasurementStatus.OK, samples=(sample,), latency_ns=summarize([value]), bandwidth_gb_s=load)
    return finish(
        task,
        MeasurementStatus.OK,
        samples=(Sample(bandwidth_gb_s=sum(flows), flows_gb_s=tuple(flows), elapsed_ms=20, wall_ms=21),),
        bandwidth_gb_s=summarize([sum(flows)]),
        flows_gb_s=tuple(summarize([flow]) for flow in flows),
    )
