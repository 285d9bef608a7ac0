"""From samples to a headline: pure."""

from __future__ import annotations

import statistics
from collections.abc import Sequence

from egmctl.model.measurement import Status, Summary
from egmctl.units import GB

UNSTABLE_CV = 0.03
"""Above this coefficient of variation a measurement is called unstable. Chosen, not derived: repeats of one path on an
idle H200 node differ by about a thousandth."""

PERCENTILE_SAMPLES = 20
"""From so many samples on there are percentiles: a twentieth of fewer is less than one sample."""


def summarize(values: Sequence[float]) -> Summary:
    """Return median, extremes, coefficient of variation and, of enough values, percentiles of at least one value."""
    enough = len(values) >= PERCENTILE_SAMPLES
    mean = statistics.fmean(values)
    return Summary(
        median=statistics.median(values),
        min=min(values),
        max=max(values),
        cv=statistics.stdev(values) / mean if len(values) > 1 and mean else None,
        p05=percentile(values, 5) if enough else None,
        p95=percentile(values, 95) if enough else None,
    )


def percentile(values: Sequence[float], percent: float) -> float:
    """Return the value below which ``percent`` of at least one value lie, interpolated between two of them."""
    ordered = sorted(values)
    place = percent / 100 * (len(ordered) - 1)
    below = int(place)
    above = min(below + 1, len(ordered) - 1)
    return ordered[below] + (place - below) * (ordered[above] - ordered[below])


def is_unstable(summary: Summary) -> bool:
    """Say whether the samples differ too much for the median to be quoted without a warning."""
    return summary.cv is not None and summary.cv > UNSTABLE_CV


def judged(summary: Summary, wrong: str | None = None, remark: str | None = None) -> tuple[Status, str | None]:
    """Return the status of samples and its reason: that data was wrong outweighs that the samples differ too much.

    Parameters
    ----------
    wrong
        What was wrong, as a sentence.
    remark
        The reason of samples that are plainly ``ok``.
    """
    if wrong is not None:
        return Status.CORRUPT, wrong
    if is_unstable(summary):
        return Status.UNSTABLE, f"the samples vary by {100 * (summary.cv or 0):.1f} % (CV)"
    return Status.OK, remark


def bandwidth_gb_s(size_bytes: int, elapsed_ms: float) -> float:
    """Return bytes by time in GB/s (1e9 bytes a second); the milliseconds keep their fraction."""
    return size_bytes / (elapsed_ms / 1e3) / GB
