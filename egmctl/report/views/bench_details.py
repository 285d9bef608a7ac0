"""The details of a run: the tables of each family of cases, and series along an axis as tables and charts.

A series is bandwidth or latency by size, footprint, load, number of SMs or streams.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from statistics import median

from egmctl.bench.engine import ENGINES
from egmctl.bench.path_class import ceiling
from egmctl.dataclass import dataclass
from egmctl.model.measurement import Measurement, MeasurementStatus, RunReport
from egmctl.model.route import HOST_NAMES, MemoryKind, PublishedRate, UcxStaging
from egmctl.model.task import UCX_ENGINES, Axis, Engine, Quantity
from egmctl.report import document as doc
from egmctl.report.document import EMPTY, Better, Body, Cell, Chart, CurvePoint, Matrix, grid
from egmctl.report.views.bench_classes import plain_name
from egmctl.report.views.bench_matrix import Frame, matrices, status_tone
from egmctl.units import MIB, format_size, grouped, printable, several, shortened

_FAMILIES = {
    "egm": "Memory of NUMA nodes",
    "host": "Other host memory",
    "p2p": "Between GPUs",
    "ipc": "Between processes",
    "egm_shared": "One allocation for all GPUs",
    "latency": "Latency",
    "rdma": "RDMA",
}
FOLDED_ABOVE = 16
"""The maximum number of ranks with matrices; a matrix of so many fills a wide terminal."""
_FEW_US = 10.0
"""The number of microseconds below which a decimal is shown."""
_STAGED = {None: "", UcxStaging.HOST: ", host-staged", UcxStaging.GPU: ", GPU-staged"}
_MOVED = {Engine.UCX_PUT: "put", Engine.UCX_GET: "got", Engine.UCX: "sent"}
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


def families(report: RunReport) -> Iterator[tuple[str, Body]]:
    """Yield the title and the tables of each family in the order of measurement; for many ranks none."""
    if len(report.ranks) > FOLDED_ABOVE:
        return
    for family in dict.fromkeys(m.family for m in report.measurements):
        yield _FAMILIES.get(family, family), partial(_family, report, family)


def family_notes(report: RunReport) -> Mapping[str, str]:
    """Return the number of measurements of each family, by the title of its section."""
    counts = Counter(m.family for m in report.measurements)
    return {_FAMILIES.get(family, family): several(count, "measurement") for family, count in counts.items()}


def _family(report: RunReport, family: str) -> Iterator[Matrix]:
    frame = Frame.of(report)
    members = [m for m in report.measurements if m.family == family]
    # These series have their own sections; UCX and life cycles have their own tables.
    apart = tuple(swept(report))
    rest = [m for m in members if axis_of(m) not in apart and m.quantity is not Quantity.DURATION]
    groups = grouped((_table_of(m), m) for m in rest if m.engine not in UCX_ENGINES)
    for alike in sorted(groups.values(), key=lambda group: group[0].quantity is Quantity.LATENCY):
        axis = axis_of(alike[0])
        single = axis is None or len({m.point for m in alike}) == 1
        yield from matrices(alike, frame) if axis is None or single else series(axis, alike, frame)
    tried = [m for m in members if m.status is not MeasurementStatus.WAIVED]
    yield from life_cycles([m for m in tried if m.quantity is Quantity.DURATION])
    yield beside(tried)
    yield from message_matrices([m for m in tried if m.engine in UCX_ENGINES])


def _table_of(measurement: Measurement) -> object:
    """Return the key that measurements in the same table share."""
    flow = measurement.flows[0]
    if (axis := axis_of(measurement)) is not None:
        return axis
    if measurement.quantity is Quantity.BANDWIDTH:
        return measurement.case
    if ENGINES[measurement.engine].round_trip:
        return measurement.case, flow.destination if flow.destination.bus_id is None else None
    # A GPU's own memory is on the diagonal of the matrix of peers.
    return measurement.engine, flow.source.memory, flow.source.handle, measurement.chase


def beside(measurements: Iterable[Measurement]) -> Matrix:
    """Return the table that compares paths between processes with the same paths within one process."""
    cases = grouped((m.case, m) for m in measurements if m.in_process and m.timed is not None)
    rows = []
    for case, paths in cases.items():
        unit, digits = ("ns", 1) if paths[0].quantity is Quantity.LATENCY else ("GB/s", 2)
        pairs = [(m.timed.median, m.in_process) for m in paths if m.timed is not None and m.in_process]
        ratios = [value / within for value, within in pairs]
        cells: dict[str, str | Cell] = {
            "paths": str(len(pairs)),
            "unit": unit,
            "ipc": f"{median(value for value, _ in pairs):.{digits}f}",
            "within": f"{median(within for _, within in pairs):.{digits}f}",
        }
        numbers = {"ratio": median(ratios), "min": min(ratios), "max": max(ratios)}
        rows.append((case, cells | {head: f"{number:.3f}" for head, number in numbers.items()}))
    return grid(
        "Between processes, beside the same path within one process",
        rows,
        notes=("median over the paths; the ratio is path by path: median, min and max",),
    )


def life_cycles(measurements: Iterable[Measurement]) -> Iterator[Matrix]:
    """Yield the table of the stages of shared memory's life cycle: for each kind, the median over its pairs in us."""
    members = list(grouped((m.case, m) for m in measurements).values())
    if not members:
        return
    # The longest list contains all stages in order.
    lists = sorted(([stage.name for stage in m.stages] for paths in members for m in paths), key=len, reverse=True)
    stages = list(dict.fromkeys(name for names in lists for name in names)) or ["status"]
    yield grid(
        f"Life of {format_size(members[0][0].size_bytes)} of shared memory, stage by stage (us)",
        [(_shared(paths[0]), {stage: _stage(paths, stage) for stage in stages}) for paths in members],
        notes=(
            f"Median over up to {max(map(len, members))} ordered pairs, by the host's clock; a dash where a kind has "
            "no such stage.",
        ),
        better=Better.LOW,
    )


