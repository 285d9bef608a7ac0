"""The cost of a plan in seconds and bytes, and the reports of a plan, of its cost and of cases."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

from egmctl.bench.buffers import Buffer, buffers_of, moved_bytes, uses_host_memory
from egmctl.bench.case import Case
from egmctl.bench.nccl.plan import listed_cases, nccl_seconds
from egmctl.bench.plan import Plan
from egmctl.bench.plan.budget import most_bytes
from egmctl.bench.plan.placement import RankLayout
from egmctl.bench.plan.task import flows_on_a_link, shortened_task
from egmctl.bench.suites import SUITES
from egmctl.model import listing
from egmctl.model.machine import Origin
from egmctl.model.route import HOST_MEMORY
from egmctl.model.task import Engine, Quantity
from egmctl.units import GB, GIB, grouped, natural

START_S = 1.6
"""The time until the first step: facts, and CUDA on all GPUs. The first run after a boot takes up to a second more."""
RANKS_START_S = 1.5
"""The additional time until the first step of ranks: CUDA in all of them at once."""

ALLOCATE_S_PER_GIB = 0.3
"""The time to allocate host memory, with its first touch."""
_WARM_UP_COPIES = 4
_LOAD_S = 1.2e-6
"""The time of one load of a pointer chase over NVLink or PCIe."""
_LAP_S = {Engine.EVENT: 33e-6, Engine.SOCKET: 15e-6}
"""The time of one round trip in which the host takes part."""
_LIVES, _LIFE_S = 21, 0.006
"""The number of lives of shared memory (:data:`egmctl.bench.engines.life_cycle.LIVES` and one before), and the time of
each without host pages."""
STEP_S = 0.02
"""The overhead of every step, whatever it measures."""
_CHECK_GB_S = 1500.0
"""The rate of overwriting and comparing device memory on its own GPU; for host memory it is the link's rate."""


def plan_report(plan: Plan, origin: Origin) -> listing.PlanReport:
    """Return the report of a plan, without UUIDs of GPUs and hosts of ranks, as it may leave the site."""
    seconds = steps_seconds(plan)
    return listing.PlanReport(
        origin=origin,
        settings=plan.settings,
        gpus=tuple(replace(gpu, uuid=None) for gpu in plan.gpus),
        numa_nodes=plan.numa_nodes,
        ranks=tuple(replace(rank, host=None) for rank in plan.ranks),
        tasks=plan.tasks,
        steps=tuple(replace(step, seconds=step_s) for step, step_s in zip(plan.steps, seconds, strict=True)),
        memory=tuple(
            listing.HeldMemory(place=peak.name, bytes=peak.bytes)
            for peak in sorted(plan.peaks, key=lambda peak: natural(peak.name))
        ),
        notes=plan.notes,
        bytes_moved=plan_bytes(plan),
        seconds=plan_seconds(plan, seconds),
        nccl=plan.nccl,
    )


def case_list(plan: Plan, cases: Sequence[Case], origin: Origin) -> listing.CaseList:
    """Return all suites, and each case with the number of its measurements in a plan."""
    by_case = grouped((kind.case, kind) for kind in plan.tasks.kinds)
    return listing.CaseList(
        origin=origin,
        cases=(
            *(_listed(case, by_case.get(case.name, [])) for case in cases),
            *listed_cases(plan.nccl),
        ),
        suites={name: suite.description for name, suite in SUITES.items()},
    )


def _listed(case: Case, tasks: Sequence[listing.PlannedTask]) -> listing.ListedCase:
    """Return the entry of a case with these tasks, each by one that is alike."""
    return listing.ListedCase(
        name=case.name,
        family=case.family,
        description=case.description,
        axes=case.axes,
        measurements=len(tasks),
        runnable=sum(not task.waivers for task in tasks),
        reasons=tuple(dict.fromkeys(task.waivers[0].reason for task in tasks if task.waivers)),
    )


def job_cost(plan: Plan, layout: RankLayout) -> listing.JobCost:
    """Return the cost of each case of a run between ranks, and of the whole run."""
    seconds = steps_seconds(plan)
    costs = []
    kinds = plan.tasks.kinds
    steps_of = grouped((kinds[step.tasks[0]].case, number) for number, step in enumerate(plan.steps))
    for case, tasks in grouped((kind.case, kind) for kind in kinds).items():
        steps = steps_of.get(case, [])
        only = replace(plan, steps=tuple(plan.steps[number] for number in steps))
        usage = only.uses.peaks(node_of=layout.node_of, huge_page_bytes=plan.huge_page_bytes)
        largest = max(usage, key=lambda peak: peak.bytes, default=None)
        free = None if largest is None else most_bytes(layout.machines[largest.host or ""], largest)
        costs.append(
            listing.CaseCost(
                case=case,
                pattern=tasks[0].pattern,
                measurements=len(tasks),
                waived=sum(planned.waiver is not None for planned in tasks),
                reason=next((planned.waiver for planned in tasks if planned.waiver), None),
                steps=len(steps),
                bytes=plan_bytes(only),
                seconds=sum(seconds[number] for number in steps),
                held_bytes=0 if largest is None else largest.bytes,
                too_large=largest is not None
                and free is not None
                and largest.bytes > free * plan.settings.memory_percent // 100,
            )
        )
    return listing.JobCost(
        origin=next(iter(layout.machines.values())).origin,
        ranks=len(layout.ranks),
        nodes=len(layout.machines),
        costs=tuple(costs),
        seconds=plan_seconds(plan, seconds),
    )


