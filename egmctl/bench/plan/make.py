"""Make a plan from cases and a machine: the tasks, the waivers of those that cannot run, and the sizes of a sweep."""

from __future__ import annotations

from collections.abc import Collection, Hashable, Iterator, Sequence
from dataclasses import replace

from egmctl.bench.case import Case, Processes
from egmctl.bench.engine import ENGINES
from egmctl.bench.plan import Plan, bench_gpu
from egmctl.bench.plan.budget import has_room, huge_page_sizes, pages_waiver
from egmctl.bench.plan.candidates import Candidates, Known, candidates_of, looks_at_each, shape_of, takes_pages
from egmctl.bench.plan.flows import (
    Pair,
    busy_waiver,
    gpu_use,
    measures_pair,
)
from egmctl.bench.plan.placement import RankLayout, rank_of
from egmctl.bench.plan.ranks import RankCandidates, flows_between
from egmctl.bench.plan.schedule import isolated, make_steps
from egmctl.bench.plan.task import (
    Candidate,
    atomics_waiver,
    blocks_waiver,
    capability_waiver,
    handle_waiver,
    planned_task,
)
from egmctl.bench.suites import CASES
from egmctl.errors import UsageError
from egmctl.model.finding import Waiver, WaiverKind
from egmctl.model.gpu import Gpu
from egmctl.model.listing import PlannedTask, PlannedTasks, PlanStep
from egmctl.model.machine import Machine
from egmctl.model.measurement import Settings
from egmctl.model.route import HOST_MEMORY, Egm
from egmctl.model.task import UCX_ENGINES, Flow, Point
from egmctl.topology.access import without_nvml
from egmctl.units import GIB, KIB

SECTIONS = ("host", "gpus", "pairs", "driver", "process")
"""The sections of a machine that a plan needs."""

SIZE_MULTIPLE_BYTES = 16
"""The unit of buffer sizes in bytes: the widest word that a GPU moves, and a whole number of the pattern's words."""


def make_plan(
    machine: Machine,
    gpus: Sequence[Gpu],
    numa_nodes: Sequence[int],
    cases: Sequence[Case],
    settings: Settings,
    *,
    pairs: Sequence[Pair] = (),
    no_ucx: str = "",
    known: Known | None = None,
) -> Plan:
    """Return the plan of cases for GPUs and NUMA nodes.

    Parameters
    ----------
    pairs
        The only paths to measure; empty for all paths.
    no_ucx
        The reason why UCX cannot be used; empty if it may be usable.
    known
        What earlier plans of the same cases for the same GPUs and nodes, of buffers of other sizes, have found out.

    Raises
    ------
    UsageError
        The settings are invalid, or no case measures any of the pairs.
    """
    if settings.size_bytes <= 0 or settings.size_bytes % SIZE_MULTIPLE_BYTES:
        raise UsageError(f"--size {settings.size_bytes}: it must be a multiple of {SIZE_MULTIPLE_BYTES} bytes above 0")
    known = known or Known(machine, allow_busy=settings.allow_busy)
    between = None
    if any(case.processes is not Processes.ONE for case in cases):
        between = _BetweenProcesses(known, gpus, numa_nodes, settings, export=any(case.for_all for case in cases))

    def make(case: Case) -> PlannedTasks:
        shape: Hashable
        if between is None or case.processes is Processes.ONE:
            shape, made = shape_of(case, known), candidates_of(case, known, gpus, numa_nodes)
        else:
            shape, made = case.name, between.candidates(case)
        candidates = known.candidates.get(shape)
        if candidates is None:
            candidates = known.candidates[shape] = known.numbered(made)
        not_installed = no_ucx if case.engine in UCX_ENGINES else ""
        return PlannedTasks.joined(
            _chosen(
                case,
                point,
                _planned_tasks(case, point, known, candidates, settings, not_installed),
                pairs,
            )
            for point in case.points
        )

    made = {case.name: make(case) for case in cases}
    by_ranks = [
        case
        for case in cases
        if case.processes is not Processes.ONE and not all(kind.waivers for kind in made[case.name].kinds)
    ]
    # The cases within one process that are set beside them come first, as in the registry.
    points = {case.in_process: case.points for case in by_ranks}
    in_process = (case for case in CASES if case.name in points and case.name not in made)
    made_in_process = {case.name: make(replace(case, points=points[case.name])) for case in in_process}
    tasks = PlannedTasks.joined((made_in_process | made).values())
    empty = [name for name, case_tasks in made.items() if not case_tasks]
    by_owner = {case.name for case in cases if case.by_owner}
    if pairs and not tasks:
        raise UsageError("--pair: none of the chosen cases measures a single path")
    return Plan(
        settings=settings,
        gpus=tuple(bench_gpu(gpu, f"GPU{gpu.index}") for gpu in gpus),
        numa_nodes=tuple(numa_nodes),
        tasks=tasks,
        ranks=between.layout.taking_part if between is not None and by_ranks else (),
        steps=known.steps(tasks, lambda: _steps(tasks, settings)),
        ends=known.ends,
        huge_page_bytes=huge_page_sizes(machine),
        notes=(
            *_without_tasks(empty, by_owner, bool(pairs)),
            *(f"measured anyway: {busy}" for busy in map(gpu_use, gpus) if busy and settings.allow_busy),
            *_unlisted(machine, gpus),
            *_not_native(tasks, gpus),
        ),
    )


