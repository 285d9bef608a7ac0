"""The host's twin of the pattern is SplitMix64, as ``pattern.cu`` defines it."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from egmctl.gpu.pattern import pattern_words

MASK = (1 << 64) - 1
WORDS = st.integers(0, MASK)


def word(seed: int, index: int) -> int:
    """Return one word by the definition at the top of ``pattern.cu``, in Python's whole numbers."""
    z = (seed + (index + 1) * 0x9E3779B97F4A7C15) & MASK
    z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & MASK
    z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & MASK
    return z ^ (z >> 31)


def test_the_published_first_outputs_of_the_generator() -> None:
    # The values that implementations of SplitMix64 are checked with, for the seed 1234567 (Rosetta Code,
    # "Pseudo-random numbers/Splitmix64").
    assert [int(w) for w in pattern_words(1234567, 0, 5)] == [
        6457827717110365317,
        3203168211198807973,
        9817491932198370423,
        4593380528125082431,
        16408922859458223821,
    ]


@given(seed=WORDS, first=st.integers(0, 1 << 40), count=st.integers(0, 40))
def test_any_part_is_what_the_definition_says(seed: int, first: int, count: int) -> None:
    assert [int(w) for w in pattern_words(seed, first, count)] == [word(seed, first + i) for i in range(count)]


@given(seed=st.integers(1, 1000), other=st.integers(1, 1000))
def test_seeds_that_the_bench_uses_make_buffers_that_share_no_word_at_one_place(seed: int, other: int) -> None:
    same = (pattern_words(seed, 0, 1000) == pattern_words(other, 0, 1000)).sum()
    assert same == (1000 if seed == other else 0)
