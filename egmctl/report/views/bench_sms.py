"""Bandwidth by the number of multiprocessors (SMs) that move the bytes, and how few of them come close to the most."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence

from egmctl.bench.engines import engine_for
from egmctl.model.measurement import Engine, Flow, Measurement, Status
from egmctl.report.document import EMPTY, Align, Cell, Chart, Matrix, Point, Series
from egmctl.report.route_words import routes_words
from egmctl.report.views.bench_cells import Frame
from egmctl.units import format_size

ENOUGH = 0.95
"""The part of the most that a path reaches from which on more SMs are not worth much."""

_WHOLE = 100
"""GB/s from which on nobody needs a decimal here."""

_ALL = math.inf
"""In place of the number of a GPU's SMs that is not known."""

_Key = tuple[str, str, int]
"""A path, its route and the size of the buffers."""
_Curve = Mapping[float, Measurement]
"""By the number of SMs."""


def by_sms(measurements: Sequence[Measurement], frame: Frame) -> Iterator[Matrix | Chart]:
    """Yield a table of all paths and engines that were measured by the number of SMs, and a chart of each path.

    Nothing if there are none, or all are waived.
    """
    paths: dict[_Key, dict[Engine, dict[float, Measurement]]] = {}
    for m in measurements:
        if m.blocks is not None and m.status is not Status.WAIVED:
            key = _name(m.flows[0]), routes_words(flow.route for flow in m.flows), m.size_bytes
            paths.setdefault(key, {}).setdefault(m.engine, {})[m.blocks or _ALL] = m
    if not paths:
        return
    yield _table(paths, frame)
    sized = len({size for _, _, size in paths}) > 1
    for (name, _, size), engines in paths.items():
        curves = tuple((_engine(engine), points) for engine, curve in engines.items() if (points := _points(curve)))
        route = next(iter(next(iter(engines.values())).values())).flows[0].route
        limit = route.at_most_gb_s
        if curves:
            yield Chart(
                caption=f"{name} by number of SMs{f', {format_size(size)}' if sized else ''}",
                x="SMs",
                y="GB/s",
                curves=curves,
                logarithmic=True,
                limits=((f"{route.symbol} {limit:.0f} GB/s", limit),) if limit is not None else (),
                titled=True,
            )


def enough(gb_s: Mapping[float, float]) -> float | None:
    """Return the fewest SMs that reach :data:`ENOUGH` of the most; ``None`` of none."""
    most = max(gb_s.values(), default=0.0)
    return min((sms for sms, value in gb_s.items() if value >= ENOUGH * most), default=None)


def _table(paths: Mapping[_Key, Mapping[Engine, _Curve]], frame: Frame) -> Matrix:
    curves = [(key, engine, curve) for key, engines in paths.items() for engine, curve in engines.items()]
    counts = sorted({sms for _, _, curve in curves for sms in curve})
    sized = len({size for _, _, size in paths}) > 1
    few = [enough(_values(curve)) for _, _, curve in curves]
    routes = "; ".join(dict.fromkeys(f"{name}: {words}" for name, words, _ in paths))
    return Matrix(
        caption="GB/s by number of SMs, one block on each",
        notes=(f"{100 * ENOUGH:.0f} %: the fewest SMs that reach so much of the row's maximum", routes),
        rows=tuple(f"{name}{f' {format_size(size)}' if sized else ''}" for (name, _, size), _, _ in curves),
        groups=(
            (
                Series(
                    header=("by",), cells=tuple(Cell(text=_engine(engine)) for _, engine, _ in curves), align=Align.LEFT
                ),
                Series(
                    header=(f"{100 * ENOUGH:.0f} %",),
                    cells=tuple(EMPTY if sms is None else Cell(text=_count(sms)) for sms in few),
                ),
            ),
            *(
                (
                    Series(
                        header=(_count(sms),),
                        cells=tuple(_cell(curve[sms], frame) if sms in curve else EMPTY for _, _, curve in curves),
                    ),
                )
                for sms in counts
            ),
        ),
    )


def _cell(measurement: Measurement, frame: Frame) -> Cell:
    """Return the number in few digits: all of a row are to stand in one line."""
    value = measurement.bandwidth_gb_s.median if measurement.measured and measurement.bandwidth_gb_s else None
    return frame.number(measurement, value, digits=0 if value is not None and value >= _WHOLE else 1, compared=False)


def _points(curve: _Curve) -> tuple[Point, ...]:
    return tuple(
        Point(x=sms, y=found.median, low=found.min, high=found.max)
        for sms, m in sorted(curve.items(), key=lambda item: item[0])
        if sms != _ALL and m.measured and (found := m.bandwidth_gb_s) is not None
    )


def _values(curve: _Curve) -> dict[float, float]:
    return {sms: m.bandwidth_gb_s.median for sms, m in curve.items() if m.measured and m.bandwidth_gb_s is not None}


def _name(flow: Flow) -> str:
    """Return the path and, between two GPUs, which of them does the work."""
    if None in (flow.source.bus_id, flow.destination.bus_id):
        return flow.path
    if flow.source.bus_id == flow.destination.bus_id:
        return f"{flow.source.label} local"
    return f"{flow.path} {'write' if flow.pushed else 'read'}"


def _engine(engine: Engine) -> str:
    return engine_for(engine).caption.removeprefix("memcpy ")


def _count(sms: float) -> str:
    return "all" if sms == _ALL else f"{sms:.0f}"
