"""Curves as inline SVG, each told apart by colour, dashes, marks and its name at its end, under lines of limits."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from xml.etree.ElementTree import Element

from egmctl.report.document import Chart, Point
from egmctl.report.render.markup import arrows, element
from egmctl.units import format_size

WIDTH, HEIGHT = 720, 300
_LEFT, _RIGHT, _TOP, _BOTTOM = 62, 150, 26, 46
_STYLES = 4
_LINE = 15
"""Pixels between two names."""

Scale = Callable[[float], float]


def plot(what: Chart) -> Element:
    """Return the drawing; what it shows is in the table beside it, so that nothing is in the drawing alone."""
    points = [point for _, curve in what.curves for point in curve]
    y_ticks = ticks(max([point.high for point in points] + [limit for _, limit in what.limits]))
    xs = sorted({point.x for point in points})
    logarithm = what.sizes or what.logarithmic
    x_ticks = _powers(xs) if logarithm else ticks(max(xs))
    x = _scale(x_ticks[0], x_ticks[-1], _LEFT, WIDTH - _RIGHT, logarithm=logarithm)
    y = _scale(0, y_ticks[-1], HEIGHT - _BOTTOM, _TOP)
    names = [f"{name}: {_told(what, curve)}" for name, curve in what.curves if curve]
    names += [f"{name}: {limit:.1f} {what.y}" for name, limit in what.limits]
    return element(
        "svg",
        element("title", what.caption),
        element("desc", "; ".join(names)),
        element("text", arrows(what.caption), x=float(_LEFT), y=float(_TOP - 12), class_="strong")
        if what.titled
        else None,
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
    """Return the powers of 16 (or of 4, of few sizes) from the smallest size to the largest, and those two."""
    first, last = sizes[0], max(sizes[-1], 2 * sizes[0])
    factor = 4 if last / first <= 4**6 else 16
    found = [first * factor**place for place in range(1 + int(math.log(last / first, factor) + 1e-9))]
    return found if found[-1] == last else [*found, last]


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


def _curve(number: int, curve: Sequence[Point], x: Scale, y: Scale) -> Element:
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
    """Yield the names at the ends of their curves, moved down where two would meet."""
    ends = sorted(
        [
            *(
                (y(curve[-1].y), x(curve[-1].x), name, f"fill-{number % _STYLES}")
                for number, (name, curve) in enumerate(what.curves)
                if curve
            ),
            *((y(limit), float(WIDTH - _RIGHT), name, "dim") for name, limit in what.limits),
        ]
    )
    lowest = -math.inf
    for at, end, name, look in ends:
        lowest = max(at, lowest + _LINE)
        yield element("text", name, x=end + 10, y=lowest + 4, class_=look)


def _told(what: Chart, curve: Sequence[Point]) -> str:
    first, last = (format_size(round(p.x)) if what.sizes else f"{p.x:.1f}" for p in (curve[0], curve[-1]))
    unit = what.y
    return f"{curve[0].y:.1f} {unit} at {first}, {curve[-1].y:.1f} {unit} at {last}"
