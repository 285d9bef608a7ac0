"""Bandwidths as matrices for people: the shape of nvidia-smi and nvbandwidth, the direction in each caption."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from statistics import median

from rich.text import Text

from egmctl.model.measurement import Endpoint, Engine, Flow, Measurement, MemoryKind, Pattern, Status
from egmctl.report.table import BAD, DIM, HEADING, WARN, Column, table, wrap
from egmctl.units import format_size, printable

STYLES = {Status.UNSTABLE: WARN, Status.WAIVED: DIM}
"""Of cells that are not ``ok``; the others are bad."""

_ENGINES = {
    Engine.COPY_ENGINE: "memcpy CE",
    Engine.SM_COPY: "memcpy SM",
    Engine.SM_READ: "read SM",
    Engine.SM_WRITE: "write SM",
    Engine.CPU: "CPU threads, a lower bound,",
}
_MEMORY = {
    MemoryKind.HOST_NUMA: "NUMA",
    MemoryKind.HOST_NUMA_POOL: "NUMA pool",
    MemoryKind.PINNED: "pinned",
    MemoryKind.REGISTERED: "registered",
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
}

Cells = Mapping[tuple[str, str], tuple[str, str]]
"""Text and style by row and column."""
Wires = Callable[[Sequence[Measurement]], Iterable[str]]


def matrices(measurements: Sequence[Measurement], order: Sequence[str]) -> Iterator[Text]:
    """Render the bandwidths of one case: one size as matrices, several as a table of sizes; nothing if all are waived.

    Parameters
    ----------
    order
        The labels of the ends, as rows and columns are ordered.
    """
    if all(measurement.status is Status.WAIVED for measurement in measurements):
        return
    if len({measurement.size_bytes for measurement in measurements}) > 1:
        yield _sizes(measurements)
        return
    first = measurements[0]
    heading = Text().append(f"{first.case}\n", DIM).append("".join(wrap(line, "") for line in wires(measurements)), DIM)
    if first.pattern in _ONE_ROW:
        yield _caption(first).append_text(heading).append_text(_one_row(measurements))
        return
    host = any(end.bus_id is None for end in (first.flows[0].source, first.flows[0].destination))
    if first.pattern is Pattern.BOTH_DIRECTIONS and host:
        for way in (0, 1):
            yield _caption(first, way).append_text(heading).append_text(_matrix(measurements, order, way))
            heading = Text().append(f"{first.case}\n", DIM)
    else:
        yield _caption(first).append_text(heading).append_text(_matrix(measurements, order))
    if first.pattern is Pattern.BOTH_DIRECTIONS:
        cells = {}
        for measurement in measurements:
            one, other = sorted((end.label for end in ends(measurement.flows[0])), key=order.index)
            cells[one, other] = cell(measurement)
        caption = Text().append(f"{_engine(first)} both directions, sum (GB/s)\n", HEADING)
        yield caption.append(f"{first.case}\n", DIM).append_text(square(cells, order))


def wires(measurements: Sequence[Measurement]) -> Iterator[str]:
    """Say which wire each cell is expected to use: in one line where it is the same for all."""
    cells: dict[str, list[Flow]] = {}
    for flow in (flow for measurement in measurements for flow in measurement.flows):
        cells.setdefault(flow.wire, []).append(flow)
    for wire, those in cells.items():
        if len(cells) == 1:
            yield printable(wire)
        elif those[0].egm is None:
            yield f"{printable(wire)}: {len(those)} pairs"
        else:
            rows: dict[str, dict[str, None]] = {}
            for row, column in map(ends, those):
                rows.setdefault(row.label, {})[column.label] = None
            where = ", ".join(f"{row} with {' '.join(gpus)}" for row, gpus in rows.items())
            yield f"{printable(wire)}: {where}"


def ends(flow: Flow, pattern: Pattern = Pattern.PAIR) -> tuple[Endpoint, Endpoint]:
    """Return which end is the row and which the column.

    Rows are the host's memory, the one GPU that has to do with all others, or else the GPU that issues the work.
    """
    source, destination = flow.source, flow.destination
    if pattern in (Pattern.ONE_TO_ALL, Pattern.ALL_TO_ONE):
        swap = pattern is Pattern.ALL_TO_ONE
    elif source.bus_id is None and destination.bus_id is None:
        swap = source.memory is MemoryKind.REGISTERS
    elif source.bus_id is None or destination.bus_id is None:
        swap = source.bus_id is not None
    else:
        swap = destination.bus_id == flow.initiator and source.bus_id != flow.initiator
    return (destination, source) if swap else (source, destination)


def cell(measurement: Measurement, flow: int | None = None) -> tuple[str, str]:
    """Return the text and the style of a measurement's cell: of one flow, or of all of them together."""
    style = "" if measurement.status is Status.OK else STYLES.get(measurement.status, BAD)
    if measurement.status in (Status.OK, Status.UNSTABLE):
        summary = measurement.bandwidth_gb_s if flow is None else measurement.flows_gb_s[flow]
        if summary is not None:
            return f"{summary.median:.2f}{'*' if measurement.status is Status.UNSTABLE else ''}", style
    return measurement.status.value, style


