"""Draw figures: charts, heat maps and their shades, and the text of a command as an SVG picture."""

from __future__ import annotations

import io
import math
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from xml.etree.ElementTree import Element

from rich.console import Console
from rich.text import Text

from egmctl.report import document as doc
from egmctl.report.document import Better, Cell, Chart, Matrix, Tone
from egmctl.report.render.page import arrows, element, raw, style, xml
from egmctl.units import format_size, listed

BOUNDS = (0.40, 0.65, 0.80, 0.90, 0.95, 0.97, 0.99)
"""The upper bounds of the shades, as shares of the best number. They are closer near the best: cells within one percent
of it, as behind a healthy switch, have the same shade, and cells a few percent below it have another one."""

DRAWN_CELLS = 72 * 72
"""The maximum number of cells of a drawn matrix. The largest NVLink domain of one rack has 72 GPUs."""


def best(matrix: Matrix) -> dict[str, float]:
    """Return the best number of each kind of cell in a matrix; empty if the matrix is not shaded."""
    best_of: dict[str, float] = {}
    better = max if matrix.better is Better.HIGH else min
    for cell in (cell for series in doc.columns(matrix) for cell in series.cells):
        if matrix.better is not None and cell.value:
            best_of[cell.kind] = better(best_of.get(cell.kind, cell.value), cell.value)
    return best_of


def step_of(cell: Cell, best_of: Mapping[str, float], better: Better | None) -> int | None:
    """Return the shade of a cell, or ``None`` if it has none; see :func:`step`."""
    if better is None or not cell.value or cell.kind not in best_of:
        return None
    return step(cell.value, best_of[cell.kind], better)


def step(value: float, most: float, better: Better) -> int:
    """Return the shade of a number from 0 to 7; 7 is for numbers within one percent of the best, ``most``."""
    share = value / most if better is Better.HIGH else most / value if value > 0 else 1
    return bisect_right(BOUNDS, share)


def legend(better: Better) -> str:
    """Return the words for the thresholds between the shades."""
    if better is Better.HIGH:
        return f"they change at {listed([f'{100 * bound:.0f}' for bound in BOUNDS])} % of the most"
    return f"they change at {listed([f'{100 / bound - 100:.0f}' for bound in BOUNDS])} % longer than the least"


def cells_of(matrix: Matrix) -> int:
    """Return the number of cells of a matrix."""
    return len(matrix.rows) * sum(map(len, matrix.groups))


WIDTH, HEIGHT = 720, 300
_LEFT, _RIGHT, _TOP, _BOTTOM = 62, 150, 26, 46
_STYLES = 4
_LINE = 15
"""The minimum distance between two names in pixels."""

Scale = Callable[[float], float]


def plot(what: Chart) -> Element:
    """Return the drawing of a chart."""
    points = [point for _, curve in what.curves for point in curve]
    y_ticks = ticks(max([point.high for point in points] + [limit for _, limit in what.limits]))
    xs = sorted({point.x for point in points})
    logarithm = what.sizes or what.logarithmic
    x_ticks = _powers(xs) if logarithm else ticks(max(xs))
    x = _scale(x_ticks[0], x_ticks[-1], _LEFT, WIDTH - _RIGHT, logarithm=logarithm)
    y = _scale(0, y_ticks[-1], HEIGHT - _BOTTOM, _TOP)
    names = [name for name, curve in what.curves if curve] + [name for name, _ in what.limits]
    return element(
        "svg",
        element("title", what.caption),
        element("desc", "; ".join(names)),
        element("text", arrows(what.caption), x=float(_LEFT), y=float(_TOP - 12), class_="strong"),
        list(_axes(what, x_ticks, y_ticks, x, y)),
        [
            element("line", x1=float(_LEFT), x2=float(WIDTH - _RIGHT), y1=y(limit), y2=y(limit), class_="limit")
            for _, limit in what.limits
        ],
        [_curve(number, curve, x, y) for number, (_, curve) in enumerate(what.curves)],
        list(_names(what, x, y)),
        class_="figure plot",
        role="img",
        viewBox=f"0 0 {WIDTH} {HEIGHT}",
        width=WIDTH,
        height=HEIGHT,
    )


def ticks(top: float) -> list[float]:
    """Return round numbers from 0 to ``top`` or just above it, in steps of 1, 2 or 5 times a power of ten."""
    if not top > 0:
        return [0.0, 1.0]
    power = 10 ** math.floor(math.log10(top / 4))
    width = next(power * factor for factor in (1, 2, 5, 10) if top / (power * factor) <= 5)
    return [width * place for place in range(math.ceil(top / width - 1e-9) + 1)]


