"""A table of measurements as data: every form of a report draws the same grids, each in its own way."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from rich.text import Text

from egmctl.compat import StrEnum
from egmctl.model.measurement import Measurement, Status
from egmctl.report.table import BAD, DIM, HEADING, WARN, Column, table, wrap


class Shade(StrEnum):
    """What is good of the numbers of a grid that may be shaded as a heat map."""

    HIGH = "high"
    """Bandwidths."""
    LOW = "low"
    """Latencies."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Cell:
    """One cell."""

    text: str = "-"
    style: str = ""
    """As in :mod:`egmctl.report.table`."""
    value: float | None = None
    """The number, where it may be set against the grid's others."""
    wire: str = ""
    """The way of its bytes: numbers are set against those of the same way."""
    of: Measurement | None = None
    """Whose it is; ``None`` where it is of several."""


EMPTY = Cell()


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """One column: what stands above it, and its cells from top to bottom."""

    header: tuple[str, ...]
    cells: tuple[Cell, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Point:
    """One point of a curve, with the span of what it is the median of."""

    x: float
    y: float
    low: float
    high: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Plot:
    """Curves; what an axis shows has its unit in its name."""

    x: str
    y: str
    curves: tuple[tuple[str, tuple[Point, ...]], ...]
    """By name."""
    sizes: bool = False
    """``x`` are bytes, drawn by their logarithm."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Grid:
    """A table with a caption that tells the direction and the unit."""

    caption: str
    names: str = ""
    """The cases."""
    notes: tuple[str, ...] = ()
    """One sentence each: the wires, how it was measured."""
    rows: tuple[str, ...]
    groups: tuple[tuple[Line, ...], ...]
    """Columns; those of a group stay together."""
    after: tuple[str, ...] = ()
    """Lines below the table."""
    shade: Shade | None = None
    """``None`` where the cells are no numbers of one kind."""
    plot: Plot | None = None


STYLES = {Status.OK: "", Status.UNSTABLE: WARN, Status.WAIVED: DIM}
"""Of a measurement's cell; the others are bad."""


def style_of(measurement: Measurement) -> str:
    """Return the style of a measurement's cell."""
    return STYLES.get(measurement.status, BAD)


def grid_text(grid: Grid) -> Text:
    """Render a grid for people: caption, cases and notes, then the aligned table."""
    text = Text().append(wrap(grid.caption, ""), HEADING)
    if grid.names:
        text.append(f"{grid.names}\n", DIM)
    text.append("".join(wrap(note, "") for note in grid.notes), DIM)
    return text.append_text(columns_text(grid)).append("".join(f"{line}\n" for line in grid.after))


def columns_text(grid: Grid) -> Text:
    """Render the table alone."""
    return table(grid.rows, [[_column(line) for line in group] for group in grid.groups])


DRAWN_CELLS = 72 * 72
"""Larger tables are not drawn: 72 are the GPUs of the largest NVLink domain of one rack."""


def cells_of(grid: Grid) -> int:
    """Return the number of a grid's cells."""
    return len(grid.rows) * sum(map(len, grid.groups))


def lines(grid: Grid) -> Iterator[Line]:
    """Yield the columns of all groups."""
    for group in grid.groups:
        yield from group


def square(
    cells: dict[tuple[str, str], Cell], order: Sequence[str], totals: dict[str, Cell] | None = None
) -> tuple[tuple[str, ...], tuple[tuple[Line, ...], ...]]:
    """Lay out cells by row and column in the order of their labels, and beside each row its sum.

    Returns
    -------
    tuple
        The rows and the groups of a :class:`Grid`.
    """
    places = {label: place for place, label in enumerate(order)}
    rows, columns = (
        sorted(dict.fromkeys(labels), key=lambda label: places.get(label, len(places)))
        for labels in ((row for row, _ in cells), (column for _, column in cells))
    )
    groups = [
        (Line(header=(column,), cells=tuple(cells.get((row, column), EMPTY) for row in rows)),) for column in columns
    ]
    if totals:
        groups.append((Line(header=("sum",), cells=tuple(totals.get(row, EMPTY) for row in rows)),))
    return tuple(rows), tuple(groups)


def _column(line: Line) -> Column:
    styles = {cell.text: cell.style for cell in line.cells}
    return Column([cell.text for cell in line.cells], line.header, ">", styles)