def square(cells: Cells, order: Sequence[str], totals: Mapping[str, tuple[str, str]] | None = None) -> Text:
    """Lay out cells in the order of their labels, and beside each row its sum."""
    places = {label: place for place, label in enumerate(order)}
    rows = sorted({row for row, _ in cells}, key=lambda label: places.get(label, len(places)))
    columns = sorted({column for _, column in cells}, key=lambda label: places.get(label, len(places)))
    styles = dict(cells.values()) | dict((totals or {}).values())
    groups = [
        [Column([cells.get((row, column), ("-", ""))[0] for row in rows], (column,), ">", styles)] for column in columns
    ]
    if totals:
        groups.append([Column([totals.get(row, ("-", ""))[0] for row in rows], ("sum",), ">", styles)])
    return table(rows, groups)


def _caption(measurement: Measurement, way: int = 0) -> Text:
    flow = measurement.flows[way]
    row, column = ends(flow, measurement.pattern)
    arrow = "->" if row == flow.source else "<-"
    at_once = _AT_ONCE.get(measurement.pattern, "")
    streams = f", {measurement.streams} streams" if measurement.streams > 1 else ""
    sides = "GPU(column)" if measurement.pattern in _ONE_ROW else f"{_kind(row)}(row) {arrow} {_kind(column)}(column)"
    return Text().append(f"{_engine(measurement)} {sides} bandwidth{at_once}{streams} (GB/s)\n", HEADING)


def _engine(measurement: Measurement) -> str:
    return _ENGINES.get(measurement.engine, measurement.engine.value)


def _kind(end: Endpoint) -> str:
    if end.bus_id is not None:
        return "GPU"
    return "CPU" if end.memory is MemoryKind.REGISTERS else _MEMORY[end.memory]


def _matrix(measurements: Sequence[Measurement], order: Sequence[str], way: int | None = None) -> Text:
    cells: dict[tuple[str, str], tuple[str, str]] = {}
    totals: dict[str, tuple[str, str]] = {}
    whole: list[str] = []
    for measurement in measurements:
        rows = set()
        for place, flow in enumerate(measurement.flows):
            if way is None or place == way:
                row, column = ends(flow, measurement.pattern)
                cells[row.label, column.label] = cell(measurement, place)
                rows.add(row.label)
        if len(measurement.flows) < 2 or measurement.pattern is Pattern.BOTH_DIRECTIONS:
            continue
        if len(rows) == 1:
            totals[rows.pop()] = cell(measurement)
        else:
            whole.append(f"sum of all: {cell(measurement)[0]}\n")
    return square(cells, order, totals).append("".join(whole))


def _one_row(measurements: Sequence[Measurement]) -> Text:
    """One column a flow: its two ends above its number."""
    groups = []
    for measurement in measurements:
        for place, flow in enumerate(measurement.flows):
            text, style = cell(measurement, place)
            header: tuple[str, ...] = (flow.source.label,)
            if measurement.pattern is not Pattern.LOCAL:
                header = (flow.source.label, f"->{flow.destination.label}")
            groups.append([Column([text], header, ">", {text: style})])
        if len(measurement.flows) > 1:
            text, style = cell(measurement)
            groups.append([Column([text], ("sum",), ">", {text: style})])
    return table([""], groups)


def _sizes(measurements: Sequence[Measurement]) -> Text:
    """A sweep: what all paths of a wire reach at each size."""
    first = measurements[0]
    groups: dict[str, dict[int, list[Measurement]]] = {}
    for measurement in measurements:
        groups.setdefault(measurement.flows[0].wire, {}).setdefault(measurement.size_bytes, []).append(measurement)
    sizes = sorted({measurement.size_bytes for measurement in measurements})
    text = _caption(first).append(f"{first.case}, by size\n", DIM)
    columns = []
    for wire, curve in groups.items():
        count = max(map(len, curve.values()))
        values = {size: [m.bandwidth_gb_s.median for m in those if m.bandwidth_gb_s] for size, those in curve.items()}
        text.append(wrap(f"{printable(wire)}: median, least and most of {count} paths", ""), DIM)
        name = printable(wire.partition(" over ")[2].partition(",")[0] or wire)
        picks: tuple[tuple[str, Callable[[list[float]], float]], ...] = (("median", median), ("min", min), ("max", max))
        columns.append(
            [
                Column(
                    [f"{pick(values[size]):.2f}" if values.get(size) else "-" for size in sizes],
                    (name if label == "median" else "", label),
                    ">",
                )
                for label, pick in picks
            ]
        )
    return text.append_text(table([format_size(size) for size in sizes], columns))
