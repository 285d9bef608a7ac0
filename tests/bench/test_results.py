"""From samples to a headline: the median, the spread, what outweighs what, and what a soak makes of many passes."""

from __future__ import annotations

import statistics

import pytest
from hypothesis import given
from hypothesis import strategies as st

from egmctl.bench.results import (
    SAMPLES_KEPT,
    UNSTABLE_CV,
    Soak,
    bandwidth_gb_s,
    of_bandwidth,
    of_latency,
    status_of,
    summarize,
)
from egmctl.model.measurement import Measurement, MeasurementStatus, Sample
from tests.bench.plans import plan_of
from tests.bench.reports import soak_pass

VALUES = st.lists(st.floats(1e-3, 1e5), min_size=1, max_size=50)
(LATENCY, *_) = plan_of("device_to_device_latency_sm", gpus=2).tasks


@given(VALUES)
def test_the_median_has_half_of_the_samples_on_each_side_and_the_extremes_are_samples(values: list[float]) -> None:
    summary = summarize(values)
    assert (summary.min, summary.max) == (min(values), max(values))
    assert sum(value >= summary.median for value in values) * 2 >= len(values)
    assert sum(value <= summary.median for value in values) * 2 >= len(values)


@given(VALUES, st.floats(0.5, 2))
def test_spread_does_not_depend_on_the_unit(values: list[float], factor: float) -> None:
    cv, scaled = summarize(values).cv, summarize([factor * value for value in values]).cv
    assert (cv is None) == (scaled is None) == (len(values) == 1)
    if cv is not None:
        assert scaled == pytest.approx(cv, rel=1e-6, abs=1e-9)


@pytest.mark.parametrize(
    ("values", "unstable"),
    [
        ([390.0, 396.0, 396.4], False),
        ([300.0, 396.0, 396.4], True),
        ([396.4], False),
        ([396.4, 396.4], False),
        # What a path that nothing loads carries.
        ([0.0, 0.0], False),
    ],
)
def test_samples_that_differ_too_much_are_called_unstable(values: list[float], unstable: bool) -> None:
    summary = summarize(values)
    assert (status_of(summary)[0] is MeasurementStatus.UNSTABLE) is unstable
    if len(values) == 1 or not any(values):
        assert summary.cv is None
    else:
        assert (statistics.stdev(values) / statistics.mean(values) > UNSTABLE_CV) is unstable


def test_bandwidth_is_1e9_bytes_a_second_and_keeps_fractions_of_a_millisecond() -> None:
    assert bandwidth_gb_s(16 * (512 << 20), 21.6699) == pytest.approx(396.3994, abs=1e-4)
    # 64 KiB in 1.6 us: truncated to whole microseconds this would be 65.5.
    assert bandwidth_gb_s(64 << 10, 0.0016) == pytest.approx(40.96)


WRONG = "sample 0: the pointer chase ended at the wrong offset 128"
STEADY, VARYING = (600.0, 601.0), (600.0, 900.0)


@pytest.mark.parametrize(
    ("values", "wrong", "discarded", "status", "reason"),
    [
        (STEADY, None, 0, MeasurementStatus.OK, "a remark"),
        (STEADY, None, 3, MeasurementStatus.OK, "3 samples discarded: timed out waiting for the peer"),
        (VARYING, None, 3, MeasurementStatus.UNSTABLE, "the samples vary by 28.3 % (CV)"),
        (VARYING, WRONG, 3, MeasurementStatus.CORRUPT, WRONG),
        ((), None, 5, MeasurementStatus.FAILED, "timed out waiting for the peer in every sample"),
    ],
)
def test_wrong_data_outweighs_spread_and_both_outweigh_any_remark(
    values: tuple[float, ...], wrong: str | None, discarded: int, status: MeasurementStatus, reason: str
) -> None:
    samples = [Sample(latency_ns=value, elapsed_ms=1, wall_ms=1) for value in values]
    measurement = of_latency(LATENCY, samples, wrong, "a remark", discarded=discarded)
    assert (measurement.status, measurement.reason) == (status, reason)
    assert [sample.latency_ns for sample in measurement.samples] == [*values]
    # Corrupt data has no headline, and yet took its time.
    assert (measurement.headline is None) == (wrong is not None or not values)
    assert (measurement.timed and measurement.timed.median) == (statistics.median(values) if values else None)


