"""A run between so many GPUs that no matrix of them can be read: of each case what a link gives, and who is behind."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from statistics import median

from egmctl.model.measurement import Measurement, Quantity, RunReport
from egmctl.report.document import Matrix
from egmctl.report.route_words import routes_words
from egmctl.report.views.bench_cells import columns_of

FOLDED_ABOVE = 16
"""Ranks: a matrix of so many is as wide as a wide terminal."""

_WORST = 5
"""Paths, and GPUs, that are named."""

_USUAL_DIFFERENCE = 0.01
"""Between the GPUs of one machine that is in order: 0.1 % was seen on H200."""


def folded(report: RunReport) -> Iterator[Matrix]:
    """Yield for each case a table of its routes; below it the paths and the GPUs that are farthest behind."""
    for case in dict.fromkeys(m.case for m in report.measurements):
        found = [m for m in report.measurements if m.case == case and m.headline is not None]
        if found:
            yield _folded(found)


def _folded(measurements: Sequence[Measurement]) -> Matrix:
    first = measurements[0]
    latency = first.quantity is Quantity.LATENCY
    unit, digits = ("ns", 1) if latency else ("GB/s", 2)
    by_route: dict[str, list[float]] = {}
    for m in measurements:
        by_route.setdefault(routes_words(flow.route for flow in m.flows), []).append(_value(m))
    columns = {"paths": [str(len(values)) for values in by_route.values()]}
    for name, pick in (("median", median), ("min", min), ("max", max)):
        columns[name] = [f"{pick(values):.{digits}f}" for values in by_route.values()]
    return Matrix(
        caption=f"{first.pattern.value}, {first.engine.value}, {first.quantity.value} ({unit})",
        names=first.case,
        notes=tuple(_behind(measurements, digits, latency=latency)),
        rows=tuple(by_route),
        groups=columns_of(columns),
    )


def _behind(measurements: Sequence[Measurement], digits: int, *, latency: bool) -> Iterator[str]:
    """Say which paths, and the paths of which GPUs, are farthest behind the others over the same links."""
    usual: dict[str, list[float]] = {}
    for m in measurements:
        usual.setdefault(m.flows[0].route.symbol, []).append(_value(m))
    medians = {link: median(values) for link, values in usual.items()}
    sign = -1 if latency else 1
    share = {id(m): _value(m) / medians[m.flows[0].route.symbol] for m in measurements}
    paths = sorted(measurements, key=lambda m: sign * share[id(m)])[:_WORST]
    yield "farthest behind: " + ", ".join(
        f"{m.path if len(m.flows) == 1 else m.flows[0].path + ' and others'} {_value(m):.{digits}f}" for m in paths
    )
    by_gpu: dict[str, list[float]] = {}
    for m in measurements:
        for flow in m.flows[:1]:
            by_gpu.setdefault(flow.initiator_label, []).append(share[id(m)])
    if len(by_gpu) > 1:
        behind = {label: median(shares) for label, shares in by_gpu.items()}
        gpus = [label for label in sorted(behind, key=lambda label: sign * behind[label]) if _is_odd(behind[label])]
        if gpus:
            told = ", ".join(f"{label} {100 * behind[label]:.1f} %" for label in gpus[:_WORST])
            yield f"by the GPU that issues the work, against the median of the link: {told}"


def _is_odd(share: float) -> bool:
    return abs(share - 1) > _USUAL_DIFFERENCE


def _value(measurement: Measurement) -> float:
    summary = measurement.headline
    return 0.0 if summary is None else summary.median
