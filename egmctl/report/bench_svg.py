"""The matrices and curves of a run as one picture."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from xml.etree.ElementTree import Element

from egmctl.model.measurement import RunReport
from egmctl.report.bench_html import banners
from egmctl.report.bench_parts import families
from egmctl.report.grid import DRAWN_CELLS, Cell, Grid, cells_of, lines
from egmctl.report.heat import Marks, best, mark_of, marks, step_of
from egmctl.report.markup import arrows, element
from egmctl.report.plot import plot
from egmctl.report.render.svg import stack
from egmctl.report.table import BAD, DIM, WARN

_CELL, _ROW, _LABEL, _LINE = 84.0, 30.0, 84.0, 18.0
_STRONG, _DIM = 8.8, 7.2
"""Pixels that a letter takes at most, on the average."""
_CLASSES = {BAD: "bad", WARN: "warn", DIM: "dim"}


def bench_svg(report: RunReport) -> str:
    """Return the document: a heat map for each matrix, a plot for each curve."""
    marked = marks(report)
    figures = []
    for grid in (grid for _, grids in families(report) for grid in grids):
        if cells_of(grid) > DRAWN_CELLS:
            continue
        if grid.shade is not None:
            figures.append(_heat_map(grid, marked))
        elif grid.plot is not None and any(curve for _, curve in grid.plot.curves):
            figures += [_heading(grid), plot(grid.plot, grid.caption)]
    return stack("egmctl bench", banners(report), figures)


def _heading(grid: Grid) -> Element:
    texts = list(_words(grid))
    return element("svg", texts, width=_width(grid), height=len(texts) * _LINE, overflow="visible")


def _heat_map(grid: Grid, marked: Marks) -> Element:
    words = list(_words(grid))
    columns, best_of = list(lines(grid)), best(grid)
    depth = max((len(line.header) for line in columns), default=1)
    top = len(words) * _LINE + 6
    body = top + depth * _LINE
    parts = [
        element("text", text, x=_LABEL + (place + 0.5) * _CELL, y=top + (row + 0.7) * _LINE, class_="dim middle")
        for place, line in enumerate(columns)
        for row, text in enumerate(line.header, depth - len(line.header))
    ]
    for place, row in enumerate(grid.rows):
        y = body + place * _ROW
        parts.append(element("text", row, x=0, y=y + 19, class_="dim"))
        for number, line in enumerate(columns):
            parts += _cell(line.cells[place], grid, best_of, marked, _LABEL + number * _CELL, y)
    height = body + len(grid.rows) * _ROW
    for after in grid.after:
        height += _LINE
        parts.append(element("text", after, x=_LABEL, y=height - 2, class_="dim"))
    return element(
        "svg",
        element("title", grid.caption),
        words,
        parts,
        class_="figure",
        width=_width(grid),
        height=height + 4,
        overflow="visible",
    )


def _cell(cell: Cell, grid: Grid, best_of: Mapping[str, float], marked: Marks, x: float, y: float) -> Iterator[Element]:
    style = _CLASSES.get(cell.style, "dim" if cell.text == "-" else "")
    mark = mark_of(cell, marked)
    if (place := step_of(cell, best_of, grid.shade)) is not None:
        yield element("rect", x=x, y=y, width=_CELL - 2, height=_ROW - 2, rx=4, class_=f"heat-{place}")
        style = f"on-heat-{place}"
    if mark is not None:
        ring = f"ring-{'bad' if mark == 'fail' else 'warn'}"
        yield element("rect", x=x + 1, y=y + 1, width=_CELL - 4, height=_ROW - 4, rx=4, class_=ring)
    text = f"{cell.text} {mark}" if mark is not None else cell.text
    yield element("text", text, x=x + _CELL / 2 - 1, y=y + 19, class_=f"middle {style}".strip())


def _words(grid: Grid) -> Iterator[Element]:
    words = [
        (arrows(grid.caption), "strong"),
        *((text, "dim") for text in (grid.names, *map(arrows, grid.notes)) if text),
    ]
    for place, (text, look) in enumerate(words, 1):
        yield element("text", text, x=0, y=place * _LINE - 4, class_=look)


def _width(grid: Grid) -> float:
    told = max((len(text) for text in (grid.names, *grid.notes)), default=0)
    return max(_LABEL + len(list(lines(grid))) * _CELL, _STRONG * len(grid.caption), _DIM * told)
