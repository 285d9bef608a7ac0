"""A soak as text: of each case the worst sample of all its paths and when it was. JSON has it of each path."""

from __future__ import annotations

from collections.abc import Iterator

from egmctl.model.measurement import Measurement, RunReport
from egmctl.report.document import Matrix
from egmctl.report.views.bench_cells import columns_of

_WORST = 8
"""Rows of the table."""
_FEW = 3
"""Flows whose ends fit beside a case's name."""


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


def worst_paths(report: RunReport) -> Matrix | None:
    """Return the paths of a soak whose worst sample was farthest from their median, and when it was taken."""
    found = [
        (m, m.bandwidth_gb_s.min / m.bandwidth_gb_s.median)
        for m in report.measurements
        if m.slowest_at_s is not None and m.bandwidth_gb_s is not None
    ]
    if not found:
        return None
    worst = sorted(found, key=lambda pair: pair[1])[:_WORST]
    rows = [(m, m.bandwidth_gb_s, m.slowest_at_s or 0) for m, _ in worst if m.bandwidth_gb_s is not None]
    columns = {
        "median": [f"{summary.median:.2f}" for _, summary, _ in rows],
        "min": [f"{summary.min:.2f}" for _, summary, _ in rows],
        "at": [f"{at_s:.0f} s" for _, _, at_s in rows],
    }
    return Matrix(
        caption=f"Worst of {report.wall_s:.0f} s (GB/s)",
        rows=tuple(f"{m.case} {m.path if len(m.flows) < _FEW else ''}".rstrip() for m, _, _ in rows),
        groups=columns_of(columns),
    )
