"""Which tasks run at the same time: every task once, and no GPU twice in a step. Pure.

Disjoint pairs over NVLink do not disturb each other (through switches the difference was measured: 0.04 %), so all
pairs of a round of a round-robin tournament are measured at once: N - 1 rounds for an even number of GPUs, N for an
odd one, where N (N - 1) / 2 pairs one at a time would take that many.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache
from random import Random
from typing import TypeVar

from egmctl.model.measurement import Flow, Pattern
from egmctl.model.planned import PlannedTask, Step
from egmctl.units import format_size

T = TypeVar("T", bound=Hashable)

Rounds = Sequence[Sequence[tuple[str, str]]]
"""Pairs of GPUs that meet at the same time."""


@dataclass(frozen=True, slots=True)
class Slot:
    """What the schedule has to know of a task."""

    number: int
    gpus: tuple[str, ...]
    """Those that take part, the first one's part told from the second's: a write from A to B is not one from B to A."""
    group: str | None
    """Tasks of one group may run at the same time where they share no GPU; ``None``: nothing runs beside it."""
    memory: frozenset[str] = frozenset()
    """What they must not share either."""


def tournament(players: Sequence[T]) -> tuple[tuple[tuple[T, T], ...], ...]:
    """Return the rounds of a round-robin tournament: every unordered pair once, no player twice in a round."""
    count = len(players)
    return tuple(
        tuple((players[one], players[other]) for one, other in zip(*round_of(count, number), strict=True))
        for number in range(round_count(count))
    )


def round_count(count: int) -> int:
    """Return how many rounds the tournament of ``count`` players has: one less for an even number of them."""
    return max(0, count - 1 + count % 2)


def round_of(count: int, number: int) -> tuple[array[int], array[int]]:
    """Return one round of the tournament of the players 0 to ``count`` - 1: the first and the second of each pair.

    Parameters
    ----------
    number
        Of the round, from 0. No other round is made for it: ten thousand players have fifty million pairs.

    Notes
    -----
    The circle method: one player stays, the others move round; with an odd number a bye moves too, and who meets it
    rests.
    """
    size = count + count % 2
    others = _others(size)
    turn = number % len(others)
    moved = others[-turn:] + others[:-turn] if turn else others
    firsts, seconds = array("i", [0]) + moved[: size // 2 - 1], moved[size // 2 - 1 :][::-1]
    if count % 2:
        bye = count
        place = firsts.index(bye) if bye in firsts else seconds.index(bye)
        firsts.pop(place)
        seconds.pop(place)
    return firsts, seconds


@cache
def _others(size: int) -> array[int]:
    return array("i", range(1, size))


def sampled_rounds(count: int, peers: int, seed: int) -> Iterator[tuple[array[int], array[int]]]:
    """Yield rounds in which every player meets at least ``peers`` others, chosen at random, no pair twice.

    They are rounds of the tournament of the players in random order; of an odd number one rests in each round, so there
    is one more.

    Parameters
    ----------
    seed
        The same one gives the same rounds on every node.
    """
    chance = Random(seed)  # noqa: S311 - a sample, not a secret
    players = array("i", range(count))
    chance.shuffle(players)
    there_are = round_count(count)
    for number in sorted(chance.sample(range(there_are), min(peers + count % 2, there_are))):
        firsts, seconds = round_of(count, number)
        yield array("i", map(players.__getitem__, firsts)), array("i", map(players.__getitem__, seconds))


def slots(
    tasks: Sequence[PlannedTask],
    ends: Callable[[Flow], tuple[str, ...]],
    *,
    by_link: bool,
    memory: Callable[[Flow], frozenset[str]] = lambda _flow: frozenset(),
) -> Iterator[Slot]:
    """Yield what the schedule has to know: pairs of one case run at the same time where their paths are disjoint.

    Parameters
    ----------
    ends
        Who takes part in a flow.
    by_link
        Only pairs over the same links run at the same time.
    memory
        What of a flow only one task of a step may use, besides its GPUs.
    """
    alike = (Pattern.PAIR, Pattern.BOTH_DIRECTIONS, Pattern.LOCAL)
    for number, task in enumerate(tasks):
        if task.waivers:
            continue
        flow = task.flows[0]
        over = f" over {flow.route.symbol}" if by_link else ""
        together = task.disjoint and task.pattern in alike
        group = f"{task.name}{over}, {format_size(task.size_bytes)}" if together else None
        yield Slot(number, ends(flow), group, memory(flow))


def make_steps(slots: Iterable[Slot], *, serial: bool = False, rounds: Rounds | None = None) -> tuple[Step, ...]:
    """Arrange tasks in steps, in the order of the tasks as far as possible.

    A group's tasks are arranged in the rounds of the tournament of its GPUs, each round's pairs in one direction and
    then in the other; tasks of a single GPU run all at once. After each step of several tasks one of them is measured
    alone.

    Parameters
    ----------
    serial
        Nothing at the same time.
    rounds
        Of the GPUs' meetings, where not all of them meet: those of the tournament by default.
    """
    steps: list[Step] = []
    seen: set[str] = set()
    slots = tuple(slots)
    for slot in slots:
        if serial or slot.group is None:
            steps.append(Step(tasks=(slot.number,)))
        elif slot.group not in seen:
            seen.add(slot.group)
            steps += _group_steps(slot.group, [other for other in slots if other.group == slot.group], rounds)
    return tuple(steps)


def _group_steps(group: str, slots: Sequence[Slot], meetings: Rounds | None) -> list[Step]:
    by_gpus = {slot.gpus: slot for slot in slots}
    if len(by_gpus) < len(slots):
        raise ValueError(f"two tasks of {group} have the same ends")
    gpus = tuple(dict.fromkeys(gpu for slot in slots for gpu in slot.gpus))
    rounds: list[list[Slot]] = [[by_gpus[ends] for ends in by_gpus if len(set(ends)) == 1]]
    for pairs in tournament(gpus) if meetings is None else meetings:
        ways = [[by_gpus[ends] for ends in (pair, pair[::-1]) if ends in by_gpus] for pair in pairs]
        rounds += [[way[turn] for way in ways if turn < len(way)] for turn in (0, 1)]
    steps: list[Step] = []
    for number, tasks in enumerate(tasks for one in rounds for tasks in _apart(one)):
        several = len(tasks) > 1
        steps.append(Step(tasks=tuple(tasks), group=group if several else None))
        if several:
            # Not always the first one, so that over the rounds all GPUs have their turn.
            steps.append(Step(tasks=(tasks[number % len(tasks)],), group=group, proof=True))
    return steps


def _apart(slots: Iterable[Slot]) -> list[list[int]]:
    """Return the tasks of a round in parts, one after the other, in none of which two share memory."""
    parts: list[tuple[set[str], list[int]]] = []
    for slot in slots:
        for taken, tasks in parts:
            if taken.isdisjoint(slot.memory):
                taken |= slot.memory
                tasks.append(slot.number)
                break
        else:
            parts.append((set(slot.memory), [slot.number]))
    return [tasks for _, tasks in parts]


def isolated(tasks: Sequence[PlannedTask], steps: Iterable[Step]) -> tuple[Step, ...]:
    """Return the steps with those of degraded routes last, each set of ends in a process of its own.

    Whether the driver makes NUMA memory whose EGM route is blocked is not documented: it may refuse it, or crash.
    """
    usual: list[Step] = []
    tried: dict[str, list[Step]] = {}
    for step in steps:
        flows = [flow for number in step.tasks for flow in tasks[number].flows]
        if any(flow.route.degraded for flow in flows):
            name = " ".join(sorted({end.label for flow in flows for end in (flow.source, flow.destination)}))
            tried.setdefault(name, []).append(replace(step, isolated=name))
        else:
            usual.append(step)
    return (*usual, *(step for those in tried.values() for step in those))
