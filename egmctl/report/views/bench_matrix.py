"""Bandwidths and latencies as matrices in the layout of nvidia-smi and nvbandwidth; each caption has the direction.

The marks of grades are here too: a path has the same tone and sign in a matrix, in the table of classes and in a line.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import field
from statistics import median

from egmctl.bench.case import AT_ONCE
from egmctl.bench.engine import ENGINES
from egmctl.dataclass import dataclass
from egmctl.model.answer import State
from egmctl.model.doubt import Effect
from egmctl.model.measurement import Measurement, MeasurementStatus, RunReport
from egmctl.model.route import HOST_NAMES, MemoryKind
from egmctl.model.task import ChaseOrder, Endpoint, Engine, Flow, Pattern, Quantity
from egmctl.model.verdict import Grade, Judged, Yardstick, worst_grade
from egmctl.report import document as doc
from egmctl.report.document import Better, Cell, Matrix, Tone
from egmctl.report.views.findings import tone_of
from egmctl.report.views.machine import route_words
from egmctl.units import format_size, grouped, several

OUTLIER = "<"
"""The mark of a path that only the comparison with its peers grades as bad."""
UNSTABLE = "*"
STATUS_TONES = {
    MeasurementStatus.OK: Tone.PLAIN,
    MeasurementStatus.UNSTABLE: Tone.WARN,
    MeasurementStatus.WAIVED: Tone.DIM,
}
"""The tones of measurements by how they ended; all else is bad."""
Brand = tuple[Tone, str]
"""The tone and the mark of the cell of a failed or warned measurement."""


@dataclass(frozen=True, slots=True)
class Frame:
    """The order of labels and the marks that all matrices of a run share."""

    order: Sequence[str] = ()
    """The labels of the ends in the order of rows and columns."""
    brands: Mapping[int, Brand] = field(default_factory=dict)
    """The brands of measurements, by their ``id()``."""
    doubted: frozenset[int] = frozenset()
    """The measurements that are not believed, or not all of them, by their ``id()``."""

    @classmethod
    def of(cls, report: RunReport) -> Frame:
        """Return the frame of a run."""
        order = [
            *(f"{kind}{node}" for kind in ("NUMA", "CPU") for node in report.numa_nodes),
            *(gpu.label for gpu in report.gpus),
            *(f"{rank.label}:NUMA{rank.numa_node}" for rank in report.ranks),
        ]
        judged = report.verdict.judged if report.verdict is not None else ()
        excused = report.answer.excused
        brands = {
            id(report.measurements[entry.measurement]): _brand(entry, excused=entry.measurement in excused)
            for entry in judged
        }
        told = (doubt for doubt in report.doubts if doubt.effect is not Effect.NOTE)
        doubted = frozenset(id(report.measurements[doubt.measurement]) for doubt in told)
        return cls(order, {key: brand for key, brand in brands.items() if brand is not None}, doubted)

    def bandwidth(self, measurement: Measurement, flow: int | None = None) -> doc.Cell:
        """Return the cell of one flow, or of the sum of all flows, which is not compared with single flows."""
        summary = measurement.bandwidth_gb_s if flow is None else None
        if flow is not None and measurement.measured:
            summary = measurement.flows_gb_s[flow]
        alone = len(measurement.flows) == 1
        return self.number(
            measurement,
            summary.median if summary is not None and measurement.measured else None,
            digits=2,
            kind=measurement.flows[flow].route.symbol if flow is not None else "",
            compared=flow is not None or alone,
            # The verdict on the sum of several flows does not mark a single one.
            own=flow is None or alone,
        )

    def number(
        self,
        measurement: Measurement,
        value: float | None,
        *,
        digits: int,
        kind: str = "",
        compared: bool = True,
        own: bool = True,
    ) -> doc.Cell:
        """Return the cell of a number, or of the measurement's status if there is none.

        Parameters
        ----------
        compared
            Whether the number is compared with others of its kind in the matrix.
        own
            Whether the verdict on the measurement marks this number.
        """
        tone = status_tone(measurement)
        if value is None:
            return doc.Cell(measurement.status.value, tone)
        mark = UNSTABLE if measurement.status is MeasurementStatus.UNSTABLE else ""
        if own:
            tone, mark = self.brands.get(id(measurement), (tone, mark))
        return doc.Cell(f"{value:.{digits}f}", tone, mark, value=value if compared else None, kind=kind)

    def matrix(
        self,
        caption: str,
        cells: Mapping[tuple[str, tuple[str, ...]], doc.Cell],
        totals: Mapping[str, doc.Cell] | None = None,
        *,
        names: str,
        notes: tuple[str, ...] = (),
        after: tuple[str, ...] = (),
        better: doc.Better = doc.Better.HIGH,
    ) -> doc.Matrix:
        """Return a matrix of cells by row and column (its header lines), ordered by labels, with the sums of rows."""
        places = {label: place for place, label in enumerate(self.order)}

        def place(*labels: str) -> list[int]:
            return [places.get(label, len(places)) for label in labels]

        headers = sorted(dict.fromkeys(header for _, header in cells), key=lambda header: place(*header))
        rows = []
        for row in sorted(dict.fromkeys(row for row, _ in cells), key=place):
            sums = {("sum",): totals.get(row, doc.EMPTY)} if totals else {}
            rows.append((row, {header: cells.get((row, header), doc.EMPTY) for header in headers} | sums))
        return doc.grid(caption, rows, names=names, notes=notes, after=after, better=better)


def status_tone(measurement: Measurement) -> Tone:
    """Return the tone of a measurement's status."""
    return STATUS_TONES.get(measurement.status, Tone.BAD)


