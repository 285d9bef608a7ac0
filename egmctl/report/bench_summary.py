"""Bandwidths in short: kinds of host memory side by side, and what each class of paths reaches of its links."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from statistics import median

from egmctl.bench.engines import engine_for
from egmctl.model.measurement import Engine, Measurement, MemoryKind, Pattern, RunReport
from egmctl.model.memory import NUMA_MEMORY
from egmctl.model.route import Egm
from egmctl.report.bench_matrix import cell, ends
from egmctl.report.grid import EMPTY, Cell, Grid, Line, Shade, lines
from egmctl.units import format_size
from egmctl.verdict.classes import class_of

_KINDS = {
    MemoryKind.HOST_NUMA: "VMM",
    MemoryKind.HOST_NUMA_POOL: "pool",
    MemoryKind.PINNED: "pinned",
    MemoryKind.REGISTERED: "registered",
    MemoryKind.SYSTEM: "system",
}
_WORST = 8
"""Rows of the table of a soak."""
_FEW = 3
"""Flows whose ends fit beside a case's name."""
_ALONE = (Pattern.PAIR, Pattern.BOTH_DIRECTIONS, Pattern.RING, Pattern.BISECT, Pattern.LOCAL)
"""Each flow has its links to itself; in the others several share one."""
_ONE_LINK = (Pattern.ONE_TO_ALL, Pattern.ALL_TO_ONE)
"""All flows together cross the links of one GPU."""


def side_by_side(measurements: Sequence[Measurement], order: Sequence[str]) -> Iterator[Grid]:
    """Yield a table for each direction and engine that were measured with several kinds of host memory."""
    for engine in (Engine.COPY_ENGINE, Engine.SM_COPY):
        for to_gpu in (True, False):
            cells: dict[MemoryKind, dict[tuple[str, str], Measurement]] = {}
            for m in measurements:
                host, gpu = ends(m.flows[0])
                alike = m.engine is engine and m.pattern is Pattern.PAIR and m.streams == 1 and not m.ranks
                if alike and host.memory in _KINDS and (m.flows[0].source == host) is to_gpu:
                    cells.setdefault(host.memory, {})[host.label, gpu.label] = m
            if len(cells) < 2 or len({m.size_bytes for those in cells.values() for m in those.values()}) > 1:
                continue
            arrow = "->" if to_gpu else "<-"
            kinds = [kind for kind in _KINDS if kind in cells]
            yield Grid(
                caption=f"{engine_for(engine).caption} host memory(row) {arrow} GPU(column) by kind of memory (GB/s)",
                notes=(_what_is_host_numa(cells),) if NUMA_MEMORY & set(cells) else (),
                rows=tuple(_KINDS[kind] for kind in kinds),
                groups=tuple(
                    (Line(header=path, cells=tuple(_cell(cells[kind].get(path)) for kind in kinds)),)
                    for path in _paths(cells, order)
                ),
                shade=Shade.HIGH,
            )


SUMMARY = "Summary by wire (GB/s)"


def summary(report: RunReport) -> Iterator[Grid]:
    """Yield for each link what each case reaches on its paths, how far they are apart, and how much of the rate."""
    wires: dict[str, dict[tuple[str, int], list[tuple[float, float | None]]]] = {}
    for m in report.measurements:
        if m.measured and m.bandwidth_gb_s is not None:
            for wire, value, rate in _values(m):
                wires.setdefault(wire, {}).setdefault((m.case, m.size_bytes), []).append((value, rate))
    for wire, cases in wires.items():
        rates = {f"{rate:.1f}" for found in cases.values() for _, rate in found if rate is not None}
        yield _reached(wire + (f", {' or '.join(sorted(rates))} GB/s nominal" if rates else ""), cases)


def summary_note(grids: Sequence[Grid]) -> str:
    """Say what the columns of :func:`summary` are."""
    told = "n paths: the median of their medians, the least of them, and its distance from the most"
    if any(line.header == ("wire",) for grid in grids for line in lines(grid)):
        told += (
            "; wire: the median against the nominal rate in one direction, from which no packet overhead is taken off"
        )
    return f"{told}."


