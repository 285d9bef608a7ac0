"""Tables of a run as HTML: shaded cells keep their numbers, and where a colour says something a word says it too."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from xml.etree.ElementTree import Element

from egmctl.report.grid import DRAWN_CELLS, Cell, Grid, Shade, cells_of, lines
from egmctl.report.heat import Marks, best, legend, mark_of, step_of
from egmctl.report.markup import arrows, element
from egmctl.report.plot import plot
from egmctl.report.table import BAD, DIM, WARN

_CLASSES = {BAD: "bad", WARN: "warn", DIM: "waived"}
_FEW, _LONG, _DENSE, _WIDE = 2, 5, 7, 12
"""Columns up to which a heat map is not stretched; from which a table without shades takes the whole width; from which
heat maps get wider columns of the page; and from which they take the whole width and can be scrolled by keyboard."""


def grid_html(grid: Grid, marks: Marks | None = None) -> Element:
    """Return a figure: the plot of a grid, where it has one, and its table."""
    if cells_of(grid) > DRAWN_CELLS:
        told = f"{cells_of(grid)} cells are too many to be looked at: JSON and CSV have them."
        return element("figure", element("p", _caption(grid)), element("p", told, class_="dim"))
    columns, best_of = list(lines(grid)), best(grid)
    depth = max((len(line.header) for line in columns), default=1)
    head = [element("tr", element("td") if any(grid.rows) else None, _heads(grid, row, depth)) for row in range(depth)]
    table = element(
        "table",
        element("caption", _caption(grid)),
        element("thead", head),
        element("tbody", _body(grid, best_of, marks or {})),
        class_=f"heat{' few' if len(columns) <= _FEW else ''}" if best_of else "numbers",
    )
    wide = len(columns) >= (_WIDE if best_of else _LONG)
    drawn = plot(grid.plot, grid.caption) if grid.plot and any(points for _, points in grid.plot.curves) else None
    return element(
        "figure",
        element(
            "div",
            table,
            (element("p", line, class_="after") for line in grid.after),
            class_="scroll",
            tabindex="0" if wide else None,
            role="region" if wide else None,
            aria_label=grid.caption if wide else None,
        ),
        element("div", drawn, class_="scroll drawn") if drawn is not None else None,
        class_="plotted" if drawn is not None else "wide" if wide else None,
    )


def grids_html(grids: Sequence[Grid], marks: Marks) -> Element:
    """Return several grids, beside each other as far as the page is wide enough."""
    broad = any(_DENSE <= len(list(lines(grid))) < _WIDE for grid in grids)
    return element("div", (grid_html(grid, marks) for grid in grids), class_="grids broad" if broad else "grids")


def legend_html(shade: Shade) -> Element:
    """Return the key to the shades of bandwidths or latencies."""
    steps = [
        element("li", element("span", class_=f"swatch heat-{place}", aria_hidden="true"), f" {words}")
        for place, words in legend(shade)
    ]
    return element(
        "div",
        element("p", "The stronger the shade, the nearer a cell comes to the best of the same wire in its table:"),
        element("ul", steps),
        class_="key",
    )


def _caption(grid: Grid) -> Iterator[Element]:
    yield element("strong", arrows(grid.caption))
    if grid.names:
        yield element("span", grid.names, class_="case")
    for note in grid.notes:
        yield element("span", arrows(note), class_="note")


def _heads(grid: Grid, row: int, depth: int) -> Iterator[Element]:
    """Yield the headings of one row, each over the columns of its group that have none there; the last row is right
    above the cells."""
    for group in grid.groups:
        texts = [line.header[place] if (place := row - depth + len(line.header)) >= 0 else "" for line in group]
        starts = [number for number, text in enumerate(texts) if text or number == 0]
        for start, end in zip(starts, [*starts[1:], len(texts)], strict=True):
            if not texts[start]:
                yield element("td", colspan=end - start if end - start > 1 else None)
            elif end - start > 1:
                yield element("th", arrows(texts[start]), scope="colgroup", colspan=end - start)
            else:
                yield element("th", arrows(texts[start]), scope="col")


def _body(grid: Grid, best_of: Mapping[str, float], marks: Marks) -> Iterator[Element]:
    for place, row in enumerate(grid.rows):
        yield element(
            "tr",
            element("th", row, scope="row") if any(grid.rows) else None,
            (_cell(line.cells[place], step_of(line.cells[place], best_of, grid.shade), marks) for line in lines(grid)),
        )


def _cell(cell: Cell, step: int | None, marks: Marks) -> Element:
    classes = [_CLASSES[cell.style]] if cell.style in _CLASSES else []
    if step is not None:
        classes.append(f"heat-{step}")
    mark = mark_of(cell, marks)
    if mark is not None:
        classes.append(f"judged-{mark}")
    if cell.text == "-":
        return element("td", "-", class_="none")
    told = element("span", f" {mark}", class_="mark") if mark is not None else None
    return element("td", cell.text.rstrip(), told, class_=" ".join(classes) or None)
