"""A run of the bench as text for people: one matrix a case, then whatever was not simply measured, with its reason."""

from __future__ import annotations

import textwrap
from collections import Counter
from collections.abc import Iterable, Iterator

from rich.text import Text

from egmctl.model.measurement import RunReport, Status
from egmctl.report.bench_fold import FOLDED_ABOVE, folded
from egmctl.report.bench_kernel import kernel_line
from egmctl.report.bench_parts import exceptions, grids, how, tally
from egmctl.report.bench_soak import soak_lines
from egmctl.report.bench_summary import SUMMARY, soak, summary, summary_note
from egmctl.report.bench_warnings import route_line, warnings
from egmctl.report.grid import columns_text, grid_text
from egmctl.report.heat import branded, marks
from egmctl.report.table import DIM, HEADING, WIDTH, trimmed, wrap
from egmctl.report.verdict_text import verdict_line, verdict_text
from egmctl.units import printable

_PATHS_SHOWN = 4


def bench_text(report: RunReport) -> Text:
    """Render a report; direction is in each caption, and every cell that holds no plain number is explained below."""
    text = _head(report)
    for part in _tables(report):
        text.append("\n").append_text(part)
    notes = [*filter(None, [route_line(report), kernel_line(report)]), *report.notes, *report.problems]
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
    text.append(f"\n{'INTERRUPTED, partial report: ' if report.interrupted else ''}{tally(report)}\n")
    if report.verdict is not None:
        text.append_text(verdict_line(report.verdict))
    return trimmed(text)


def _tables(report: RunReport) -> Iterator[Text]:
    marked = marks(report)
    for grid in folded(report) if len(report.ranks) > FOLDED_ABOVE else grids(report):
        yield grid_text(branded(grid, marked))
    if (worst := soak(report)) is not None:
        yield grid_text(worst)
    if by_wire := list(summary(report)):
        text = Text().append(f"{SUMMARY}\n", HEADING).append(wrap(summary_note(by_wire), ""), DIM)
        for grid in by_wire:
            text.append(f"{grid.caption}\n", DIM).append_text(columns_text(grid))
        yield text


def _head(report: RunReport) -> Text:
    names = Counter(printable(gpu.name or "GPU of unknown name") for gpu in report.gpus)
    driver = printable(report.driver_version or "unknown")
    version = report.cuda_driver_version
    cuda = f" (CUDA {version // 1000}.{version % 1000 // 10})" if version else ""
    text = Text()
    text.append("Bench: ", HEADING)
    text.append(f"{', '.join(f'{count} x {name}' for name, count in names.items())}, driver {driver}{cuda}\n")
    text.append(_wrap(", ".join(how(report))), DIM)
    nodes = {rank.label.partition(":")[0]: rank.host for rank in report.ranks if ":" in rank.label}
    if nodes:
        told = ", ".join(f"{node} is {printable(host or 'not known')}" for node, host in nodes.items())
        text.append(_wrap(f"{len(nodes)} nodes: {told}"), DIM)
    return text


def _exceptions(report: RunReport) -> Iterator[str]:
    """Give the reason of every cell that is not ``ok``; cells with the same reason share a line."""
    for status, reason, paths in exceptions(report):
        more = f" and {len(paths) - _PATHS_SHOWN} more" * (len(paths) > _PATHS_SHOWN)
        mark = "* " if status is Status.UNSTABLE else ""
        yield f"{mark}{', '.join(paths[:_PATHS_SHOWN])}{more}: {status}: {printable(reason)}"


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