def _shared(measurement: Measurement) -> str:
    """Return the kind of the shared memory and of its handle."""
    end = measurement.flows[0].source
    kind = _memory(end.memory)
    if end.parts:
        kind += " for all GPUs"
    return kind if end.handle is None else f"{kind}, {end.handle}"


def _stage(measurements: Sequence[Measurement], name: str) -> str | Cell:
    medians = [stage.ms.median for m in measurements for stage in m.stages if stage.name == name]
    if not medians:
        bad = next((m for m in measurements if m.status is not MeasurementStatus.OK), None)
        return "-" if bad is None else Cell(bad.status.value, status_tone(bad))
    us = 1e3 * median(medians)
    return f"{us:.1f}" if us < _FEW_US else f"{us:.0f}"


def message_matrices(measurements: Sequence[Measurement]) -> Iterator[Matrix]:
    """Yield the tables of UCX: bandwidths of one-sided copies and messages, then round trips."""
    moved = [m for m in measurements if m.quantity is Quantity.BANDWIDTH]
    trips = [m for m in measurements if m.quantity is Quantity.LATENCY]
    rows = [(m.path, _message(m)) for m in moved]
    # The bandwidth of each of the sender's network devices alone shows what a farther NIC costs.
    rows += [
        (
            m.path,
            {
                "": f"by {device.name} alone",
                "from": _memory(m.flows[0].source.memory),
                "GB/s": "-" if device.bandwidth_gb_s is None else f"{device.bandwidth_gb_s:.2f}",
                "way": device.distance or "-",
            },
        )
        for m in moved
        if m.ucx is not None
        for device in m.ucx.devices
    ]
    yield grid("Memory moved by UCX (GB/s)", rows, notes=_ucx_verdicts(moved))
    stride = next((m.chase.stride_bytes for m in trips if m.chase), 0)
    yield grid(
        f"Round trips of {stride} bytes by UCX (us)",
        [(m.path, _round_trip(m)) for m in trips],
        notes=_ucx_verdicts(trips),
    )


