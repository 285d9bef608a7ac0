"""Series: bandwidth or latency by size, footprint, load, number of SMs or streams, as tables and charts."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from statistics import median

from egmctl.bench.engine import ENGINES
from egmctl.model.measurement import Measurement, RunReport, Status
from egmctl.model.route import HOST_NAMES, Egm, PublishedRate
from egmctl.model.task import UCX_ENGINES, Axis, Quantity
from egmctl.report.document import EMPTY, Cell, Chart, Matrix, Point, Series, columns_of
from egmctl.report.views.bench_classes import Frame
from egmctl.report.views.bench_matrix import bandwidth_caption, latency_caption, routes
from egmctl.units import MIB, format_size, grouped, shortened
from egmctl.verdict.yardsticks import ceiling

KNEE = 1.1
"""The ratio to the latency at :data:`KNEE_FROM_BYTES` above which a larger footprint is called a knee."""
KNEE_FROM_BYTES = 512 * MIB
"""The footprint with which larger ones are compared. It is at least 4 times the L2 cache of every supported GPU: above
it the latency no longer grows because of cache misses, but because of address translation."""
ENOUGH = 0.95
"""The share of a path's maximum bandwidth above which more SMs gain little."""
MARK = "^"
"""The mark of the point of a curve that a note explains."""
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


def enough(gb_s: Mapping[float, float]) -> float | None:
    """Return the fewest SMs that reach :data:`ENOUGH` of the maximum; ``None`` for an empty curve."""
    most = max(gb_s.values(), default=0.0)
    return min((sms for sms, value in gb_s.items() if value >= ENOUGH * most), default=None)


@dataclass(frozen=True, slots=True, kw_only=True)
class Look:
    """The layout of the table and the charts of a series along an axis."""

    title: str
    x: str
    caption: Callable[[Measurement], str]
    curve: Callable[[Measurement], tuple[str, ...]]
    """Returns the name of a measurement's curve, as lines."""
    note: str = ""
    marked: Callable[[Mapping[float, float]], float | None] = lambda _: None
    """Returns the position of the marked point of a curve, which the note explains."""
    beside: Mapping[str, Callable[[Measurement], str]] = field(default_factory=dict)
    """Further columns: functions that return their cells, by heading."""
    drawn_at: Callable[[Measurement], float] | None = None
    """Returns the position in the chart, if it differs from that in the table."""
    apart: bool = False
    """Whether each path has its own chart; the last line of a curve's name then names the curve."""
    sizes: bool = False
    logarithmic: bool = False


def _by_engine(measurement: Measurement) -> tuple[str, ...]:
    """Return the path, the engine, and between two GPUs whether the work writes or reads."""
    flow = measurement.flows[0]
    lines: tuple[str, ...] = (flow.source.label, f"-> {flow.destination.label}")
    if flow.source.bus_id == flow.destination.bus_id:
        lines = (flow.source.label, "local")
    elif None not in (flow.source.bus_id, flow.destination.bus_id):
        lines = (*lines, "write" if flow.pushed else "read")
    return (*lines, ENGINES[measurement.engine].caption.removeprefix("memcpy "))


def _footprint_curve(measurement: Measurement) -> tuple[str, ...]:
    flow = measurement.flows[0]
    return flow.source.label, *filter(None, [HOST_NAMES.get(flow.source.memory)]), f"-> {flow.initiator_label}"


def _load_gb_s(measurement: Measurement) -> float:
    return measurement.bandwidth_gb_s.median if measurement.bandwidth_gb_s else 0


def _span(measurement: Measurement) -> str:
    latency = measurement.latency_ns
    return f"{latency.min:.1f}-{latency.max:.1f}" if latency else "-"


LOOKS: Mapping[Axis, Look] = {
    Axis.SIZE: Look(
        title="Bandwidth by size",
        x="buffer",
        caption=bandwidth_caption,
        curve=lambda m: (m.flows[0].route.symbol, *(["EGM"] if m.flows[0].route.egm is Egm.YES else [])),
        sizes=True,
    ),
    Axis.SMS: Look(
        title="Bandwidth by number of SMs",
        x="SMs",
        caption=lambda m: f"GB/s by number of SMs, one block on each, {format_size(m.size_bytes)}",
        curve=_by_engine,
        note=f"{MARK} the fewest SMs that reach {100 * ENOUGH:.0f} % of their column's maximum",
        marked=enough,
        apart=True,
        logarithmic=True,
    ),
    Axis.FOOTPRINT: Look(
        title="Latency by footprint",
        x="footprint",
        caption=lambda _: "latency by footprint, random lines (ns)",
        curve=_footprint_curve,
        note=f"{MARK} knee: the first footprint that takes {100 * (KNEE - 1):.0f} % longer than "
        f"{format_size(KNEE_FROM_BYTES)}; from there on finding the page costs time too (TLB).",
        marked=knee,
        sizes=True,
    ),
    Axis.LOAD: Look(
        title="Latency under load",
        x="load in GB/s",
        caption=latency_caption,
        curve=lambda m: (m.flows[0].initiator_label,),
        note="Other SMs of the same GPU read the same memory meanwhile: blocks of 128 threads with 8 KiB in flight "
        "each, and the GB/s that they reached.",
        beside={"min-max": _span, "GB/s": lambda m: f"{_load_gb_s(m):.1f}" if m.bandwidth_gb_s else "-"},
        drawn_at=_load_gb_s,
    ),
    Axis.STREAMS: Look(
        title="Bandwidth by number of streams",
        x="streams",
        caption=lambda m: f"GB/s by number of streams that share each copy, {format_size(m.size_bytes)}",
        curve=_by_engine,
    ),
}


