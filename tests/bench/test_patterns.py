"""Patterns: which flows a task has, whoever takes part."""

from __future__ import annotations

from itertools import permutations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from egmctl.bench.plan.flows import expand
from egmctl.model.task import Pattern

SEVERAL = [pattern for pattern in Pattern if pattern not in (Pattern.LOCAL, Pattern.ONE_NODE)]


@pytest.mark.parametrize("pattern", SEVERAL)
def test_one_alone_meets_nobody(pattern: Pattern) -> None:
    assert list(expand(pattern, 1)) == []


@given(st.integers(2, 9), st.sampled_from([Pattern.RING, Pattern.BISECT]))
def test_in_a_ring_and_in_a_bisection_each_sends_once_and_receives_once(count: int, pattern: Pattern) -> None:
    (flows,) = expand(pattern, count)
    assert [one for one, _ in flows] == list(range(count))
    assert sorted(other for _, other in flows) == list(range(count))
    assert all(one != other for one, other in flows)


@given(st.integers(2, 9))
def test_every_ordered_pair_is_there_once_however_it_is_measured(count: int) -> None:
    every = set(permutations(range(count), 2))
    assert {flow for (flow,) in expand(Pattern.PAIR, count)} == every
    for pattern in (Pattern.ALL_PAIRS, Pattern.BOTH_DIRECTIONS, Pattern.ONE_TO_ALL, Pattern.ALL_TO_ONE):
        flows = [flow for task in expand(pattern, count) for flow in task]
        assert (set(flows), len(flows)) == (every, len(every))
    assert len(list(expand(Pattern.PAIR, count, one_way=True))) == len(every) // 2


def test_of_chosen_meetings_both_ways_follow_each_other() -> None:
    assert list(expand(Pattern.PAIR, 9, meetings=[(0, 5), (1, 2)])) == [((0, 5),), ((5, 0),), ((1, 2),), ((2, 1),)]
    assert list(expand(Pattern.BOTH_DIRECTIONS, 9, meetings=[(0, 5)])) == [((0, 5), (5, 0))]
    assert [task[0][0] for task in expand(Pattern.ONE_TO_ALL, 9, hubs=[0, 4, 8])] == [0, 4, 8]


def test_a_loaded_path_is_two_flows_over_it() -> None:
    assert next(expand(Pattern.LOADED, 2)) == ((0, 1), (0, 1))
