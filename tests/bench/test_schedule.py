"""Every pair exactly once, no GPU twice at the same time, and a proof that measuring at once changes nothing."""

from __future__ import annotations

from collections import Counter
from itertools import combinations, permutations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from egmctl.bench.plan.schedule import Slot, make_steps, round_count, round_of, sampled_rounds

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


@st.composite
def slots_of_some_pairs(draw: st.DrawFn) -> list[Slot]:
    """Draw some of the ordered pairs of some GPUs, each in a group or in none."""
    gpus = draw(GPUS)
    pairs = [pair for pair in [*permutations(gpus, 2), *((gpu,) for gpu in gpus)] if draw(st.booleans())]
    return [Slot(number, pair, draw(st.sampled_from(("a", "b", None)))) for number, pair in enumerate(pairs)]


@given(slots_of_some_pairs())
def test_every_task_is_measured_once_beside_those_of_its_group_with_other_gpus(slots: list[Slot]) -> None:
    steps = make_steps(slots)
    assert sorted(n for step in steps if not step.proof for n in step.tasks) == [slot.number for slot in slots]
    for step in steps:
        taking_part = [gpu for number in step.tasks for gpu in slots[number].gpus]
        assert len(taking_part) == len(set(taking_part))
        groups = {slots[number].group for number in step.tasks}
        assert len(groups) == 1
        assert len(step.tasks) == 1 or None not in groups


@given(slots_of_some_pairs())
def test_after_each_step_of_several_tasks_one_of_them_is_measured_alone(slots: list[Slot]) -> None:
    steps = make_steps(slots)
    for step, following in zip(steps, [*steps[1:], None], strict=False):
        assert (following is not None and following.proof) == (len(step.tasks) > 1)
        if following is not None and following.proof:
            assert set(following.tasks) < set(step.tasks)
            assert following.group == step.group == slots[following.tasks[0]].group


@given(slots_of_some_pairs())
def test_serial_is_one_task_at_a_time_in_the_order_given(slots: list[Slot]) -> None:
    steps = make_steps(slots, serial=True)
    assert [(step.tasks, step.proof) for step in steps] == [((slot.number,), False) for slot in slots]


@pytest.mark.parametrize(("gpus", "ordered", "unordered"), [(2, 2, 1), (3, 6, 3), (4, 6, 3), (5, 10, 5), (8, 14, 7)])
def test_unordered_pairs_take_one_step_a_round_and_ordered_ones_two(gpus: int, ordered: int, unordered: int) -> None:
    for pairs, steps in ((permutations, ordered), (combinations, unordered)):
        slots = [Slot(n, pair, "write") for n, pair in enumerate(pairs(map(str, range(gpus)), 2))]
        assert sum(not step.proof for step in make_steps(slots)) == steps


def test_the_proofs_of_a_group_are_not_all_of_one_gpu() -> None:
    slots = [Slot(n, pair, "write") for n, pair in enumerate(permutations("abcd", 2))]
    proven = {slots[step.tasks[0]].gpus for step in make_steps(slots) if step.proof}
    assert {gpu for pair in proven for gpu in pair} == set("abcd")


def test_copies_within_single_gpus_run_all_at_once() -> None:
    slots = [Slot(n, (gpu,), "local") for n, gpu in enumerate("abc")]
    together, alone = make_steps(slots)
    assert together.tasks == (0, 1, 2)
    assert (alone.proof, len(alone.tasks)) == (True, 1)


def test_the_same_pair_twice_in_a_group_is_a_mistake() -> None:
    with pytest.raises(ValueError, match="two tasks of write have the same ends"):
        make_steps([Slot(0, ("a", "b"), "write"), Slot(1, ("a", "b"), "write")])