def _reached(wire: str, cases: Mapping[tuple[str, int], Sequence[tuple[float, float | None]]]) -> Grid:
    swept = {case for case, _ in cases if sum(case == other for other, _ in cases) > 1}
    values = [[value for value, _ in found] for found in cases.values()]
    columns = {
        "n": [str(len(those)) for those in values],
        "median": [f"{median(those):.2f}" for those in values],
        "least": [f"{min(those):.2f}" for those in values],
        "spread": [_spread(those) for those in values],
    }
    if any(rate for found in cases.values() for _, rate in found):
        columns["wire"] = [_percent(found) for found in cases.values()]
    rows = (f"{case} {format_size(size)}" if case in swept else case for case, size in cases)
    return Grid(caption=wire, rows=tuple(rows), groups=_groups(columns))


def soak(report: RunReport) -> Grid | None:
    """Return the paths of a soak whose worst sample was farthest from their median, and when it was taken."""
    found = [
        (m, m.bandwidth_gb_s.min / m.bandwidth_gb_s.median)
        for m in report.measurements
        if m.slowest_at_s is not None and m.bandwidth_gb_s is not None
    ]
    if not found:
        return None
    worst = sorted(found, key=lambda pair: pair[1])[:_WORST]
    rows = [(m, m.bandwidth_gb_s, m.slowest_at_s or 0) for m, _ in worst if m.bandwidth_gb_s is not None]
    columns = {
        "median": [f"{summary.median:.2f}" for _, summary, _ in rows],
        "least": [f"{summary.min:.2f}" for _, summary, _ in rows],
        "at": [f"{at_s:.0f} s" for _, _, at_s in rows],
    }
    return Grid(
        caption=f"Worst of {report.wall_s:.0f} s (GB/s)",
        rows=tuple(f"{m.case} {m.path if len(m.flows) < _FEW else ''}".rstrip() for m, _, _ in rows),
        groups=_groups(columns),
    )


def _groups(columns: Mapping[str, Sequence[str]]) -> tuple[tuple[Line, ...], ...]:
    return tuple(
        (Line(header=(name,), cells=tuple(Cell(text=text) for text in texts)),) for name, texts in columns.items()
    )


def _paths(
    cells: Mapping[MemoryKind, Mapping[tuple[str, str], Measurement]], order: Sequence[str]
) -> list[tuple[str, str]]:
    places = {label: place for place, label in enumerate(order)}
    return sorted({path for those in cells.values() for path in those}, key=lambda path: [places[p] for p in path])


def _cell(measurement: Measurement | None) -> Cell:
    return EMPTY if measurement is None else cell(measurement, 0)


def _what_is_host_numa(cells: dict[MemoryKind, dict[tuple[str, str], Measurement]]) -> str:
    egm = {m.flows[0].route.egm for kind, those in cells.items() if kind in NUMA_MEMORY for m in those.values()}
    if egm == {Egm.YES}:
        return "VMM and pool are EGM; the others are not"
    return "VMM and pool are HOST_NUMA memory, " + ("not EGM" if egm == {Egm.NO} else "EGM where the matrices say so")


def _values(measurement: Measurement) -> Iterator[tuple[str, float, float | None]]:
    """Yield the links, what was measured over them, and their nominal rate."""
    if measurement.pattern in _ALONE and measurement.flows_gb_s:
        for flow, found in zip(measurement.flows, measurement.flows_gb_s, strict=True):
            yield flow.route.symbol, found.median, flow.route.at_most_gb_s
    elif measurement.bandwidth_gb_s is not None:
        # All flows share the link of one GPU, or the memory of a node.
        nominal = measurement.flows[0].route.at_most_gb_s if measurement.pattern in _ONE_LINK else None
        yield class_of(measurement).link, measurement.bandwidth_gb_s.median, nominal


def _spread(values: Sequence[float]) -> str:
    return f"{100 * (max(values) - min(values)) / max(values):.1f} %" if len(values) > 1 else "-"


def _percent(found: Sequence[tuple[float, float | None]]) -> str:
    shares = [value / rate for value, rate in found if rate]
    return f"{100 * median(shares):.0f} %" if shares else "-"
