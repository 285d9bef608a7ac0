"""From samples to a headline."""

from __future__ import annotations

import statistics

import pytest
from hypothesis import given
from hypothesis import strategies as st

from egmctl.bench.results import UNSTABLE_CV, bandwidth_gb_s, is_unstable, summarize

VALUES = st.lists(st.floats(1e-3, 1e5), min_size=1, max_size=50)


@given(VALUES)
def test_the_median_lies_between_the_extremes_and_the_extremes_are_samples(values: list[float]) -> None:
    summary = summarize(values)
    assert summary.min <= summary.median <= summary.max
    assert {summary.min, summary.max} <= set(values)


@given(VALUES)
def test_half_of_the_samples_are_at_least_the_median(values: list[float]) -> None:
    median = summarize(values).median
    assert sum(value >= median for value in values) * 2 >= len(values)
    assert sum(value <= median for value in values) * 2 >= len(values)


@given(VALUES, st.floats(0.5, 2))
def test_spread_does_not_depend_on_the_unit(values: list[float], factor: float) -> None:
    cv, scaled = summarize(values).cv, summarize([factor * value for value in values]).cv
    assert (cv is None) == (scaled is None) == (len(values) == 1)
    if cv is not None:
        assert scaled == pytest.approx(cv, rel=1e-6, abs=1e-9)


@given(st.floats(1e-3, 1e5), st.integers(2, 50))
def test_equal_samples_have_no_spread(value: float, count: int) -> None:
    summary = summarize([value] * count)
    assert summary.cv == pytest.approx(0, abs=1e-12)
    assert not is_unstable(summary)


def test_a_single_sample_says_nothing_about_spread() -> None:
    assert summarize([396.4]).cv is None
    assert not is_unstable(summarize([396.4]))


@pytest.mark.parametrize(("values", "unstable"), [([390.0, 396.0, 396.4], False), ([300.0, 396.0, 396.4], True)])
def test_samples_that_differ_too_much_are_called_unstable(values: list[float], unstable: bool) -> None:
    assert is_unstable(summarize(values)) is unstable
    assert (statistics.stdev(values) / statistics.mean(values) > UNSTABLE_CV) is unstable


def test_bandwidth_is_1e9_bytes_a_second_and_keeps_fractions_of_a_millisecond() -> None:
    assert bandwidth_gb_s(16 * (512 << 20), 21.6699) == pytest.approx(396.3994, abs=1e-4)
    # 64 KiB in 1.6 us: truncated to whole microseconds this would be 65.5.
    assert bandwidth_gb_s(64 << 10, 0.0016) == pytest.approx(40.96)


def test_samples_that_are_all_0_have_no_spread_to_speak_of() -> None:
    # What a path that nothing loads carries.
    assert summarize([0.0, 0.0]).cv is None
