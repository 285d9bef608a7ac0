"""What ranks measure together: the request of a run, each rank's node, and the plan or the cost of a job."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from egmctl.api.bench import Bench
from egmctl.api.machine import read_machine
from egmctl.bench.fabric_run import RunRequest, alone, plan_for
from egmctl.bench.plan.cost import job_cost, plan_report
from egmctl.bench.plan.fabric import make_fabric_plan
from egmctl.bench.plan.placement import modelled
from egmctl.errors import NothingToDo
from egmctl.model.gpu import Gpu
from egmctl.model.listing import JobCost, PlanReport
from egmctl.model.machine import Machine


def run_request(bench: Bench, sample: int | None) -> RunRequest:
    """Return the run that a bench requests of ranks.

    Parameters
    ----------
    sample
        The number of random partners of each rank; ``None``: all.
    """
    return RunRequest(
        cases=bench.selected_cases, settings=bench.settings, sample=sample, fixed_size=bench.size is not None
    )


def facts_of_rank(bench: Bench, ready: Callable[[], object]) -> tuple[Machine, Sequence[Gpu]]:
    """Return this rank's node and the GPUs to measure.

    Parameters
    ----------
    ready
        Raises an error if the answer cannot be written. Only rank 0 writes: its error must reach the other ranks, or
        they would wait for it.

    Raises
    ------
    NothingToDo
        The node has no GPU.
    """
    ready()
    node = read_machine(sections=bench.sections)
    if not node.gpus:
        raise NothingToDo("no GPU to measure; 'egmctl topo' shows what was found")
    return node, bench.chosen(node)


def fabric_plan(bench: Bench, node: Machine, *, ranks: int | None, sample: int | None) -> PlanReport | JobCost:
    """Return the steps between a node's GPUs, or the cost of a job.

    Parameters
    ----------
    ranks
        The number of GPUs of the job, on nodes like this one; ``None``: the node's own.
    sample
        As for :func:`run_request`.

    Raises
    ------
    NothingToDo
        The node has no GPU to scale from, or there is nothing to measure.
    """
    if ranks is None:
        return plan_report(plan_for(alone(node, bench.chosen(node)), run_request(bench, sample)), node.origin)
    if not node.gpus:
        raise NothingToDo("no GPU here to scale from; --machine names a machine that has GPUs")
    layout = modelled(node, ranks)
    return job_cost(make_fabric_plan(layout, bench.selected_cases, bench.settings, sample), layout)
