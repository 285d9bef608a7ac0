"""What is measured by fabric handles between all ranks of a run, on one node or on many, and in which steps: pure."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import combinations

from egmctl.bench.budget import too_large
from egmctl.bench.busy import in_use
from egmctl.bench.case import Case
from egmctl.bench.paths import Path, path_across
from egmctl.bench.patterns import expand
from egmctl.bench.plan import Candidate, Plan, PlannedTask, planned_task, slots
from egmctl.bench.rank_plan import Leg, flow_of, handle_waiver, local_path, shared_memory
from egmctl.bench.schedule import make_steps, sampled_rounds
from egmctl.bench.ucx_plan import ucx_path
from egmctl.errors import NothingToDo
from egmctl.model.machine import DeviceNode, Gpu, Machine
from egmctl.model.measurement import BenchGpu, Endpoint, Engine, Flow, HandleKind, Pattern, Settings
from egmctl.model.memory import HOST_MEMORY
from egmctl.model.rank import Rank
from egmctl.model.route import Egm

PAIRS = (Pattern.PAIR, Pattern.BOTH_DIRECTIONS)
"""What is measured of every pair; the other patterns are of all ranks."""

FROM_ONE = (Pattern.ONE_TO_ALL, Pattern.ALL_TO_ONE)
"""What is measured of every rank with all others."""

SEED = 1
"""Of the sample that ``--sample`` draws: the same pairs in every run, so that runs can be compared."""

TASK_LIMIT = 200_000
"""Measurements of one run: each is a few kilobytes of the report, in memory and in the file."""


@dataclass(frozen=True, slots=True)
class Party:
    """The ranks of a run and the nodes that they are on."""

    ranks: tuple[Rank, ...]
    machines: Mapping[str, Machine]
    """By the name of the host."""
    channels: Mapping[int, tuple[DeviceNode, ...] | None] = field(default_factory=dict)
    """IMEX channels as each rank sees them, where that is not what its node's facts say."""

    def machine(self, rank: Rank) -> Machine:
        """Return the node that a rank is on."""
        return self.machines[rank.host or ""]

    def node_of(self, end: Endpoint) -> str | None:
        """Return the name of the host whose memory or GPU an end is."""
        return None if end.rank is None else self.ranks[end.rank].host

    def gpu(self, rank: Rank) -> Gpu:
        """Return the GPU that a rank works."""
        return self.machine(rank).gpu(rank.bus_id)


def make_fabric_plan(party: Party, cases: Sequence[Case], settings: Settings, sample: int | None = None) -> Plan:
    """Combine cases of several processes with all ranks of a run.

    Parameters
    ----------
    sample
        Measure each rank with so many others, chosen at random and disjoint in each round, in place of all.

    Raises
    ------
    NothingToDo
        For more measurements than one run can report.
    """
    ranks = party.ranks
    if len(ranks) < 2:
        raise NothingToDo("fabric handles are measured between ranks, and there is one GPU only")
    rounds = None
    pairs: Iterator[tuple[int, int]] = combinations(range(len(ranks)), 2)
    if sample is not None:
        drawn = [list(zip(*one, strict=True)) for one in sampled_rounds(len(ranks), sample, SEED)]
        pairs = iter(sorted((min(pair), max(pair)) for one in drawn for pair in one))
        rounds = [[(str(a), str(b)) for a, b in one] for one in drawn]
    met = list(pairs)
    if len(met) * len(cases) > TASK_LIMIT:
        raise NothingToDo(
            f"{len(ranks)} ranks have {len(met)} pairs: more than one run can report; --sample 8 measures some"
        )
    make = maker(party, settings)
    tasks = tuple(
        planned
        for case in cases
        for planned in _each_wire_once(make(case, legs) for legs in legs_of(case, ranks, met, sample))
    )
    return Plan(
        settings=settings,
        gpus=tuple(_bench_gpu(rank, party.gpu(rank)) for rank in ranks),
        numa_nodes=(),
        tasks=tasks,
        steps=make_steps(slots(tasks, _of_ranks, by_link=False), serial=settings.serial, rounds=rounds),
        ranks=tuple(ranks),
        notes=tuple(_notes(party, settings, sample, len(met))),
    )


def legs_of(
    case: Case, ranks: Sequence[Rank], pairs: Sequence[tuple[int, int]], sample: int | None = None
) -> Iterator[tuple[Leg, ...]]:
    """Yield the flows of each task that a case makes of ranks.

    Parameters
    ----------
    pairs
        Places of the ranks that meet.
    sample
        Of patterns from or to one rank: that of so many ranks, evenly spread.
    """
    count = len(ranks)

    def leg(one: int, other: int) -> Leg:
        owner = ranks[other]
        if case.engine is Engine.UCX:
            return Leg(ranks[one], owner)
        return Leg(ranks[one], owner, owner.numa_node if shared_memory(case) in HOST_MEMORY else None)

    for flows in expand(case.pattern, count, meetings=pairs, ones=ones(count, sample)):
        yield tuple(leg(one, other) for one, other in flows)


