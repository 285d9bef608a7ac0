"""Series: bandwidth or latency by size, footprint, load, number of SMs or streams, as tables and charts."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from statistics import median

from egmctl.model.measurement import Measurement, RunReport
from egmctl.model.route import PublishedRate
from egmctl.model.task import UCX_ENGINES, Axis, Quantity
from egmctl.report import document as doc
from egmctl.report.document import EMPTY, Cell, Chart, Matrix, Point, columns_of
from egmctl.report.views.bench_classes import plain_name
from egmctl.report.views.bench_matrix import Frame
from egmctl.units import MIB, format_size, grouped, shortened
from egmctl.verdict.yardsticks import ceiling

KNEE = 1.1
"""The ratio to the latency at :data:`KNEE_FROM_BYTES` above which a larger footprint is called a knee."""
KNEE_FROM_BYTES = 512 * MIB
"""The footprint with which larger ones are compared. It is at least 4 times the L2 cache of every supported GPU: above
it the latency no longer grows because of cache misses, but because of address translation."""
ENOUGH = 0.95
"""The share of a path's maximum bandwidth above which more SMs gain little."""
_ALL = math.inf
"""The position of an unknown number of SMs on its axis."""
_Curve = Mapping[float, Sequence[Measurement]]
"""The measurements at each position of an axis."""


def knee(latencies_ns: Mapping[float, float]) -> float | None:
    """Return the footprint at a curve's knee; ``None`` if it has no knee or no point at :data:`KNEE_FROM_BYTES`."""
    base = latencies_ns.get(KNEE_FROM_BYTES)
    if base is None:
        return None
    slow = (size for size, ns in latencies_ns.items() if size > KNEE_FROM_BYTES and ns > KNEE * base)
    return min(slow, default=None)


def enough(gb_s: Mapping[float, float], share: float = ENOUGH) -> float | None:
    """Return the least position that reaches a share of the maximum; ``None`` for an empty curve."""
    most = max(gb_s.values(), default=0.0)
    return min((place for place, value in gb_s.items() if value >= share * most), default=None)


@dataclass(frozen=True, slots=True, kw_only=True)
class Look:
    """The layout of the table and the charts of a series along an axis."""

    title: str
    x: str
    note: str = ""
    drawn_at: Callable[[Measurement], float] | None = None
    """Returns the position in the chart, if it differs from that in the table."""
    sizes: bool = False
    logarithmic: bool = False


def _load_gb_s(measurement: Measurement) -> float:
    return measurement.bandwidth_gb_s.median if measurement.bandwidth_gb_s else 0


LOOKS: Mapping[Axis, Look] = {
    Axis.SIZE: Look(title="Bandwidth by size", x="buffer", sizes=True),
    Axis.SMS: Look(title="Bandwidth by number of SMs", x="SMs", logarithmic=True),
    Axis.FOOTPRINT: Look(
        title="Latency by footprint",
        x="footprint",
        note=f"knee: the first footprint that takes {100 * (KNEE - 1):.0f} % longer than "
        f"{format_size(KNEE_FROM_BYTES)}; from there on finding the page costs time too (TLB).",
        sizes=True,
    ),
    Axis.LOAD: Look(
        title="Latency under load",
        x="load in GB/s",
        note="Other SMs of the same GPU read the same memory meanwhile: blocks of 128 threads with 8 KiB in flight "
        "each, and the GB/s that they reached.",
        drawn_at=_load_gb_s,
    ),
    Axis.STREAMS: Look(title="Bandwidth by number of streams", x="streams"),
}


def axis_of(measurement: Measurement) -> Axis | None:
    """Return the axis of a measurement's point; ``None`` if it has none."""
    return next((axis for axis in Axis if measurement.point.at(axis) is not None), None)


def swept(report: RunReport) -> Iterator[Axis]:
    """Yield the axes whose series have their own section: the axis of all measurements of a sweep, and the number of
    SMs, which has no path classes."""
    axes = {axis_of(m) for m in report.measurements if m.engine not in UCX_ENGINES}
    yield from (axis for axis in Axis if axis in axes and (axis is Axis.SMS or len(axes) == 1))


def all_series(report: RunReport, axis: Axis) -> Iterator[doc.Block]:
    """Yield the series of a run along an axis: what the curves say, the paths of each, and the tables, folded."""
    members = _on_axis(report, axis)
    curves = _curves(axis, members)
    rows = [(name, _findings(axis, curve)) for name, curve in curves.items()]
    yield doc.grid("What the curves say", rows, notes=filter(None, [LOOKS[axis].note]), together=True)
    for name, curve in curves.items():
        paths = grouped((m.path, m) for place in curve.values() for m in place)
        if len(paths) > 1:
            yield _chart(axis, name, {path: _by_place(axis, points) for path, points in paths.items()}, small=True)
    yield doc.Section("All numbers", tuple(series(axis, members, Frame.of(report))), folded=True)


def overlay(report: RunReport, axis: Axis) -> Iterator[Chart]:
    """Yield a chart of all curves of a run along an axis, one for each unit."""
    for members in grouped((m.quantity, m) for m in _on_axis(report, axis)).values():
        chart = _chart(axis, f"{LOOKS[axis].title}: all paths", _curves(axis, members))
        if any(curve for _, curve in chart.curves):
            yield chart


def _on_axis(report: RunReport, axis: Axis) -> list[Measurement]:
    return [m for m in report.measurements if axis_of(m) is axis and m.engine not in UCX_ENGINES]


