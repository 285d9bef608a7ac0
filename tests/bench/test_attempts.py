"""What is kept of several attempts at one task: the better result, and the samples of all of them."""

from __future__ import annotations

from dataclasses import replace
from functools import reduce

import pytest

from egmctl.bench.results import of_both
from egmctl.model.measurement import Attempt, Measurement, MeasurementStatus
from tests.bench import reports
from tests.bench.four import NAMES
from tests.bench.plans import plan_of

(*_, TASK) = plan_of(NAMES[3], gpus=2).tasks
OK, UNSTABLE, CORRUPT, FAILED = (
    MeasurementStatus.OK,
    MeasurementStatus.UNSTABLE,
    MeasurementStatus.CORRUPT,
    MeasurementStatus.FAILED,
)


def attempt(status: MeasurementStatus, *values: float) -> Measurement:
    return reports.measured(TASK, *values, status=status, reason=None if status is OK else status.value)


def of_all(*attempts: Measurement) -> Measurement:
    return reduce(of_both, attempts[1:], attempts[0])


def values_of(others: tuple[Attempt, ...]) -> list[list[float | None]]:
    return [[sample.bandwidth_gb_s for sample in other.samples] for other in others]


def test_a_bad_first_attempt_stays_beside_the_good_one() -> None:
    kept = of_all(attempt(UNSTABLE, 112, 447, 447), attempt(OK, 447, 447, 447))
    assert (kept.status, kept.attempts) == (OK, 2)
    assert values_of(kept.other_attempts) == [[112, 447, 447]]
    assert [other.reason for other in kept.other_attempts] == ["unstable"]


def test_samples_of_all_attempts_are_kept_in_order() -> None:
    kept = of_all(*(attempt(UNSTABLE, 110 + number, 447) for number in range(4)))
    assert (kept.status, kept.attempts) == (UNSTABLE, 4)
    assert [sample.bandwidth_gb_s for sample in kept.samples] == [110, 447]
    assert values_of(kept.other_attempts) == [[111, 447], [112, 447], [113, 447]]


@pytest.mark.parametrize(
    ("before", "now", "kept"),
    [
        (OK, OK, OK),
        (OK, UNSTABLE, OK),
        (UNSTABLE, UNSTABLE, UNSTABLE),
        (UNSTABLE, CORRUPT, CORRUPT),
        (CORRUPT, OK, CORRUPT),
        (FAILED, OK, FAILED),
        (OK, FAILED, FAILED),
        (FAILED, CORRUPT, CORRUPT),
    ],
)
def test_what_broke_stays_and_of_values_the_steadier_one(
    before: MeasurementStatus, now: MeasurementStatus, kept: MeasurementStatus
) -> None:
    both = of_both(attempt(before, 400), attempt(now, 300))
    assert (both.status, both.attempts) == (kept, 2)
    assert len(both.samples) + len(both.other_attempts) == 2


def test_a_pair_that_is_measured_again_alone_forgets_its_numbers_among_others() -> None:
    among = replace(attempt(OK, 300, 300), concurrent=4)
    assert of_both(among, attempt(OK, 447, 447)) == attempt(OK, 447, 447)
    assert of_both(replace(among, status=CORRUPT), attempt(OK, 447, 447)).status is CORRUPT
