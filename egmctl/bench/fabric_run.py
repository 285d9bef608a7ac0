"""Run the suite ``fabric``, either in ranks that this command starts on its node or in all commands of an MPI job."""

from __future__ import annotations

import base64
import json
import zlib
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from egmctl import __version__
from egmctl.bench.case import Case
from egmctl.bench.plan import Plan
from egmctl.bench.plan.budget import Memory, fitted, free_bytes, most_bytes
from egmctl.bench.plan.fabric import make_fabric_plan
from egmctl.bench.plan.paths import gpu_waiver
from egmctl.bench.plan.placement import (
    RankInfo,
    RankLayout,
    assign_gpus,
    check_agreement,
    hosts,
    merge_gpus,
    rank_info,
    rank_of,
    ranks_of,
)
from egmctl.bench.processes.group import Coordinator, Group, serve_rank, start_group
from egmctl.bench.supervisor import OnProgress, supervise
from egmctl.dataclass import dataclass
from egmctl.errors import EgmctlError
from egmctl.facts.redact import redact
from egmctl.journal.events import Recorder, forget
from egmctl.launch import Child
from egmctl.model.codec import from_json, to_json
from egmctl.model.gpu import Gpu
from egmctl.model.machine import Machine
from egmctl.model.measurement import RunReport, Settings
from egmctl.model.task import HandleKind
from egmctl.mpi.world import World

GATHER_S = 120.0
"""The timeout for the slowest rank to read its facts."""