def plan_seconds(plan: Plan, of_steps: Sequence[float] | None = None) -> float:
    """Return the estimated time of a run in seconds.

    Parameters
    ----------
    of_steps
        The result of :func:`steps_seconds`, if it is known.
    """
    steps_s = sum(steps_seconds(plan) if of_steps is None else of_steps)
    if plan.ranks:
        steps_s += RANKS_START_S
    if plan.nccl is not None:
        steps_s += nccl_seconds(plan.nccl)
    return plan.settings.duration_s or START_S + steps_s


def plan_bytes(plan: Plan) -> int:
    """Return the number of bytes that a run moves in its samples."""
    kinds = plan.tasks.kinds
    known: dict[tuple[int, bool], int] = {}
    total = 0
    for step in plan.steps:
        for number in step.tasks:
            key = id(kinds[number]), step.proof
            if key not in known:
                known[key] = _moved_bytes(_asked(kinds[number], step), 1 if step.proof else plan.settings.samples)
            total += known[key]
    return total


def _moved_bytes(task: listing.PlannedTask, samples: int) -> int:
    return task.copies * moved_bytes(task) * len(task.flows) * samples if task.quantity is Quantity.BANDWIDTH else 0


def steps_seconds(plan: Plan) -> list[float]:
    """Return the estimated time of each step in seconds; host buffers cost time in the step that uses them first."""
    distinct, numbers = plan.tasks.distinct, plan.tasks.numbers
    allocated: set[Buffer] = set()
    # Tasks that are alike take as long.
    known: dict[tuple[int, bool], tuple[float, bool]] = {}
    seconds = []
    for step in plan.steps:
        task_s, on_host = 0.0, False
        for kind in {numbers[task] for task in step.tasks}:
            key = kind, step.proof
            if key not in known:
                samples = 1 if step.proof else plan.settings.samples
                known[key] = task_seconds(_asked(distinct[kind], step), samples), uses_host_memory(distinct[kind])
            kind_s, kind_on_host = known[key]
            task_s, on_host = max(task_s, kind_s), on_host or kind_on_host
        host_bytes = _new_host_bytes([plan.tasks[number] for number in step.tasks], allocated) if on_host else 0
        seconds.append(STEP_S + task_s + ALLOCATE_S_PER_GIB * host_bytes / GIB)
    return seconds


def _new_host_bytes(tasks: Sequence[listing.PlannedTask], allocated: set[Buffer]) -> int:
    """Return the bytes of host memory that a step allocates in one process, and add its buffers to those allocated."""
    new = [buffer for buffer in buffers_of(tasks) if buffer not in allocated]
    allocated.update(new)
    # Processes allocate their buffers at the same time.
    on_host = grouped((buffer.end.rank, buffer.size_bytes) for buffer in new if buffer.end.memory in HOST_MEMORY)
    return max(map(sum, on_host.values()), default=0)


def _asked(task: listing.PlannedTask, step: listing.PlanStep) -> listing.PlannedTask:
    return shortened_task(task) if step.proof else task


def task_seconds(task: listing.PlannedTask, samples: int) -> float:
    """Return the estimated time of a task in seconds, without the allocation of its buffers."""
    if task.chase is not None:
        return samples * task.chase.loads * _LAP_S.get(task.engine, _LOAD_S)
    if task.quantity is Quantity.DURATION:
        pages_s = ALLOCATE_S_PER_GIB * task.size_bytes / GIB if task.flows[0].source.memory in HOST_MEMORY else 0
        return max(samples, _LIVES) * (_LIFE_S + pages_s)
    copy_s = flows_on_a_link(task.pattern, task.flows) * moved_bytes(task) / (task.planned_gb_s * GB)
    on_host = any(flow.destination.memory in HOST_MEMORY for flow in task.flows)
    # A single process verifies all destinations; of several processes, each verifies its own.
    checked = max(Counter(flow.destination.rank for flow in task.flows).values())
    check_s = 2 * (copy_s if on_host else checked * task.size_bytes / (_CHECK_GB_S * GB))
    return samples * (task.copies * copy_s + check_s) + _WARM_UP_COPIES * copy_s
