"""``egmctl bench --dry-run`` as JSON: the plan, or with ``--ranks`` what each case costs."""

from __future__ import annotations

from dataclasses import fields, replace

from egmctl.bench.plan import Plan
from egmctl.bench.plan.cost import JobCost, plan_bytes, plan_seconds, steps_seconds
from egmctl.errors import ExitCode
from egmctl.model.codec import to_json
from egmctl.model.machine import Machine
from egmctl.model.measurement import Task
from egmctl.model.planned import PLAN_SCHEMA, HeldMemory, PlannedMeasurement, PlannedStep, PlanReport
from egmctl.report.exports.json import dump, envelope
from egmctl.units import natural

COST_SCHEMA = "egmctl.cost/2"


def plan_json(plan: Plan, machine: Machine) -> str:
    """Return the document's text; GPUs have no UUID and ranks no host in it, as it may leave the site."""
    return dump(envelope(PLAN_SCHEMA, ExitCode.OK, to_json(plan_report(plan)), machine=machine))


def cost_json(cost: JobCost, machine: Machine) -> str:
    """Return the document of what a run of many ranks would cost."""
    return dump(envelope(COST_SCHEMA, ExitCode.OK, to_json(cost), machine=machine))


def plan_report(plan: Plan) -> PlanReport:
    """Return what a plan says to its readers."""
    return PlanReport(
        settings=plan.settings,
        gpus=tuple(replace(gpu, uuid=None) for gpu in plan.gpus),
        numa_nodes=plan.numa_nodes,
        ranks=tuple(replace(rank, host=None) for rank in plan.ranks),
        measurements=tuple(
            PlannedMeasurement(
                **{f.name: getattr(planned.task, f.name) for f in fields(Task)},
                waiver=planned.waiver,
                waivers=planned.waivers,
            )
            for planned in plan.tasks
        ),
        steps=tuple(
            PlannedStep(measurements=step.tasks, proof=step.proof, seconds=seconds)
            for step, seconds in zip(plan.steps, steps_seconds(plan), strict=True)
        ),
        memory=tuple(
            HeldMemory(place=peak.name, bytes=peak.bytes)
            for peak in sorted(plan.peaks, key=lambda peak: natural(peak.name))
        ),
        notes=plan.notes,
        bytes_moved=plan_bytes(plan),
        seconds=plan_seconds(plan),
    )