INTERRUPTED_S = 0.3
"""The time that rank 0 waits, after an interrupt, for other ranks to report."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunRequest:
    """The run that the user requested."""

    cases: tuple[Case, ...]
    settings: Settings
    sample: int | None = None
    """The number of random partners per rank; ``None``: all."""
    fixed_size: bool = False
    """Whether the user chose the size, so that it is not reduced to fit free memory."""


def measure_here(
    machine: Machine, chosen: Sequence[Gpu], asked: RunRequest, on_progress: OnProgress, recorder: Recorder = forget
) -> RunReport:
    """Measure between ranks on this node, one per usable GPU.

    Raises
    ------
    NothingToDo, UsageError
        See :func:`egmctl.bench.plan.fabric.make_fabric_plan`.
    """
    layout = alone(machine, chosen)
    return _supervised(plan_for(layout, asked), layout, on_progress, start_group, recorder)


def alone(machine: Machine, chosen: Sequence[Gpu]) -> RankLayout:
    """Return the ranks of a run on one node, one per chosen GPU; those of unusable GPUs come last."""
    waivers = {gpu.bus_id: gpu_waiver(machine, gpu) for gpu in chosen}
    ordered = sorted(chosen, key=lambda gpu: waivers[gpu.bus_id] is not None)
    ranks = (rank_of(number, gpu, machine.cpu_nodes, "") for number, gpu in enumerate(ordered))
    stopped = {n: waiver for n, gpu in enumerate(ordered) if (waiver := waivers[gpu.bus_id]) is not None}
    return RankLayout(tuple(ranks), {"": machine}, left_out=stopped)


def measure_job(
    world: World,
    child: Child,
    facts: Callable[[], tuple[Machine, Sequence[Gpu]]],
    asked: RunRequest,
    on_progress: OnProgress,
    recorder: Recorder = forget,
    on_plan: Callable[[Plan], object] = lambda _plan: None,
) -> RunReport | None:
    """Measure between all ranks of an MPI job.

    Parameters
    ----------
    child
        The process of this command's rank, which this function ends.
    facts
        A function that reads the node and returns it with the GPUs that the user chose.
    on_plan
        Called on rank 0 with the plan, before anything is measured.

    Returns
    -------
    RunReport | None
        The report on rank 0; ``None`` on other ranks.

    Raises
    ------
    EgmctlError
        The run cannot begin. Raised on every rank, or on rank 0 only, after the others have finished.
    RanksMissing
        Some commands of the job do not respond.
    """
    try:
        layout = gather_layout(world, facts, asked)
    except BaseException:
        child.close()
        raise
    if layout is None:
        serve_rank(world, child)
        return None
    ranks = layout.ranks
    coordinator = Coordinator(world, child, lambda number: f"{ranks[number].label} on {ranks[number].host}")
    try:
        plan = plan_for(layout, asked)
        on_plan(plan)
        report = _supervised(plan, layout, on_progress, lambda _count: coordinator.start(), recorder)
    except EgmctlError:
        coordinator.finish()
        child.close()
        raise
    if report.interrupted:
        # The other commands are interrupted too: no message can be expected.
        world.broken = True
        missing = world.roll_call(INTERRUPTED_S)
        if missing:
            lost = str(coordinator.failed(missing))
            report = replace(report, interrupted=False, problems=(*report.problems, lost))
    else:
        coordinator.finish()
    return report


def gather_layout(
    world: World, facts: Callable[[], tuple[Machine, Sequence[Gpu]]], asked: RunRequest
) -> RankLayout | None:
    """Exchange the facts of all ranks; return the layout on rank 0, ``None`` on other ranks.

    Raises
    ------
    NothingToDo, UsageError
        A rank cannot take part, the ranks do not fit together, or a node has too few GPUs. Raised on every rank.
    """

    def described(facts: tuple[Machine, Sequence[Gpu]]) -> RankInfo:
        machine, chosen = facts
        return rank_info(machine, (machine.host.hostname if machine.host else None) or world.host, __version__, chosen)

    (machine, _), infos = world.share(RankInfo, facts, described, GATHER_S)
    gpus = assign_gpus(infos)
    check_agreement(infos, gpus, one_domain=any(case.handle is HandleKind.FABRIC for case in asked.cases))
    first = {ranks[0] for ranks in hosts(infos).values()}
    own_part = {"machine": to_json(machine)} if world.rank in first else {"gpu": to_json(machine.gpu(gpus[world.rank]))}
    # A machine has about 300 KiB of JSON.
    compressed = base64.b64encode(zlib.compress(json.dumps(own_part).encode())).decode()
    parts = world.all_gather(compressed, GATHER_S)
    if world.rank:
        return None
    return _put_together(infos, gpus, [json.loads(zlib.decompress(base64.b64decode(part))) for part in parts])


def plan_for(layout: RankLayout, asked: RunRequest) -> Plan:
    """Return the plan. Unless the user chose the size, buffers are reduced to fit the free memory.

    Raises
    ------
    UsageError
        Buffers of the chosen size do not fit.
    NothingToDo
        See :func:`make_fabric_plan`.
    """

    def planned(size_bytes: int) -> Plan:
        return make_fabric_plan(layout, asked.cases, replace(asked.settings, size_bytes=size_bytes), asked.sample)

    free_at = most_bytes if asked.fixed_size else free_bytes
    memory = Memory(lambda peak: free_at(layout.machines[peak.host or ""], peak), layout.node_of)
    return fitted(planned(asked.settings.size_bytes), memory, None if asked.fixed_size else planned)


def _put_together(infos: Sequence[RankInfo], gpus: Sequence[str], parts: Sequence[dict[str, Any]]) -> RankLayout:
    machines = {}
    for host, ranks in hosts(infos).items():
        base = from_json(Machine, parts[ranks[0]]["machine"])
        machines[host] = merge_gpus(base, [from_json(Gpu, parts[rank]["gpu"]) for rank in ranks[1:]])
    channels = {rank: info.channels for rank, info in enumerate(infos)}
    return RankLayout(ranks_of(infos, gpus, machines), machines, channels)


def _supervised(
    plan: Plan, layout: RankLayout, on_progress: OnProgress, start: Callable[[int], Group], recorder: Recorder
) -> RunReport:
    machines = tuple(layout.machines.values())
    report = supervise(plan, machines[0], on_progress=on_progress, start_ranks=start, recorder=recorder)
    return replace(report, machines=tuple(map(redact, machines)))
