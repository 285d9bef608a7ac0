"""The tasks that run at the same time. Every task runs once, and no GPU is used twice in a step. Pure.

Disjoint pairs over NVLink do not disturb each other (the measured difference through switches is 0.04 %). So all pairs
of a round of a round-robin tournament are measured at once: in N - 1 rounds for an even number of GPUs and N for an odd
one, instead of N (N - 1) / 2 pairs one at a time.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import replace
from random import Random
from typing import TypeVar

from egmctl.model.listing import PlannedTask, PlannedTasks, PlanStep
from egmctl.model.task import Flow, Pattern
from egmctl.units import format_size, grouped

T = TypeVar("T", bound=Hashable)

Rounds = Sequence[Sequence[tuple[str, str]]]
"""Rounds of pairs of GPUs that are measured at the same time."""


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
    # Written out, because replace() takes twice as long: 72 GPUs have 9,500 steps.
    return tuple(
        step
        if step.group is None
        else PlanStep(tasks=step.tasks, group=groups[step.group], proof=step.proof, isolated=step.isolated)
        for step in steps
    )


EndsOf = Callable[[Flow], tuple[str, ...]]
"""A function that returns the GPUs of a flow, in order: a write from A to B is not one from B to A."""
MemoryOf = Callable[[Flow], frozenset[str]]
"""A function that returns the memory of a flow, besides its GPUs, that only one task of a step may use."""


def make_steps(
    tasks: PlannedTasks,
    ends: EndsOf,
    *,
    by_link: bool,
    memory: MemoryOf | None = None,
    serial: bool = False,
    rounds: Rounds | None = None,
) -> tuple[PlanStep, ...]:
    """Return the steps of the runnable tasks, in the order of the tasks as far as possible.

    Pairs of one case with disjoint paths may run at the same time. A group of such tasks follows the rounds of the
    tournament of its GPUs, the pairs of each round first in one direction and then in the other. Tasks of single GPUs
    run all at once. After each step of several tasks, one of them is measured alone.

    Parameters
    ----------
    by_link
        Whether only pairs over the same links run at the same time.
    serial
        Whether every task runs alone.
    rounds
        The rounds of pairs; by default those of a full tournament.
    """
    groups = [None if serial else _group(kind, by_link=by_link) for kind in tasks.distinct]
    runnable = [not kind.waivers for kind in tasks.distinct]
    # A task that runs alone stands under its own number.
    members: dict[str | int, list[int]] = {}
    for number, kind in enumerate(tasks.numbers):
        if runnable[kind]:
            group = groups[kind]
            members.setdefault(number if group is None else group, []).append(number)
    steps: list[PlanStep] = []
    # Cases between the same GPUs run in the same parts.
    known: dict[Hashable, list[list[int]]] = {}
    for name, numbers in members.items():
        if isinstance(name, int):
            steps.append(PlanStep(tasks=(name,)))
            continue
        first_flows = [tasks.flows[number][0] for number in numbers]
        gpus = tuple(map(ends, first_flows))
        shared = None if memory is None else tuple(map(memory, first_flows))
        parts = known.get((gpus, shared))
        if parts is None:
            if len(set(gpus)) < len(gpus):
                raise ValueError(f"two tasks of {name} have the same ends")
            parts = known[gpus, shared] = _parts(gpus, shared, rounds)
        for place, part in enumerate(parts):
            at_once = tuple([numbers[position] for position in part])
            several = len(at_once) > 1
            steps.append(PlanStep(tasks=at_once, group=name if several else None))
            if several:
                # A different task each time, so that over the rounds all GPUs are measured alone.
                steps.append(PlanStep(tasks=(at_once[place % len(at_once)],), group=name, proof=True))
    return tuple(steps)


def _parts(
    gpus: Sequence[tuple[str, ...]], memory: Sequence[frozenset[str]] | None, meetings: Rounds | None
) -> list[list[int]]:
    """Return the tasks of a group, by their position in it, that run at the same time, one part after the other."""
    positions = {ends: position for position, ends in enumerate(gpus)}
    rounds = [[positions[ends] for ends in positions if len(set(ends)) == 1]]
    if meetings is None:
        players = tuple(dict.fromkeys(gpu for ends in gpus for gpu in ends))
        meetings = [round_of(players, number) for number in range(round_count(len(players)))]
    for pairs in meetings:
        by_pair = [[positions[ends] for ends in (pair, pair[::-1]) if ends in positions] for pair in pairs]
        rounds += [[directions[index] for directions in by_pair if index < len(directions)] for index in (0, 1)]
    return [part for tasks in rounds if tasks for part in _split_by_memory(tasks, memory)]


def _split_by_memory(tasks: list[int], memory: Sequence[frozenset[str]] | None) -> list[list[int]]:
    """Return the tasks of a round in parts that run one after the other; no two tasks of a part share memory."""
    if memory is None:
        return [tasks]
    parts: list[tuple[set[str], list[int]]] = []
    for position in tasks:
        for used, part in parts:
            if used.isdisjoint(memory[position]):
                used |= memory[position]
                part.append(position)
                break
        else:
            parts.append((set(memory[position]), [position]))
    return [part for _, part in parts]


def isolated(tasks: PlannedTasks, steps: Iterable[PlanStep]) -> tuple[PlanStep, ...]:
    """Return the steps with those of degraded routes last, one process per set of ends.

    It is not documented whether the driver allocates NUMA memory whose EGM route is blocked. It may refuse or crash.
    """

    degraded_kinds = {id(kind) for kind in tasks.distinct if any(flow.route.degraded for flow in kind.flows)}
    if not degraded_kinds:
        return tuple(steps)

    def ends(step: PlanStep) -> str | None:
        if all(id(tasks.kinds[number]) not in degraded_kinds for number in step.tasks):
            return None
        flows = [flow for number in step.tasks for flow in tasks.flows[number]]
        return " ".join(sorted({end.label for flow in flows for end in (flow.source, flow.destination)}))

    by_ends = grouped((ends(step), step) for step in steps)
    usual = by_ends.pop(None, [])
    return (*usual, *(replace(step, isolated=name) for name, degraded in by_ends.items() for step in degraded))
