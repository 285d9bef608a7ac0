"""A run of the bench as text for people: one matrix a case, then whatever was not simply measured, with its reason."""

from __future__ import annotations

import textwrap
from collections import Counter
from collections.abc import Iterable, Iterator

from rich.text import Text

from egmctl.model.machine import Machine
from egmctl.model.measurement import Measurement, Quantity, RunReport, Status, Verification
from egmctl.report.bench_latency import latencies
from egmctl.report.bench_matrix import matrices
from egmctl.report.bench_soak import soak_lines
from egmctl.report.bench_summary import SUMMARY, SUMMARY_NOTE, side_by_side, soak, summary
from egmctl.report.bench_warnings import route_line, warnings
from egmctl.report.grid import Grid, columns_text, grid_text
from egmctl.report.table import DIM, HEADING, WIDTH, wrap
from egmctl.report.verdict_text import verdict_line, verdict_text
from egmctl.units import format_size, printable

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
_PATHS_SHOWN = 4


def bench_text(report: RunReport, machine: Machine | None = None) -> Text:
    """Render a report; direction is in each caption, and every cell that holds no plain number is explained below.

    Parameters
    ----------
    machine
        The one that was measured: its wires' nominal rates stand beside what was reached.
    """
    text = _head(report)
    for part in _tables(report, machine):
        text.append("\n").append_text(part)
    notes = [*filter(None, [route_line(report)]), *report.notes, *report.problems]
    for title, lines in (
        ("Not plainly measured", _exceptions(report)),
        ("Soak", soak_lines(report)),
        ("Warnings", warnings(report)),
        ("Notes", notes),
    ):
        if lines := list(lines):
            text.append(f"\n{title}\n", HEADING).append(_bullets(lines))
    if report.verdict is not None:
        text.append("\n").append_text(verdict_text(report, report.verdict))
    text.append(f"\n{_tally(report)}\n")
    if report.verdict is not None:
        text.append_text(verdict_line(report.verdict))
    return text


def grids(report: RunReport) -> Iterator[Grid]:
    """Yield the tables of what was measured, in the order of the cases."""
    order = [f"{kind}{node}" for kind in ("NUMA", "CPU") for node in report.numa_nodes]
    order += [gpu.label for gpu in report.gpus]
    bandwidths = [m for m in report.measurements if m.quantity is Quantity.BANDWIDTH]
    for case in dict.fromkeys(measurement.case for measurement in bandwidths):
        yield from matrices([m for m in bandwidths if m.case == case], order)
    yield from side_by_side(bandwidths, order)
    yield from latencies([m for m in report.measurements if m.quantity is Quantity.LATENCY], order)


def _tables(report: RunReport, machine: Machine | None) -> Iterator[Text]:
    yield from map(grid_text, grids(report))
    if (worst := soak(report)) is not None:
        yield grid_text(worst)
    if by_wire := list(summary(report, machine)):
        text = Text().append(f"{SUMMARY}\n", HEADING).append(wrap(SUMMARY_NOTE, ""), DIM)
        for grid in by_wire:
            text.append(f"{grid.caption}\n", DIM).append_text(columns_text(grid))
        yield text


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


def _exceptions(report: RunReport) -> Iterator[str]:
    """Give the reason of every cell that is not ``ok``; cells with the same reason share a line."""
    groups: dict[tuple[Status, str], list[Measurement]] = {}
    for measurement in report.measurements:
        if measurement.status is not Status.OK:
            groups.setdefault((measurement.status, measurement.reason or ""), []).append(measurement)
    for (status, reason), those in groups.items():
        cases = {m.case for m in those}
        if status is Status.WAIVED and len(those) == sum(m.case in cases for m in report.measurements):
            # Whole cases, which have no matrix.
            paths = list(dict.fromkeys(m.case for m in those))
        else:
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
