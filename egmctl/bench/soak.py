"""``--duration``: the same tasks again and again, because a marginal link fails only after minutes."""

from __future__ import annotations

import time
from dataclasses import replace

from egmctl.bench.statistics import judged, summarize
from egmctl.model.measurement import Measurement, Sample, Status, Summary

SAMPLES_KEPT = 10_000
"""Of each task; the summaries are of those, and the worst is among them."""


class Soak:
    """The time that a soak has, and what becomes of a task that was measured before.

    Parameters
    ----------
    duration_s
        From now on.
    """

    def __init__(self, duration_s: float) -> None:
        self._started = time.monotonic()
        self._duration_s = duration_s
        self._worst: dict[str, float] = {}

    @property
    def over(self) -> bool:
        """Whether the time is up."""
        return self.part_over >= 1

    @property
    def part_over(self) -> float:
        """How much of the time is over, 0 to 1."""
        return min(1.0, (time.monotonic() - self._started) / self._duration_s)

    def merge(self, before: Measurement | None, now: Measurement) -> Measurement:
        """Return what is known of a task after one more pass.

        A pass that went wrong stays: what comes after it is not taken for a cure.
        """
        at_s = time.monotonic() - self._started
        if before is None:
            return replace(now, slowest_at_s=at_s if now.samples else None)
        attempts = before.attempts + 1
        if before.status not in (Status.OK, Status.UNSTABLE) and not now.graver_than(before):
            return replace(before, attempts=attempts)
        if now.status not in (Status.OK, Status.UNSTABLE):
            return replace(
                before,
                status=now.status,
                reason=now.reason,
                last_call=now.last_call,
                known_cause=now.known_cause,
                mismatch=now.mismatch,
                attempts=attempts,
                slowest_at_s=at_s,
            )
        slowest_at_s = at_s if _worst(now) < _worst(before) else before.slowest_at_s
        samples = _bounded((*before.samples, *now.samples))
        merged = replace(
            now,
            samples=samples,
            attempts=attempts,
            slowest_at_s=slowest_at_s,
            bandwidth_gb_s=_summary([sample.bandwidth_gb_s for sample in samples]),
            latency_ns=_summary([sample.latency_ns for sample in samples]),
            flows_gb_s=tuple(
                summarize([sample.flows_gb_s[place] for sample in samples]) for place in range(len(now.flows_gb_s))
            ),
            costs=before.costs or now.costs,
        )
        status, reason = (Status.OK, None) if merged.timed is None else judged(merged.timed)
        return replace(merged, status=status, reason=reason)


def _worst(measurement: Measurement) -> float:
    """Return the worst of the samples as a number that is the smaller the worse."""
    if measurement.latency_ns is not None:
        return -measurement.latency_ns.max
    return measurement.bandwidth_gb_s.min if measurement.bandwidth_gb_s is not None else 0


def _bounded(samples: tuple[Sample, ...]) -> tuple[Sample, ...]:
    """Drop every second sample of too many, but not the slowest."""
    if len(samples) <= SAMPLES_KEPT:
        return samples
    slowest = max(samples, key=lambda sample: sample.elapsed_ms)
    return tuple(sample for place, sample in enumerate(samples) if place % 2 or sample is slowest)


def _summary(values: list[float | None]) -> Summary | None:
    known = [value for value in values if value is not None]
    return summarize(known) if known else None
