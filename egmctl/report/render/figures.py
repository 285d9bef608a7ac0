"""Draw figures: bars, charts, and the text of a command as an SVG picture."""

from __future__ import annotations

import io
import math
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from inspect import signature
from typing import TYPE_CHECKING
from xml.etree.ElementTree import Element

from egmctl.dataclass import dataclass
from egmctl.report import document as doc
from egmctl.report.document import Bar, Chart, Tone
from egmctl.report.render.page import arrows, element, raw, style, xml
from egmctl.units import format_size, grouped, listed, shortened

if TYPE_CHECKING:
    from rich.text import Text

_TIMES = "\N{MULTIPLICATION SIGN}"
_DOTS_APART = 0.8
"""The distance in percent of the track below which dots are drawn as one, with their number."""
_FAR = 0.85
"""The part of the track beyond which the number of dots is to their left."""


def track(bar: Bar) -> Element:
    """Return the track of a bar, as wide as its place: the median, the expected value, the links' rate, a dot per path.

    Coordinates are in percent without a ``viewBox``, so that lines and dots keep their shape at any width.
    """

    def at(value: float) -> str:
        return f"{min(100 * value / bar.end, 100):.2f}%"

    def upright(value: float, look: str) -> Element:
        return element("line", x1=at(value), x2=at(value), y1=0, y2=16, class_=look)

    expected = "" if bar.expected is None else f", expected {doc.number(bar.expected)}"
    limit = "" if bar.limit is None else f", {bar.limit_of} {bar.limit:.0f}"
    words = f"{bar.name}: median {doc.number(bar.median)} {bar.unit}, worst {doc.number(bar.worst.value)}"
    fails = f"{100 - min(100 * (bar.fail or bar.end) / bar.end, 100):.2f}%"
    return element(
        "svg",
        element("title", arrows(f"{words} {bar.worst.label}{expected}{limit}")),
        element("desc", bar.state.text),
        element("rect", x=0, y=2, width="100%", height=12, class_="track"),
        element("rect", x=at(bar.fail), y=2, width=fails, height=12, class_="failing") if bar.fail else None,
        element("rect", x=0, y=2, width=at(bar.median), height=12, class_="data"),
        upright(bar.limit, "rate-end") if bar.limit else None,
        upright(bar.expected, "expected") if bar.expected is not None else None,
        list(_dots(bar, at)),
        class_="figure bar",
        role="img",
        width="100%",
        height=28,
    )


def _dots(bar: Bar, at: Callable[[float], str]) -> Iterator[Element]:
    """Yield the dots of the paths, those that are near each other and of one grade as one; the worse are on top."""
    places = grouped(
        ((dot.tone, round(100 * dot.value / bar.end / _DOTS_APART), dot.doubted), dot)
        for dot in sorted(bar.dots, key=lambda dot: (dot.tone is Tone.BAD, dot.tone is Tone.WARN, dot.value))
    )
    for (tone, _, doubted), dots in places.items():
        paths = "doubted: " * doubted + shortened([f"{dot.label} {doc.number(dot.value)}" for dot in dots], 4)
        look, x = _CLASSES.get(tone, ""), at(dots[0].value)
        looks = " ".join(filter(None, ("dot", look, "hollow" * doubted)))
        yield _circle(x, 22, 4.5 if look or doubted else 3.5, looks, paths)
        if tone is Tone.BAD and len(dots) > 1:
            dx, end = (-8, " end") if dots[0].value > _FAR * bar.end else (8, "")
            yield element("text", f"{_TIMES}{len(dots)}", x=x, y=26, dx=dx, class_=look + end)


def _circle(x: str | float, y: float, radius: float, look: str, words: str) -> Element:
    return element("circle", element("title", arrows(words)), cx=x, cy=y, r=radius, class_=look)


WIDTH, HEIGHT = 1060, 370
"""The size in pixels of a chart on a laptop."""
_STYLES = 6
_LINE = 15
"""The minimum distance between two names in pixels."""
_BEHIND = 0.85
"""The part of the median of its peers below which a curve of a small chart is named."""

Scale = Callable[[float], float]


