"""What a soak makes of one more pass: the worst stays, and what went wrong is not healed by a later pass."""

from __future__ import annotations

from dataclasses import replace

import pytest

from egmctl.bench.plan.make import make_plan
from egmctl.bench.results import SAMPLES_KEPT, Soak, summarize
from egmctl.model.measurement import Measurement, RunReport, Sample, Settings, Status, finish
from egmctl.report.document import columns
from egmctl.report.views.bench import soak
from tests.bench.four import FOUR
from tests.doctor.machines import shipped

DGX = shipped("dgx-h100")
TASK = make_plan(
    DGX, (DGX.gpus or ())[:2], [0], FOUR, Settings(size_bytes=1 << 20, copies=1, samples=1, timeout_s=9)
).tasks[-1]


def measured(*values: float) -> Measurement:
    """Return a measurement with samples of these bandwidths."""
    return finish(
        TASK,
        Status.OK,
        samples=tuple(Sample(bandwidth_gb_s=v, flows_gb_s=(v,), elapsed_ms=1000 / v, wall_ms=1) for v in values),
        bandwidth_gb_s=summarize(values),
        flows_gb_s=(summarize(values),),
    )


def after(*passes: Measurement) -> Measurement:
    """Return what a soak makes of some passes."""
    soak = Soak(60)
    merged: Measurement | None = None
    for one in passes:
        merged = soak.merge(merged, one)
    assert merged is not None
    return merged


def test_all_samples_count_and_the_summary_is_of_all() -> None:
    merged = after(measured(100, 102), measured(101), measured(99))
    assert merged.attempts == 3
    assert merged.bandwidth_gb_s is not None
    assert (merged.bandwidth_gb_s.min, merged.bandwidth_gb_s.median, merged.bandwidth_gb_s.max) == (99, 100.5, 102)
    assert merged.flows_gb_s[0].min == 99
    assert merged.status is Status.OK


def test_the_time_of_the_worst_sample_is_that_of_its_pass(monkeypatch: pytest.MonkeyPatch) -> None:
    now = iter([0.0, 1.0, 2.0, 3.0])
    monkeypatch.setattr("egmctl.bench.results.time.monotonic", lambda: next(now))
    assert after(measured(100), measured(97), measured(99)).slowest_at_s == 2.0


def test_a_link_that_falls_off_for_one_pass_makes_the_measurement_unstable() -> None:
    merged = after(*[measured(100)] * 9, measured(50), measured(100))
    assert merged.status is Status.UNSTABLE
    assert "vary by" in (merged.reason or "")


def test_corrupt_data_counts_more_than_a_call_that_failed_before_it() -> None:
    failed, corrupt = (
        replace(measured(100), status=status, reason=status.value) for status in (Status.FAILED, Status.CORRUPT)
    )
    for passes in ((failed, corrupt), (corrupt, failed), (measured(100), failed, corrupt, measured(100))):
        merged = after(*passes)
        assert (merged.status, merged.reason) == (Status.CORRUPT, "corrupt")
    order = (Status.OK, Status.FAILED, Status.CORRUPT)
    graver = [(a, b) for a in order for b in order if finish(TASK, a).graver_than(finish(TASK, b))]
    assert graver == [(Status.FAILED, Status.OK), (Status.CORRUPT, Status.OK), (Status.CORRUPT, Status.FAILED)]


@pytest.mark.parametrize("status", [Status.CORRUPT, Status.FAILED, Status.CRASHED])
def test_what_went_wrong_once_stays(status: Status) -> None:
    bad = replace(measured(100), status=status, reason="what went wrong")
    merged = after(measured(100), bad, measured(100))
    assert (merged.status, merged.reason, merged.attempts) == (status, "what went wrong", 3)
    assert merged.slowest_at_s is not None


def test_samples_are_bounded_and_the_slowest_is_kept() -> None:
    values = [100.0] * SAMPLES_KEPT
    values[2000] = 50.0
    merged = after(measured(*values), measured(100))
    assert len(merged.samples) <= SAMPLES_KEPT
    assert merged.bandwidth_gb_s is not None
    assert merged.bandwidth_gb_s.min == 50


def test_the_time_is_up_when_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    now = iter([0.0, 3.0, 7.0])
    monkeypatch.setattr("egmctl.bench.results.time.monotonic", lambda: next(now))
    soak = Soak(6)
    assert soak.part_over == 0.5
    assert soak.over


def test_the_text_says_what_was_worst_and_when() -> None:
    settings = Settings(size_bytes=1 << 20, copies=1, samples=1, timeout_s=9, duration_s=60)
    plan = make_plan(DGX, (DGX.gpus or ())[:2], [0], FOUR, settings)
    report = RunReport(
        settings=settings,
        gpus=plan.gpus,
        numa_nodes=(0,),
        driver_version=None,
        cuda_driver_version=None,
        started_at="2026-11-20T12:00:00+00:00",
        wall_s=60,
        interrupted=False,
        measurements=(replace(measured(396.4, 391.25), attempts=7, slowest_at_s=42.3),),
    )
    (table,) = soak(report)
    assert table.rows == ("device_to_device_memcpy_read_ce GPU0 -> GPU1",)
    assert [(column.header[0], column.cells[0].text) for column in columns(table)] == [
        ("passes", "7"),
        ("median", "393.82"),
        ("worst", "391.25"),
        ("", "GB/s"),
        ("at", "42 s"),
    ]
