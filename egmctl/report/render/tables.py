"""Tables and heat maps of a page. Shaded cells keep their numbers, and colours never carry a meaning alone."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import pairwise
from xml.etree.ElementTree import Element

from egmctl.report import document as doc
from egmctl.report.document import Align, Tone
from egmctl.report.render import figures
from egmctl.report.render.figures import DRAWN_CELLS, best, cells_of
from egmctl.report.render.page import arrows, element, words_html

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
    look = figures.shade(cell, matrix, best_of)
    classes = [] if look is None else [look]
    if not best_of and not column.wrap:
        classes.append("number" if column.align is Align.RIGHT else "whole")
    if cell.tone in _CLASSES and look is None:
        classes.append(_CLASSES[cell.tone])
    if cell.text == "-":
        classes.append("none")
    mark = element("span", f" {figures.SIGNS.get(cell.mark, cell.mark)}", class_="mark") if cell.mark else None
    return element("td", words_html(cell.text), mark, class_=" ".join(classes) or None)
