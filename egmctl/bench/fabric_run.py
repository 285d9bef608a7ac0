"""A run of the suite ``fabric``: by ranks that this command starts on its node, or by all commands of an MPI job."""

from __future__ import annotations

import json
import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from egmctl import __version__
from egmctl.bench.budget import Memory, check_memory, fitted, free_bytes
from egmctl.bench.case import Case
from egmctl.bench.fabric_plan import Party, make_fabric_plan
from egmctl.bench.party import Seat, agree, assign, hosts, nearest_node, ranks_of, seat, whole
from egmctl.bench.paths import cuda_visible, gpu_waiver
from egmctl.bench.plan import Plan
from egmctl.bench.processes.mpi import Coordinator, serve_rank
from egmctl.bench.processes.pool import WorkerPool, start_group
from egmctl.bench.supervisor import Progress, supervise
from egmctl.errors import EgmctlError
from egmctl.facts.redact import redact
from egmctl.journal.events import Recorder
from egmctl.launch import Child
from egmctl.model.codec import from_json, to_json
from egmctl.model.machine import Gpu, Machine
from egmctl.model.measurement import HandleKind, RunReport, Settings
from egmctl.model.rank import Rank
from egmctl.mpi.refusal import check, refusal
from egmctl.mpi.world import World

GATHER_S = 120.0
"""How long the slowest rank may take to read its facts."""

INTERRUPTED_S = 0.3
"""How long rank 0 listens for who is still there when it is told to end."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """What the user asked for."""

    cases: tuple[Case, ...]
    settings: Settings
    sample: int | None = None
    fixed_size: bool = False
    """The size was chosen: it does not give way to what is free."""


def measure_here(
    machine: Machine, chosen: Sequence[Gpu], asked: Asked, on_progress: Progress, recorder: Recorder | None = None
) -> RunReport:
    """Measure between ranks on this node, one for each GPU that can be used.

    Raises
    ------
    NothingToDo, UsageError
        As of the plan.
    """
    party = alone(machine, chosen)
    return _supervised(plan_for(party, asked), party, on_progress, start_group, recorder)


def alone(machine: Machine, chosen: Sequence[Gpu]) -> Party:
    """Return the ranks of a run on one node."""
    visible = cuda_visible(machine)
    usable = [gpu for gpu in chosen if gpu_waiver(machine, gpu, visible) is None]
    ranks = (
        Rank(number=number, label=f"GPU{gpu.index}", bus_id=gpu.bus_id, numa_node=nearest_node(machine, gpu), host="")
        for number, gpu in enumerate(usable)
    )
    return Party(tuple(ranks), {"": machine})


def measure_job(
    world: World,
    child: Child,
    facts: Callable[[], tuple[Machine, Sequence[Gpu]]],
    asked: Asked,
    on_progress: Progress,
    recorder: Recorder | None = None,
) -> RunReport | None:
    """Measure between all ranks of an MPI job.

    Parameters
    ----------
    child
        The process of this command's rank, which is ended.
    facts
        Reads the node and returns it with the GPUs that are asked for.

    Returns
    -------
    RunReport
        On rank 0; nothing elsewhere.

    Raises
    ------
    EgmctlError
        What keeps the run from beginning: the same on every rank, or on rank 0 alone once it has told the others.
    RanksMissing
        Commands are gone.
    """
    try:
        party = gather_party(world, facts, asked)
    except BaseException:
        child.close()
        raise
    if party is None:
        serve_rank(world, child)
        return None
    ranks = party.ranks
    coordinator = Coordinator(world, child, lambda number: f"{ranks[number].label} on {ranks[number].host}")
    try:
        plan = plan_for(party, asked)
        report = _supervised(plan, party, on_progress, lambda _count: coordinator.start(), recorder)
    except EgmctlError:
        coordinator.finish()
        child.close()
        raise
    if report.interrupted:
        # The others are told to end too: no word can be waited for.
        world.broken = True
        missing = world.roll_call(INTERRUPTED_S)
        if missing:
            lost = str(coordinator.failed(missing))
            report = replace(report, interrupted=False, problems=(*report.problems, lost))
    else:
        coordinator.finish()
    return report


def gather_party(world: World, facts: Callable[[], tuple[Machine, Sequence[Gpu]]], asked: Asked) -> Party | None:
    """Tell all ranks what this one has found; return on rank 0 who takes part.

    Raises
    ------
    NothingToDo, UsageError
        On every rank: some cannot take part, do not fit together, or a node has too few GPUs.
    """
    machine: Machine | None = None
    try:
        machine, chosen = facts()
        host = (machine.host.hostname if machine.host else None) or world.host
        own = seat(machine, host, __version__, chosen)
    except EgmctlError as error:
        own = Seat(host=world.host, tool=__version__, refusal=refusal(world.rank, world.host, error))
    seats = [
        from_json(Seat, json.loads(told)) for told in world.all_gather(json.dumps(to_json(own)).encode(), GATHER_S)
    ]
    check(of.refusal for of in seats if of.refusal)
    gpus = assign(seats)
    agree(seats, gpus, one_domain=any(case.handle is HandleKind.FABRIC for case in asked.cases))
    first = {of[0] for of in hosts(seats).values()}
    assert machine is not None  # noqa: S101 - all is well
    part = {"machine": to_json(machine)} if world.rank in first else {"gpu": to_json(machine.gpu(gpus[world.rank]))}
    parts = world.gather(zlib.compress(json.dumps(part).encode()), GATHER_S)
    if world.rank:
        return None
    return _put_together(seats, gpus, [json.loads(zlib.decompress(told)) for told in parts])


def plan_for(party: Party, asked: Asked) -> Plan:
    """Return the plan, with smaller buffers where the usual size has no room.

    Raises
    ------
    UsageError
        If the buffers have no room.
    NothingToDo
        As of :func:`make_fabric_plan`.
    """

    def planned(size_bytes: int) -> Plan:
        return make_fabric_plan(party, asked.cases, replace(asked.settings, size_bytes=size_bytes), asked.sample)

    plan = planned(asked.settings.size_bytes)
    memory = Memory(lambda peak: free_bytes(party.machines[peak.host or ""], peak), party.node_of)
    if not asked.fixed_size:
        return fitted(plan, memory, planned)
    check_memory(plan, memory)
    return plan


def _put_together(seats: Sequence[Seat], gpus: Sequence[str], parts: Sequence[dict[str, Any]]) -> Party:
    machines = {}
    for host, ranks in hosts(seats).items():
        base = from_json(Machine, parts[ranks[0]]["machine"])
        machines[host] = whole(base, [from_json(Gpu, parts[rank]["gpu"]) for rank in ranks[1:]])
    channels = {rank: of.channels for rank, of in enumerate(seats)}
    return Party(ranks_of(seats, gpus, machines), machines, channels)


def _supervised(
    plan: Plan,
    party: Party,
    on_progress: Progress,
    start: Callable[[int], WorkerPool],
    recorder: Recorder | None,
) -> RunReport:
    machines = tuple(party.machines.values())
    report = supervise(plan, machines[0], on_progress=on_progress, start_ranks=start, recorder=recorder)
    return replace(report, machines=tuple(map(redact, machines)))
