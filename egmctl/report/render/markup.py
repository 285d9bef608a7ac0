"""Builds HTML and SVG out of elements, so that no text from a machine can ever be markup.

There is no template: a template escapes where its author asked for it, a tree escapes everything. Control and format
characters (line breaks too) become visible escapes on the way in.
"""

from __future__ import annotations

from collections.abc import Iterable
from xml.etree import ElementTree
from xml.etree.ElementTree import Element

from egmctl.units import printable

Child = Element | str | Iterable["Child"] | None
Value = str | float | bool | None

_INLINE = frozenset({"a", "abbr", "b", "code", "span", "strong", "td", "th", "tspan"})
"""Elements without a line break behind them; the others have one, for who reads the source."""


def element(tag: str, *children: Child, **attributes: Value) -> Element:
    """Return an element.

    Parameters
    ----------
    children
        Text is escaped; what is iterable is flattened, ``None`` left out.
    attributes
        ``class_`` is ``class``, ``aria_label`` is ``aria-label``. ``None`` and false are left out, true is an attribute
        without a value; numbers are written to a tenth.
    """
    made = Element(tag)
    for name, value in attributes.items():
        if value is not None and value is not False:
            made.set(name.rstrip("_").replace("_", "-"), _value(value))
    _fill(made, children)
    if tag not in _INLINE:
        made.tail = "\n"
    return made


def raw(tag: str, text: str) -> Element:
    """Return an element whose text is this project's own and taken as it is: a style sheet."""
    made = Element(tag)
    made.text, made.tail = text, "\n"
    return made


def arrows(text: str) -> str:
    """Write the arrows of captions and paths as characters."""
    return text.replace("<->", "↔").replace("->", "→").replace("<-", "←").replace(">=", "≥").replace("<=", "≤")


def html(root: Element) -> str:
    """Return a whole HTML document."""
    return "<!doctype html>\n" + ElementTree.tostring(root, encoding="unicode", method="html").rstrip() + "\n"


def xml(root: Element) -> str:
    """Return a whole XML document."""
    return ElementTree.tostring(root, encoding="unicode").rstrip() + "\n"


def _fill(made: Element, children: Iterable[Child]) -> None:
    for child in children:
        if child is None:
            continue
        if isinstance(child, Element):
            made.append(child)
        elif isinstance(child, str):
            text = printable(child)
            if len(made):
                made[-1].tail = (made[-1].tail or "").removesuffix("\n") + text
            else:
                made.text = (made.text or "") + text
        else:
            _fill(made, child)


def _value(value: str | float | bool) -> str:
    if value is True:
        return ""
    if isinstance(value, float):
        return f"{value:.1f}".removesuffix(".0")
    return printable(str(value))