def ones(count: int, sample: int | None) -> range:
    """Return the ranks that patterns from or to one rank are measured of: all, or so many, evenly spread."""
    return range(0, count, max(1, count // sample) if sample else 1)


def is_own_wire(planned: PlannedTask) -> bool:
    """Say whether a pair's bytes take the wire of the GPU that works alone: host memory over PCIe, whoever made it."""
    task = planned.task
    on_host = any(end.numa_node is not None for end in (task.flows[0].source, task.flows[0].destination))
    return task.pattern in PAIRS and on_host and not planned.disjoint and task.engine is not Engine.UCX


def maker(party: Party, settings: Settings) -> Callable[[Case, tuple[Leg, ...]], PlannedTask]:
    """Return what makes the task of a case's flows."""
    path_of = paths(party)

    def make(case: Case, legs: tuple[Leg, ...]) -> PlannedTask:
        way = tuple(path_of(case, leg) for leg in legs)
        first = legs[0]
        taking_part = {rank.number: rank for leg in legs for rank in (leg.initiator, leg.owner)}
        made = Candidate(
            flows=tuple(_named(flow_of(case, leg, path), leg) for leg, path in zip(legs, way, strict=True)),
            paths=way,
            gpus=(),
            cache=party.gpu(first.owner if first.numa_node is None else first.initiator),
        )
        waivers = (waiver(rank, case.handle) for rank in taking_part.values())
        found = next((why for why in (*waivers, *(path.waiver for path in way)) if why), None)
        planned = planned_task(case, made, settings, found)
        if case.footprint is not None and planned.waiver is None:
            why = too_large(party.machine(first.owner), planned.task, settings.memory_percent)
            planned = replace(planned, waiver=why)
        return planned

    known: dict[tuple[int, HandleKind | None], str | None] = {}

    def waiver(rank: Rank, handle: HandleKind | None) -> str | None:
        if (rank.number, handle) not in known:
            known[rank.number, handle] = _waiver(party, rank, handle, settings)
        return known[rank.number, handle]

    return make


def _each_wire_once(tasks: Iterable[PlannedTask]) -> Iterator[PlannedTask]:
    """Leave out of the tasks of a case those that take the very wire of another one."""
    seen: set[int | None] = set()
    for planned in tasks:
        if is_own_wire(planned):
            issuer = planned.task.flows[0].initiator_rank
            if issuer in seen:
                continue
            seen.add(issuer)
        yield planned


def paths(party: Party) -> Callable[[Case, Leg], Path]:
    """Return the paths between ranks of a run; each kind is found once for two GPUs of a node and for two nodes."""
    found: dict[tuple[object, ...], Path] = {}

    def path(case: Case, leg: Leg) -> Path:
        issuer, owner = leg.initiator, leg.owner
        if case.engine is Engine.UCX:
            return ucx_path(case, issuer, party.machine(issuer), owner, party.machine(owner))
        same = issuer.host == owner.host
        ends = (case.source, case.destination, case.initiator)
        key = (*ends, issuer.host, issuer.bus_id, owner.bus_id, same or owner.host)
        if key not in found:
            if same:
                found[key] = _within(party, case, leg)
            else:
                memory = None if leg.numa_node is None else shared_memory(case)
                found[key] = path_across(party.gpu(issuer), party.machine(owner), party.gpu(owner), memory)
        return found[key]

    return path


def _of_ranks(flow: Flow) -> tuple[str, ...]:
    """Return who meets in a flow, the one that issues the work first: bus ids are alike on all nodes."""
    issuer = flow.initiator_rank
    other = flow.destination.rank if flow.source.rank == issuer else flow.source.rank
    return str(issuer), str(other)


def _within(party: Party, case: Case, leg: Leg) -> Path:
    path = local_path(party.machine(leg.initiator))(case, leg)
    # EGM is reached over the GPU that owns it, which no other pair of the round uses.
    return replace(path, disjoint=True) if path.route.egm is Egm.YES else path


def _waiver(party: Party, rank: Rank, handle: HandleKind | None, settings: Settings) -> str | None:
    machine, gpu = party.machine(rank), party.gpu(rank)
    if rank.number in party.channels and machine.driver is not None:
        machine = replace(machine, driver=replace(machine.driver, imex_channels=party.channels[rank.number]))
    why = handle_waiver(machine, handle, gpu)
    if why is None and not settings.allow_busy and (busy := in_use(gpu)):
        why = f"{busy}; --allow-busy measures it all the same"
    return why and f"{rank.label}: {why}"


def _named(flow: Flow, leg: Leg) -> Flow:
    """Return a flow whose host memory is named by who has made it: it is reached over that rank's GPU."""
    if leg.numa_node is None:
        return flow
    label = f"{leg.owner.label}:NUMA{leg.numa_node}"
    if flow.source.numa_node is not None:
        return replace(flow, source=replace(flow.source, label=label))
    return replace(flow, destination=replace(flow.destination, label=label))


def _bench_gpu(rank: Rank, gpu: Gpu) -> BenchGpu:
    return BenchGpu(label=rank.label, index=gpu.index, bus_id=gpu.bus_id, uuid=gpu.uuid, name=gpu.name)


def _notes(party: Party, settings: Settings, sample: int | None, pairs: int) -> Iterator[str]:
    count = len(party.ranks)
    if sample is not None:
        of = count * (count - 1) // 2
        yield f"a sample: {pairs} of the {of} pairs of {count} ranks, chosen at random (seed {SEED})"
    for rank in party.ranks:
        if settings.allow_busy and (busy := in_use(party.gpu(rank))):
            yield f"measured all the same: {rank.label}: {busy}"
