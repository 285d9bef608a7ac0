"""A soak as text: of each case the worst sample of all its paths and when it was. JSON has it of each path."""

from __future__ import annotations

from collections.abc import Iterator

from egmctl.model.measurement import Measurement, RunReport


def soak_lines(report: RunReport) -> Iterator[str]:
    """Yield a sentence for each case that was measured again and again."""
    if report.settings.duration_s is None:
        return
    measured = [m for m in report.measurements if m.slowest_at_s is not None]
    for case in dict.fromkeys(m.case for m in measured):
        those = [m for m in measured if m.case == case]
        worst = min(those, key=_worst)
        value = worst.latency_ns.max if worst.latency_ns else worst.bandwidth_gb_s.min if worst.bandwidth_gb_s else 0
        unit = "ns" if worst.latency_ns else "GB/s"
        yield (
            f"{case}: {min(m.attempts for m in those)} passes or more, the worst sample {value:.2f} {unit} after "
            f"{worst.slowest_at_s or 0:.0f} s, {worst.path}"
        )


def _worst(measurement: Measurement) -> float:
    """Return the worst sample against the path's own median, the smaller the worse."""
    if (latency := measurement.latency_ns) is not None:
        return latency.median / latency.max
    bandwidth = measurement.bandwidth_gb_s
    return bandwidth.min / bandwidth.median if bandwidth is not None else 1