@dataclass(frozen=True, slots=True)
class _Area:
    """The size of a chart and its margins in pixels."""

    width: float
    height: float
    right: float
    left: float = 50
    top: float = 26
    bottom: float = 44


_LARGE, _PHONE, _SMALL = _Area(WIDTH, HEIGHT, 400), _Area(322, 280, 12), _Area(156, 104, 6, 32, 8, 22)
_TITLED = _Area(400, 170, 6, 36, 30, 22)
"""A small chart in a picture, which has the title that pages have above it."""
_SAME = 2.5
"""The distance in pixels up to which curves are drawn as one line in the colours of all."""
_DASH = 9


def plot(what: Chart, *, phone: bool = False, titled: bool = False) -> Element:
    """Return the drawing of a chart; that for a phone has no names, as a list below it has them (:func:`curve_ends`).

    Parameters
    ----------
    titled
        Whether a small chart has its title; pages have it above the drawing.
    """
    if what.small:
        area = _TITLED if titled else _SMALL
    elif phone:
        area = _PHONE
    else:
        area = _LARGE
    points = [point for _, curve in what.curves for point in curve]
    top = max([point.high for point in points] + [limit for _, limit in what.limits])
    bottom = min((point.y for point in points if point.y > 0), default=1)
    y_ticks = _decades(bottom, top) if what.steep else ticks(top)
    xs = sorted({point.x for point in points})
    logarithm = what.sizes or what.logarithmic
    x_ticks = _powers(xs) if logarithm else ticks(max(xs))
    # A ceiling far below the curves would be drawn at the edge of a logarithmic scale: a note says so instead.
    limits = [(name, limit) for name, limit in what.limits if limit >= y_ticks[0]]
    exceeded = [name for name, limit in what.limits if limit < y_ticks[0]]
    x = _scale(x_ticks[0], x_ticks[-1], area.left, area.width - area.right, logarithm=logarithm)
    y = _scale(y_ticks[0], y_ticks[-1], area.height - area.bottom, area.top, logarithm=what.steep)
    return element(
        "svg",
        element("title", arrows(what.caption)),
        element("desc", arrows("; ".join(f"{end} {what.y} {name}" for _, end, name in curve_ends(what)))),
        None if area is _SMALL else element("text", arrows(what.caption), x=0.0, y=12.0, class_="title"),
        list(_axes(what, x_ticks, y_ticks, x, y, area)),
        [
            (
                element("line", x1=area.left, x2=area.width - area.right, y1=y(limit), y2=y(limit), class_="limit"),
                None if what.small else element("text", name, x=area.left + 4, y=y(limit) - 4, class_="dim"),
            )
            for name, limit in limits
        ],
        element(
            "text",
            f"all values are above {listed(exceeded)}",
            x=area.width - area.right - 4,
            y=area.height - area.bottom - 4,
            class_="dim end",
        )
        if exceeded
        else None,
        list(_curves(what, x, y)),
        [] if phone or what.small else list(_names(what, y, area)),
        class_="figure plot",
        role="img",
        viewBox=f"0 0 {area.width:g} {area.height:g}",
        width=area.width,
        height=area.height,
    )


def curve_ends(what: Chart) -> list[tuple[str, str, str]]:
    """Return the style of each curve that has points, its last value and its name."""
    return [
        (f"fill-{number % _STYLES}", doc.number(curve[-1].y), name)
        for number, (name, curve) in enumerate(what.curves)
        if curve
    ]


def ticks(top: float) -> list[float]:
    """Return round numbers from 0 to ``top`` or just above it, in steps of 1, 2 or 5 times a power of ten."""
    if not top > 0:
        return [0.0, 1.0]
    power = 10 ** math.floor(math.log10(top / 4))
    width = next(power * factor for factor in (1, 2, 5, 10) if top / (power * factor) <= 5)
    return [width * place for place in range(math.ceil(top / width - 1e-9) + 1)]


def _decades(bottom: float, top: float) -> list[float]:
    """Return 1, 2 and 5 times the powers of ten around a range, of wide ranges only the powers between its ends."""
    powers = range(math.floor(math.log10(bottom)), math.ceil(math.log10(top)) + 1)
    rounds = [factor * 10.0**power for power in powers for factor in (1, 2, 5)]
    low, high = max(value for value in rounds if value <= bottom), min(value for value in rounds if value >= top)
    wide = high / low > _DECADES
    return [v for v in rounds if low <= v <= high and (not wide or v in (low, high) or v in rounds[::3])]


