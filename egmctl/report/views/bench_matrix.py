"""Bandwidths as matrices for people: the shape of nvidia-smi and nvbandwidth, the direction in each caption."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from statistics import median

from egmctl.bench.engine import ENGINES
from egmctl.model.measurement import Endpoint, Flow, Measurement, MemoryKind, Pattern, Status
from egmctl.report.document import Better, Cell, Chart, Matrix, Point, Series
from egmctl.report.route_words import route_words
from egmctl.report.views.bench_classes import Frame
from egmctl.units import format_size, several

_MEMORY = {
    MemoryKind.HOST_NUMA: "NUMA",
    MemoryKind.HOST_NUMA_POOL: "NUMA pool",
    MemoryKind.HOST_NUMA_DEFAULT_POOL: "NUMA default pool",
    MemoryKind.HOST_DEFAULT_POOL: "host default pool",
    MemoryKind.PINNED: "pinned",
    MemoryKind.REGISTERED: "registered",
    MemoryKind.HUGETLB: "hugetlb",
    MemoryKind.THP: "THP",
    MemoryKind.MANAGED: "managed",
    MemoryKind.SYSTEM: "system",
}
_ONE_ROW = (Pattern.RING, Pattern.BISECT, Pattern.LOCAL)
"""Every GPU is the source of one flow: one row tells all."""
_AT_ONCE = {
    Pattern.RING: ", each to the next one, all at once",
    Pattern.BISECT: ", each to the one N/2 on, all at once",
    Pattern.BOTH_DIRECTIONS: ", both directions at once",
    Pattern.ONE_TO_ALL: ", one to all others at once",
    Pattern.ALL_TO_ONE: ", all others to one at once",
    Pattern.ALL_PAIRS: ", all pairs at once",
    Pattern.ONE_NODE: ", all GPUs at once",
    Pattern.OWN_NODE: ", every GPU with its own NUMA node at once",
    Pattern.OWN_NODE_BOTH: ", every GPU with its own NUMA node in both directions at once",
}


def matrices(measurements: Sequence[Measurement], frame: Frame) -> Iterator[Matrix | Chart]:
    """Yield the bandwidths of one case: one size as matrices, several as a table of sizes; nothing if all are waived.

    The curves of a sweep stand beside their table.
    """
    if all(measurement.status is Status.WAIVED for measurement in measurements):
        return
    if len({measurement.size_bytes for measurement in measurements}) > 1:
        yield from _sizes(measurements)
        return
    first = measurements[0]
    notes = tuple(routes(measurements))
    if first.flows[0].through_gpu and not first.ranks:
        yield _through(measurements, frame, notes)
        return
    if first.pattern in _ONE_ROW:
        yield _one_row(measurements, frame, notes)
        return
    host = any(end.bus_id is None for end in (first.flows[0].source, first.flows[0].destination))
    if first.pattern in (Pattern.BOTH_DIRECTIONS, Pattern.OWN_NODE_BOTH) and host:
        yield _matrix(measurements, frame, notes, 0)
        yield _matrix(measurements, frame, (), 1)
    else:
        yield _matrix(measurements, frame, notes)
    if first.pattern is Pattern.BOTH_DIRECTIONS:
        cells = {}
        for measurement in measurements:
            one, other = sorted((end.label for end in ends(measurement.flows[0])), key=frame.order.index)
            cells[one, other] = frame.bandwidth(measurement)
        rows, groups = frame.square(cells)
        caption = f"{_engine(first)} both directions, sum (GB/s)"
        yield Matrix(caption=caption, names=first.case, rows=rows, groups=groups, better=Better.HIGH)


def routes(measurements: Sequence[Measurement]) -> Iterator[str]:
    """Say which route each cell is expected to take: in one line where it is the same for all."""
    cells: dict[str, list[Flow]] = {}
    for flow in (flow for measurement in measurements for flow in measurement.flows):
        cells.setdefault(route_words(flow.route), []).append(flow)
    for words, those in cells.items():
        if len(cells) == 1:
            yield words
        elif those[0].route.memory is None:
            yield f"{words}: {several(len(those), 'pair')}"
        else:
            rows: dict[str, dict[str, None]] = {}
            for row, column in map(ends, those):
                rows.setdefault(row.label, {})[column.label] = None
            where = ", ".join(f"{row} with {' '.join(gpus)}" for row, gpus in rows.items())
            yield f"{words}: {where}"


def ends(flow: Flow, pattern: Pattern = Pattern.PAIR) -> tuple[Endpoint, Endpoint]:
    """Return which end is the row and which the column.

    Rows are the host's memory, the one GPU that has to do with all others, or else the GPU that issues the work.
    """
    source, destination = flow.source, flow.destination
    if pattern in (Pattern.ONE_TO_ALL, Pattern.ALL_TO_ONE):
        swap = pattern is Pattern.ALL_TO_ONE
    elif flow.through_gpu and flow.initiator_rank is not None:
        swap = not flow.pushed
    elif source.bus_id is None and destination.bus_id is None:
        swap = source.memory is MemoryKind.REGISTERS
    elif source.bus_id is None or destination.bus_id is None:
        swap = source.bus_id is not None
    else:
        swap = not flow.pushed
    return (destination, source) if swap else (source, destination)


def _caption(measurement: Measurement, way: int = 0) -> str:
    flow = measurement.flows[way]
    row, column = ends(flow, measurement.pattern)
    arrow = "->" if row == flow.source else "<-"
    at_once = _AT_ONCE.get(measurement.pattern, "")
    streams = f", {measurement.streams} streams" if measurement.streams > 1 else ""
    sides = "GPU(column)" if measurement.pattern in _ONE_ROW else f"{_kind(row)}(row) {arrow} {_kind(column)}(column)"
    through = " by the row's GPU" if flow.through_gpu and measurement.ranks else ""
    return f"{_engine(measurement)} {sides}{through} bandwidth{at_once}{streams} (GB/s)"


def _engine(measurement: Measurement) -> str:
    return ENGINES[measurement.engine].caption


def _kind(end: Endpoint) -> str:
    if end.bus_id is not None:
        return "GPU default pool" if end.memory is MemoryKind.DEVICE_DEFAULT_POOL else "GPU"
    return "CPU" if end.memory is MemoryKind.REGISTERS else _MEMORY[end.memory]


def _matrix(
    measurements: Sequence[Measurement], frame: Frame, notes: tuple[str, ...], way: int | None = None
) -> Matrix:
    cells: dict[tuple[str, str], Cell] = {}
    totals: dict[str, Cell] = {}
    whole: list[str] = []
    for measurement in measurements:
        labels = set()
        for place, flow in enumerate(measurement.flows):
            if way is None or place % 2 == way:
                row, column = ends(flow, measurement.pattern)
                cells[row.label, column.label] = frame.bandwidth(measurement, place)
                labels.add(row.label)
        if len(measurement.flows) < 2 or measurement.pattern is Pattern.BOTH_DIRECTIONS:
            continue
        if len(labels) == 1:
            totals[labels.pop()] = frame.bandwidth(measurement)
        else:
            total = frame.bandwidth(measurement)
            whole.append(f"sum of all: {total.text}{total.mark}")
    rows, groups = frame.square(cells, totals)
    first = measurements[0]
    return Matrix(
        caption=_caption(first, way or 0),
        names=first.case,
        notes=notes,
        rows=rows,
        groups=groups,
        after=tuple(whole),
        better=Better.HIGH,
    )


def _through(measurements: Sequence[Measurement], frame: Frame, notes: tuple[str, ...]) -> Matrix:
    """A row for each GPU that moves the bytes, a column for each pair of NUMA nodes."""
    first = measurements[0]
    source, destination = (_kind(end) for end in (first.flows[0].source, first.flows[0].destination))
    cells = {
        (flow.initiator_label, f"{flow.source.label}->{flow.destination.label}"): frame.bandwidth(m, 0)
        for m in measurements
        for flow in m.flows
    }
    rows, groups = frame.square(cells)
    return Matrix(
        caption=f"{_engine(first)} {source} -> {destination}(column) by GPU(row) bandwidth (GB/s)",
        names=first.case,
        notes=notes,
        rows=rows,
        groups=groups,
        better=Better.HIGH,
    )


def _one_row(measurements: Sequence[Measurement], frame: Frame, notes: tuple[str, ...]) -> Matrix:
    """One column a flow: its two ends above its number."""
    groups = []
    for measurement in measurements:
        for place, flow in enumerate(measurement.flows):
            header: tuple[str, ...] = (flow.source.label,)
            if measurement.pattern is not Pattern.LOCAL:
                header = (flow.source.label, f"->{flow.destination.label}")
            groups.append((Series(header=header, cells=(frame.bandwidth(measurement, place),)),))
        if len(measurement.flows) > 1:
            groups.append((Series(header=("sum",), cells=(frame.bandwidth(measurement),)),))
    first = measurements[0]
    return Matrix(
        caption=_caption(first),
        names=first.case,
        notes=notes,
        rows=("",),
        groups=tuple(groups),
        better=Better.HIGH,
    )


def _sizes(measurements: Sequence[Measurement]) -> Iterator[Matrix | Chart]:
    """A sweep: what all paths over the same links reach at each size."""
    first = measurements[0]
    groups: dict[tuple[str, str], dict[int, list[Measurement]]] = {}
    for measurement in measurements:
        route = measurement.flows[0].route
        of_route = groups.setdefault((route.symbol, route_words(route)), {})
        of_route.setdefault(measurement.size_bytes, []).append(measurement)
    sizes = sorted({measurement.size_bytes for measurement in measurements})
    notes, columns, curves = [], [], []
    picks: tuple[tuple[str, Callable[[list[float]], float]], ...] = (("median", median), ("min", min), ("max", max))
    for (name, words), curve in groups.items():
        count = max(map(len, curve.values()))
        values = {size: [m.bandwidth_gb_s.median for m in those if m.bandwidth_gb_s] for size, those in curve.items()}
        notes.append(f"{words}: {f'median, min and max of {count} paths' if count > 1 else '1 path'}")
        columns.append(
            tuple(
                Series(
                    header=(name if label == "median" else "", label),
                    cells=tuple(Cell(text=f"{pick(values[size]):.2f}" if values.get(size) else "-") for size in sizes),
                )
                for label, pick in picks
            )
        )
        points = [
            Point(x=size, y=median(found), low=min(found), high=max(found))
            for size in sizes
            if (found := values.get(size))
        ]
        curves.append((name, tuple(points)))
    yield Matrix(
        caption=_caption(first),
        names=f"{first.case}, by size",
        notes=tuple(notes),
        rows=tuple(map(format_size, sizes)),
        groups=tuple(columns),
    )
    yield Chart(caption=_caption(first), x="buffer", y="GB/s", curves=tuple(curves), sizes=True)
