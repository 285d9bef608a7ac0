"""The tasks that run at the same time. Every task runs once, and no GPU is used twice in a step. Pure.

Disjoint pairs over NVLink do not disturb each other (the measured difference through switches is 0.04 %). So all pairs
of a round of a round-robin tournament are measured at once: in N - 1 rounds for an even number of GPUs and N for an odd
one, instead of N (N - 1) / 2 pairs one at a time.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from dataclasses import replace
from random import Random
from typing import NamedTuple, TypeVar

from egmctl.model.listing import PlannedTask, PlannedTasks, PlanStep
from egmctl.model.task import Flow, Pattern
from egmctl.units import format_size, grouped

T = TypeVar("T", bound=Hashable)

Rounds = Sequence[Sequence[tuple[str, str]]]
"""Rounds of pairs of GPUs that are measured at the same time."""


class Slot(NamedTuple):
    """The part of a task that the schedule needs."""

    number: int
    gpus: tuple[str, ...]
    """The GPUs that take part, in order: a write from A to B is not one from B to A."""
    group: str | None
    """The group of tasks that may run at the same time if they share no GPU; ``None``: the task runs alone."""
    memory: frozenset[str] = frozenset()
    """Memory that tasks at the same time must not share either."""


def round_count(count: int) -> int:
    """Return the number of rounds in which all players meet: ``count - 1`` for an even ``count``, else ``count``."""
    return max(0, count - 1 + count % 2)


def round_of(players: Sequence[T], number: int) -> list[tuple[T, T]]:
    """Return the pairs of one round of the tournament, without generating other rounds.

    Ten thousand players have fifty million pairs.

    Notes
    -----
    The circle method: one player stays and the others rotate. For an odd number of players a bye rotates too, and the
    player that meets it rests.
    """
    entrants: list[T | None] = [*players]
    first, *others = entrants if len(players) % 2 == 0 else [*entrants, None]
    shift = number % len(others)
    circle = [first, *others[len(others) - shift :], *others[: len(others) - shift]]
    half = len(circle) // 2
    pairs = zip(circle[:half], reversed(circle), strict=False)
    return [(player, partner) for player, partner in pairs if player is not None and partner is not None]


def sampled_rounds(count: int, peers: int, seed: int) -> list[list[tuple[int, int]]]:
    """Return rounds in which every player meets at least ``peers`` others, chosen at random, and no pair meets twice.

    They are rounds of the tournament of the players in random order. For an odd number of players there is one more
    round, because one player rests in each.

    Parameters
    ----------
    seed
        The seed of the random choice, which is the same on every node.
    """
    random = Random(seed)  # noqa: S311 - a sample, not a secret
    players = list(range(count))
    random.shuffle(players)
    rounds = round_count(count)
    numbers = sorted(random.sample(range(rounds), min(peers + count % 2, rounds)))
    return [round_of(players, number) for number in numbers]


def slots(
    tasks: PlannedTasks,
    ends: Callable[[Flow], tuple[str, ...]],
    *,
    by_link: bool,
    memory: Callable[[Flow], frozenset[str]] = lambda _flow: frozenset(),
) -> Iterator[Slot]:
    """Yield the slot of each runnable task. Pairs of one case with disjoint paths may run at the same time.

    Parameters
    ----------
    ends
        The participants of a flow.
    by_link
        Whether only pairs over the same links run at the same time.
    memory
        The memory of a flow, besides its GPUs, that only one task of a step may use.
    """
    groups = [_group(kind, by_link=by_link) for kind in tasks.distinct]
    for number, (kind, flows) in enumerate(zip(tasks.numbers, tasks.flows, strict=True)):
        if not tasks.distinct[kind].waivers:
            yield Slot(number, ends(flows[0]), groups[kind], memory(flows[0]))


_ALIKE = (Pattern.PAIR, Pattern.BOTH_DIRECTIONS, Pattern.LOCAL)


def _group(task: PlannedTask, *, by_link: bool) -> str | None:
    if not task.disjoint or task.pattern not in _ALIKE:
        return None
    over = f" over {task.flows[0].route.symbol}" if by_link else ""
    return f"{task.name}{over}, {format_size(task.size_bytes)}"


def steps_of_size(before: PlannedTasks, steps: Sequence[PlanStep], tasks: PlannedTasks) -> tuple[PlanStep, ...] | None:
    """Return the steps of the same tasks of another size; ``None`` if they are other tasks or may run in other steps.

    Parameters
    ----------
    before, steps
        The tasks of the other size, and their steps by link.
    """
    if not before.alike(tasks):
        return None
    groups: dict[str | None, str | None] = {}
    for kind, resized in zip(before.distinct, tasks.distinct, strict=True):
        if bool(kind.waivers) != bool(resized.waivers):
            return None
        group = _group(resized, by_link=True)
        if not kind.waivers and groups.setdefault(_group(kind, by_link=True), group) != group:
            return None
    if len({*groups.values()}) < len(groups):
        return None
    return tuple(step if step.group is None else replace(step, group=groups[step.group]) for step in steps)


def make_steps(slots: Iterable[Slot], *, serial: bool = False, rounds: Rounds | None = None) -> tuple[PlanStep, ...]:
    """Return the steps of tasks, in the order of the tasks as far as possible.

    A group's tasks follow the rounds of the tournament of its GPUs, the pairs of each round first in one direction and
    then in the other. Tasks of single GPUs run all at once. After each step of several tasks, one of them is measured
    alone.

    Parameters
    ----------
    serial
        Whether every task runs alone.
    rounds
        The rounds of pairs; by default those of a full tournament.
    """
    steps: list[PlanStep] = []
    scheduled: set[str] = set()
    slots = tuple(slots)
    groups = grouped((slot.group, slot) for slot in slots)
    for slot in slots:
        if serial or slot.group is None:
            steps.append(PlanStep(tasks=(slot.number,)))
        elif slot.group not in scheduled:
            scheduled.add(slot.group)
            steps += _group_steps(slot.group, groups[slot.group], rounds)
    return tuple(steps)


def _group_steps(group: str, slots: Sequence[Slot], meetings: Rounds | None) -> list[PlanStep]:
    by_gpus = {slot.gpus: slot for slot in slots}
    if len(by_gpus) < len(slots):
        raise ValueError(f"two tasks of {group} have the same ends")
    gpus = tuple(dict.fromkeys(gpu for slot in slots for gpu in slot.gpus))
    rounds: list[list[Slot]] = [[by_gpus[ends] for ends in by_gpus if len(set(ends)) == 1]]
    if meetings is None:
        meetings = [round_of(gpus, number) for number in range(round_count(len(gpus)))]
    for pairs in meetings:
        by_pair = [[by_gpus[ends] for ends in (pair, pair[::-1]) if ends in by_gpus] for pair in pairs]
        rounds += [[pair_slots[index] for pair_slots in by_pair if index < len(pair_slots)] for index in (0, 1)]
    steps: list[PlanStep] = []
    for number, tasks in enumerate(tasks for slots_of_round in rounds for tasks in _split_by_memory(slots_of_round)):
        several = len(tasks) > 1
        steps.append(PlanStep(tasks=tuple(tasks), group=group if several else None))
        if several:
            # A different task each time, so that over the rounds all GPUs are measured alone.
            steps.append(PlanStep(tasks=(tasks[number % len(tasks)],), group=group, proof=True))
    return steps


def _split_by_memory(slots: Iterable[Slot]) -> list[list[int]]:
    """Return the tasks of a round in parts that run one after the other; no two tasks of a part share memory."""
    slots = tuple(slots)
    if slots and not any(slot.memory for slot in slots):
        return [[slot.number for slot in slots]]
    parts: list[tuple[set[str], list[int]]] = []
    for slot in slots:
        for used, tasks in parts:
            if used.isdisjoint(slot.memory):
                used |= slot.memory
                tasks.append(slot.number)
                break
        else:
            parts.append((set(slot.memory), [slot.number]))
    return [tasks for _, tasks in parts]


def isolated(tasks: PlannedTasks, steps: Iterable[PlanStep]) -> tuple[PlanStep, ...]:
    """Return the steps with those of degraded routes last, one process per set of ends.

    It is not documented whether the driver allocates NUMA memory whose EGM route is blocked. It may refuse or crash.
    """

    degraded_kinds = {id(kind) for kind in tasks.kinds if any(flow.route.degraded for flow in kind.flows)}

    def ends(step: PlanStep) -> str | None:
        if all(id(tasks.kinds[number]) not in degraded_kinds for number in step.tasks):
            return None
        flows = [flow for number in step.tasks for flow in tasks.flows[number]]
        return " ".join(sorted({end.label for flow in flows for end in (flow.source, flow.destination)}))

    by_ends = grouped((ends(step), step) for step in steps)
    usual = by_ends.pop(None, [])
    return (*usual, *(replace(step, isolated=name) for name, degraded in by_ends.items() for step in degraded))
