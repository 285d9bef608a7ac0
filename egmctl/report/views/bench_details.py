"""The tables of each family of cases: matrices and series, processes, UCX, and many ranks."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from statistics import median

from egmctl.bench.engine import ENGINES
from egmctl.model.measurement import Measurement, RunReport, Status
from egmctl.model.route import HOST_NAMES, MemoryKind, UcxStaging
from egmctl.model.task import UCX_ENGINES, Engine, Quantity
from egmctl.report.document import Better, Body, Cell, Matrix, grid
from egmctl.report.views.bench_matrix import Frame, matrices, tone_of
from egmctl.report.views.bench_series import axis_of, series, swept
from egmctl.units import format_size, grouped, printable

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
_Tables = Iterator[Matrix]


def families(report: RunReport) -> Iterator[tuple[str, Body]]:
    """Yield the title and the tables of each family in the order of measurement; for many ranks none."""
    if len(report.ranks) > FOLDED_ABOVE:
        return
    for family in dict.fromkeys(m.family for m in report.measurements):
        yield _FAMILIES.get(family, family), partial(_family, report, family)


def _family(report: RunReport, family: str) -> _Tables:
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
    tried = [m for m in members if m.status is not Status.WAIVED]
    yield from life_cycles([m for m in tried if m.quantity is Quantity.DURATION])
    yield beside(tried)
    yield from messages([m for m in tried if m.engine in UCX_ENGINES])


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
        rows.append((case, {**cells, **_spread("ratio", ratios, 3)}))
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
    kind = f"{_memory(end.memory)}{' for all GPUs' * bool(end.parts)}"
    return kind if end.handle is None else f"{kind}, {end.handle}"


def _stage(measurements: Sequence[Measurement], name: str) -> str | Cell:
    medians = [stage.ms.median for m in measurements for stage in m.stages if stage.name == name]
    if not medians:
        bad = next((m for m in measurements if m.status is not Status.OK), None)
        return "-" if bad is None else Cell(bad.status.value, tone_of(bad))
    us = 1e3 * median(medians)
    return f"{us:.1f}" if us < _FEW_US else f"{us:.0f}"


def messages(measurements: Sequence[Measurement]) -> Iterator[Matrix]:
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
    summary = measurement.bandwidth_gb_s
    # The maximum over both sides: the memory of the faster one may already have been registered.
    register = [stage.ms.max for stage in measurement.stages if stage.name == "register"]
    return {
        "": _MOVED[measurement.engine],
        **_memories(measurement),
        "size": format_size(measurement.size_bytes),
        "GB/s": _marked(measurement, None if summary is None else f"{summary.median:.2f}"),
        **({"register us": f"{1e3 * register[0]:.0f}"} if register else {}),
        "way": _way(measurement),
    }


def _round_trip(measurement: Measurement) -> dict[str, str | Cell]:
    summary = measurement.latency_ns
    tails = [sample.p99_ns for sample in measurement.samples if sample.p99_ns is not None]
    return {
        **_memories(measurement),
        "median": _marked(measurement, None if summary is None else f"{summary.median / 1e3:.1f}"),
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


def _marked(measurement: Measurement, number: str | None) -> Cell:
    text = measurement.status.value if number is None or not measurement.measured else number
    mark = "*" if measurement.status is Status.UNSTABLE and measurement.measured else ""
    return Cell(text, tone_of(measurement), mark)


def _spread(name: str, values: Sequence[float], digits: int) -> dict[str, str]:
    """Return the cells with the median of values, under a name, and with their minimum and maximum."""
    numbers = {name: median(values), "min": min(values), "max": max(values)}
    return {head: f"{number:.{digits}f}" for head, number in numbers.items()}
