"""Latencies for people: matrices of idle paths, round trips, and the curves over load and over the footprint."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from os.path import commonprefix
from statistics import median

from egmctl.bench.engines import engine_for
from egmctl.model.measurement import Chase, ChaseOrder, Endpoint, Engine, Measurement, Pattern, Status
from egmctl.model.memory import HOST_NAMES
from egmctl.report.document import EMPTY, Better, Cell, Chart, Matrix, Point, Series
from egmctl.report.views.bench_cells import Frame
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
    if engine_for(measurement.engine).round_trip:
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
    if engine_for(measurement.engine).round_trip:
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
    elif engine_for(first.engine).round_trip:
        caption = f"round trip of {engine_for(first.engine).caption} GPU(row) <-> GPU(column) (ns, p50)"
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
        return engine_for(measurement.engine).caption
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
