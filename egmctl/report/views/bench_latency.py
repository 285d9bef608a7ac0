"""Series: latencies by footprint and load, bandwidths by multiprocessors, as tables and curves."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from os.path import commonprefix
from statistics import median

from egmctl.bench.engine import ENGINES
from egmctl.model.measurement import Chase, ChaseOrder, Endpoint, Engine, Flow, Measurement, Pattern, Status
from egmctl.model.route import HOST_NAMES
from egmctl.report.document import EMPTY, Align, Better, Cell, Chart, Matrix, Point, Series
from egmctl.report.route_words import routes_words
from egmctl.report.views.bench_classes import Frame
from egmctl.report.views.bench_matrix import routes
from egmctl.units import MIB, format_size

KNEE = 1.1
"""A latency so many times that of :data:`KNEE_FROM_BYTES` is called a knee."""
KNEE_FROM_BYTES = 512 * MIB
"""The footprint that the larger ones are compared with: from 4 times the L2 cache of every supported GPU on, what
grows is not the share that no cache holds any more, but what finding the page takes."""

View = Callable[[Sequence[Measurement], Frame], Iterator[Matrix | Chart]]


def latencies(measurements: Sequence[Measurement], frame: Frame) -> Iterator[Matrix | Chart]:
    """Yield the tables of latencies, and their curves; nothing of a table in which all is waived."""
    tables: dict[object, list[Measurement]] = {}
    for measurement in measurements:
        tables.setdefault(_table_of(measurement), []).append(measurement)
    for those in tables.values():
        if all(measurement.status is Status.WAIVED for measurement in those):
            continue
        caption, names = _heading(those)
        for block in _view(those[0])(those, frame):
            if isinstance(block, Matrix):
                yield replace(block, caption=caption, names=names, notes=(*routes(those), *block.notes))
            else:
                yield replace(block, caption=caption)


def _table_of(measurement: Measurement) -> object:
    """Return what measurements have in common that share a table."""
    if ENGINES[measurement.engine].round_trip:
        return measurement.case, _host(measurement)
    if measurement.pattern is Pattern.LOADED:
        return "loaded", _source(measurement)
    chase = _chase(measurement)
    if chase.by_footprint:
        return "footprint"
    # A GPU's own memory is the diagonal of the matrix of its peers'.
    source = _source(measurement)
    return measurement.engine, source.memory, source.handle, chase


def _view(measurement: Measurement) -> View:
    if ENGINES[measurement.engine].round_trip:
        return _round_trips
    if measurement.pattern is Pattern.LOADED:
        return _loaded
    return _footprints if _chase(measurement).by_footprint else _matrix


def _heading(measurements: Sequence[Measurement]) -> tuple[str, str]:
    """Say what a table shows, and which cases."""
    first = measurements[-1]
    source, reader = _source(first), first.flows[0].initiator_label
    kind = HOST_NAMES.get(source.memory, "GPU")
    names = ", ".join(dict.fromkeys(measurement.case for measurement in measurements))
    if first.engine is Engine.PING_PONG:
        where = _host(first)
        by = f"by flags in {where.label}" if where else "each polls its own"
        caption = f"round trip of a flag GPU(row) <-> GPU(column), {by} (ns, p50)"
    elif ENGINES[first.engine].round_trip:
        caption = f"round trip of {ENGINES[first.engine].caption} GPU(row) <-> GPU(column) (ns, p50)"
    elif first.pattern is Pattern.LOADED:
        caption = f"latency under load {source.label} -> {reader}, {_how(first)} (ns)"
        names = _alike(measurements)
    elif _chase(first).by_footprint:
        caption, names = "latency by footprint, random lines (ns)", _alike(measurements)
    else:
        ways = "GPU(row) <- GPU(column)" if kind == "GPU" else f"{kind}(row) -> GPU(column)"
        if first.flows[0].initiator is None:
            ways = f"{kind}(row) -> CPU(column)"
        caption = f"latency {ways}, {_how(first)} (ns)"
    return caption, names


def _matrix(measurements: Sequence[Measurement], frame: Frame) -> Iterator[Matrix]:
    cells: dict[tuple[str, str], Cell] = {}
    for measurement in measurements:
        source, reader = _source(measurement), measurement.flows[0].initiator_label
        on_gpu = source.bus_id is not None and measurement.flows[0].initiator is not None
        row, column = (reader, source.label) if on_gpu else (source.label, reader)
        cells[row, column] = _cell(measurement, frame)
    rows, groups = frame.square(cells)
    yield Matrix(caption="", rows=rows, groups=groups, better=Better.LOW)


def _round_trips(measurements: Sequence[Measurement], frame: Frame) -> Iterator[Matrix]:
    cells = {}
    slowest: tuple[float, str] | None = None
    for measurement in measurements:
        flows = measurement.flows
        one = flows[0].initiator_label
        other = flows[1].initiator_label if len(flows) > 1 else flows[0].destination.label
        halves = [sample.p50_ns for sample in measurement.samples if sample.p50_ns is not None]
        value = median(halves) if halves and measurement.measured else None
        cells[one, other] = frame.number(measurement, value, digits=0, kind=_symbol(measurement))
        tails = [(sample.p99_ns, f"{one} <-> {other}") for sample in measurement.samples if sample.p99_ns is not None]
        slowest = max([*tails, *([slowest] if slowest else [])], default=None)
    notes = (f"p99 at most {slowest[0]:.0f} ns ({slowest[1]})",) if slowest else ()
    rows, groups = frame.square(cells)
    yield Matrix(caption="", notes=notes, rows=rows, groups=groups, better=Better.LOW)


def _loaded(measurements: Sequence[Measurement], frame: Frame) -> Iterator[Matrix | Chart]:
    found = sorted(measurements, key=lambda m: _chase(m).load_blocks)
    reader = found[0].flows[0].initiator_label
    note = (
        f"Other SMs of {reader} read the same memory meanwhile: blocks of 128 threads with 8 KiB in flight each, and "
        "the GB/s that they reached."
    )
    load = [Cell(text=f"{m.bandwidth_gb_s.median:.1f}") if m.bandwidth_gb_s else EMPTY for m in found]
    points = [
        _point(m.bandwidth_gb_s.median if m.bandwidth_gb_s else 0, m)
        for m in found
        if m.bandwidth_gb_s or not _chase(m).load_blocks
    ]
    yield Matrix(
        caption="",
        notes=(note,),
        rows=tuple(f"{_chase(m).load_blocks} blocks" for m in found),
        groups=(
            (
                Series(header=("GB/s",), cells=tuple(load)),
                Series(header=("ns",), cells=tuple(_cell(m, frame) for m in found)),
                Series(header=("min-max",), cells=tuple(Cell(text=_span(m)) for m in found)),
            ),
        ),
    )
    yield Chart(caption="", x="load in GB/s", y="ns", curves=((reader, tuple(filter(None, points))),))


def _footprints(measurements: Sequence[Measurement], frame: Frame) -> Iterator[Matrix | Chart]:
    curves: dict[str, dict[int, Measurement]] = {}
    for measurement in measurements:
        flow = measurement.flows[0]
        kind = f" {HOST_NAMES[flow.source.memory]}" if flow.source.memory in HOST_NAMES else ""
        name = f"{flow.source.label}{kind} -> {flow.initiator_label}"
        curves.setdefault(name, {})[measurement.size_bytes] = measurement
    sizes = sorted({measurement.size_bytes for measurement in measurements})
    note = (
        f"Knee: the first footprint that takes {100 * (KNEE - 1):.0f} % longer than {format_size(KNEE_FROM_BYTES)}; "
        "from there on finding the page costs time too (TLB)."
    )
    columns, drawn = [], []
    for name, curve in curves.items():
        at = knee({size: m.latency_ns.median for size, m in curve.items() if m.latency_ns and m.measured})
        cells = [
            replace(found, text=f"{found.text}{' knee' if size == at else '     ' if at else ''}")
            for size in sizes
            for found in [_cell(curve[size], frame) if size in curve else EMPTY]
        ]
        columns.append((Series(header=(name,), cells=tuple(cells)),))
        drawn.append((name, tuple(filter(None, (_point(size, curve[size]) for size in sizes if size in curve)))))
    yield Matrix(
        caption="",
        notes=(note,),
        rows=tuple(map(format_size, sizes)),
        groups=tuple(columns),
    )
    yield Chart(caption="", x="footprint", y="ns", curves=tuple(drawn), sizes=True)


def knee(latencies_ns: dict[int, float]) -> int | None:
    """Return the footprint at which a curve has its knee; ``None`` if it has none or does not begin low enough."""
    base = latencies_ns.get(KNEE_FROM_BYTES)
    if base is None:
        return None
    slow = (size for size, ns in latencies_ns.items() if size > KNEE_FROM_BYTES and ns > KNEE * base)
    return min(slow, default=None)


def _how(measurement: Measurement) -> str:
    if measurement.engine is not Engine.CHASE:
        return ENGINES[measurement.engine].caption
    chase = _chase(measurement)
    size = format_size(measurement.size_bytes)
    if chase.order is ChaseOrder.SEQUENTIAL:
        return f"{size} line after line"
    return f"random lines of {size}, {'read before' if chase.warm else 'read once'}"


def _cell(measurement: Measurement, frame: Frame) -> Cell:
    latency = measurement.latency_ns
    value = latency.median if latency is not None and measurement.measured else None
    return frame.number(measurement, value, digits=1, kind=_symbol(measurement))


def _point(x: float, measurement: Measurement) -> Point | None:
    latency = measurement.latency_ns
    if latency is None or not measurement.measured:
        return None
    return Point(x=x, y=latency.median, low=latency.min, high=latency.max)


def _span(measurement: Measurement) -> str:
    latency = measurement.latency_ns
    return f"{latency.min:.1f}-{latency.max:.1f}" if latency else "-"


def _alike(measurements: Sequence[Measurement]) -> str:
    """Return what the names of cases of one kind of path begin with; of several kinds, of the first."""
    kinds: dict[object, list[str]] = {}
    for m in measurements:
        kinds.setdefault((_source(m).memory, m.pattern), []).append(m.case)
    names, *others = kinds.values()
    # Of names, not of paths.
    shown = f"{commonprefix(names)}*" if len(set(names)) > 1 else names[0]  # noqa: RUF071
    return f"{shown}, ..." if others else shown


def _source(measurement: Measurement) -> Endpoint:
    return measurement.flows[0].source


def _symbol(measurement: Measurement) -> str:
    return measurement.flows[0].route.symbol


def _host(measurement: Measurement) -> Endpoint | None:
    """Return the end of a ping-pong that is host memory."""
    end = measurement.flows[0].destination
    return end if end.bus_id is None else None


def _chase(measurement: Measurement) -> Chase:
    if measurement.chase is None:
        raise ValueError(f"{measurement.case} is no latency")
    return measurement.chase


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
                        cells=tuple(
                            _bench_sms_cell(curve[sms], frame) if sms in curve else EMPTY for _, _, curve in curves
                        ),
                    ),
                )
                for sms in counts
            ),
        ),
    )


def _bench_sms_cell(measurement: Measurement, frame: Frame) -> Cell:
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
    return ENGINES[engine].caption.removeprefix("memcpy ")


def _count(sms: float) -> str:
    return "all" if sms == _ALL else f"{sms:.0f}"