def _message(measurement: Measurement) -> dict[str, str | Cell]:
    # The maximum over both sides: the memory of the faster one may already have been registered.
    register = [stage.ms.max for stage in measurement.stages if stage.name == "register"]
    summary = measurement.headline
    return {
        "": _MOVED[measurement.engine],
        **_memories(measurement),
        "size": format_size(measurement.size_bytes),
        "GB/s": Frame().number(measurement, summary.median if summary else None, digits=2),
        **({"register us": f"{1e3 * register[0]:.0f}"} if register else {}),
        "way": _way(measurement),
    }


def _round_trip(measurement: Measurement) -> dict[str, str | Cell]:
    summary = measurement.headline
    tails = [sample.p99_ns for sample in measurement.samples if sample.p99_ns is not None]
    return {
        **_memories(measurement),
        "median": Frame().number(measurement, summary.median / 1e3 if summary else None, digits=1),
        "p99": f"{max(tails) / 1e3:.1f}" if tails else "-",
        "way": _way(measurement),
    }


def _memories(measurement: Measurement) -> dict[str, str | Cell]:
    flow = measurement.flows[0]
    return {"from": _memory(flow.source.memory), "to": _memory(flow.destination.memory)}


def _memory(kind: MemoryKind) -> str:
    return HOST_NAMES.get(kind, "device")


def _ucx_verdicts(measurements: Sequence[Measurement]) -> Iterator[str]:
    """Yield each verdict on a UCX route once; if there are several, each with its route as in the table."""
    ways = {m.ucx.verdict: _way(m) for m in measurements if m.ucx is not None}
    for verdict, way in ways.items():
        yield printable(f"{way}: {verdict}" if len(ways) > 1 else verdict)


def _way(measurement: Measurement) -> str:
    ucx = measurement.ucx
    return "-" if ucx is None else f"{ucx.route}{_STAGED[ucx.staging]}"


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


def all_series(report: RunReport, axis: Axis) -> Iterator[doc.DocumentBlock]:
    """Yield the series of a run along an axis: what the curves say, the paths of each, and the tables, folded."""
    members = _on_axis(report, axis)
    curves = _curves(axis, members)
    rows = [(name, _findings(axis, curve)) for name, curve in curves.items()]
    yield grid("What the curves say", rows, notes=filter(None, [LOOKS[axis].note]), together=True)
    for name, curve in curves.items():
        paths = grouped((m.path, m) for place in curve.values() for m in place)
        if len(paths) > 1:
            chart = _chart(axis, name, {path: _by_place(axis, points) for path, points in paths.items()}, small=True)
            chart = _shares(chart)
            yield replace(chart, note=f"{several(len(paths), 'path')}, {chart.y}")
    shares = tuple(share_of_links(report, axis))
    yield doc.Section("All curves as shares of the link", shares, folded=True, note="linear scale")
    yield doc.Section("All numbers", tuple(series(axis, members, Frame.of(report))), folded=True)


def overlay(report: RunReport, axis: Axis) -> Iterator[Chart]:
    """Yield a chart of all curves of a run along an axis, one for each unit."""
    for members in grouped((m.quantity, m) for m in _on_axis(report, axis)).values():
        chart = _chart(axis, f"{LOOKS[axis].title}: all paths", _curves(axis, members))
        if any(curve for _, curve in chart.curves):
            yield chart


def share_of_links(report: RunReport, axis: Axis) -> Iterator[Chart]:
    """Yield the chart of all curves that have one ceiling, as shares of it, on a linear scale."""
    shares: list[tuple[str, tuple[CurvePoint, ...]]] = []
    for name, curve in _curves(axis, _on_axis(report, axis)).items():
        chart = _shares(_chart(axis, name, {name: curve}))
        shares += chart.curves if chart.y == _OF_LINK else ()
    if shares:
        title = f"{LOOKS[axis].title}: share of the link"
        whole = _chart(axis, title, {})
        yield replace(whole, curves=tuple(shares), limits=(("100 %", 100.0),), y=_OF_LINK, steep=False)


_OF_LINK = "% of the link"