_DECADES = 100
"""The ratio of the ends of a range above which it is wide."""


def _powers(sizes: Sequence[float]) -> list[float]:
    """Return the smallest size times powers of 16 (of 4 for a range of at most 4^6), and the largest size."""
    first, last = sizes[0], max(sizes[-1], 2 * sizes[0])
    factor = 4 if last / first <= 4**6 else 16
    powers = [first * factor**place for place in range(1 + int(math.log(last / first, factor) + 1e-9))]
    return powers if powers[-1] == last else [*powers, last]


def _scale(low: float, high: float, start: float, end: float, *, logarithm: bool = False) -> Scale:
    if logarithm:
        return lambda value: start + (end - start) * math.log(max(value, low) / low) / math.log(high / low)
    return lambda value: start + (end - start) * (value - low) / (high - low)


def _axes(
    what: Chart, x_ticks: Sequence[float], y_ticks: Sequence[float], x: Scale, y: Scale, area: _Area
) -> Iterator[Element]:
    left, right, bottom = area.left, area.width - area.right, area.height - area.bottom
    for tick in (y_ticks[0], y_ticks[-1]) if what.small else y_ticks:
        yield element("line", x1=left, x2=right, y1=y(tick), y2=y(tick), class_="guide")
        yield element("text", f"{tick:g}", x=left - 6, y=y(tick) + 4, class_="dim end")
    previous, shown = -math.inf, (x_ticks[0], x_ticks[-1]) if what.small else x_ticks
    for tick in shown:
        yield element("line", x1=x(tick), x2=x(tick), y1=bottom, y2=bottom + 5, class_="axis")
        if x(tick) - previous >= 48:
            words = format_size(round(tick)) if what.sizes else f"{tick:g}"
            look = "dim end" if x(tick) > right - 20 and area is not _LARGE else "dim middle"
            yield element("text", words, x=x(tick), y=bottom + 18, class_=look)
            previous = x(tick)
    yield element("line", x1=left, x2=right, y1=bottom, y2=bottom, class_="axis")
    if not what.small:
        title = f"{what.x}; {what.y}{', both scales logarithmic' if what.steep else ''}"
        yield element("text", title, x=(left + right) / 2, y=area.height - 8, class_="dim middle")


def _curves(what: Chart, x: Scale, y: Scale) -> Iterator[Element]:
    """Yield the curves; those that would hide each other take turns along one line."""
    places = {
        number: [(x(point.x), y(point.y)) for point in curve] for number, (_, curve) in enumerate(what.curves) if curve
    }
    alike: list[list[int]] = []
    for number, points in places.items():
        group = next((group for group in alike if _are_same(points, places[group[0]])), None)
        if group is None:
            alike.append([number])
        else:
            group.append(number)
    for group in alike:
        for turn, number in enumerate(group):
            yield _curve(what, number, x, y, _Turn(turn, len(group)))


def _are_same(points: Sequence[tuple[float, float]], others: Sequence[tuple[float, float]]) -> bool:
    return len(points) == len(others) and all(
        math.dist(point, other) <= _SAME for point, other in zip(points, others, strict=True)
    )


@dataclass(frozen=True, slots=True)
class _Turn:
    """The place of a curve among those that are drawn as one line."""

    number: int
    of: int

    @property
    def dashes(self) -> dict[str, str]:
        """The attributes of its line: dashes with gaps for those of the others."""
        if self.of == 1:
            return {}
        gap = _DASH * (self.of - 1)
        return {"stroke_dasharray": f"{_DASH} {gap}", "stroke_dashoffset": f"{-_DASH * self.number}"}


