"""What the cases of one process make tasks of: flows with their paths, each made once for all cases that have it. Pure.

Between 72 GPUs a case has 5,112 tasks. What a plan says of them follows from their paths and from what CUDA reports of
their GPUs, and nearly all GPUs of a node are equal. So candidates are numbered by what their tasks follow from, and one
task stands for all that are alike in everything but their flows.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from functools import cache

from egmctl.bench.case import Case
from egmctl.bench.engine import ENGINES
from egmctl.bench.peaks import EndNumbers
from egmctl.bench.plan.flows import Ends, Location, endpoint, flow_shape, gpu_use, initiator, tasks_of
from egmctl.bench.plan.paths import DevicePaths, Path, Staging, gpu_waiver, path_between
from egmctl.bench.plan.schedule import steps_of_size
from egmctl.bench.plan.task import Candidate
from egmctl.dataclass import dataclass
from egmctl.model.finding import Waiver
from egmctl.model.gpu import Gpu
from egmctl.model.listing import PlannedTasks, PlanStep
from egmctl.model.machine import Machine
from egmctl.model.route import MemoryKind
from egmctl.model.task import CPU_ENGINES, Endpoint, Engine, Flow, Pattern
from egmctl.topology.routes import possible_owners


@dataclass(frozen=True, slots=True)
class Candidates:
    """The candidates of a case. Those of one number make tasks that are alike."""

    each: tuple[Candidate, ...]
    numbers: tuple[int, ...]
    """The number of each candidate."""
    first: tuple[Candidate, ...]
    """The first candidate of each number."""
    flows: tuple[tuple[Flow, ...], ...]
    """The flows of each candidate."""


class Known:
    """What the plans of a machine have in common, whatever the size of their buffers.

    Parameters
    ----------
    machine
        The machine that is planned for.
    allow_busy
        Whether GPUs that others use are measured too.
    """

    def __init__(self, machine: Machine, *, allow_busy: bool) -> None:
        self.machine = machine
        self.gpu_waiver: Callable[[str], Waiver | None] = cache(lambda bus_id: gpu_waiver(machine, machine.gpu(bus_id)))
        self.candidates: dict[Hashable, Candidates] = {}
        self.flows: dict[Hashable, dict[Hashable, Candidate]] = {}
        self.device_paths = DevicePaths(machine)
        self.ends = EndNumbers()
        # Then no copies are staged, and those of the copy engine take the paths of kernels.
        self.all_have_access = all(pair.can_access_peer is not False for pair in machine.pairs or ())
        self._allow_busy = allow_busy
        self._paths: dict[int, tuple[Path, int | None]] = {}
        self._numbers: dict[Hashable, int] = {}
        self._gpus = {gpu.bus_id: self._gpu(gpu) for gpu in machine.gpus or ()}
        self._endpoints: dict[Hashable, Endpoint] = {}
        self._last: tuple[PlannedTasks, tuple[PlanStep, ...]] | None = None

    def steps(self, tasks: PlannedTasks, make: Callable[[], tuple[PlanStep, ...]]) -> tuple[PlanStep, ...]:
        """Return the steps of tasks: those of the last plan if it has the same tasks of another size, else new ones.

        Parameters
        ----------
        make
            A function that makes them.
        """
        steps = None if self._last is None else steps_of_size(*self._last, tasks)
        if steps is None:
            steps = make()
        self._last = tasks, steps
        return steps

    def numbered(self, candidates: Iterable[Candidate]) -> Candidates:
        """Return candidates with their numbers. One that must be looked at alone has a number of its own."""
        each = tuple(candidates)
        kinds: list[Hashable] = []
        first: dict[Hashable, Candidate] = {}
        for candidate in each:
            kind = self.kind_of(candidate) or id(candidate)
            kinds.append(kind)
            first.setdefault(kind, candidate)
        numbers = {kind: number for number, kind in enumerate(first)}
        return Candidates(
            each=each,
            numbers=tuple(map(numbers.__getitem__, kinds)),
            first=tuple(first.values()),
            flows=tuple([candidate.flows for candidate in each]),
        )

    def kind_of(self, candidate: Candidate) -> Hashable:
        """Return what a task of a candidate follows from, but for its flows; ``None`` if it must be looked at alone.

        Equal kinds make alike tasks of one case, at one point, unless the case is one of :func:`looks_at_each`.
        """
        known = self._paths
        paths = [known[id(path)][1] if id(path) in known else self._path(path) for path in candidate.paths]
        gpus = [self._gpus[gpu.bus_id] for gpu in candidate.gpus]
        if None in paths or None in gpus:
            return None
        if len(paths) == 1:
            return (*paths, *gpus)
        # A process verifies what its own flows wrote, one after the other.
        ranks = [flow.destination.rank for flow in candidate.flows]
        verified = len(ranks) if len(set(ranks)) == 1 else max(Counter(ranks).values())
        return tuple(paths), tuple(gpus), verified

    def endpoint(self, memory: MemoryKind, location: Location, allocated_by: Gpu | None = None) -> Endpoint:
        """Return what :func:`egmctl.bench.plan.flows.endpoint` returns, one record for all flows that end there."""
        at = location.bus_id if isinstance(location, Gpu) else location
        key = memory, at, allocated_by and allocated_by.bus_id
        end = self._endpoints.get(key)
        if end is None:
            end = self._endpoints[key] = endpoint(memory, location, allocated_by)
        return end

    def _path(self, path: Path) -> int | None:
        route = path.route
        seen = (path.rate_gb_s, path.disjoint, route.symbol, route.carrier, route.egm, route.degraded, route.memory)
        number = None if path.waiver is not None else self._number(seen)
        # The path is kept, because another one could get its identity.
        self._paths[id(path)] = path, number
        return number

    def _gpu(self, gpu: Gpu) -> int | None:
        usable = self.gpu_waiver(gpu.bus_id) is None and (self._allow_busy or gpu_use(gpu) is None)
        attributes = frozenset(gpu.cuda.attributes.items()) if gpu.cuda is not None else None
        return self._number(attributes) if usable else None

    def _number(self, seen: Hashable) -> int:
        return self._numbers.setdefault(seen, len(self._numbers))


def looks_at_each(case: Case) -> bool:
    """Return whether a task of a case depends on more than its paths and what CUDA reports of its GPUs.

    Those are the free pages of a NUMA node, the free memory of a GPU, and what a pair of GPUs supports.
    """
    return ENGINES[case.engine].atomics or takes_pages(case)


def takes_pages(case: Case) -> bool:
    """Return whether a case allocates memory of a kind that :func:`egmctl.bench.plan.budget.pages_waiver` judges."""
    return not _BY_PAGES.isdisjoint((case.source, case.destination))


_BY_PAGES = frozenset({MemoryKind.HUGETLB, MemoryKind.THP, MemoryKind.MANAGED})


# --- the flows of a case ----------------------------------------------------------------------------------------------


THERE_AND_BACK = (Pattern.BOTH_DIRECTIONS, Pattern.OWN_NODE_BOTH)
"""Patterns in which every second flow goes in the opposite direction."""


def shape_of(case: Case, known: Known) -> Hashable:
    """Return what the candidates of a case follow from: cases of equal shape have the same ones."""
    return flow_shape(case), _staging(case, known)


def candidates_of(case: Case, known: Known, gpus: Sequence[Gpu], numa_nodes: Sequence[int]) -> Iterator[Candidate]:
    """Yield what a case makes tasks of; see :func:`egmctl.bench.plan.flows.tasks_of`."""
    staging = _staging(case, known)
    there = _Flows(known, case, (case.source, case.destination), staging)
    back = _Flows(known, case, (case.destination, case.source), staging) if case.pattern in THERE_AND_BACK else there
    for ends_of_flows in tasks_of(case, _possible_owners(known.machine, gpus) if case.by_owner else gpus, numa_nodes):
        made = [(back if number % 2 else there).between(ends) for number, ends in enumerate(ends_of_flows)]
        yield made[0] if len(made) == 1 else _at_once(made)


def _at_once(flows: Sequence[Candidate]) -> Candidate:
    """Return the candidate of several flows, from those of each flow alone."""
    return Candidate(
        flows=tuple([alone.flows[0] for alone in flows]),
        paths=tuple([alone.paths[0] for alone in flows]),
        gpus=tuple({gpu.bus_id: gpu for alone in flows for gpu in alone.gpus}.values()),
        cache=flows[0].cache,
    )


class _Flows:
    """The flows of a case between memory of two kinds, each as the candidate that it is alone.

    Parameters
    ----------
    memory
        The kinds of memory of the source and of the destination.
    """

    def __init__(self, known: Known, case: Case, memory: tuple[MemoryKind, MemoryKind], staging: Staging) -> None:
        self._known, self._case, self._memory, self._staging = known, case, memory, staging
        issuing = None if case.engine in CPU_ENGINES else case.initiator
        self._made = known.flows.setdefault((memory, staging, issuing), {})

    def between(self, ends: Ends) -> Candidate:
        """Return the flow between two ends."""
        source, destination, issuer, owner = ends
        key = (
            source.bus_id if isinstance(source, Gpu) else source,
            destination.bus_id if isinstance(destination, Gpu) else destination,
            issuer and issuer.bus_id,
            owner and owner.bus_id,
        )
        made = self._made.get(key)
        if made is None:
            made = self._made[key] = self._make(ends)
        return made

    def _make(self, ends: Ends) -> Candidate:
        known, issuer = self._known, initiator(self._case, ends)
        path = path_between(
            known.machine,
            self._memory,
            ends[:2],
            issuer,
            staging=self._staging,
            allocated_by=ends.allocated_by,
            device_paths=known.device_paths,
        )
        source = known.endpoint(self._memory[0], ends.source, ends.allocated_by)
        destination = known.endpoint(self._memory[1], ends.destination, ends.allocated_by)
        cpus = source if source.memory is MemoryKind.REGISTERS else destination
        flow = Flow(
            source=source,
            destination=destination,
            initiator=issuer.bus_id if issuer else None,
            initiator_label=f"GPU{issuer.index}" if issuer else cpus.label,
            route=path.route,
        )
        gpus = tuple({end.bus_id: end for end in ends if isinstance(end, Gpu)}.values())
        return Candidate(flows=(flow,), paths=(path,), gpus=gpus, cache=gpus[0] if gpus else None)


def _possible_owners(machine: Machine, gpus: Sequence[Gpu]) -> list[Gpu]:
    """Return the GPUs that can own EGM: without those that lack NVLink-C2C beside others that have it.

    An example is a PCIe card in a DGX Station.
    """
    nodes = {gpu.host_numa_id for gpu in gpus if gpu.host_numa_id is not None}
    possible = [gpu for node in nodes for gpu in possible_owners(machine, node)]
    return [gpu for gpu in gpus if gpu in possible or all(owner.host_numa_id != gpu.host_numa_id for owner in possible)]


def _staging(case: Case, known: Known) -> Staging:
    if case.staged:
        return Staging.ALWAYS
    # The pool's access rights, not peer access, open its memory. No documentation says that such copies are staged.
    pools = MemoryKind.DEVICE_DEFAULT_POOL in (case.source, case.destination)
    alone = case.engine is Engine.COPY_ENGINE and case.pattern is Pattern.PAIR and not pools
    return Staging.WITHOUT_ACCESS if alone and not known.all_have_access else Staging.NEVER
