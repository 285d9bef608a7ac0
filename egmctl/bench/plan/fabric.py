"""Plans of runs between all ranks, on one node or several, with fabric handles: tasks and steps. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from functools import cache, partial
from itertools import combinations

from egmctl.bench.case import Case, End
from egmctl.bench.plan import Plan, bench_gpu
from egmctl.bench.plan.flows import busy_waiver, expand, gpu_use
from egmctl.bench.plan.paths import Path, host_path, joined, path_across
from egmctl.bench.plan.placement import RankLayout
from egmctl.bench.plan.ranks import (
    RankFlow,
    handle_waiver,
    local_path,
    own_memory,
    rank_candidate,
    shared_memory,
    ucx_path,
    waive_blocked_egm,
    waived_path,
)
from egmctl.bench.plan.schedule import make_steps, sampled_rounds, slots
from egmctl.bench.plan.task import planned_task
from egmctl.errors import NothingToDo
from egmctl.model.finding import Waiver
from egmctl.model.listing import PlannedTask, PlannedTasks
from egmctl.model.measurement import Settings
from egmctl.model.route import HOST_MEMORY, Egm, Rank
from egmctl.model.task import UCX_ENGINES, Flow, HandleKind, Pattern, Point

PAIRS = (Pattern.PAIR, Pattern.BOTH_DIRECTIONS)
"""Patterns that are measured for every pair of ranks; the others use all ranks."""

SEED = 1
"""The seed of the sample that ``--sample`` draws. It is constant, so runs measure the same pairs and can be
compared."""

TASK_LIMIT = 200_000
"""The maximum number of measurements of one run. Each is a few kilobytes of the report, in memory and in the file."""


def make_fabric_plan(layout: RankLayout, cases: Sequence[Case], settings: Settings, sample: int | None = None) -> Plan:
    """Return the plan of cases of several processes for all ranks of a run.

    Parameters
    ----------
    sample
        The number of others that each rank is measured with, in random rounds of disjoint pairs; ``None``: all.

    Raises
    ------
    NothingToDo
        There is only one rank, or there are more measurements than one run can report.
    """
    ranks = layout.ranks
    if len(ranks) < 2:
        raise NothingToDo("fabric handles are measured between ranks, but there is only one GPU")
    pair_count = len(ranks) * min(len(ranks) - 1, sample or len(ranks)) // 2
    if pair_count * len(cases) > TASK_LIMIT:
        raise NothingToDo(
            f"{len(ranks)} ranks have {pair_count} pairs: more than one run can report; --sample "
            f"{'1' if sample else '8'} or --case measures some"
        )
    rounds = None
    met = list(combinations(range(len(ranks)), 2)) if sample is None else []
    if sample is not None:
        sampled = sampled_rounds(len(ranks), sample, SEED)
        met = sorted((min(pair), max(pair)) for pairs in sampled for pair in pairs)
        rounds = [[(str(rank), str(other)) for rank, other in pairs] for pairs in sampled]
    make = maker(layout, settings)
    tasks = PlannedTasks.of(
        [
            planned
            for case in cases
            for point in case.points
            # A pattern of all ranks could not run if some of them were left out.
            for planned in _each_link_once(
                make(case, point, flows)
                for flows in job_flows(case, ranks if case.pattern in PAIRS else layout.taking_part, met, sample)
            )
        ]
    )
    return Plan(
        settings=settings,
        gpus=tuple(bench_gpu(layout.gpu(rank), rank.label) for rank in sorted(ranks, key=_node_order(layout))),
        numa_nodes=(),
        tasks=tasks,
        steps=make_steps(
            slots(tasks, _rank_numbers, by_link=False, memory=partial(_host_memory, layout)),
            serial=settings.serial,
            rounds=rounds,
        ),
        ranks=layout.taking_part,
        notes=tuple(_notes(layout, settings, sample, len(met))),
    )


def job_flows(
    case: Case, ranks: Sequence[Rank], pairs: Sequence[tuple[int, int]], sample: int | None = None
) -> Iterator[tuple[RankFlow, ...]]:
    """Yield the flows of each task of a case.

    Parameters
    ----------
    pairs
        Indices of the ranks that are measured with each other.
    sample
        For patterns from or to one rank, the number of such ranks to measure, evenly spread; ``None``: all.
    """
    count = len(ranks)
    on_host = case.engine not in UCX_ENGINES and shared_memory(case) in HOST_MEMORY

    def rank_flow(index: int, other: int) -> RankFlow:
        return RankFlow(ranks[index], ranks[other], ranks[other].numa_node if on_host else None)

    hubs = range(0, count, max(1, count // sample) if sample else 1)
    for flows in expand(case.pattern, count, meetings=pairs, hubs=hubs):
        yield tuple(rank_flow(index, other) for index, other in flows)


def maker(layout: RankLayout, settings: Settings) -> Callable[[Case, Point, tuple[RankFlow, ...]], PlannedTask]:
    """Return a function that makes the task of a case at a point for some flows."""
    path_of = _paths(layout)

    @cache
    def waiver(rank: Rank, handle: HandleKind | None) -> Waiver | None:
        return _waiver(layout, rank, handle, settings)

    def make(case: Case, point: Point, rank_flows: tuple[RankFlow, ...]) -> PlannedTask:
        made = rank_candidate(case, rank_flows, path_of, layout.gpu, across_nodes=True)
        ranks = dict.fromkeys(rank for flow in rank_flows for rank in (flow.initiator, flow.owner))
        waivers = [waiver(rank, case.handle) for rank in ranks]
        return planned_task(case, point, made, settings, [*waivers, *(path.waiver for path in made.paths)])

    return make


def _each_link_once(tasks: Iterable[PlannedTask]) -> Iterator[PlannedTask]:
    """Yield the tasks of a case, without those that use the same link as an earlier one.

    With host memory over PCIe, the bytes of a pair cross only the link of the issuing GPU, whichever rank allocated the
    memory.
    """
    issuers: set[int | None] = set()
    for task in tasks:
        (flow, *_) = task.flows
        on_host = flow.source.numa_node is not None or flow.destination.numa_node is not None
        if task.pattern in PAIRS and on_host and not task.disjoint and task.engine not in UCX_ENGINES:
            if flow.initiator_rank in issuers:
                continue
            issuers.add(flow.initiator_rank)
        yield task


def _paths(layout: RankLayout) -> Callable[[Case, RankFlow], Path]:
    """Return a function that returns the path of a flow between ranks. It caches paths by kind, GPUs and nodes."""
    known: dict[tuple[object, ...], Path] = {}

    def path(case: Case, rank_flow: RankFlow) -> Path:
        issuer, owner = rank_flow.initiator, rank_flow.owner
        if case.engine in UCX_ENGINES:
            return ucx_path(case, rank_flow, layout.machine)
        same_host = issuer.host == owner.host
        ends = (case.source, case.destination, case.initiator)
        key = (*ends, issuer.host, issuer.bus_id, owner.bus_id, same_host or owner.host)
        if key not in known:
            known[key] = (_path_within_node if same_host else _path_between_nodes)(layout, case, rank_flow)
        return known[key]

    return path


def _rank_numbers(flow: Flow) -> tuple[str, ...]:
    """Return the numbers of a flow's ranks, the issuer first. GPUs of several nodes may have the same bus id."""
    issuer = flow.initiator_rank
    other = flow.destination.rank if flow.source.rank == issuer else flow.source.rank
    return str(issuer), str(other)


