"""What measuring all ranks of a large machine costs, by the planner and the scheduler of a real run, round by round.

Of ten thousand GPUs there are a hundred million ordered pairs, so no task of a pair is kept. The pairs of a round
differ only in where on their nodes the two GPUs are: the planner makes one task for each such place, and the rounds of
the schedule say which of them run at the same time. For a few ranks it is what the plan of a real run adds up to (a
test sees to it). Pure.
"""

from __future__ import annotations

from array import array
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from egmctl.bench.budget import free_bytes
from egmctl.bench.buffers import Peak, buffers_of
from egmctl.bench.case import Case, End
from egmctl.bench.estimate import ALLOCATE_S_PER_GIB, RANKS_START_S, START_S
from egmctl.bench.fabric_plan import FROM_ONE, PAIRS, SEED, Party, is_own_wire, legs_of, maker, ones
from egmctl.bench.party import nearest_node
from egmctl.bench.plan import PlannedTask
from egmctl.bench.schedule import round_count, round_of, sampled_rounds
from egmctl.bench.tally import Tally, step_seconds
from egmctl.model.machine import Machine
from egmctl.model.measurement import Endpoint, Pattern, Settings, Task
from egmctl.model.memory import HOST_MEMORY
from egmctl.model.rank import Rank
from egmctl.units import GIB


