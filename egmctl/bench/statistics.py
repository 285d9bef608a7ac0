"""From samples to a headline: pure."""

from __future__ import annotations

import statistics
from collections.abc import Sequence

from egmctl.model.measurement import Summary
from egmctl.units import GB

UNSTABLE_CV = 0.03
"""Above this coefficient of variation a measurement is called unstable. Chosen, not derived: repeats of one path on an
idle H200 node differ by about a thousandth."""


def summarize(values: Sequence[float]) -> Summary:
    """Return median, extremes and coefficient of variation of at least one value."""
    return Summary(
        median=statistics.median(values),
        min=min(values),
        max=max(values),
        cv=statistics.stdev(values) / statistics.fmean(values) if len(values) > 1 else None,
    )


def is_unstable(summary: Summary) -> bool:
    """Say whether the samples differ too much for the median to be quoted without a warning."""
    return summary.cv is not None and summary.cv > UNSTABLE_CV


def bandwidth_gb_s(size_bytes: int, elapsed_ms: float) -> float:
    """Return bytes by time in GB/s (1e9 bytes a second); the milliseconds keep their fraction."""
    return size_bytes / (elapsed_ms / 1e3) / GB
