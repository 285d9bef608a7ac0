"""The order in which a pointer chase visits its lines: one cycle over all of them, and random where it is to be."""

from __future__ import annotations

from itertools import pairwise
from statistics import fmean

import pytest
from hypothesis import given
from hypothesis import strategies as st

from egmctl.gpu.chase import Chain, place

LINES = st.integers(1, 300)
SEEDS = st.integers(0, (1 << 64) - 1)


@given(lines=LINES, seed=SEEDS)
def test_a_walk_visits_every_line_once(lines: int, seed: int) -> None:
    assert sorted(place(step, lines, seed) for step in range(lines)) == list(range(lines))


@given(lines=st.integers(1, 1 << 40), seed=SEEDS, data=st.data())
def test_every_step_leads_to_a_line_however_many_there_are(lines: int, seed: int, data: st.DataObject) -> None:
    assert 0 <= place(data.draw(st.integers(0, lines - 1)), lines, seed) < lines


@given(lines=LINES)
def test_seed_0_is_the_sequential_order(lines: int) -> None:
    assert [place(step, lines, 0) for step in range(lines)] == list(range(lines))


@pytest.mark.parametrize("seed", range(1, 9))
def test_the_order_of_other_seeds_is_as_random_as_a_shuffle_s(seed: int) -> None:
    lines = 1 << 12
    order = [place(step, lines, seed) for step in range(lines)]
    distances = [there - here for here, there in pairwise(order)]
    # Two random lines of n are n/3 apart on average; a shuffle of 4096 deviates from that by less than 1 %.
    assert 0.31 < fmean(map(abs, distances)) / lines < 0.36
    # A stride that a prefetcher could learn would return often.
    assert max(map(distances.count, set(distances))) < lines / 100


def test_seeds_lead_along_different_ways() -> None:
    assert len({tuple(place(step, 64, seed) for step in range(64)) for seed in range(50)}) == 50


@given(lines=st.integers(1, 50), stride=st.sampled_from([8, 128, 4096]), loads=st.lists(st.integers(0, 200)))
def test_a_chain_knows_where_walks_end_without_walking(lines: int, stride: int, loads: list[int]) -> None:
    chain = Chain(0, lines * stride + stride // 2, stride, seed=7)
    links = {place(step, lines, 7) * stride: place((step + 1) % lines, lines, 7) * stride for step in range(lines)}
    offset = chain.offset_bytes
    for count in loads:
        chain.advance(count)
        for _ in range(count):
            offset = links[offset]
        assert chain.offset_bytes == offset
    chain.rewind()
    assert chain.offset_bytes == place(0, lines, 7) * stride


@given(lines=st.integers(2, 50), loads=st.integers(0, 200), elsewhere=st.integers(0, 49))
def test_a_walk_that_ends_elsewhere_is_wrong_by_where_it_ended(lines: int, loads: int, elsewhere: int) -> None:
    chain = Chain(0, lines * 128, 128, seed=7)
    chain.advance(loads)
    ended = elsewhere % lines * 128
    assert chain.wrong(ended) == (None if ended == chain.offset_bytes else ended)