def _powers(sizes: Sequence[float]) -> list[float]:
    """Return the smallest size times powers of 16 (of 4 for a range of at most 4^6), and the largest size."""
    first, last = sizes[0], max(sizes[-1], 2 * sizes[0])
    factor = 4 if last / first <= 4**6 else 16
    powers = [first * factor**place for place in range(1 + int(math.log(last / first, factor) + 1e-9))]
    return powers if powers[-1] == last else [*powers, last]


def _scale(low: float, high: float, start: float, end: float, *, logarithm: bool = False) -> Scale:
    if logarithm:
        return lambda value: start + (end - start) * math.log(value / low) / math.log(high / low)
    return lambda value: start + (end - start) * (value - low) / (high - low)


def _axes(what: Chart, x_ticks: Sequence[float], y_ticks: Sequence[float], x: Scale, y: Scale) -> Iterator[Element]:
    left, right, bottom = float(_LEFT), float(WIDTH - _RIGHT), float(HEIGHT - _BOTTOM)
    for tick in y_ticks:
        yield element("line", x1=left, x2=right, y1=y(tick), y2=y(tick), class_="guide")
        yield element("text", f"{tick:g}", x=left - 8, y=y(tick) + 4, class_="dim end")
    previous = -math.inf
    for tick in x_ticks:
        yield element("line", x1=x(tick), x2=x(tick), y1=bottom, y2=bottom + 5, class_="axis")
        if x(tick) - previous >= 48:
            shown = format_size(round(tick)) if what.sizes else f"{tick:g}"
            yield element("text", shown, x=x(tick), y=bottom + 19, class_="dim middle")
            previous = x(tick)
    yield element("line", x1=left, x2=right, y1=bottom, y2=bottom, class_="axis")
    yield element("text", what.y, x=left - 8, y=float(_TOP - 12), class_="dim end")
    yield element("text", what.x, x=(left + right) / 2, y=float(HEIGHT - 8), class_="dim middle")


def _curve(number: int, curve: Sequence[doc.Point], x: Scale, y: Scale) -> Element:
    style = number % _STYLES
    there = " ".join(f"{x(p.x):.1f},{y(p.high):.1f}" for p in curve)
    back = " ".join(f"{x(p.x):.1f},{y(p.low):.1f}" for p in reversed(curve))
    path = " ".join(f"{x(p.x):.1f},{y(p.y):.1f}" for p in curve)
    return element(
        "g",
        element("polygon", points=f"{there} {back}", class_=f"band fill-{style}"),
        element("polyline", points=path, class_=f"curve curve-{style}"),
        [_mark(style, x(p.x), y(p.y)) for p in curve],
    )


def _mark(style: int, x: float, y: float) -> Element:
    corners = {
        1: ((-4, -4), (4, -4), (4, 4), (-4, 4)),
        2: ((0, -5), (5, 4), (-5, 4)),
        3: ((0, -5.5), (5.5, 0), (0, 5.5), (-5.5, 0)),
    }
    if style not in corners:
        return element("circle", cx=x, cy=y, r=4, class_=f"mark fill-{style}")
    points = " ".join(f"{x + dx:.1f},{y + dy:.1f}" for dx, dy in corners[style])
    return element("polygon", points=points, class_=f"mark fill-{style}")


def _names(what: Chart, x: Scale, y: Scale) -> Iterator[Element]:
    """Yield the names of curves and limits at their right ends, moved down if two would overlap."""
    ends = [(y(limit), float(WIDTH - _RIGHT), name, "dim") for name, limit in what.limits]
    for number, (name, curve) in enumerate(what.curves):
        if curve:
            ends.append((y(curve[-1].y), x(curve[-1].x), name, f"fill-{number % _STYLES}"))
    lowest = -math.inf
    for at, end, name, look in sorted(ends):
        lowest = max(at, lowest + _LINE)
        yield element("text", name, x=end + 10, y=lowest + 4, class_=look)


_CELL, _ROW, _LABEL, _FIGURES_LINE = 84.0, 30.0, 84.0, 18.0
_STRONG, _DIM = 8.8, 7.2
"""The average width of a character in pixels, as an upper bound."""
_CLASSES = {Tone.BAD: "bad", Tone.WARN: "warn", Tone.DIM: "dim"}
_DENSE, _WIDE = 7, 12
"""The numbers of columns from which a heat map takes more than half the page width, and the full width."""


def is_broad(matrix: Matrix) -> bool:
    """Return whether a matrix needs more than half of the page width, but not all of it."""
    return _DENSE <= len(doc.columns(matrix)) < _WIDE


