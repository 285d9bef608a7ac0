"""From the facts of a node to what will be measured on it, and why the rest will not: pure.

The plan is made in the command before anything touches a GPU, so that ``--list`` and a refusal cost nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

from egmctl.bench.budget import too_large
from egmctl.bench.buffers import Peak, peaks
from egmctl.bench.busy import in_use
from egmctl.bench.case import Case, Footprint
from egmctl.bench.engines import engine_for
from egmctl.bench.flows import Ends, endpoint, initiator, tasks_of
from egmctl.bench.in_process import counterparts
from egmctl.bench.pairs import Pair, picked
from egmctl.bench.paths import Path, cuda_visible, gpu_waiver, path_between
from egmctl.bench.rank_plan import flow_of, handle_waiver, legs_of, local_path, ranks_of
from egmctl.bench.registry import CASES
from egmctl.bench.schedule import Slot, Step, make_steps
from egmctl.errors import UsageError
from egmctl.model.machine import Gpu, Machine
from egmctl.model.measurement import BenchGpu, Engine, Flow, Pattern, Quantity, Settings, Task
from egmctl.model.memory import HOST_MEMORY
from egmctl.model.rank import Rank
from egmctl.model.route import Egm
from egmctl.units import GB, MIB, format_size

SECTIONS = ("host", "gpus", "pairs", "driver", "process")
"""The facts a plan needs."""

SIZE_MULTIPLE_BYTES = 16
"""A size is a multiple of this: the widest word that a GPU moves, and a whole number of the pattern's words."""

COPIES_LIMIT = 128
"""More copies than this queued behind a closed gate can fill the driver's queue, which would then wait for ever."""

SAMPLE_S = 0.02
"""How long one sample is to take at least; see :func:`copies_for`."""

THERE_AND_BACK = (Pattern.BOTH_DIRECTIONS, Pattern.OWN_NODE_BOTH)
"""Every second flow of these goes the other way."""

_ROUND_COPIES = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, COPIES_LIMIT)

_USUAL_L2_BYTES = 128 * MIB
"""Of a GPU that does not say how large its L2 cache is: no GPU that is supported has more."""


@dataclass(frozen=True, slots=True)
class PlannedTask:
    """A task, and why it will not be run."""

    task: Task
    waiver: str | None = None
    """One sentence; ``None`` if the task will be run."""
    rate_gb_s: float = 0
    """What the slowest of its flows is planned with."""
    disjoint: bool = False
    """Whether it may run beside tasks that share no GPU with it."""
    sized: bool = True
    """Whether its buffers have the size of the run; those of latencies and of some messages have their own."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What one run of the bench does, in order."""

    settings: Settings
    gpus: tuple[BenchGpu, ...]
    numa_nodes: tuple[int, ...]
    tasks: tuple[PlannedTask, ...]
    steps: tuple[Step, ...]
    """Of the tasks that will be run."""
    ranks: tuple[Rank, ...] = ()
    """The processes of the measurements by several, where there are such."""
    notes: tuple[str, ...] = ()
    """Cases that these GPUs and nodes make no task of, and why."""

    @property
    def runnable(self) -> tuple[Task, ...]:
        """The tasks that will be run."""
        return tuple(planned.task for planned in self.tasks if planned.waiver is None)

    @property
    def peaks(self) -> tuple[Peak, ...]:
        """The most memory that the run holds at any time, on each GPU and NUMA node and on the host."""
        steps = [[self.tasks[number].task for number in step.tasks] for step in self.steps]
        # A soak keeps everything: it is all needed again.
        return peaks(steps, keep=self.settings.duration_s is not None)


