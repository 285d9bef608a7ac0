"""What every form of a run tells: its tables, how it was measured, and why some was not plainly measured."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence

from egmctl.model.measurement import Engine, Measurement, Quantity, RunReport, Status, Verification
from egmctl.report.bench_ipc import beside, life_cycles
from egmctl.report.bench_latency import latencies
from egmctl.report.bench_matrix import matrices
from egmctl.report.bench_rdma import messages
from egmctl.report.bench_summary import side_by_side
from egmctl.report.grid import EMPTY, Grid, lines
from egmctl.units import format_size

_FEW = 3
"""Numbers of copies that are told one by one."""
_GATING = {
    "kernel": "held back by a gate kernel until all are queued",
    "stream-wait": "held back by a stream wait until all are queued",
    "none": "not held back: the time holds their queueing",
}
_VERIFICATION = {
    Verification.GPU_EVERY_SAMPLE: "verified after every sample on the GPU",
    Verification.HOST_FIRST_AND_LAST_SAMPLE: "verified after the first and the last sample on the host",
    Verification.CHECKSUM_EVERY_SAMPLE: "what is only read or only written by its checksum",
    Verification.WALK_EVERY_SAMPLE: "each walk verified by where it ended",
}


def grids(report: RunReport) -> Iterator[Grid]:
    """Yield the tables of what was measured: bandwidths by case, kinds of host memory side by side, latencies."""
    order = _order(report)
    bandwidths = [m for m in report.measurements if m.quantity is Quantity.BANDWIDTH]
    yield from _grids(bandwidths, order)
    yield from side_by_side(bandwidths, order)
    yield from _grids([m for m in report.measurements if m.quantity is Quantity.LATENCY], order)
    yield from life_cycles(report.measurements)
    yield from beside(report)


def families(report: RunReport) -> Iterator[tuple[str, list[Grid]]]:
    """Yield the tables of each family, in the order in which they were measured; none of what was waived."""
    order = _order(report)
    for family in dict.fromkeys(m.family for m in report.measurements):
        found = list(_grids([m for m in report.measurements if m.family == family], order))
        if family == "host":
            found += side_by_side([m for m in report.measurements if m.quantity is Quantity.BANDWIDTH], order)
        if family == "ipc":
            found += [*life_cycles(report.measurements), *beside(report)]
        if measured := [grid for grid in found if not _is_waived(grid)]:
            yield family, measured


def _is_waived(grid: Grid) -> bool:
    cells = [cell for line in lines(grid) for cell in line.cells if cell.text != EMPTY.text]
    return all(cell.of is not None and cell.of.status is Status.WAIVED for cell in cells)


def how(report: RunReport) -> list[str]:
    """Return how everything was measured, in a few words each."""
    settings = report.settings
    told = [
        f"buffers of {format_size(settings.size_bytes)}",
        f"median of {settings.samples} sample{'s' * (settings.samples != 1)}",
    ]
    measured = [m for m in report.measurements if m.samples]
    if copies := sorted({m.copies for m in measured if m.quantity is Quantity.BANDWIDTH}):
        times = " or ".join(map(str, copies)) if len(copies) <= _FEW else f"{copies[0]} to {copies[-1]}"
        told.insert(1, f"copied {times} times a sample")
    told += dict.fromkeys(_GATING[m.gating] for m in measured if m.gating in _GATING)
    told += dict.fromkeys(_VERIFICATION[m.verification] for m in measured if m.verification)
    return told


def exceptions(report: RunReport) -> Iterator[tuple[Status, str, list[str]]]:
    """Yield status and reason of what is not ``ok``, and what it is: whole cases where they were waived, else paths.

    The first path of each case has the case's name before it: many cases take the same paths.
    """
    groups: dict[tuple[Status, str], list[Measurement]] = {}
    for measurement in report.measurements:
        if measurement.status is not Status.OK:
            groups.setdefault((measurement.status, measurement.reason or ""), []).append(measurement)
    for (status, reason), those in groups.items():
        cases = list(dict.fromkeys(m.case for m in those))
        whole = status is Status.WAIVED and len(those) == sum(m.case in cases for m in report.measurements)
        if whole:
            yield status, reason, cases
            continue
        paths = {case: list(dict.fromkeys(m.path for m in those if m.case == case)) for case in cases}
        yield status, reason, [f"{case} {path}" if path == of[0] else path for case, of in paths.items() for path in of]


def tally(report: RunReport) -> str:
    """Return how many measurements ended how."""
    counts = Counter(measurement.status for measurement in report.measurements)
    words = ", ".join(f"{counts[status]} {status}" for status in Status if counts[status])
    return f"{len(report.measurements)} measurements: {words or 'none'}"


def _grids(measurements: Sequence[Measurement], order: Sequence[str]) -> Iterator[Grid]:
    by_ucx = [m for m in measurements if m.engine is Engine.UCX]
    measurements = [m for m in measurements if m.engine is not Engine.UCX]
    bandwidths = [m for m in measurements if m.quantity is Quantity.BANDWIDTH]
    for case in dict.fromkeys(measurement.case for measurement in bandwidths):
        yield from matrices([m for m in bandwidths if m.case == case], order)
    yield from latencies([m for m in measurements if m.quantity is Quantity.LATENCY], order)
    yield from messages(by_ucx)


def _order(report: RunReport) -> list[str]:
    """Return the labels of the ends, as rows and columns are ordered."""
    return [
        *(f"{kind}{node}" for kind in ("NUMA", "CPU") for node in report.numa_nodes),
        *(gpu.label for gpu in report.gpus),
        *(f"{rank.label}:NUMA{rank.numa_node}" for rank in report.ranks),
    ]