@dataclass(frozen=True, slots=True, kw_only=True)
class Cost:
    """What one case costs."""

    case: str
    pattern: Pattern
    measurements: int
    waived: int
    """Measurements that cannot be made."""
    reason: str | None
    """Why, of the first."""
    steps: int
    """One after the other, those that prove what was measured with others included."""
    bytes: int
    """Moved in samples."""
    seconds: float
    held_bytes: int
    """Of the GPU, or of the host, that holds most."""
    too_large: bool
    """That is more than the run may take of what is free."""
    report_bytes: int
    """Of the JSON report."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Scale:
    """What a whole run costs."""

    ranks: int
    nodes: int
    costs: tuple[Cost, ...]

    @property
    def seconds(self) -> float:
        """The time of the whole run."""
        return START_S + RANKS_START_S + sum(cost.seconds for cost in self.costs)


def scale(machine: Machine, ranks: int, cases: Sequence[Case], settings: Settings, sample: int | None = None) -> Scale:
    """Return what cases cost on so many GPUs.

    Parameters
    ----------
    machine
        What each node is like. All nodes together are taken to be one NVLink domain, whatever the largest is that can
        be built.
    ranks
        One a GPU; the last node may have fewer than the others.
    """
    party = modelled(machine, ranks)
    made = _Model(party, settings, sample)
    costs = tuple(made.cost(case) for case in cases)
    return Scale(ranks=ranks, nodes=len(party.machines), costs=costs)


def modelled(machine: Machine, ranks: int) -> Party:
    """Return so many ranks on nodes that are all like one machine."""
    gpus = sorted(machine.gpus or (), key=lambda gpu: gpu.bus_id)
    nearest = [nearest_node(machine, gpu) for gpu in gpus]
    several = ranks > len(gpus)

    def one(number: int) -> Rank:
        node, place = divmod(number, len(gpus))
        return Rank(
            number=number,
            label=f"node{node + 1}:GPU{gpus[place].index}" if several else f"GPU{gpus[place].index}",
            bus_id=gpus[place].bus_id,
            numa_node=nearest[place],
            host=f"node{node + 1}",
        )

    everyone = tuple(map(one, range(ranks)))
    return Party(everyone, dict.fromkeys((rank.host or "" for rank in everyone), machine))


_Step = tuple[tuple[int, ...], int | None]
"""The kinds of pairs that run at the same time, and the kind of the one that is measured alone after them."""


class _Model:
    """What a run is made of, each kind of task made once."""

    def __init__(self, party: Party, settings: Settings, sample: int | None) -> None:
        self._party = party
        self._settings = settings
        self._sample = sample
        self._make = maker(party, settings)
        self._count = len(party.ranks)
        self._per_node = len(party.machine(party.ranks[0]).gpus or ())
        self._host: set[tuple[End, int, int]] = set()
        """Buffers in host memory that there have been: their role, their index, and their size."""
        self._walked: dict[
            tuple[Pattern, tuple[bool, ...], tuple[bool, ...]], tuple[Counter[_Step], list[int], int]
        ] = {}

    def cost(self, case: Case) -> Cost:
        """Return what a case costs."""
        return self._of_pairs(case) if case.pattern in PAIRS else self._of_all(case)

    def _of_all(self, case: Case) -> Cost:
        """Of a pattern whose tasks are alike and run one after the other."""
        tasks = len(ones(self._count, self._sample)) if case.pattern in FROM_ONE else 1
        planned = self._make(case, next(legs_of(case, self._party.ranks, (), self._sample)))
        tally = Tally(self._settings)
        tally.add(planned, tasks, alone=True)
        if planned.waiver is None:
            # Of a pattern from or to one rank, each makes its own.
            tally.seconds += tasks * self._allocate_seconds(planned.task)
        return self._cost(case, tally, [planned])

    def _of_pairs(self, case: Case) -> Cost:
        """Of what is measured of every pair: those that share no wire in the rounds of the schedule."""
        kinds = self._kinds(case)
        tally = Tally(self._settings)
        together = [kind is not None and kind.disjoint and not self._settings.serial for kind in kinds]
        runs = tuple(
            kind is not None and at_once and kind.waiver is None for kind, at_once in zip(kinds, together, strict=True)
        )
        steps, met, issuers = self._steps(
            case.pattern, runs, tuple(kind is not None and is_own_wire(kind) for kind in kinds)
        )
        seconds = [step_seconds(kind, self._settings.samples) for kind in kinds]
        for (present, proof), count in steps.items():
            tally.steps += count
            tally.seconds += count * max(seconds[place] for place in present)
            if proof is not None:
                tally.prove(kinds[proof], count)
        own = next((kind for kind in kinds if kind is not None and is_own_wire(kind)), None)
        for place, kind in enumerate(kinds):
            if kind is not None and not is_own_wire(kind):
                tally.add(kind, met[place], alone=not together[place])
        if own is not None:
            tally.add(own, issuers, alone=True)
        there = [kind for kind in kinds if kind is not None]
        made = next((kind.task for kind in there if kind.waiver is None), None)
        if made is not None:
            # Owners make theirs in the first round, one half of them in each of its ways; or one after the other.
            tally.seconds += (2 if any(runs) else issuers) * self._allocate_seconds(made)
        return self._cost(case, tally, there)

    def _allocate_seconds(self, task: Task) -> float:
        """Return what it takes to make host memory of a task that there has not been before, with its first touch."""
        buffers = buffers_of([task])
        new = [b for b in buffers if b.end.memory in HOST_MEMORY and (b.role, b.index, b.size_bytes) not in self._host]
        self._host |= {(b.role, b.index, b.size_bytes) for b in new}
        by_rank: Counter[int | None] = Counter()
        for buffer in new:
            by_rank[buffer.end.rank] += buffer.size_bytes
        return ALLOCATE_S_PER_GIB * max(by_rank.values(), default=0) / GIB

    def _steps(
        self, pattern: Pattern, runs: tuple[bool, ...], own: tuple[bool, ...]
    ) -> tuple[Counter[_Step], list[int], int]:
        """Return how often there is a step with which kinds of pairs, and how many pairs of each kind meet.

        Parameters
        ----------
        runs
            Which kinds of pairs run at the same time as others.
        own
            Which are of the issuer's own wire: how many issuers have such a pair is returned last.
        """
        if (pattern, runs, own) not in self._walked:
            numpy = _numpy()
            running = numpy.array(runs)
            met = numpy.zeros(len(runs), dtype=numpy.int64)
            steps: Counter[_Step] = Counter()
            issuers, owned = numpy.zeros(self._count, dtype=bool), numpy.array(own)
            number = 0
            for one, other in self._ways(pattern):
                kinds = self._kind_of(one, other)
                there = numpy.bincount(kinds, minlength=len(runs))
                met += there
                if any(own):
                    issuers[one[owned[kinds]]] = True
                present = tuple(numpy.flatnonzero(there * running).tolist())
                if not present:
                    continue
                measured = kinds if running[numpy.flatnonzero(there)].all() else kinds[running[kinds]]
                steps[present, int(measured[number % len(measured)]) if len(measured) > 1 else None] += 1
                number += 1
            self._walked[pattern, runs, own] = steps, met.tolist(), int(issuers.sum())
        return self._walked[pattern, runs, own]

    def _ways(self, pattern: Pattern) -> Iterator[tuple[Any, Any]]:
        """Yield who works with whose memory in each step, of ten thousand ranks five thousand pairs."""
        numpy = _numpy()
        rounds: Iterable[tuple[array[int], array[int]]]
        if self._sample is None:
            rounds = (round_of(self._count, number) for number in range(round_count(self._count)))
        else:
            rounds = sampled_rounds(self._count, self._sample, SEED)
        for one, other in rounds:
            firsts, seconds = (numpy.frombuffer(side, dtype=numpy.intc) for side in (one, other))
            if pattern is Pattern.BOTH_DIRECTIONS:
                yield numpy.minimum(firsts, seconds), numpy.maximum(firsts, seconds)
            else:
                yield firsts, seconds
                yield seconds, firsts

    def _kind_of(self, firsts: Any, seconds: Any) -> Any:
        """Return the kinds of pairs: by the places on their nodes, and whether they are on the same one."""
        size = self._per_node
        across = (firsts // size) != (seconds // size)
        return across * size * size + (firsts % size) * size + seconds % size

    def _kinds(self, case: Case) -> list[PlannedTask | None]:
        """Return the task of each kind of pair; ``None`` where no ranks are so, or another one stands for it."""
        size, count = self._per_node, self._count
        found: list[PlannedTask | None] = []
        for across in (0, size):
            for one in range(size):
                for other in range(size):
                    pairs = ((one, across + other), (across + one, other))
                    pair = next((p for p in pairs if p[0] != p[1] and max(p) < count), None)
                    legs = next(legs_of(case, self._party.ranks, [pair])) if pair else None
                    found.append(self._make(case, legs) if legs else None)
        return found

    def _cost(self, case: Case, tally: Tally, planned: Sequence[PlannedTask]) -> Cost:
        peak_bytes, too_large = self._memory([one.task for one in planned if one.waiver is None][:2])
        return Cost(
            case=case.name,
            pattern=case.pattern,
            measurements=tally.measurements,
            waived=tally.waived,
            reason=next((one.waiver for one in planned if one.waiver), None),
            steps=tally.steps,
            bytes=tally.bytes,
            seconds=tally.seconds,
            held_bytes=peak_bytes,
            too_large=too_large,
            report_bytes=tally.report_bytes,
        )

    def _memory(self, tasks: Sequence[Task]) -> tuple[int, bool]:
        """Return what tasks hold at most at one place, and whether that is more than there may be."""
        held: Counter[tuple[str | None, str | None, int | None]] = Counter()
        ends: dict[tuple[str | None, str | None, int | None], Endpoint] = {}
        for buffer in dict.fromkeys(buffer for task in tasks for buffer in buffers_of([task])):
            end = buffer.end
            place = (self._party.node_of(end), end.bus_id, end.numa_node)
            held[place] += buffer.size_bytes
            ends[place] = end
        found = [(0, False)]
        for place, taken in held.most_common(1):
            free = self._free_bytes(ends[place])
            found.append((taken, free is not None and taken > free * self._settings.memory_percent // 100))
        return max(found)

    def _free_bytes(self, end: Endpoint) -> int | None:
        """Return what is free where an end is; of a model, which uses nothing, all there is."""
        machine = self._party.machine(self._party.ranks[0])
        free = free_bytes(machine, Peak(end, 0))
        if free is not None:
            return free
        if end.bus_id is not None:
            nvml = machine.gpu(end.bus_id).nvml
            return nvml.memory_total_bytes if nvml else None
        nodes = (machine.host.numa_nodes if machine.host else None) or ()
        return next((node.memory_total_bytes for node in nodes if node.id == end.numa_node), None)


def _numpy() -> Any:
    """Return numpy, which is slow to import, and slower where the threads of its linear algebra begin to spin."""
    import os

    for name in ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS"):
        os.environ.setdefault(name, "1")
    import numpy

    return numpy
