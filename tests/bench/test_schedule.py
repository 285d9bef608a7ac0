"""Every pair exactly once, no GPU twice at the same time, and a proof that measuring at once changes nothing."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from itertools import combinations, permutations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from egmctl.bench.plan.schedule import make_steps, round_count, round_of, sampled_rounds
from egmctl.model.listing import PlannedTask, PlannedTasks, PlanStep
from egmctl.model.route import MemoryKind, Route
from egmctl.model.task import Endpoint, Engine, Flow, Pattern, Quantity

GPUS = st.lists(st.text("0123456789abcdef", min_size=1, max_size=4), unique=True, max_size=17)


@given(st.integers(0, 80))
def test_the_rounds_of_any_number_of_players_have_every_pair_once_each_made_by_itself(count: int) -> None:
    rounds = [round_of(range(count), number) for number in reversed(range(round_count(count)))]
    assert Counter(frozenset(pair) for pairs in rounds for pair in pairs) == Counter(
        frozenset(pair) for pair in combinations(range(count), 2)
    )
    for pairs in rounds:
        playing = [player for pair in pairs for player in pair]
        assert len(playing) == len(set(playing)) == count - count % 2


@given(st.integers(2, 60), st.integers(1, 70), st.integers(0, 3))
def test_a_sample_covers_every_player_with_as_many_peers_as_asked_for_and_no_pair_twice(
    count: int, peers: int, seed: int
) -> None:
    rounds = sampled_rounds(count, peers, seed)
    met = Counter(frozenset(pair) for pairs in rounds for pair in pairs)
    assert set(met.values()) == {1}
    for pairs in rounds:
        playing = [player for pair in pairs for player in pair]
        assert len(playing) == len(set(playing)) >= count - 1
    for player in range(count):
        assert sum(player in pair for pair in met) >= min(peers, count - 1)


def test_a_sample_is_random_and_the_same_for_the_same_seed() -> None:
    drawn = [sampled_rounds(16, 3, seed) for seed in (1, 1, 2)]
    assert drawn[0] == drawn[1] != drawn[2]


Pair = tuple[str, ...]
"""The GPUs of a task: two, or one alone."""


def tasks_between(pairs: Iterable[tuple[Pair, str | None]]) -> PlannedTasks:
    """Return tasks of pairs, each in a group of its own case, or alone."""

    def end(gpu: str) -> Endpoint:
        return Endpoint(memory=MemoryKind.DEVICE, label=gpu, bus_id=gpu)

    return PlannedTasks.of(
        [
            PlannedTask(
                case=group or "alone",
                family="p2p",
                quantity=Quantity.BANDWIDTH,
                engine=Engine.COPY_ENGINE,
                pattern=Pattern.PAIR if len(pair) > 1 else Pattern.LOCAL,
                flows=(
                    Flow(
                        source=end(pair[0]),
                        destination=end(pair[-1]),
                        initiator=pair[0],
                        initiator_label=pair[0],
                        route=Route(),
                    ),
                ),
                counted="",
                size_bytes=16,
                copies=1,
                disjoint=group is not None,
            )
            for pair, group in pairs
        ]
    )


def gpus_of(flow: Flow) -> Pair:
    ends = (flow.source.label, flow.destination.label)
    return ends if ends[0] != ends[1] else ends[:1]


def steps_of(tasks: PlannedTasks, *, serial: bool = False) -> tuple[PlanStep, ...]:
    return make_steps(tasks, gpus_of, by_link=False, serial=serial)


def together(name: str, pairs: Iterable[Pair]) -> PlannedTasks:
    return tasks_between((pair, name) for pair in pairs)


@st.composite
def tasks_of_some_pairs(draw: st.DrawFn) -> PlannedTasks:
    """Draw some of the ordered pairs of some GPUs, each in a group or in none."""
    gpus = draw(GPUS)
    pairs = [pair for pair in [*permutations(gpus, 2), *((gpu,) for gpu in gpus)] if draw(st.booleans())]
    return tasks_between((pair, draw(st.sampled_from(("a", "b", None)))) for pair in pairs)


@given(tasks_of_some_pairs())
def test_every_task_is_measured_once_beside_those_of_its_group_with_other_gpus(tasks: PlannedTasks) -> None:
    steps = steps_of(tasks)
    assert sorted(number for step in steps if not step.proof for number in step.tasks) == list(range(len(tasks)))
    for step in steps:
        taking_part = [gpu for number in step.tasks for gpu in gpus_of(tasks.flows[number][0])]
        assert len(taking_part) == len(set(taking_part))
        groups = {tasks[number].case for number in step.tasks}
        assert len(groups) == 1
        assert len(step.tasks) == 1 or "alone" not in groups


@given(tasks_of_some_pairs())
def test_after_each_step_of_several_tasks_one_of_them_is_measured_alone(tasks: PlannedTasks) -> None:
    steps = steps_of(tasks)
    for step, following in zip(steps, [*steps[1:], None], strict=False):
        assert (following is not None and following.proof) == (len(step.tasks) > 1)
        if following is not None and following.proof:
            assert set(following.tasks) < set(step.tasks)
            assert following.group == step.group
            assert str(following.group).startswith(tasks[following.tasks[0]].case)


@given(tasks_of_some_pairs())
def test_serial_is_one_task_at_a_time_in_the_order_given(tasks: PlannedTasks) -> None:
    steps = steps_of(tasks, serial=True)
    assert [(step.tasks, step.proof) for step in steps] == [((number,), False) for number in range(len(tasks))]


@pytest.mark.parametrize(("gpus", "ordered", "unordered"), [(2, 2, 1), (3, 6, 3), (4, 6, 3), (5, 10, 5), (8, 14, 7)])
def test_unordered_pairs_take_one_step_a_round_and_ordered_ones_two(gpus: int, ordered: int, unordered: int) -> None:
    for pairs, steps in ((permutations, ordered), (combinations, unordered)):
        tasks = together("write", pairs(map(str, range(gpus)), 2))
        assert sum(not step.proof for step in steps_of(tasks)) == steps


def test_cases_between_the_same_gpus_run_in_the_same_parts_each_with_its_own_tasks() -> None:
    pairs = list(permutations("abcd", 2))
    tasks = PlannedTasks.joined([together("write", pairs), together("read", pairs), together("half", pairs[::2])])
    steps = steps_of(tasks)
    written, read = ([step.tasks for step in steps if str(step.group).startswith(name)] for name in ("write", "read"))
    assert len(written) == 12
    assert read == [tuple(number + len(pairs) for number in numbers) for numbers in written]
    assert sorted(number for step in steps if not step.proof for number in step.tasks) == list(range(len(tasks)))


def test_the_proofs_of_a_group_are_not_all_of_one_gpu() -> None:
    tasks = together("write", permutations("abcd", 2))
    proven = {gpus_of(tasks.flows[step.tasks[0]][0]) for step in steps_of(tasks) if step.proof}
    assert {gpu for pair in proven for gpu in pair} == set("abcd")


def test_copies_within_single_gpus_run_all_at_once() -> None:
    at_once, alone = steps_of(together("local", [("a",), ("b",), ("c",)]))
    assert at_once.tasks == (0, 1, 2)
    assert (alone.proof, len(alone.tasks)) == (True, 1)


def test_the_same_pair_twice_in_a_group_is_a_mistake() -> None:
    with pytest.raises(ValueError, match=r"two tasks of write.* have the same ends"):
        steps_of(together("write", [("a", "b"), ("a", "b")]))
