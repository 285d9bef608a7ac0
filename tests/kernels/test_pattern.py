"""The host's twin of the pattern is SplitMix64, as ``pattern.cu`` defines it; and what a check's result says."""

from __future__ import annotations

import ctypes
from typing import Any

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from egmctl.gpu.pattern import WORD_BYTES, Difference, Region, WordPair, first_difference, pattern_words

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


# --- the result of a check -------------------------------------------------------------------------------------------

SEED, OFFSET_BYTES, COUNT = 7, 4096, 64
EXPECTED = 0x600D


class HostStream:
    """A stream on which the host makes each copy at once."""

    def __init__(self) -> None:
        self.context = self

    def make_current(self) -> None: ...

    def copy(self, destination: int, source: int, size_bytes: int) -> None:
        ctypes.memmove(destination, source, size_bytes)

    def synchronize(self) -> None: ...


def difference(count: int, inverse: int, words: list[int]) -> Difference | None:
    """Return what a kernel's pair of results says of a region that holds these words."""
    held = np.array(words, dtype=np.uint64)
    result = np.array([count, inverse], dtype=np.uint64)
    region = Region(held.ctypes.data, WORD_BYTES * len(words), SEED, OFFSET_BYTES)
    stream: Any = HostStream()
    return first_difference(stream, WordPair(stream, result.ctypes.data), region, lambda index: EXPECTED + index)


@given(first=st.integers(0, COUNT - 1), found=WORDS, data=st.data())
def test_a_difference_is_told_with_the_first_word_that_differs(first: int, found: int, data: st.DataObject) -> None:
    count = data.draw(st.integers(1, COUNT - first))
    words = [0] * COUNT
    words[first] = found
    offset_bytes = OFFSET_BYTES + WORD_BYTES * first
    assert difference(count, first ^ MASK, words) == Difference(count, offset_bytes, EXPECTED + first, found)


def test_a_check_that_counted_no_difference_tells_none() -> None:
    assert difference(0, 0, [0] * COUNT) is None


@given(count=WORDS, inverse=WORDS)
def test_a_result_that_no_kernel_writes_is_a_difference_without_a_place(count: int, inverse: int) -> None:
    first = inverse ^ MASK
    if (count, inverse) != (0, 0) and not 0 < count <= COUNT - first:
        assert difference(count, inverse, [0] * COUNT) == Difference(0, OFFSET_BYTES, 0, count)