def _by_place(axis: Axis, measurements: Sequence[Measurement]) -> _Curve:
    return grouped((_place(axis, m), m) for m in measurements)


def _curves(axis: Axis, measurements: Sequence[Measurement]) -> dict[str, _Curve]:
    """Return the curves with values by their plain names, one for each case and kind of route."""
    members = grouped(((m.case, m.flows[0].route.symbol), m) for m in measurements if m.headline is not None)
    names = [plain_name(paths[0], short=True) for paths in members.values()]
    for part in (1, 0):
        pairs = zip(names, members, strict=True)
        names = [name if names.count(name) == 1 else f"{name}, {key[part]}" for name, key in pairs]
    return {name: _by_place(axis, paths) for name, paths in zip(names, members.values(), strict=True)}


def _chart(axis: Axis, caption: str, curves: Mapping[str, _Curve], *, small: bool = False) -> Chart:
    look, members = LOOKS[axis], [m for curve in curves.values() for paths in curve.values() for m in paths]
    bandwidth = all(m.quantity is Quantity.BANDWIDTH for m in members)
    return Chart(
        caption=caption,
        x=look.x,
        y=(Quantity.BANDWIDTH if bandwidth else Quantity.LATENCY).unit,
        curves=tuple((name, tuple(_points(look, curve))) for name, curve in curves.items()),
        sizes=look.sizes,
        logarithmic=look.logarithmic,
        limits=_limits(members),
        steep=bandwidth and not small and axis is not Axis.STREAMS,
        small=small,
    )


def _findings(axis: Axis, curve: _Curve) -> dict[str, str | Cell]:
    """Return what a curve says: its best value and from where on it comes near, or how far a latency grows."""
    first = next(iter(curve.values()))[0]
    words = {_place(axis, m): str(m.point) for members in curve.values() for m in members}
    values = {place: median(_values(members)) for place, members in sorted(curve.items())}
    best, limit = max(values.values()), ceiling(first)
    if first.quantity is Quantity.LATENCY:
        bend = knee(values) if axis is Axis.FOOTPRINT else None
        return {"least ns": f"{min(values.values()):.1f}", "most ns": f"{best:.1f}", "knee": words.get(bend or -1, "-")}
    return {
        "best GB/s": f"{best:.2f}",
        "of limit": f"{100 * best / limit.gb_s:.0f} %" if limit and len(first.flows) == 1 else "-",
        "half from": words[enough(values, 0.5) or 0],
        f"{100 * ENOUGH:.0f} % from": words[enough(values) or 0],
    }


def series(axis: Axis, measurements: Sequence[Measurement], frame: Frame) -> Iterator[Matrix]:
    """Yield a table for each unit, with a column for each curve: the medians over its paths."""
    look = LOOKS[axis]
    for quantity, members in grouped((m.quantity, m) for m in measurements).items():
        points = {_place(axis, m): str(m.point) for m in sorted(members, key=lambda m: _place(axis, m))}
        columns: dict[tuple[str, ...], list[str | Cell]] = {}
        for name, curve in _curves(axis, members).items():
            header = tuple(name.replace(" -> ", ", -> ").split(", "))
            values = {place: median(_values(paths)) for place, paths in curve.items()}
            cells = [EMPTY] * len(points)
            for number, place in enumerate(points):
                if place in curve:
                    first, alone = curve[place][0], len(curve[place]) == 1
                    digits = 1 if quantity is Quantity.LATENCY else 2
                    cells[number] = frame.number(first, values[place], digits=digits, compared=False, own=alone)
            columns[header] = [*cells]
            if look.drawn_at:
                header = (*header, "at GB/s")
                columns[header] = [f"{look.drawn_at(curve[p][0]):.1f}" if p in curve else "-" for p in points]
        names = shortened(list(dict.fromkeys(m.case for m in members)), 2)
        caption, notes = f"{look.title} ({quantity.unit})", (look.note,) if look.note else ()
        if columns:
            rows = tuple(points.values())
            yield Matrix(caption=caption, names=names, notes=notes, rows=rows, groups=columns_of(columns))


def _points(look: Look, curve: _Curve) -> Iterator[Point]:
    """Yield the points of a curve, with the range of the samples of one path, or of the medians of several paths."""
    for place, paths in sorted(curve.items(), key=lambda item: item[0]):
        values = _values(paths)
        if not values or place == _ALL:
            continue
        summary = paths[0].headline if len(paths) == 1 else None
        low, high = (summary.min, summary.max) if summary is not None else (min(values), max(values))
        x = look.drawn_at(paths[0]) if look.drawn_at else place
        yield Point(x=x, y=median(values), low=low, high=high)


def _values(measurements: Sequence[Measurement]) -> list[float]:
    return [m.headline.median for m in measurements if m.headline is not None]


def _limits(measurements: Sequence[Measurement]) -> tuple[tuple[str, float], ...]:
    """Return the ceilings of single flows; the sum of several flows may exceed them."""
    limits = [(m, limit) for m in measurements if len(m.flows) == 1 and (limit := ceiling(m)) is not None]
    rates = grouped(
        (limit.gb_s, limit.name if isinstance(limit.limit, PublishedRate) else m.flows[0].route.symbol)
        for m, limit in limits
    )
    return tuple((f"{', '.join(dict.fromkeys(names))} {rate:.0f} GB/s", rate) for rate, names in rates.items())


def _place(axis: Axis, measurement: Measurement) -> float:
    """Return the position of a measurement on its axis; an unknown number of SMs comes last."""
    place = measurement.point.at(axis) or 0
    return _ALL if axis is Axis.SMS and not place else place
