"""What samples of a latency make of a task: wrong data outweighs spread, and both outweigh any remark."""

from __future__ import annotations

import pytest

from egmctl.bench.plan.make import make_plan
from egmctl.bench.results import of_latency
from egmctl.model.measurement import Measurement, Sample, Settings, Status
from tests.bench.four import FOUR
from tests.doctor.machines import shipped

DGX = shipped("dgx-h100")
TASK = make_plan(
    DGX, (DGX.gpus or ())[:1], [0], FOUR, Settings(size_bytes=1 << 20, copies=1, samples=1, timeout_s=9)
).tasks[0]
WRONG = "sample 0: the pointer chase ended at the wrong offset 128"
STEADY, VARYING = (600.0, 601.0), (600.0, 900.0)


def concluded(values: tuple[float, ...], wrong: str | None = None, discarded: int = 0) -> Measurement:
    samples = [Sample(latency_ns=value, elapsed_ms=1, wall_ms=1) for value in values]
    return of_latency(TASK, samples, wrong, "a remark", discarded=discarded)


@pytest.mark.parametrize(
    ("values", "wrong", "discarded", "status", "reason"),
    [
        (STEADY, None, 0, Status.OK, "a remark"),
        (STEADY, None, 3, Status.OK, "3 samples discarded: timed out waiting for the peer"),
        (VARYING, None, 3, Status.UNSTABLE, "the samples vary by 28.3 % (CV)"),
        (VARYING, WRONG, 3, Status.CORRUPT, WRONG),
    ],
)
def test_the_gravest_is_the_reason(
    values: tuple[float, ...], wrong: str | None, discarded: int, status: Status, reason: str
) -> None:
    measurement = concluded(values, wrong, discarded)
    assert (measurement.status, measurement.reason) == (status, reason)
    assert [sample.latency_ns for sample in measurement.samples] == [*values]


def test_a_task_whose_samples_were_all_thrown_away_has_failed() -> None:
    measurement = concluded((), discarded=5)
    assert (measurement.status, measurement.latency_ns) == (Status.FAILED, None)
    assert measurement.reason == "timed out waiting for the peer in every sample"


def test_corrupt_data_has_no_headline_and_yet_took_its_time() -> None:
    measurement = concluded(STEADY, WRONG)
    assert measurement.headline is None
    assert measurement.timed is not None
    assert measurement.timed.median == sum(STEADY) / len(STEADY)