class _BetweenProcesses:
    """What cases that need several processes make tasks of: a node is a job of one host.

    Parameters
    ----------
    export
        Whether one process more for each NUMA node exports the memory that all GPUs share.
    """

    def __init__(
        self, known: Known, gpus: Sequence[Gpu], numa_nodes: Sequence[int], settings: Settings, *, export: bool
    ) -> None:
        machine = known.machine
        waivers = {gpu.bus_id: known.gpu_waiver(gpu.bus_id) for gpu in gpus}
        if not settings.allow_busy:
            waivers = {gpu.bus_id: waivers[gpu.bus_id] or busy_waiver(gpu) for gpu in gpus}
        usable = [gpu for gpu in gpus if waivers[gpu.bus_id] is None]
        exporting = {gpu.host_numa_id: gpu for gpu in usable[::-1] if export}
        started = [*usable, *[*exporting.values()][::-1]]
        ordered = [*started, *(gpu for gpu in gpus if waivers[gpu.bus_id] is not None)]
        ranks = tuple(rank_of(number, gpu, numa_nodes) for number, gpu in enumerate(ordered))
        left_out = {rank.number: waiver for rank in ranks if (waiver := waivers[rank.bus_id]) is not None}
        self.layout = RankLayout(ranks, {"": machine}, left_out=left_out)
        self._candidates = RankCandidates(self.layout, job=False, device_paths={"": known.device_paths})
        self._exporters = ranks[len(usable) : len(started)]
        self._ranks = (*ranks[: len(usable)], *ranks[len(started) :])
        self._numa_nodes = numa_nodes

    def candidates(self, case: Case) -> Iterator[Candidate]:
        """Yield the candidates of a case."""
        flows = flows_between(case, self._ranks, nodes=self._numa_nodes, exporters=self._exporters)
        return self._candidates.of(case, flows)


def _steps(tasks: PlannedTasks, settings: Settings) -> tuple[PlanStep, ...]:
    return isolated(tasks, make_steps(tasks, _gpus, by_link=True, serial=settings.serial))


def _without_tasks(empty: Sequence[str], by_owner: Collection[str], pairs: bool) -> Iterator[str]:
    """Yield a note on the cases that have no task, with the reason."""
    if pairs:
        reasons = {"these cases measure none of the pairs": list(empty)}
    else:
        reasons = {
            "these cases need two GPUs": [name for name in empty if name not in by_owner],
            "these cases need two GPUs on one NUMA node": [name for name in empty if name in by_owner],
        }
    yield from (f"{reason}: {', '.join(names)}" for reason, names in reasons.items() if names)


def _unlisted(machine: Machine, gpus: Sequence[Gpu]) -> Iterator[str]:
    """Yield a note on the GPUs that NVML does not list, with what is unknown about them."""
    labels = [f"GPU{gpu.index}" for gpu in gpus if gpu.nvml is None and gpu.cuda is not None]
    if labels:
        yield (
            f"{without_nvml(machine, ', '.join(labels))}: links, their nominal rates, clocks, counters and other users "
            "are unknown"
        )


def _not_native(tasks: PlannedTasks, gpus: Sequence[Gpu]) -> Iterator[str]:
    """Yield a note on the GPUs that add to host memory without native atomics.

    Such additions are not atomic for the host or for other GPUs (CUDA C++ Programming Guide, "Mapped Memory").
    """
    adding = {
        id(kind)
        for kind in tasks.distinct
        if not kind.waivers
        and ENGINES[kind.engine].atomics
        and any(flow.route.memory is not None for flow in kind.flows)
    }
    if not adding:
        return
    initiators = set[str | None]()
    for kind, flows in zip(tasks.kinds, tasks.flows, strict=True):
        if id(kind) in adding:
            initiators.update(flow.initiator for flow in flows if flow.route.memory is not None)
    labels = [
        f"GPU{gpu.index}"
        for gpu in gpus
        if gpu.bus_id in initiators and gpu.attribute("HOST_NATIVE_ATOMIC_SUPPORTED") == 0
    ]
    if labels:
        yield (
            f"additions to host memory are atomic for the adding GPU alone: "
            f"CU_DEVICE_ATTRIBUTE_HOST_NATIVE_ATOMIC_SUPPORTED is 0 of {', '.join(labels)}"
        )