def make_plan(
    machine: Machine,
    gpus: Sequence[Gpu],
    numa_nodes: Sequence[int],
    cases: Sequence[Case],
    settings: Settings,
    sizes: Sequence[int] = (),
    *,
    pairs: Sequence[Pair] = (),
) -> Plan:
    """Combine cases with GPUs and NUMA nodes.

    Parameters
    ----------
    sizes
        Of the buffers, each measured; the one of the settings by default.
    pairs
        The only paths to measure; without any all of them.

    Raises
    ------
    UsageError
        If the settings make no sense, or no case measures any of the pairs.
    """
    if settings.size_bytes <= 0 or settings.size_bytes % SIZE_MULTIPLE_BYTES:
        raise UsageError(f"--size {settings.size_bytes}: it must be a multiple of {SIZE_MULTIPLE_BYTES} bytes above 0")
    visible = cuda_visible(machine)
    usable = [
        gpu
        for gpu in gpus
        if gpu_waiver(machine, gpu, visible) is None and (settings.allow_busy or in_use(gpu) is None)
    ]
    ranks = ranks_of([*usable, *(gpu for gpu in gpus if gpu not in usable)], numa_nodes)

    def make(case: Case) -> tuple[PlannedTask, ...]:
        return tuple(
            task
            for size in (sizes if case.footprint is None else ()) or (settings.size_bytes,)
            for task in _chosen(
                case,
                _planned_tasks(
                    case,
                    machine,
                    _among_ranks(case, machine, ranks, numa_nodes)
                    if case.processes
                    else _in_one_process(case, machine, gpus, numa_nodes),
                    replace(settings, size_bytes=size),
                    visible,
                ),
                pairs,
            )
        )

    made = {case.name: make(case) for case in cases}
    by_ranks = [case for case in cases if case.processes and any(task.waiver is None for task in made[case.name])]
    # What is to be set beside them comes first, as in the registry.
    beside = {case.name: make(case) for case in counterparts(by_ranks, CASES) if case.name not in made}
    tasks = tuple(task for of_case in (beside | made).values() for task in of_case)
    none = [name for name, of_case in made.items() if not of_case]
    why_none = "these measure none of the pairs" if pairs else "these need two GPUs"
    if pairs and not tasks:
        raise UsageError("--pair: none of the chosen cases measures such a path by itself")
    return Plan(
        settings=settings,
        gpus=tuple(
            BenchGpu(label=f"GPU{g.index}", index=g.index, bus_id=g.bus_id, uuid=g.uuid, name=g.name) for g in gpus
        ),
        numa_nodes=tuple(numa_nodes),
        tasks=tasks,
        ranks=tuple(ranks[: len(usable)]) if by_ranks else (),
        steps=make_steps(slots(tasks, _gpus, by_link=True), serial=settings.serial),
        notes=(
            *((f"{why_none}: {', '.join(none)}",) if none else ()),
            *(f"measured all the same: {busy}" for busy in map(in_use, gpus) if busy and settings.allow_busy),
            *_unlisted(gpus),
        ),
    )


def _unlisted(gpus: Sequence[Gpu]) -> Iterator[str]:
    """Say of which GPUs NVML tells nothing: what is missing in their results, and that other users were not seen."""
    labels = [f"GPU{gpu.index}" for gpu in gpus if gpu.nvml is None and gpu.cuda is not None]
    if labels:
        yield (
            f"NVML does not list {', '.join(labels)}: links, their nominal rates, clocks, counters and other users are "
            "unknown"
        )


def slots(tasks: Sequence[PlannedTask], ends: Callable[[Flow], tuple[str, ...]], *, by_link: bool) -> Iterator[Slot]:
    """Yield what the schedule has to know: pairs of one case run at the same time where their paths are disjoint.

    Parameters
    ----------
    ends
        Who takes part in a flow.
    by_link
        Only pairs over the same links run at the same time.
    """
    alike = (Pattern.PAIR, Pattern.BOTH_DIRECTIONS, Pattern.LOCAL)
    for number, planned in enumerate(tasks):
        if planned.waiver is not None:
            continue
        task = planned.task
        flow = task.flows[0]
        over = f" over {flow.route.symbol}" if by_link else ""
        together = planned.disjoint and task.pattern in alike
        yield Slot(number, ends(flow), f"{task.case}{over}, {format_size(task.size_bytes)}" if together else None)


def copies_for(size_bytes: int, rate_gb_s: float) -> int:
    """Return how many copies make a sample of :data:`SAMPLE_S` or more, at most what can be queued.

    A round number: a power of two, or half as much again.
    """
    return next(
        copies for copies in _ROUND_COPIES if copies == COPIES_LIMIT or copies * size_bytes >= SAMPLE_S * rate_gb_s * GB
    )