def after(*passes: Measurement) -> Measurement:
    """Return what a soak makes of some passes."""
    merger = Soak(60)
    merged: Measurement | None = None
    for measurement in passes:
        merged = merger.merge(merged, measurement)
    assert merged is not None
    return merged


def at_times(monkeypatch: pytest.MonkeyPatch, *seconds: float) -> None:
    now = iter(seconds)
    monkeypatch.setattr("egmctl.bench.results.time.monotonic", lambda: next(now))


def test_all_samples_of_a_soak_count_and_the_summary_is_of_all() -> None:
    merged = after(soak_pass(100, 102), soak_pass(101), soak_pass(99))
    summary = merged.bandwidth_gb_s
    assert summary is not None
    assert (merged.status, merged.attempts) == (MeasurementStatus.OK, 3)
    assert (summary.min, summary.median, summary.max) == (99, 100.5, 102)
    assert merged.flows_gb_s[0].min == 99


def test_the_time_of_the_worst_sample_is_that_of_its_pass(monkeypatch: pytest.MonkeyPatch) -> None:
    at_times(monkeypatch, 0.0, 1.0, 2.0, 3.0)
    assert after(soak_pass(100), soak_pass(97), soak_pass(99)).slowest_at_s == 2.0


def test_the_time_is_up_when_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    at_times(monkeypatch, 0.0, 3.0, 7.0)
    running = Soak(6)
    assert (running.part_over, running.over) == (0.5, True)


def test_a_link_that_falls_off_for_one_pass_makes_the_measurement_unstable() -> None:
    merged = after(*[soak_pass(100)] * 9, soak_pass(50), soak_pass(100))
    assert merged.status is MeasurementStatus.UNSTABLE
    assert "vary by" in (merged.reason or "")


GOOD = soak_pass(100)
CORRUPT, FAILED, CRASHED = (
    soak_pass(100, status=s) for s in (MeasurementStatus.CORRUPT, MeasurementStatus.FAILED, MeasurementStatus.CRASHED)
)


@pytest.mark.parametrize(
    ("passes", "status"),
    [
        ((GOOD, CORRUPT, GOOD), MeasurementStatus.CORRUPT),
        ((GOOD, FAILED, GOOD), MeasurementStatus.FAILED),
        ((GOOD, CRASHED, GOOD), MeasurementStatus.CRASHED),
        ((FAILED, CORRUPT), MeasurementStatus.CORRUPT),
        ((CORRUPT, FAILED), MeasurementStatus.CORRUPT),
    ],
)
def test_what_went_wrong_once_stays_and_corrupt_data_counts_more_than_a_call_that_failed(
    passes: tuple[Measurement, ...], status: MeasurementStatus
) -> None:
    merged = after(*passes)
    assert (merged.status, merged.reason, merged.attempts) == (status, status.value, len(passes))
    assert merged.slowest_at_s is not None


def test_samples_of_a_soak_are_bounded_and_the_slowest_is_kept() -> None:
    values = [100.0] * SAMPLES_KEPT
    values[2000] = 50.0
    merged = after(soak_pass(*values), GOOD)
    assert len(merged.samples) <= SAMPLES_KEPT
    assert merged.bandwidth_gb_s is not None
    assert merged.bandwidth_gb_s.min == 50


def test_each_flow_has_the_statistics_of_its_own_samples() -> None:
    (task, *_) = plan_of("device_to_device_bidirectional_memcpy_write_ce", gpus=2).tasks
    samples = [Sample(bandwidth_gb_s=30.0, flows_gb_s=(10.0 + n, 20.0), elapsed_ms=1.0, wall_ms=1.0) for n in (0, 2)]
    flows = of_bandwidth(task, samples, None).flows_gb_s
    assert [(flow.min, flow.median, flow.max) for flow in flows] == [(10.0, 11.0, 12.0), (20.0, 20.0, 20.0)]