def _host_memory(layout: RankLayout, flow: Flow) -> frozenset[str]:
    """Return the NUMA nodes whose host memory one GPU both reads and writes in a flow.

    Two GPUs of one CPU would share its memory, and perhaps one C2C (:mod:`egmctl.topology.routes`).
    """
    ends = (flow.source, flow.destination) if flow.through_gpu else ()
    return frozenset(f"{layout.node_of(end)} NUMA{end.numa_node}" for end in ends)


def _path_within_node(layout: RankLayout, case: Case, rank_flow: RankFlow) -> Path:
    path = local_path(layout.machine(rank_flow.initiator), case, rank_flow)
    # EGM is reached through the GPU that owns it, which no other pair of the round uses.
    return replace(path, disjoint=True) if path.route.egm is Egm.YES else path


def _path_between_nodes(layout: RankLayout, case: Case, rank_flow: RankFlow) -> Path:
    initiator, owner, memory = rank_flow.initiator, rank_flow.owner, shared_memory(case)
    if (waived := waived_path(case, rank_flow)) is not None:
        return waived
    on_host = memory in HOST_MEMORY
    far = path_across(layout.gpu(initiator), layout.machine(owner), layout.gpu(owner), memory if on_host else None)
    own = own_memory(case)
    if own not in HOST_MEMORY or initiator.numa_node is None:
        return far
    near = host_path(layout.machine(initiator), layout.gpu(initiator), initiator.numa_node, own)
    path = waive_blocked_egm(joined(near, far) if case.initiator is End.SOURCE else joined(far, near))
    # Pairs that share a NUMA node's memory are kept apart by _host_memory.
    return replace(path, disjoint=True)


def _node_order(layout: RankLayout) -> Callable[[Rank], tuple[int, int]]:
    """Return a sort key that orders ranks by node, then by index of the GPU."""
    nodes = {host: index for index, host in enumerate(layout.machines)}
    return lambda rank: (nodes[rank.host or ""], layout.gpu(rank).index)


def _waiver(layout: RankLayout, rank: Rank, handle: HandleKind | None, settings: Settings) -> Waiver | None:
    if (stopped := layout.left_out.get(rank.number)) is not None:
        return replace(stopped, rank=rank.number)
    machine, gpu = layout.machine(rank), layout.gpu(rank)
    if rank.number in layout.channels and machine.driver is not None:
        machine = replace(machine, driver=replace(machine.driver, imex_channels=layout.channels[rank.number]))
    waiver = handle_waiver(machine, handle, gpu)
    if waiver is None and not settings.allow_busy:
        waiver = busy_waiver(gpu)
    return None if waiver is None else replace(waiver, reason=f"{rank.label}: {waiver.reason}", rank=rank.number)


def _notes(layout: RankLayout, settings: Settings, sample: int | None, pairs: int) -> Iterator[str]:
    count = len(layout.ranks)
    if sample is not None:
        all_pairs = count * (count - 1) // 2
        yield f"a sample: {pairs} of the {all_pairs} pairs of {count} ranks, chosen at random (seed {SEED})"
    for rank in layout.ranks:
        if settings.allow_busy and (busy := gpu_use(layout.gpu(rank))):
            yield f"measured anyway: {rank.label}: {busy}"
