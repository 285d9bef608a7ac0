"""Tables and heat maps of a page. Shaded cells keep their numbers, and colours never carry a meaning alone."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Mapping
from itertools import pairwise
from xml.etree.ElementTree import Element

from egmctl.report import document as doc
from egmctl.report.document import Align, Better, Tone
from egmctl.report.render.page import arrows, element, words_html

BOUNDS = (0.67, 0.85, 0.95)
"""The upper bounds of the shades, as shares of the best number: from 95 % on a cell has the lightest grey. One missing
link of 18 costs 5.6 %."""
SIGNS = {"!": "✕", "~": "▲"}
"""The signs of pages for the marks of cells that fail and warn."""

DRAWN_CELLS = 72 * 72
"""The maximum number of cells of a drawn matrix. The largest NVLink domain of one rack has 72 GPUs."""
_GRADES = {Tone.BAD: "bad", Tone.WARN: "warn", Tone.DIM: "dim"}
"""The classes of shades by grade."""
_CLASSES = {Tone.BAD: "bad", Tone.WARN: "warn", Tone.DIM: "waived", Tone.STRONG: "own"}
_FEW, _LONG, _MANY, _WIDE = 2, 5, 8, 12
"""The maximum number of columns of a heat map that is not stretched, and the numbers of columns from which a table
without shades takes the full width, a heat map has narrow cells, and it takes the full width."""
_STACKED, _LONG_NAME = 3, 16
_SCROLLED = {"tabindex": "0", "role": "group"}
"""The attributes of an element that can be scrolled with the keyboard."""


def matrix_html(matrix: doc.Matrix) -> Element:
    """Return a figure with the table of a matrix, or with a note if it has more than :data:`DRAWN_CELLS` cells."""
    if cells_of(matrix) > DRAWN_CELLS:
        too_many = f"{cells_of(matrix)} cells are too many to show: JSON and CSV have them."
        return element("figure", element("p", list(_caption(matrix))), element("p", too_many, class_="dim"))
    series, best_of = doc.columns(matrix), best(matrix)
    longest = max((len(doc.plain(row)) for row in matrix.rows), default=0)
    named = not best_of and len(series) >= _STACKED and longest > _LONG_NAME
    # Headings of several rows are wide words above narrow numbers.
    deep = not best_of and len(series) > _STACKED and any(len(column.header) > 1 for column in series)
    wide = len(series) >= (_WIDE if best_of else _LONG) or any(column.wrap for column in series) or named or deep
    # On a phone, rows with long names and several numbers have their names on lines of their own.
    stacked = named and all(len(column.header) == 1 for column in series)
    few = " few" if len(series) <= _FEW else ""
    many = " many" if len(series) >= _MANY else ""
    is_scrolled = wide or (bool(best_of) and len(series) >= _MANY)
    look = "rows stacked" if stacked else "rows"
    if best_of:
        look = f"heat{few}{many}"
    caption = None
    if matrix.caption:
        caption = element("caption", list(_caption(matrix)), class_="unseen" if matrix.headed else None)
    table = element(
        "table",
        caption,
        element("thead", list(_heads(matrix))),
        element("tbody", list(_body(matrix, best_of))),
        class_=look,
    )
    scrolled = element(
        "div",
        table,
        [element("p", line, class_="after") for line in matrix.after],
        class_="scroll",
        # Python's serializer leaves "<" in attributes as it is, which is no XML.
        aria_label=(matrix.caption or f"table by {matrix.corner or 'row'}").replace("<", " ") if is_scrolled else None,
        **_SCROLLED if is_scrolled else {},
    )
    return element("figure", scrolled, class_="wide" if wide else None)


def _caption(matrix: doc.Matrix) -> Iterator[Element]:
    yield element("strong", arrows(matrix.caption))
    if matrix.names:
        yield element("span", matrix.names, class_="case")
    for note in matrix.notes:
        yield element("span", arrows(note), class_="note")


def _heads(matrix: doc.Matrix) -> Iterator[Element]:
    """Yield the header rows. A heading spans the following columns of its group that have none in that row."""
    depth = max([len(column.header) for column in doc.columns(matrix)] + [bool(matrix.corner)])
    for row in range(depth):
        last = row == depth - 1
        corner = element("th", matrix.corner, scope="col") if matrix.corner and last else element("td")
        cells = [corner] if any((matrix.corner, *matrix.rows)) else []
        for group in matrix.groups:
            # Headings are aligned with the bottom row.
            texts = [("", *column.header)[max(row - depth + len(column.header) + 1, 0)] for column in group]
            starts = [number for number, text in enumerate(texts) if text or number == 0]
            for start, end in pairwise([*starts, len(texts)]):
                span = end - start if end - start > 1 else None
                scope = None
                if texts[start]:
                    scope = "colgroup" if span else "col"
                look = "number" if scope == "col" and group[start].align is Align.RIGHT else None
                head = element("th" if scope else "td", arrows(texts[start]), scope=scope, colspan=span, class_=look)
                cells.append(head)
        yield element("tr", cells)


def _body(matrix: doc.Matrix, best_of: Mapping[str, float]) -> Iterator[Element]:
    for place, row in enumerate(matrix.rows):
        cells = [(column, column.cells[place]) for column in doc.columns(matrix)]
        # A row whose cells are all empty is a heading of the rows below it.
        look = None if any(cell.text for _, cell in cells) else "strong"
        yield element(
            "tr",
            element("th", words_html(row), scope="row", class_=look) if any((matrix.corner, *matrix.rows)) else None,
            [_cell(column, cell, matrix, best_of) for column, cell in cells],
        )


def _cell(column: doc.Series, cell: doc.Cell, matrix: doc.Matrix, best_of: Mapping[str, float]) -> Element:
    look = shade(cell, matrix, best_of)
    classes = [] if look is None else [look]
    if not best_of and not column.wrap:
        classes.append("number" if column.align is Align.RIGHT else "whole")
    if cell.tone in _CLASSES and look is None:
        classes.append(_CLASSES[cell.tone])
    if cell.text == "-":
        classes.append("none")
    mark = element("span", f" {SIGNS.get(cell.mark, cell.mark)}", class_="mark") if cell.mark else None
    return element("td", words_html(cell.text), mark, class_=" ".join(classes) or None)


def best(matrix: doc.Matrix) -> dict[str, float]:
    """Return the best number of each kind of cell in a matrix; empty if the matrix is not shaded."""
    best_of: dict[str, float] = {}
    better = max if matrix.better is Better.HIGH else min
    for cell in (cell for series in doc.columns(matrix) for cell in series.cells):
        if matrix.better is not None and cell.value:
            best_of[cell.kind] = better(best_of.get(cell.kind, cell.value), cell.value)
    return best_of


def shade(cell: doc.Cell, matrix: doc.Matrix, best_of: Mapping[str, float]) -> str | None:
    """Return the class of a cell's shade: grey or the colour of its grade, stronger the farther it is from the best."""
    if not cell.value or cell.kind not in best_of:
        return None
    most = best_of[cell.kind]
    share = cell.value / most if matrix.better is Better.HIGH else most / cell.value
    return f"heat-{_GRADES.get(cell.tone, 'fine')}-{bisect_right(BOUNDS, share)}"


def cells_of(matrix: doc.Matrix) -> int:
    """Return the number of cells of a matrix."""
    return len(matrix.rows) * sum(map(len, matrix.groups))