def flows_on_a_link(task: Task) -> int:
    """Return how many flows of a task share the busiest link: the one of the GPU that sends or receives them all."""
    if task.pattern in (Pattern.ONE_TO_ALL, Pattern.ALL_TO_ONE):
        return len(task.flows)
    if task.pattern is Pattern.ALL_PAIRS:
        return len({flow.source.bus_id for flow in task.flows}) - 1
    return 1


def shortened(task: Task) -> Task:
    """Return a bandwidth that takes a quarter of the time, enough for a proof to see a difference of 1 %.

    A latency stays as it is: its first loads are slower than the rest, so that a shorter walk is another quantity.
    """
    return task if task.chase is not None else replace(task, copies=max(1, task.copies // 4))


def _chosen(case: Case, tasks: Iterable[PlannedTask], pairs: Sequence[Pair]) -> list[PlannedTask]:
    """Return the tasks of a case: all, or one for each kind of route, if possible one that can be measured.

    Parameters
    ----------
    pairs
        The only paths to measure, if there are any.
    """
    if pairs:
        return [planned for planned in tasks if picked(planned.task, pairs)]
    if not case.one_path:
        return list(tasks)
    by_route: dict[tuple[tuple[str, Egm | None], ...], PlannedTask] = {}
    for planned in tasks:
        route = tuple((flow.route.symbol, flow.route.egm) for flow in planned.task.flows)
        if route not in by_route or (by_route[route].waiver is not None and planned.waiver is None):
            by_route[route] = planned
    return list(by_route.values())


@dataclass(frozen=True, slots=True)
class Candidate:
    """What a case makes a task of."""

    flows: tuple[Flow, ...]
    paths: tuple[Path, ...]
    gpus: tuple[Gpu, ...]
    """All that take part."""
    cache: Gpu | None
    """The GPU that caches what a latency reads: the owner of device memory, and who reads host memory."""
    waiver: str | None = None
    """Besides those of GPUs and paths."""


def _in_one_process(
    case: Case, machine: Machine, gpus: Sequence[Gpu], numa_nodes: Sequence[int]
) -> Iterator[Candidate]:
    for ends_of_flows in tasks_of(case, gpus, numa_nodes):
        made = [
            _flow(case, machine, ends, back=case.pattern in THERE_AND_BACK and number % 2 == 1)
            for number, ends in enumerate(ends_of_flows)
        ]
        taking_part = {g.bus_id: g for ends in ends_of_flows for g in ends if isinstance(g, Gpu)}
        yield Candidate(
            flows=tuple(flow for flow, _ in made),
            paths=tuple(path for _, path in made),
            gpus=tuple(taking_part.values()),
            cache=next((place for place in ends_of_flows[0] if isinstance(place, Gpu)), None),
        )


def _among_ranks(case: Case, machine: Machine, ranks: Sequence[Rank], numa_nodes: Sequence[int]) -> Iterator[Candidate]:
    path_of = local_path(machine)
    for legs in legs_of(case, ranks, numa_nodes):
        paths = tuple(path_of(case, leg) for leg in legs)
        gpus = tuple(
            machine.gpu(bus_id) for bus_id in dict.fromkeys(r.bus_id for g in legs for r in (g.initiator, g.owner))
        )
        first = legs[0]
        yield Candidate(
            flows=tuple(flow_of(case, leg, path) for leg, path in zip(legs, paths, strict=True)),
            paths=paths,
            gpus=gpus,
            cache=machine.gpu((first.owner if first.numa_node is None else first.initiator).bus_id),
            waiver=next((waiver for gpu in gpus if (waiver := handle_waiver(machine, case.handle, gpu))), None),
        )


def _planned_tasks(
    case: Case, machine: Machine, candidates: Iterable[Candidate], settings: Settings, visible: frozenset[str] | None
) -> Iterator[PlannedTask]:
    """Yield every task of a case."""
    for made in candidates:
        waivers = [gpu_waiver(machine, gpu, visible) for gpu in made.gpus] + [path.waiver for path in made.paths]
        waivers += [made.waiver, *(capability_waiver(case.engine, gpu) for gpu in made.gpus)]
        waivers += [atomics_waiver(case.engine, machine, flow) for flow in made.flows]
        if not settings.allow_busy:
            waivers += [f"{busy}; --allow-busy measures it all the same" for busy in map(in_use, made.gpus) if busy]
        planned = planned_task(case, made, settings, next((waiver for waiver in waivers if waiver), None))
        if case.footprint is not None and planned.waiver is None:
            planned = replace(planned, waiver=too_large(machine, planned.task, settings.memory_percent))
        yield planned


def capability_waiver(engine: Engine, gpu: Gpu) -> str | None:
    """Say why a GPU is too old for an engine; ``None`` if it is not, or its compute capability is not known."""
    needed = engine_for(engine).needs_capability
    attributes = gpu.cuda.attributes if gpu.cuda is not None else {}
    major, minor = (attributes.get(f"COMPUTE_CAPABILITY_{part}") for part in ("MAJOR", "MINOR"))
    if major is None or minor is None or (major, minor) >= needed:
        return None
    return (
        f"GPU{gpu.index} has compute capability {major}.{minor}, and {engine_for(engine).caption} needs "
        f"{needed[0]}.{needed[1]}"
    )


def atomics_waiver(engine: Engine, machine: Machine, flow: Flow) -> str | None:
    """Say why a GPU cannot add to a peer's memory atomically; ``None`` if it can, or the driver did not tell."""
    if engine is not Engine.ATOMIC or flow.initiator is None or flow.destination.bus_id is None:
        return None
    pair = machine.pair(flow.initiator, flow.destination.bus_id)
    if pair is None or pair.cuda_attributes.get("NATIVE_ATOMIC_SUPPORTED") != 0:
        return None
    return (
        f"{flow.initiator_label} has no native atomics on {flow.destination.label}: "
        "CU_DEVICE_P2P_ATTRIBUTE_NATIVE_ATOMIC_SUPPORTED is 0"
    )


def planned_task(case: Case, made: Candidate, settings: Settings, waiver: str | None) -> PlannedTask:
    """Return the task that a case makes of a candidate."""
    rate = min(path.rate_gb_s for path in made.paths)
    bandwidth = case.quantity is Quantity.BANDWIDTH
    size_bytes = settings.size_bytes if case.footprint is None else _footprint(case.footprint, made.cache)
    task = Task(
        case=case.name,
        family=case.family,
        quantity=case.quantity,
        engine=case.engine,
        pattern=case.pattern,
        flows=made.flows,
        counted=engine_for(case.engine).counted if bandwidth else "",
        size_bytes=size_bytes,
        copies=1,
        streams=case.streams,
        chase=case.chase,
    )
    if bandwidth:
        copies = settings.copies or copies_for(size_bytes * flows_on_a_link(task), rate)
        task = replace(task, copies=copies)
    return PlannedTask(task, waiver, rate, all(path.disjoint for path in made.paths), sized=case.footprint is None)


def _flow(case: Case, machine: Machine, ends: Ends, *, back: bool) -> tuple[Flow, Path]:
    memory = (case.destination, case.source) if back else (case.source, case.destination)
    gpu = initiator(case, ends)
    path = path_between(machine, memory, ends, gpu)
    if gpu is None:
        label = next(f"CPU{place}" for place, kind in zip(ends, memory, strict=True) if kind not in HOST_MEMORY)
    else:
        label = f"GPU{gpu.index}"
    flow = Flow(
        source=endpoint(memory[0], ends[0]),
        destination=endpoint(memory[1], ends[1]),
        initiator=gpu.bus_id if gpu else None,
        initiator_label=label,
        route=path.route,
    )
    return flow, path


def _footprint(footprint: Footprint, gpu: Gpu | None) -> int:
    """Return how many bytes a chase visits that a GPU caches, a whole number of MiB where the L2 cache decides."""
    l2 = gpu.cuda.attributes.get("L2_CACHE_SIZE") if gpu is not None and gpu.cuda is not None else None
    times = footprint.l2_times * (l2 or _USUAL_L2_BYTES)
    return max(footprint.least_bytes, -(-times // MIB) * MIB)


def _gpus(flow: Flow) -> tuple[str, ...]:
    return tuple(dict.fromkeys(end.bus_id for end in (flow.source, flow.destination) if end.bus_id is not None))
