"""Tables of a run as HTML: shaded cells keep their numbers, and where a colour says something a word says it too."""

from __future__ import annotations

from collections.abc import Iterator
from xml.etree.ElementTree import Element

from egmctl.report.grid import Cell, Grid, lines
from egmctl.report.heat import Marks, best, legend, step
from egmctl.report.markup import element
from egmctl.report.plot import plot
from egmctl.report.table import BAD, DIM, WARN

_CLASSES = {BAD: "bad", WARN: "warn", DIM: "waived"}
_WIDE = 8
"""Columns from which a table may be wider than the page: it can then be scrolled by keyboard."""


def grid_html(grid: Grid, marks: Marks | None = None) -> Element:
    """Return a figure: the plot of a grid, where it has one, and its table."""
    body = _body(grid, marks or {})
    columns = list(lines(grid))
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
        element("tbody", body),
        class_="heat" if best(grid) is not None else "numbers",
    )
    wide = len(columns) >= _WIDE
    drawn = plot(grid.plot, grid.caption) if grid.plot and any(points for _, points in grid.plot.curves) else None
    return element(
        "figure",
        element("div", drawn, class_="scroll") if drawn is not None else None,
        element(
            "div",
            table,
            class_="scroll",
            tabindex="0" if wide else None,
            role="region" if wide else None,
            aria_label=grid.caption if wide else None,
        ),
        (element("p", line, class_="after") for line in grid.after),
        class_="grid wide" if wide or grid.plot else "grid",
    )


def legend_html(grids: list[Grid]) -> Element | None:
    """Return the key to the shades of some grids; ``None`` where none is shaded."""
    shade = next((grid.shade for grid in grids if grid.shade is not None), None)
    if shade is None:
        return None
    steps = [
        element("li", element("span", f"{place}", class_=f"swatch heat-{place}", aria_hidden="true"), f" {words}")
        for place, words in legend(shade)
    ]
    return element(
        "div", element("p", "Shade: how near a cell comes to the best of its table"), element("ul", steps), class_="key"
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


def _body(grid: Grid, marks: Marks) -> Iterator[Element]:
    top = best(grid)
    for place, row in enumerate(grid.rows):
        yield element(
            "tr",
            element("th", row, scope="row") if any(grid.rows) else None,
            (_cell(line.cells[place], grid, top, marks) for line in lines(grid)),
        )


def _cell(cell: Cell, grid: Grid, top: float | None, marks: Marks) -> Element:
    classes = [_CLASSES[cell.style]] if cell.style in _CLASSES else []
    if top is not None and grid.shade is not None and cell.value is not None:
        classes.append(f"heat-{step(cell.value, top, grid.shade)}")
    mark = marks.get(id(cell.of)) if cell.of is not None else None
    if mark is not None:
        classes.append(f"judged-{mark}")
    if cell.text == "-":
        return element("td", "-", class_="none")
    told = element("span", f" {mark}", class_="mark") if mark is not None else None
    return element("td", cell.text.rstrip(), told, class_=" ".join(classes) or None)