def _brand(judged: Judged, *, excused: bool) -> Brand | None:
    bad = [judgement for judgement in judged.judgements if judgement.grade in GRADE_MARKS]
    if not bad:
        return None
    mark = mark_of_grade(worst_grade(judgement.grade for judgement in bad), excused=excused)
    outlier = all(judgement.yardstick is Yardstick.PEERS for judgement in bad)
    return mark.tone, OUTLIER if outlier and not excused else mark.sign


@dataclass(frozen=True, slots=True)
class PathMark:
    """How a path or a class of paths is shown."""

    tone: Tone
    sign: str = ""
    """The sign beside its number."""
    word: str = ""
    """The word before its line."""
    few: str = ""
    """The word after the number of such paths: ``3 of 12 slow``."""


GRADE_MARKS: Mapping[Grade, PathMark] = {
    Grade.FAIL: PathMark(Tone.BAD, "!", "FAIL", "slow"),
    Grade.WARN: PathMark(Tone.WARN, "~", "WARN", "a little slow"),
}
"""The marks of grades that are problems; the others have none."""
EXCUSED = PathMark(tone_of(State.INCOMPLETE), "?", "EXCUSED", "slow beside others")
"""The mark of a path that is slow, but only while others used its GPU or the host: that is not known to be a fault."""
_UNMARKED = PathMark(Tone.PLAIN)


def mark_of_grade(grade: Grade, *, excused: bool = False) -> PathMark:
    """Return the mark of a grade; of a problem that is excused, its own."""
    mark = GRADE_MARKS.get(grade, _UNMARKED)
    return EXCUSED if excused and mark is not _UNMARKED else mark


_ONE_ROW = (Pattern.RING, Pattern.BISECT, Pattern.LOCAL)
"""The patterns with one flow per source GPU, which one row shows."""
_Place = tuple[str, tuple[str, ...]]
"""The position of a cell: its row, and the header lines of its column."""