def _chosen(case: Case, point: Point, tasks: PlannedTasks, pairs: Sequence[Pair]) -> PlannedTasks:
    """Return the tasks of a case at a point: all, those of ``pairs``, or one per kind of route, if possible runnable.

    Parameters
    ----------
    pairs
        The only paths to measure; empty for all paths.
    """
    if pairs:
        return tasks.only(
            [number for number, flows in enumerate(tasks.flows) if measures_pair(case.pattern, flows, pairs)]
        )
    if not case.one_path and not point.one_path:
        return tasks
    by_route: dict[tuple[tuple[str, Egm | None], ...], PlannedTask] = {}
    for task in tasks.distinct:
        route = tuple((flow.route.symbol, flow.route.egm) for flow in task.flows)
        if route not in by_route or (by_route[route].waivers and not task.waivers):
            by_route[route] = task
    return PlannedTasks.of(tuple(by_route.values()))


def _planned_tasks(
    case: Case, point: Point, known: Known, candidates: Candidates, settings: Settings, not_installed: str
) -> PlannedTasks:
    """Return the tasks of a case at a point; those with large footprints only if they fit into memory."""

    def planned(candidate: Candidate) -> PlannedTask:
        return _planned_task(case, point, known, candidate, settings, not_installed)

    if point.footprint is not None and point.footprint > IF_ROOM_ABOVE_BYTES and case.source in HOST_MEMORY:
        tasks = map(planned, candidates.each)
        return PlannedTasks.of([task for task in tasks if has_room(known.machine, task, settings)])
    if looks_at_each(case):
        return PlannedTasks.of([planned(candidate) for candidate in candidates.each])
    distinct = [planned(candidate) for candidate in candidates.first]
    numbers = list(candidates.numbers)
    if any(task.waivers for task in distinct):
        for place, candidate in enumerate(candidates.each):
            task = distinct[numbers[place]]
            # A waiver names the GPUs that it is about.
            if task.waivers and task.flows is not candidate.flows:
                numbers[place] = len(distinct)
                distinct.append(planned(candidate))
    return PlannedTasks(distinct, numbers, candidates.flows)


def _planned_task(
    case: Case, point: Point, known: Known, candidate: Candidate, settings: Settings, not_installed: str
) -> PlannedTask:
    machine = known.machine
    gpu_waivers = {gpu.bus_id: known.gpu_waiver(gpu.bus_id) for gpu in candidate.gpus}
    waivers = [*gpu_waivers.values(), *(path.waiver for path in candidate.paths)]
    waivers += [handle_waiver(machine, case.handle, gpu) for gpu in candidate.gpus]
    waivers += [capability_waiver(case.engine, gpu) for gpu in candidate.gpus]
    waivers += [blocks_waiver(point, gpu) for gpu in candidate.gpus]
    waivers += [atomics_waiver(case.engine, machine, flow) for flow in candidate.flows]
    if not_installed:
        waivers.append(Waiver(kind=WaiverKind.UNSUPPORTED_ENGINE, reason=not_installed))
    if not settings.allow_busy:
        # Users of a GPU that is already unusable here are not reported.
        waivers += [busy_waiver(gpu) for gpu in candidate.gpus if gpu_waivers[gpu.bus_id] is None]
    planned = planned_task(case, point, candidate, settings, waivers)
    if planned.waiver is not None or not takes_pages(case):
        return planned
    waiver = pages_waiver(machine, planned, candidate.gpus)
    return planned if waiver is None else replace(planned, waivers=(waiver,))


def _gpus(flow: Flow) -> tuple[str, ...]:
    source, destination = flow.source.bus_id, flow.destination.bus_id
    if source is None or source == destination:
        return () if destination is None else (destination,)
    return (source,) if destination is None else (source, destination)


IF_ROOM_ABOVE_BYTES = 16 * GIB
"""The footprint in host memory above which a task is planned only if it fits, so that the reach of the TLB shows on
large machines. Allocation takes about 0.3 s per GiB, and machines differ in memory by a factor of a thousand."""

FIRST_BYTES = 4 * KIB
LAST_BYTES = 8 * GIB
"""The largest size of a sweep by default: allocation of host memory takes about 0.3 s per GiB."""


def sweep_sizes(top_bytes: int) -> tuple[int, ...]:
    """Return sizes from :data:`FIRST_BYTES` in steps of factor 4, and ``top_bytes``.

    Raises
    ------
    UsageError
        ``top_bytes`` is below :data:`FIRST_BYTES`.
    """
    if top_bytes < FIRST_BYTES:
        raise UsageError(f"--size {top_bytes}: a sweep begins at {FIRST_BYTES} bytes")
    sizes = (FIRST_BYTES << 2 * step for step in range(top_bytes.bit_length()))
    return (*(size for size in sizes if size < top_bytes), top_bytes)


def sized(cases: Sequence[Case], sizes: Sequence[int]) -> tuple[Case, ...]:
    """Return cases that are measured at the given buffer sizes."""
    return tuple(replace(case, points=tuple(Point(size=size) for size in sizes)) for case in cases)