def axis_of(measurement: Measurement) -> Axis | None:
    """Return the axis of a measurement's point; ``None`` if it has none."""
    return next((axis for axis in Axis if measurement.point.at(axis) is not None), None)


def swept(report: RunReport) -> Iterator[Axis]:
    """Yield the axes whose series have their own section: the axis of all measurements of a sweep, and the number of
    SMs, which has no path classes."""
    axes = {axis_of(m) for m in report.measurements if m.engine not in UCX_ENGINES}
    yield from (axis for axis in Axis if axis in axes and (axis is Axis.SMS or len(axes) == 1))


def all_series(report: RunReport, axis: Axis) -> Iterator[Matrix | Chart]:
    """Yield the series of a run along an axis: tables, grouped by :func:`table_of`, and their charts."""
    on_axis = [m for m in report.measurements if axis_of(m) is axis and m.engine not in UCX_ENGINES]
    for members in grouped((table_of(m), m) for m in on_axis).values():
        yield from series(axis, members, Frame.of(report))


def table_of(measurement: Measurement) -> object:
    """Return the key that measurements in the same table of a series share."""
    axis, flow = axis_of(measurement), measurement.flows[0]
    if axis is Axis.SMS:
        return axis, measurement.size_bytes
    if axis is Axis.LOAD:
        return axis, flow.source, flow.initiator_label
    return axis, None if axis is Axis.FOOTPRINT else measurement.case


def series(axis: Axis, measurements: Sequence[Measurement], frame: Frame) -> Iterator[Matrix | Chart]:
    """Yield the table of a series and its charts; nothing if all measurements are waived.

    A curve with one path has one column. A curve with several paths has three: median, minimum and maximum.
    """
    look = LOOKS[axis]
    points = {_place(axis, m): m.point for m in measurements}
    curves = {
        name: grouped((_place(axis, m), m) for m in members)
        for name, members in grouped((look.curve(m), m) for m in measurements).items()
        if any(m.status is not Status.WAIVED for m in members)
    }
    if not curves:
        return
    first = next(m for members in next(iter(curves.values())).values() for m in members)
    places = sorted({place for curve in curves.values() for place in curve})
    groups = tuple(_columns(look, name, curve, places, frame) for name, curve in curves.items())
    notes = (*routes(measurements), look.note)
    yield Matrix(
        caption=look.caption(first),
        names=shortened(list(dict.fromkeys(m.case for m in measurements)), 2),
        notes=tuple(filter(None, notes)),
        rows=tuple(str(points[place]) for place in places),
        groups=groups,
    )
    drawings = grouped((" ".join(name[:-1]) if look.apart else "", name) for name in curves)
    for path, names in drawings.items():
        drawn = [m for name in names for members in curves[name].values() for m in members]
        yield Chart(
            caption=f"{path} by number of {look.x}" if look.apart else look.caption(first),
            x=look.x,
            y=_unit(first),
            curves=tuple((_name(look, name), tuple(_points(look, curves[name]))) for name in names),
            sizes=look.sizes,
            logarithmic=look.logarithmic,
            limits=tuple(dict.fromkeys(_limits(drawn))),
        )


def _columns(
    look: Look, name: tuple[str, ...], curve: _Curve, places: Sequence[float], frame: Frame
) -> tuple[Series, ...]:
    """Return the columns of a curve, with one row per position in the table."""
    digits = 1 if _unit(next(m for paths in curve.values() for m in paths)) == "ns" else 2
    values = {place: figures for place, paths in curve.items() if (figures := _values(paths))}
    columns: dict[tuple[str, ...], Sequence[str | Cell]] = {}
    if (count := max(map(len, curve.values()))) > 1:
        picks: Mapping[str, Callable[[Sequence[float]], float]] = {"median": median, "min": min, "max": max}
        for word, pick in picks.items():
            header = (*name, f"{count} paths", word) if not columns else (word,)
            columns[header] = [f"{pick(values[place]):.{digits}f}" if place in values else "-" for place in places]
    else:
        marked = look.marked({place: figures[0] for place, figures in values.items()})
        cells = []
        for place in places:
            value = values[place][0] if place in values else None
            cell = frame.number(curve[place][0], value, digits=digits, compared=False) if place in curve else EMPTY
            cells.append(replace(cell, mark=f"{cell.mark}{MARK}") if place == marked else cell)
        columns[name] = cells
        for word, show in look.beside.items():
            columns[word,] = [show(curve[place][0]) if place in curve else "-" for place in places]
    return tuple(column for (column,) in columns_of(columns))


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


def _limits(measurements: Sequence[Measurement]) -> Iterator[tuple[str, float]]:
    """Yield the ceilings of single flows; the sum of several flows may exceed a link's."""
    for m in measurements:
        if len(m.flows) == 1 and (limit := ceiling(m)) is not None:
            name = limit.name if isinstance(limit.limit, PublishedRate) else m.flows[0].route.symbol
            yield f"{name} {limit.gb_s:.0f} GB/s", limit.gb_s


def _unit(measurement: Measurement) -> str:
    return "ns" if measurement.quantity is Quantity.LATENCY else "GB/s"


def _name(look: Look, name: tuple[str, ...]) -> str:
    return name[-1] if look.apart else " ".join(name)


def _place(axis: Axis, measurement: Measurement) -> float:
    """Return the position of a measurement on its axis; an unknown number of SMs comes last."""
    place = measurement.point.at(axis) or 0
    return _ALL if axis is Axis.SMS and not place else place