def _shares(chart: Chart) -> Chart:
    """Return a chart of bandwidths with one ceiling as shares of it; any other one as it is."""
    if len(chart.limits) != 1:
        return chart
    part = 100 / chart.limits[0][1]
    curves = (
        (name, tuple(CurvePoint(x=p.x, y=part * p.y, low=part * p.low, high=part * p.high) for p in points))
        for name, points in chart.curves
    )
    return replace(chart, curves=tuple(curves), limits=(("100 %", 100.0),), y=_OF_LINK, steep=False)


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
    if axis is Axis.LOAD:
        return _under_load(curve)
    words = {_place(axis, m): str(m.point) for members in curve.values() for m in members}
    values = {place: median(_values(members)) for place, members in sorted(curve.items())}
    best, limit = max(values.values()), ceiling(first)
    if first.quantity is Quantity.LATENCY:
        bend = knee(values) if axis is Axis.FOOTPRINT else None
        return {"least ns": f"{min(values.values()):.1f}", "most ns": f"{best:.1f}", "knee": words.get(bend or -1, "-")}
    return {
        "best GB/s": f"{best:.2f}",
        "of link": f"{100 * best / limit.gb_s:.0f} %" if limit and len(first.flows) == 1 else "-",
        "half from": words[enough(values, 0.5) or 0],
        f"{100 * ENOUGH:.0f} % from": words[enough(values) or 0],
    }


def _under_load(curve: _Curve) -> dict[str, str | Cell]:
    """Return the latency without load, or at the least load measured, the largest one, and the load from which it is
    :data:`KNEE` times the first."""
    values = {_load_gb_s(paths[0]): median(_values(paths)) for _, paths in sorted(curve.items())}
    base = values[min(values)]
    late = min((gb_s for gb_s, ns in values.items() if ns > KNEE * base), default=None)
    return {
        "least load ns" if min(curve) else "idle ns": f"{base:.1f}",
        "most ns": f"{max(values.values()):.1f}",
        "at GB/s": f"{max(values, key=lambda gb_s: values[gb_s]):.1f}",
        f"{100 * (KNEE - 1):.0f} % longer from": "-" if late is None else f"{late:.1f} GB/s",
    }


def series(axis: Axis, measurements: Sequence[Measurement], frame: Frame) -> Iterator[Matrix]:
    """Yield a table for each unit, with a column for each curve: the medians over its paths."""
    look = LOOKS[axis]
    for quantity, members in grouped((m.quantity, m) for m in measurements).items():
        points = {_place(axis, m): str(m.point) for m in sorted(members, key=lambda m: _place(axis, m))}
        cells: dict[float, dict[tuple[str, ...], str | Cell]] = {place: {} for place in points}
        for name, curve in _curves(axis, members).items():
            header = tuple(name.replace(" -> ", ", -> ").split(", "))
            reached = (*header, "at GB/s")
            for place, row in cells.items():
                row[header] = _median_cell(curve.get(place, ()), frame)
                if look.drawn_at:
                    row[reached] = f"{look.drawn_at(curve[place][0]):.1f}" if place in curve else "-"
        if any(cells.values()):
            names = shortened(list(dict.fromkeys(m.case for m in members)), 2)
            rows = zip(points.values(), cells.values(), strict=True)
            yield grid(f"{look.title} ({quantity.unit})", rows, names=names, notes=filter(None, [look.note]))


def _median_cell(paths: Sequence[Measurement], frame: Frame) -> Cell:
    """Return the cell of the median over the paths of a curve at one position; a dash without paths."""
    if not paths:
        return EMPTY
    digits = 1 if paths[0].quantity is Quantity.LATENCY else 2
    return frame.number(paths[0], median(_values(paths)), digits=digits, compared=False, own=len(paths) == 1)


def _points(look: Look, curve: _Curve) -> Iterator[CurvePoint]:
    """Yield the points of a curve, with the range of the samples of one path, or of the medians of several paths."""
    for place, paths in sorted(curve.items(), key=lambda item: item[0]):
        values = _values(paths)
        if not values or place == _ALL:
            continue
        summary = paths[0].headline if len(paths) == 1 else None
        low, high = (summary.min, summary.max) if summary is not None else (min(values), max(values))
        x = look.drawn_at(paths[0]) if look.drawn_at else place
        yield CurvePoint(x=x, y=median(values), low=low, high=high)


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