def heat_map(matrix: Matrix) -> Element:
    """Return a matrix as a heat map."""
    captions = [(arrows(matrix.caption), "strong"), (matrix.names, "dim")]
    captions += [(arrows(note), "dim") for note in matrix.notes]
    captions = [caption for caption in captions if caption[0]]
    parts = [
        element("text", text, x=0, y=place * _FIGURES_LINE - 4, class_=look)
        for place, (text, look) in enumerate(captions, 1)
    ]
    series, best_of = doc.columns(matrix), best(matrix)
    depth = max((len(column.header) for column in series), default=1)
    y = len(captions) * _FIGURES_LINE + 6
    for place, column in enumerate(series):
        x = _LABEL + (place + 0.5) * _CELL
        for row, text in enumerate(column.header, depth - len(column.header)):
            parts.append(element("text", text, x=x, y=y + (row + 0.7) * _FIGURES_LINE, class_="dim middle"))
    y += depth * _FIGURES_LINE
    for place, name in enumerate(matrix.rows):
        parts.append(element("text", doc.plain(name), x=0, y=y + 19, class_="dim"))
        for number, column in enumerate(series):
            parts += _cell(column.cells[place], matrix, best_of, _LABEL + number * _CELL, y)
        y += _ROW
    for line in matrix.after:
        y += _FIGURES_LINE
        parts.append(element("text", line, x=_LABEL, y=y - 2, class_="dim"))
    longest = max((len(text) for text in (matrix.names, *matrix.notes)), default=0)
    return element(
        "svg",
        element("title", matrix.caption),
        parts,
        class_="figure",
        width=max(_LABEL + len(series) * _CELL, _STRONG * len(matrix.caption), _DIM * longest),
        height=y + 4,
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
    text = f"{doc.plain(cell.text)} {cell.mark}".rstrip()
    yield element("text", text, x=x + _CELL / 2 - 1, y=y + 19, class_=f"middle {style}".strip())


_TEMPLATE = """\
<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}">
  <style>
    .{unique_id}-matrix {{
      font-family: ui-monospace, "DejaVu Sans Mono", Menlo, Consolas, monospace;
      font-size: {char_height}px;
      line-height: {line_height}px;
    }}
    .{unique_id}-title {{ font-family: sans-serif; font-size: 18px; }}
    {styles}
  </style>
  <defs>
    <clipPath id="{unique_id}-clip-terminal">
      <rect x="0" y="0" width="{terminal_width}" height="{terminal_height}"/>
    </clipPath>
    {lines}
  </defs>
  {chrome}
  <g transform="translate({terminal_x}, {terminal_y})" clip-path="url(#{unique_id}-clip-terminal)">
    {backgrounds}
    <g class="{unique_id}-matrix">
      {matrix}
    </g>
  </g>
</svg>
"""
"""The SVG template for rich. Unlike rich's own it loads no web fonts: each piece of text has a position and a width,
whatever the font."""


def picture(text: Text, title: str) -> str:
    """Return coloured text as an SVG document, as wide as its longest line."""
    lines = text.split("\n", allow_blank=True)
    width = max((line.cell_len for line in lines), default=1)
    console = Console(record=True, width=width, file=io.StringIO(), force_terminal=True, color_system="standard")
    console.print(text, end="", no_wrap=True, overflow="ignore")
    return console.export_svg(title=title, code_format=_TEMPLATE, unique_id="egmctl")


_PAD, _BANNER = 16.0, 30.0


def svg(document: doc.Document) -> str:
    """Return an SVG document with the banners of a document, then its drawings, heat maps and charts in one column."""
    figures = list(_figures(doc.shown(document.body, doc.Level.PAGE)))
    width = max((float(figure.get("width", "0")) for figure in figures), default=320.0) + 2 * _PAD
    y = _PAD
    parts: list[Element] = []
    for text in document.banners:
        parts.append(element("text", text, x=_PAD, y=y + 16, class_="warn"))
        y += _BANNER
    for figure in figures:
        figure.set("x", f"{_PAD:g}")
        figure.set("y", f"{y:g}")
        parts.append(figure)
        y += float(figure.get("height", "0")) + _PAD
    return xml(
        element(
            "svg",
            element("title", f"{document.command}: {document.subject}"),
            raw("style", style("colors", "figure")),
            element("rect", width=width, height=y, class_="sheet"),
            parts,
            xmlns="http://www.w3.org/2000/svg",
            class_="figure",
            viewBox=f"0 0 {width:g} {y:g}",
            width=width,
            height=y,
        )
    )


def _figures(blocks: Iterable[doc.Block]) -> Iterator[Element]:
    for block in blocks:
        match block:
            case doc.Diagram():
                yield block.draw()
            case Matrix() if block.better is not None and cells_of(block) <= DRAWN_CELLS:
                yield heat_map(block)
            case Chart() if any(curve for _, curve in block.curves):
                yield plot(block)
            case doc.Section():
                yield from _figures(doc.body_of(block))