def _curve(what: Chart, number: int, x: Scale, y: Scale, turn: _Turn) -> Element:
    """Return a curve with its points, and a ring at half of its best; a thin line in a small chart."""
    curve = what.curves[number][1]
    name, style = what.curves[number][0], number % _STYLES
    path = " ".join(f"{x(p.x):.1f},{y(p.y):.1f}" for p in curve)
    title = element("title", arrows(name))
    if what.small:
        last = sorted(points[-1].y for _, points in what.curves if points)
        share = curve[-1].y / last[len(last) // 2]
        behind = what.y != "ns" and share < _BEHIND
        line = element("polyline", title, points=path, class_="thin behind" if behind else "thin")
        if not behind or curve[-1].y > last[0]:
            return line
        end = x(curve[-1].x)
        percent = element("tspan", f" {100 * share:.0f} %", x=end, dy=14)
        return element(
            "g", line, element("text", arrows(name), percent, x=end, y=y(curve[-1].y) + 14, class_="warn end")
        )
    there = " ".join(f"{x(p.x):.1f},{y(p.high):.1f}" for p in curve)
    back = " ".join(f"{x(p.x):.1f},{y(p.low):.1f}" for p in reversed(curve))
    best = max(p.y for p in curve)
    half = [p for p in curve if what.steep and p.y >= best / 2][:1]
    rings = [
        _circle(x(p.x), y(p.y), 7 + 2.5 * turn.number, f"ring curve-{style}", f"{name}: half of the best") for p in half
    ]
    marks = []
    for p in curve[turn.number :: turn.of]:
        place = format_size(round(p.x)) if what.sizes else f"{p.x:g} {what.x}"
        words = f"{name}, {place}: {doc.number(p.y)} {what.y}"
        marks.append(_circle(x(p.x), y(p.y), 3, f"mark fill-{style}", words))
    look = f"curve curve-{style}"
    if number >= _STYLES and turn.of == 1:
        look += " dashed"
    line = element("polyline", title, points=path, class_=look, **turn.dashes)
    band = element("polygon", points=f"{there} {back}", class_=f"band fill-{style}")
    return element("g", band, line, rings, marks, class_="series")


def _names(what: Chart, y: Scale, area: _Area) -> Iterator[Element]:
    """Yield the last values and names of curves at their right ends, moved apart if two would overlap."""
    drawn = [curve for _, curve in what.curves if curve]
    places = sorted((y(curve[-1].y), end) for curve, end in zip(drawn, curve_ends(what), strict=True))
    lowest = -math.inf
    spare = area.height - 4 - _LINE * len(places)
    for number, (at, (look, value, name)) in enumerate(places):
        lowest = max(min(at, spare + _LINE * number), lowest + _LINE)
        figure = element("tspan", f"{value} ", class_="strong")
        yield element("text", figure, arrows(name), x=area.width - area.right + 10, y=lowest + 4, class_=look)


_CLASSES = {Tone.BAD: "bad", Tone.WARN: "warn", Tone.DIM: "dim"}


def picture(text: Text, title: str) -> str:
    """Return coloured text as an SVG document, as wide as its longest line."""
    # A page needs no rich, and is what a notebook shows.
    from rich.console import Console

    lines = text.split("\n", allow_blank=True)
    width = max((line.cell_len for line in lines), default=1)
    console = Console(record=True, width=width, file=io.StringIO(), force_terminal=True, color_system="standard")
    console.print(text, end="", no_wrap=True, overflow="ignore")
    # Each piece of text has a position and a width, whatever the font, so no web fonts are needed.
    usual = signature(console.export_svg).parameters["code_format"].default
    template = re.sub(r"@font-face \{\{.*?\n *\}\}|<!--.*?-->", "", usual, flags=re.DOTALL)
    return console.export_svg(title=title, code_format=template, unique_id="egmctl")


_PAD, _BANNER = 16.0, 30.0


def svg(document: doc.Document) -> str:
    """Return an SVG document with the banners of a document, then its drawings and charts in one column."""
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


def _figures(blocks: Iterable[doc.DocumentBlock]) -> Iterator[Element]:
    for block in blocks:
        match block:
            case doc.Diagram():
                yield block.draw()
            case doc.Bars():
                yield from _figures(block.beside)
            case Chart() if any(curve for _, curve in block.curves):
                yield plot(block, titled=True)
            case doc.Section():
                yield from _figures(doc.body_of(block))
