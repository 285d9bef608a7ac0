"""Tables of a run as HTML: shaded cells keep their numbers, and where a colour says something a word says it too."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from xml.etree.ElementTree import Element

from egmctl.report.grid import Cell, Grid, Shade, lines
from egmctl.report.heat import Marks, best, legend, step_of
from egmctl.report.markup import element
from egmctl.report.plot import plot
from egmctl.report.table import BAD, DIM, WARN

_CLASSES = {BAD: "bad", WARN: "warn", DIM: "waived"}
_FEW, _WIDE = 2, 8
"""Columns up to which a table is not stretched, and from which it may be wider than the page: then it can be scrolled
by keyboard."""


def grid_html(grid: Grid, marks: Marks | None = None) -> Element:
    """Return a figure: the plot of a grid, where it has one, and its table."""
    columns, best_of = list(lines(grid)), best(grid)
    depth = max((len(line.header) for line in columns), default=1)
    head = [
        element(
            "tr",
            element("td") if any(grid.rows) else None,
            (element("th", arrows(_header(line.header, row, depth)), scope="col") for line in columns),
        )
        for row in range(depth)
    ]
    table = element(
        "table",
        element("caption", _caption(grid)),
        element("thead", head),
        element("tbody", _body(grid, best_of, marks or {})),
        class_=f"heat{' few' if len(columns) <= _FEW else ''}" if best_of else "numbers",
    )
    wide = len(columns) >= _WIDE
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
        class_=" ".join(filter(None, ("grid", "wide" if wide else "", "plotted" if drawn is not None else ""))),
    )


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


def arrows(text: str) -> str:
    """Write the arrows of captions and paths as characters."""
    return text.replace("<->", "↔").replace("->", "→").replace("<-", "←").replace(">=", "≥").replace("<=", "≤")


def _caption(grid: Grid) -> Iterator[Element]:
    yield element("strong", arrows(grid.caption))
    if grid.names:
        yield element("span", grid.names, class_="case")
    for note in grid.notes:
        yield element("span", arrows(note), class_="note")


def _header(header: tuple[str, ...], row: int, depth: int) -> str:
    """Return the line of a header that stands in ``row``: the last one is right above the cells."""
    place = row - (depth - len(header))
    return header[place] if place >= 0 else ""


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
    mark = marks.get(id(cell.of)) if cell.of is not None else None
    if mark is not None:
        classes.append(f"judged-{mark}")
    if cell.text == "-":
        return element("td", "-", class_="none")
    told = element("span", f" {mark}", class_="mark") if mark is not None else None
    return element("td", cell.text.rstrip(), told, class_=" ".join(classes) or None)