def matrices(measurements: Sequence[Measurement], frame: Frame) -> Iterator[Matrix]:
    """Yield the matrices of measurements that share a table; nothing if all are waived."""
    if all(measurement.status is MeasurementStatus.WAIVED for measurement in measurements):
        return
    # A GPU's own memory is on the diagonal of the matrix of peers, so the last measurement determines the rows.
    flows, pattern = measurements[-1].flows, measurements[-1].pattern
    notes = tuple(routes(measurements))
    if measurements[-1].quantity is Quantity.LATENCY:
        yield _latencies(measurements, frame, notes)
        return
    host = any(end.bus_id is None for end in (flows[0].source, flows[0].destination))
    if pattern in (Pattern.BOTH_DIRECTIONS, Pattern.OWN_NODE_BOTH) and host:
        yield _bandwidths(measurements, frame, notes, 0)
        yield _bandwidths(measurements, frame, (), 1)
    else:
        yield _bandwidths(measurements, frame, notes)
    if pattern is Pattern.BOTH_DIRECTIONS:
        sums: dict[_Place, Cell] = {}
        for measurement in measurements:
            row, column = sorted((end.label for end in ends(measurement.flows[0])), key=frame.order.index)
            sums[row, (column,)] = frame.bandwidth(measurement)
        caption = f"{ENGINES[measurements[0].engine].caption} both directions, sum (GB/s)"
        yield frame.matrix(caption, sums, names=measurements[0].case)


def routes(measurements: Sequence[Measurement]) -> Iterator[str]:
    """Yield the expected routes of the cells, in one line if all are the same."""
    cells = grouped((route_words(flow.route), flow) for measurement in measurements for flow in measurement.flows)
    for words, flows in cells.items():
        if len(cells) == 1:
            yield words
        elif flows[0].route.memory is None:
            yield f"{words}: {several(len(flows), 'pair')}"
        else:
            rows = grouped((row.label, column.label) for row, column in map(ends, flows))
            where = ", ".join(f"{row} with {' '.join(dict.fromkeys(gpus))}" for row, gpus in rows.items())
            yield f"{words}: {where}"


def ends(flow: Flow, pattern: Pattern = Pattern.PAIR) -> tuple[Endpoint, Endpoint]:
    """Return the ends of a flow that are its row and its column.

    The row is the host memory, the one GPU that all others copy to or from, or otherwise the GPU that issues the work.
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


def bandwidth_caption(measurement: Measurement, way: int = 0) -> str:
    """Return the caption of a table of bandwidths: engine, direction (of the flow ``way``) and concurrent flows."""
    flow = measurement.flows[way]
    row, column = ends(flow, measurement.pattern)
    arrow = "->" if row == flow.source else "<-"
    at_once = AT_ONCE.get(measurement.pattern, "")
    streams = f", {several(measurement.point.streams, 'stream')}" if measurement.point.streams else ""
    if _through_any_gpu(measurement):
        sides = f"{_kind(flow.source)} -> {_kind(flow.destination)}(column) by GPU(row)"
    elif measurement.pattern in _ONE_ROW:
        sides = "GPU(column)"
    else:
        sides = f"{_kind(row)}(row) {arrow} {_kind(column)}(column)"
    through = " by the row's GPU" if flow.through_gpu and measurement.ranks else ""
    return f"{ENGINES[measurement.engine].caption} {sides}{through} bandwidth{at_once}{streams} (GB/s)"


def _through_any_gpu(measurement: Measurement) -> bool:
    """Return whether GPUs copy between NUMA nodes; the table then has a row per GPU and a column per pair of nodes."""
    return measurement.flows[0].through_gpu and not measurement.ranks


def _kind(end: Endpoint) -> str:
    if end.bus_id is not None:
        return "GPU default pool" if end.memory is MemoryKind.DEVICE_DEFAULT_POOL else "GPU"
    return "CPU" if end.memory is MemoryKind.REGISTERS else HOST_NAMES[end.memory]


def _place(measurement: Measurement, flow: Flow) -> _Place:
    """Return the position of a flow's bandwidth."""
    source, destination = flow.source.label, flow.destination.label
    if _through_any_gpu(measurement):
        return flow.initiator_label, (f"{source}->{destination}",)
    if measurement.pattern in _ONE_ROW:
        return "", (source,) if measurement.pattern is Pattern.LOCAL else (source, f"->{destination}")
    row, column = ends(flow, measurement.pattern)
    return row.label, (column.label,)


