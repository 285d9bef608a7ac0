"""Matrices as HTML: shaded cells keep their numbers, and where a colour says something a sign says it too."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from xml.etree.ElementTree import Element

from egmctl.report.document import Better, Cell, Matrix, Tone, columns
from egmctl.report.render.heat import DRAWN_CELLS, best, cells_of, legend, step_of
from egmctl.report.render.markup import arrows, element

_CLASSES = {Tone.BAD: "bad", Tone.WARN: "warn", Tone.DIM: "waived"}
_FEW, _LONG, _WIDE = 2, 5, 12
"""Columns up to which a heat map is not stretched; from which a table without shades takes the whole width; and from
which a heat map does and can be scrolled by keyboard."""


def matrix_html(matrix: Matrix) -> Element:
    """Return a figure with the table of a matrix."""
    if cells_of(matrix) > DRAWN_CELLS:
        told = f"{cells_of(matrix)} cells are too many to show: JSON and CSV have them."
        return element("figure", element("p", list(_caption(matrix))), element("p", told, class_="dim"))
    series, best_of = columns(matrix), best(matrix)
    depth = max((len(one.header) for one in series), default=1)
    head = [
        element("tr", element("td") if any(matrix.rows) else None, list(_heads(matrix, row, depth)))
        for row in range(depth)
    ]
    table = element(
        "table",
        element("caption", list(_caption(matrix))),
        element("thead", head),
        element("tbody", list(_body(matrix, best_of))),
        class_=f"heat{' few' if len(series) <= _FEW else ''}" if best_of else "numbers",
    )
    wide = len(series) >= (_WIDE if best_of else _LONG)
    return element(
        "figure",
        element(
            "div",
            table,
            [element("p", line, class_="after") for line in matrix.after],
            class_="scroll",
            tabindex="0" if wide else None,
            role="region" if wide else None,
            aria_label=matrix.caption if wide else None,
        ),
        class_="wide" if wide else None,
    )


def legend_html(better: Better) -> Element:
    """Return the key to the shades of bandwidths or latencies."""
    steps = [
        element("li", element("span", class_=f"swatch heat-{place}", aria_hidden="true"), f" {words}")
        for place, words in legend(better)
    ]
    return element(
        "div",
        element("p", "The stronger the shade, the nearer a cell comes to the best over the same links in its table:"),
        element("ul", steps),
        class_="key",
    )


def _caption(matrix: Matrix) -> Iterator[Element]:
    yield element("strong", arrows(matrix.caption))
    if matrix.names:
        yield element("span", matrix.names, class_="case")
    for note in matrix.notes:
        yield element("span", arrows(note), class_="note")


def _heads(matrix: Matrix, row: int, depth: int) -> Iterator[Element]:
    """Yield the headings of one row, each over the columns of its group that have none there; the last row is right
    above the cells."""
    for group in matrix.groups:
        texts = [one.header[place] if (place := row - depth + len(one.header)) >= 0 else "" for one in group]
        starts = [number for number, text in enumerate(texts) if text or number == 0]
        for start, end in zip(starts, [*starts[1:], len(texts)], strict=True):
            if not texts[start]:
                yield element("td", colspan=end - start if end - start > 1 else None)
            elif end - start > 1:
                yield element("th", arrows(texts[start]), scope="colgroup", colspan=end - start)
            else:
                yield element("th", arrows(texts[start]), scope="col")


def _body(matrix: Matrix, best_of: Mapping[str, float]) -> Iterator[Element]:
    for place, row in enumerate(matrix.rows):
        cells = [one.cells[place] for one in columns(matrix)]
        # A row without cells is a heading of those below it.
        look = None if any(cell.text for cell in cells) else "strong"
        yield element(
            "tr",
            element("th", row, scope="row", class_=look) if any(matrix.rows) else None,
            [_cell(cell, matrix, best_of) for cell in cells],
        )


def _cell(cell: Cell, matrix: Matrix, best_of: Mapping[str, float]) -> Element:
    step = step_of(cell, best_of, matrix.better)
    classes = [] if step is None else [f"heat-{step}"]
    if cell.tone in _CLASSES:
        # A number keeps its shade, and is framed.
        classes.append(_CLASSES[cell.tone] if step is None else f"judged-{_FRAMES[cell.tone]}")
    if cell.text == "-":
        return element("td", "-", class_="none")
    mark = element("span", f" {cell.mark}", class_="mark") if cell.mark else None
    return element("td", cell.text.rstrip(), mark, class_=" ".join(classes) or None)


_FRAMES = {Tone.BAD: "fail", Tone.WARN: "warn", Tone.DIM: "none"}
