"""Pictures as SVG: a scene, the curves of a chart, a matrix as a heat map, and several of them in one file."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from xml.etree.ElementTree import Element

from egmctl.report.document import Cell, Chart, Matrix, Tone, columns
from egmctl.report.render.heat import best, step_of
from egmctl.report.render.markup import arrows, element
from egmctl.report.render.plot import plot
from egmctl.report.scene import Anchor, Box, Label, Line, Scene

_CELL, _ROW, _LABEL, _LINE = 84.0, 30.0, 84.0, 18.0
_STRONG, _DIM = 8.8, 7.2
"""Pixels that a letter takes at most, on the average."""
_CLASSES = {Tone.BAD: "bad", Tone.WARN: "warn", Tone.DIM: "dim"}
_DENSE, _WIDE = 7, 12
"""Columns from which heat maps get wider columns of the page, and from which they take the whole width."""


def is_broad(matrix: Matrix) -> bool:
    """Say whether a matrix needs more than half the width of a page."""
    return _DENSE <= len(columns(matrix)) < _WIDE


def diagram(scene: Scene) -> Element:
    """Return the drawing of a scene."""
    return element(
        "svg",
        element("title", scene.title),
        element("desc", "; ".join(scene.sentences)),
        [_shape(shape) for shape in scene.shapes],
        class_="figure topology",
        role="img",
        viewBox=f"0 0 {scene.width:g} {scene.height:g}",
        width=scene.width,
        height=scene.height,
    )


def _shape(shape: Box | Line | Label) -> Element:
    match shape:
        case Box():
            place = {"x": shape.x, "y": shape.y, "width": shape.width, "height": shape.height}
            return element("rect", **place, rx=shape.radius or None, class_=shape.look.value)
        case Line():
            first, *further = shape.points
            path = f"M{first[0]:.1f} {first[1]:.1f}" + "".join(f"L{x:.1f} {y:.1f}" for x, y in further)
            return element("path", d=path, class_=shape.look.value)
        case Label():
            anchor = "" if shape.anchor is Anchor.START else shape.anchor.value
            classes = " ".join(filter(None, (shape.look.value, anchor, "halo" if shape.halo else "")))
            return element("text", shape.text, x=shape.x, y=shape.y, class_=classes or None)


def chart(what: Chart) -> Element:
    """Return curves under their heading."""
    return plot(what)


def heat_map(matrix: Matrix) -> Element:
    """Return a matrix as a heat map."""
    words = list(_caption(matrix))
    series, best_of = columns(matrix), best(matrix)
    depth = max((len(one.header) for one in series), default=1)
    top = len(words) * _LINE + 6
    body = top + depth * _LINE
    parts = [
        element("text", text, x=_LABEL + (place + 0.5) * _CELL, y=top + (row + 0.7) * _LINE, class_="dim middle")
        for place, one in enumerate(series)
        for row, text in enumerate(one.header, depth - len(one.header))
    ]
    for place, row in enumerate(matrix.rows):
        y = body + place * _ROW
        parts.append(element("text", row, x=0, y=y + 19, class_="dim"))
        for number, one in enumerate(series):
            parts += _cell(one.cells[place], matrix, best_of, _LABEL + number * _CELL, y)
    height = body + len(matrix.rows) * _ROW
    for after in matrix.after:
        height += _LINE
        parts.append(element("text", after, x=_LABEL, y=height - 2, class_="dim"))
    told = max((len(text) for text in (matrix.names, *matrix.notes)), default=0)
    return element(
        "svg",
        element("title", matrix.caption),
        words,
        parts,
        class_="figure",
        width=max(_LABEL + len(series) * _CELL, _STRONG * len(matrix.caption), _DIM * told),
        height=height + 4,
        overflow="visible",
    )


def _cell(cell: Cell, matrix: Matrix, best_of: Mapping[str, float], x: float, y: float) -> Iterator[Element]:
    style = _CLASSES.get(cell.tone, "dim" if cell.text == "-" else "")
    if (place := step_of(cell, best_of, matrix.better)) is not None:
        yield element("rect", x=x, y=y, width=_CELL - 2, height=_ROW - 2, rx=4, class_=f"heat-{place}")
        style = f"on-heat-{place}"
        if cell.tone in (Tone.BAD, Tone.WARN):
            ring = f"ring-{_CLASSES[cell.tone]}"
            yield element("rect", x=x + 1, y=y + 1, width=_CELL - 4, height=_ROW - 4, rx=4, class_=ring)
    text = f"{cell.text} {cell.mark}".rstrip()
    yield element("text", text, x=x + _CELL / 2 - 1, y=y + 19, class_=f"middle {style}".strip())


def _caption(matrix: Matrix) -> Sequence[Element]:
    words = [
        (arrows(matrix.caption), "strong"),
        *((text, "dim") for text in (matrix.names, *map(arrows, matrix.notes)) if text),
    ]
    return [element("text", text, x=0, y=place * _LINE - 4, class_=look) for place, (text, look) in enumerate(words, 1)]
