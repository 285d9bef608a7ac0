"""A run of the bench as text for people: one matrix a case, then whatever was not simply measured, with its reason."""

from __future__ import annotations

import textwrap
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence

from rich.text import Text

from egmctl.model.measurement import (
    Endpoint,
    Engine,
    Flow,
    Measurement,
    Quantity,
    RunReport,
    Status,
    Verification,
)
from egmctl.report.bench_latency import latency_text
from egmctl.report.table import BAD, DIM, HEADING, WARN, WIDTH, Column, table
from egmctl.units import format_size, printable

_STYLES = {Status.UNSTABLE: WARN, Status.WAIVED: DIM}
_ENGINES = {Engine.COPY_ENGINE: "memcpy CE"}
_HOST = "NUMA"
_GPU = "GPU"
_GATING = {
    "kernel": "held back by a gate kernel until all are queued",
    "stream-wait": "held back by a stream wait until all are queued",
    "none": "not held back: the time holds their queueing",
}
_VERIFICATION = {
    Verification.GPU_EVERY_SAMPLE: "verified after every sample on the GPU",
    Verification.HOST_FIRST_AND_LAST_SAMPLE: "verified after the first and the last sample on the host",
    Verification.WALK_EVERY_SAMPLE: "each walk verified by where it ended",
}
_PATHS_SHOWN = 4


def bench_text(report: RunReport) -> Text:
    """Render a report; direction is in each caption, and every cell that holds no plain number is explained below."""
    text = _head(report)
    order = [f"{_HOST}{node}" for node in report.numa_nodes] + [gpu.label for gpu in report.gpus]
    bandwidths = [m for m in report.measurements if m.quantity is Quantity.BANDWIDTH]
    for case in dict.fromkeys(measurement.case for measurement in bandwidths):
        text.append("\n").append_text(_case([m for m in bandwidths if m.case == case], order))
    latencies = [m for m in report.measurements if m.quantity is Quantity.LATENCY]
    for table_of_latencies in latency_text(latencies, order, _wires):
        text.append("\n").append_text(table_of_latencies)
    for title, lines in (("Not plainly measured", _exceptions(report)), ("Notes", [*report.notes, *report.problems])):
        if lines := list(lines):
            text.append(f"\n{title}\n", HEADING).append(_bullets(lines))
    text.append(f"\n{_tally(report)}\n")
    return text


def _head(report: RunReport) -> Text:
    settings = report.settings
    names = Counter(printable(gpu.name or "GPU of unknown name") for gpu in report.gpus)
    driver = printable(report.driver_version or "unknown")
    version = report.cuda_driver_version
    cuda = f" (CUDA {version // 1000}.{version % 1000 // 10})" if version else ""
    how = [f"buffers of {format_size(settings.size_bytes)}", f"median of {settings.samples} samples"]
    measured = [m for m in report.measurements if m.samples]
    if copies := sorted({m.copies for m in measured if m.quantity is Quantity.BANDWIDTH}):
        how.insert(1, f"copied {' or '.join(map(str, copies))} times a sample")
    how += dict.fromkeys(_GATING[m.gating] for m in measured if m.gating in _GATING)
    how += dict.fromkeys(_VERIFICATION[m.verification] for m in measured if m.verification)
    text = Text()
    text.append("Bench: ", HEADING)
    text.append(f"{', '.join(f'{count} x {name}' for name, count in names.items())}, driver {driver}{cuda}\n")
    text.append(_wrap(", ".join(how)), DIM)
    return text


def _case(measurements: Sequence[Measurement], order: Sequence[str]) -> Text:
    first = measurements[0]
    row, column = _row_and_column(first.flows[0])
    arrow = "->" if row == first.flows[0].source else "<-"
    caption = (
        f"{_ENGINES.get(first.engine, first.engine)} {_kind(row)}(row) {arrow} {_kind(column)}(column) bandwidth (GB/s)"
    )
    text = Text()
    text.append(f"{caption}\n", HEADING).append(f"{first.case}\n", DIM)
    text.append("".join(_wrap(line) for line in _wires(measurements)), DIM)
    return text.append_text(_matrix(measurements, order))


def _matrix(measurements: Sequence[Measurement], order: Sequence[str]) -> Text:
    cells: dict[tuple[str, str], str] = {}
    styles: dict[str, str] = {}
    for measurement in measurements:
        for place, flow in enumerate(measurement.flows):
            row, column = _row_and_column(flow)
            cells[row.label, column.label] = cell = _cell(measurement, place)
            if measurement.status is not Status.OK:
                styles[cell] = _STYLES.get(measurement.status, BAD)
    rows = [label for label in order if any(label == row for row, _ in cells)]
    columns = [label for label in order if any(label == column for _, column in cells)]
    return table(
        rows,
        [[Column([cells.get((row, column), "-") for row in rows], (column,), ">", styles)] for column in columns],
    )


def _row_and_column(flow: Flow) -> tuple[Endpoint, Endpoint]:
    """Rows are the host's ends; between GPUs, the GPU that issues the work."""
    source, destination = flow.source, flow.destination
    if source.bus_id is None or destination.bus_id is None:
        swap = source.bus_id is not None
    else:
        swap = destination.bus_id == flow.initiator
    return (destination, source) if swap else (source, destination)


def _kind(end: Endpoint) -> str:
    return _HOST if end.bus_id is None else _GPU


def _cell(measurement: Measurement, flow: int) -> str:
    if measurement.status in (Status.OK, Status.UNSTABLE) and measurement.flows_gb_s:
        mark = "*" if measurement.status is Status.UNSTABLE else ""
        return f"{measurement.flows_gb_s[flow].median:.2f}{mark}"
    return measurement.status.value


def _wires(measurements: Sequence[Measurement]) -> Iterator[str]:
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
            for row, column in map(_row_and_column, those):
                rows.setdefault(row.label, {})[column.label] = None
            where = ", ".join(f"{row} with {' '.join(gpus)}" for row, gpus in rows.items())
            yield f"{printable(wire)}: {where}"


def _exceptions(report: RunReport) -> Iterator[str]:
    """Give the reason of every cell that is not ``ok``; cells with the same reason share a line."""
    groups: dict[tuple[Status, str], list[Measurement]] = {}
    for measurement in report.measurements:
        if measurement.status is not Status.OK:
            groups.setdefault((measurement.status, measurement.reason or ""), []).append(measurement)
    for (status, reason), those in groups.items():
        paths = list(dict.fromkeys(m.path for m in those))
        shown = ", ".join(paths[:_PATHS_SHOWN]) + (
            f" and {len(paths) - _PATHS_SHOWN} more" * (len(paths) > _PATHS_SHOWN)
        )
        mark = "* " if status is Status.UNSTABLE else ""
        yield f"{mark}{shown}: {status}: {printable(reason)}"


def _tally(report: RunReport) -> str:
    counts = Counter(measurement.status for measurement in report.measurements)
    words = ", ".join(f"{counts[status]} {status}" for status in Status if counts[status])
    end = "INTERRUPTED, partial report: " if report.interrupted else ""
    return f"{end}{len(report.measurements)} measurements: {words or 'none'}"


def _bullets(lines: Iterable[str]) -> str:
    return "".join(_wrap(line, indent="  ") for line in lines)


def _wrap(line: str, indent: str = "") -> str:
    wrapped = textwrap.wrap(
        line,
        WIDTH,
        initial_indent=indent,
        subsequent_indent=indent + "  ",
        break_long_words=False,
        break_on_hyphens=False,
    )
    return "".join(f"{part}\n" for part in wrapped)