def _bandwidths(
    measurements: Sequence[Measurement], frame: Frame, notes: tuple[str, ...], way: int | None = None
) -> Matrix:
    cells: dict[_Place, Cell] = {}
    totals: dict[str, Cell] = {}
    whole: list[str] = []
    for measurement in measurements:
        places = {
            number: _place(measurement, flow)
            for number, flow in enumerate(measurement.flows)
            if way is None or number % 2 == way
        }
        cells |= {place: frame.bandwidth(measurement, number) for number, place in places.items()}
        if len(measurement.flows) < 2 or measurement.pattern is Pattern.BOTH_DIRECTIONS:
            continue
        total, rows_of = frame.bandwidth(measurement), {row for row, _ in places.values()}
        if len(rows_of) == 1:
            totals[rows_of.pop()] = total
        else:
            whole.append(f"sum of all: {total.text}{total.mark}")
    caption = bandwidth_caption(measurements[0], way or 0)
    return frame.matrix(caption, cells, totals, names=measurements[0].case, notes=notes, after=tuple(whole))


def _latencies(measurements: Sequence[Measurement], frame: Frame, notes: tuple[str, ...]) -> Matrix:
    cells: dict[_Place, Cell] = {}
    tails: list[tuple[float, str]] = []
    for measurement in measurements:
        flow = measurement.flows[0]
        row, column, reader = flow.source.label, flow.initiator_label, flow.initiator_label
        value, digits = None if measurement.headline is None else measurement.headline.median, 1
        if ENGINES[measurement.engine].round_trip:
            row = reader
            column = measurement.flows[1].initiator_label if len(measurement.flows) > 1 else flow.destination.label
            halves = [sample.p50_ns for sample in measurement.samples if sample.p50_ns is not None]
            value, digits = median(halves) if halves and measurement.measured else None, 0
            samples = measurement.samples
            tails += [(sample.p99_ns, f"{row} <-> {column}") for sample in samples if sample.p99_ns is not None]
        elif flow.source.bus_id is not None and flow.initiator is not None:
            row, column = reader, flow.source.label
        cells[row, (column,)] = frame.number(measurement, value, digits=digits, kind=flow.route.symbol)
    slowest = (f"p99 at most {max(tails)[0]:.0f} ns ({max(tails)[1]})",) if tails else ()
    names = ", ".join(dict.fromkeys(measurement.case for measurement in measurements))
    caption = latency_caption(measurements[-1])
    return frame.matrix(caption, cells, names=names, notes=(*notes, *slowest), better=Better.LOW)


def latency_caption(measurement: Measurement) -> str:
    """Return the caption of a table of latencies: the ends, the method and the unit."""
    flow = measurement.flows[0]
    if measurement.engine is Engine.PING_PONG:
        by = f"by flags in {flow.destination.label}" if flow.destination.bus_id is None else "each polls its own"
        return f"round trip of a flag GPU(row) <-> GPU(column), {by} (ns, p50)"
    if ENGINES[measurement.engine].round_trip:
        return f"round trip of {ENGINES[measurement.engine].caption} GPU(row) <-> GPU(column) (ns, p50)"
    if measurement.pattern is Pattern.LOADED:
        ways = f"under load {flow.source.label} -> {flow.initiator_label}"
    elif flow.source.memory in HOST_NAMES:
        ways = f"{HOST_NAMES[flow.source.memory]}(row) -> {'CPU' if flow.initiator is None else 'GPU'}(column)"
    else:
        ways = "GPU(row) <- GPU(column)" if flow.initiator is not None else "GPU(row) -> CPU(column)"
    return f"latency {ways}, {latency_method(measurement)} (ns)"


def latency_method(measurement: Measurement) -> str:
    """Return how a latency is measured: the lines that a chase reads, or the engine."""
    chase, size = measurement.chase, format_size(measurement.size_bytes)
    if measurement.engine is not Engine.CHASE or chase is None:
        return ENGINES[measurement.engine].caption
    if chase.order is ChaseOrder.SEQUENTIAL:
        return f"{size} line after line"
    return f"random lines of {size}, {'read before' if chase.warm else 'read once'}"
