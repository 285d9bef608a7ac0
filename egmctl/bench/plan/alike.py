"""Which tasks of a case are alike in everything but their flows, so that one of them stands for all. Pure.

Between 72 GPUs a case has 5,112 tasks. What a plan says of them follows from their paths and from what CUDA reports of
their GPUs, and nearly all GPUs of a node are equal.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Hashable, Iterable
from functools import cache

from egmctl.bench.case import Case
from egmctl.bench.engine import ENGINES
from egmctl.bench.peaks import EndNumbers
from egmctl.bench.plan.flows import Location, endpoint, gpu_use
from egmctl.bench.plan.paths import DevicePaths, Path, gpu_waiver
from egmctl.bench.plan.schedule import steps_of_size
from egmctl.bench.plan.task import Candidate
from egmctl.dataclass import dataclass
from egmctl.model.finding import Waiver
from egmctl.model.gpu import Gpu
from egmctl.model.listing import PlannedTasks, PlanStep
from egmctl.model.machine import Machine
from egmctl.model.route import MemoryKind
from egmctl.model.task import Endpoint, Flow


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
