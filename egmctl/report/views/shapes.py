"""The shapes of a drawing of a node as SVG: boxes, lines, words, rates, and the signs of faults.

The style sheet ``figure.css`` defines the classes.
"""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Sequence
from xml.etree.ElementTree import Element

from egmctl.report.document import Tone
from egmctl.report.render.page import element
from egmctl.report.views.faults import FAULT_SIGNS, Fault

STATES = {Tone.BAD: "bad", Tone.WARN: "warn"}
"""The classes of links and words that fail and warn."""
SMALL = 11.5
"""The size of small words in pixels, as in ``figure.css``."""
_EM = 0.592
"""The average width of a character, in sizes of its font."""


def box(look: str, x: float, y: float, width: float, height: float, radius: float = 0) -> Element:
    """Return a box; ``x`` and ``y`` are its upper left corner."""
    return element("rect", x=x, y=y, width=width, height=height, rx=radius or None, class_=look)


def line(look: str, *points: tuple[float, float]) -> Element:
    """Return a line through points."""
    path = "L".join(f"{x:.1f} {y:.1f}" for x, y in points)
    return element("path", d=f"M{path}", class_=look)


def text_at(words: str, x: float, y: float, look: str = "") -> Element:
    """Return a line of text; ``y`` is its baseline."""
    return element("text", words, x=x, y=y, class_=look or None)


def wrapped(words: str, width: float, size: float = 13) -> list[str]:
    """Return words in lines that fit a width in pixels; a word that is wider is broken, never cut off."""
    return textwrap.wrap(words, max(int(width / (_EM * size)), 1))


def width_of(words: str, size: float = 13) -> float:
    """Return the width of words in pixels, about."""
    return _EM * size * len(words)


def sign(fault: Fault, x: float, y: float) -> Element:
    """Return the sign of a fault, which ends at ``x``."""
    words = element("title", fault.words)
    return element("text", FAULT_SIGNS[fault.tone], words, x=x, y=y, class_=f"{STATES[fault.tone]} end")


def chip(words: str, tone: Tone, x: float, y: float) -> Iterator[Element]:
    """Yield a measured rate as text, that of a slow link on a filled chip."""
    if tone is Tone.BAD:
        yield box("chip", x - 4, y - 12, chip_width(words), 16, radius=4)
    yield text_at(words, x, y, f"rate {'on-chip' if tone is Tone.BAD else STATES.get(tone, '')}".rstrip())


def chip_width(words: str) -> float:
    """Return the width of a chip in pixels."""
    return 7.4 * len(words) + 8


def squares(states: Sequence[bool], x: float, y: float, width: float, *, small: bool = False) -> Iterator[Element]:
    """Yield a square for each NVLink of a GPU, in as few rows as fit; one that is down is red and has a cross.

    Parameters
    ----------
    states
        Whether each link is active.
    y
        The upper edge.
    """
    side, step = (4.0, 5.5) if small else (6.0, 8.0)
    rows = next(rows for rows in range(1, len(states) + 1) if -(-len(states) // rows) * step <= width + step)
    columns = -(-len(states) // rows)
    places = [(x + step * (n % columns), y + (step + 1) * (n // columns)) for n in range(len(states))]
    starts = [(left, top, min(columns, len(states) - n)) for n, (left, top) in enumerate(places) if n % columns == 0]
    row_paths = (f"M{left:g} {top + side / 2:g}h{step * count:g}" for left, top, count in starts)
    yield element("path", d="".join(row_paths), class_="nvlinks small" if small else "nvlinks")
    for number, (active, (left, top)) in enumerate(zip(states, places, strict=True)):
        if not active:
            cross = f"M{left:g} {top:g}l{side:g} {side:g}m0 {-side:g}l{-side:g} {side:g}"
            lost = box("lost", left, top, side, side)
            yield element("g", element("title", f"NVLink {number} is down"), lost, element("path", d=cross))
