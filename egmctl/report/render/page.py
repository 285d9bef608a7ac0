"""The frame of an HTML page, and functions that create markup with escaped text."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from xml.etree import ElementTree
from xml.etree.ElementTree import Element

from egmctl import __version__
from egmctl.units import printable

Child = Element | str | Iterable["Child"] | None
Value = str | float | bool | None

_INLINE = frozenset({"a", "abbr", "b", "code", "i", "span", "strong", "td", "th", "tspan"})
"""The elements without a line break after them. All others have one, which makes the source readable."""


def element(tag: str, *children: Child, **attributes: Value) -> Element:
    """Return an element.

    Parameters
    ----------
    children
        Elements, text, or iterables of children, which are flattened. ``None`` is omitted.
    attributes
        ``class_`` becomes ``class``, ``aria_label`` becomes ``aria-label``. ``None`` and false are omitted; true is an
        empty value. Floats are rounded to one decimal place.
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
    """Return an element with trusted text, e.g. a style sheet, whose control characters are not replaced."""
    made = Element(tag)
    made.text, made.tail = text, "\n"
    return made


def arrows(text: str) -> str:
    """Replace ASCII arrows and comparison signs by the Unicode characters."""
    return text.replace("<->", "↔").replace("->", "→").replace("<-", "←").replace(">=", "≥").replace("<=", "≤")


def xml(root: Element) -> str:
    """Return an element as the text of an XML document."""
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


_STYLE = Path(__file__).with_name("style")


@dataclass(frozen=True, slots=True)
class PageSection:
    """A section of a page with a heading, which the table of contents links to."""

    id: str
    title: str
    body: tuple[Child, ...]
    folded: bool = False
    """Whether only the heading is shown until the reader opens it."""


def page(command: str, title: str, subtitle: str, banners: Sequence[str], sections: Sequence[PageSection]) -> str:
    """Return an HTML document.

    Parameters
    ----------
    command
        The command that wrote it, e.g. ``egmctl bench``.
    title, subtitle
        The subject of the report, and its time and settings.
    banners
        Warnings to read first, e.g. that a machine is modelled or its driver is fake.
    """
    sheet = style("colors", "figure", "page")
    digest = base64.b64encode(hashlib.sha256(sheet.encode()).digest()).decode()
    policy = f"default-src 'none'; style-src 'sha256-{digest}'; base-uri 'none'; form-action 'none'"
    head = element(
        "head",
        element("meta", charset="utf-8"),
        element("meta", http_equiv="Content-Security-Policy", content=policy),
        element("meta", name="viewport", content="width=device-width, initial-scale=1"),
        element("meta", name="referrer", content="no-referrer"),
        element("meta", name="color-scheme", content="light dark"),
        element("meta", name="generator", content=f"egmctl {__version__}"),
        element("title", f"{command}: {title}"),
        raw("style", sheet),
    )
    open_sections = [section for section in sections if not section.folded]
    contents = [element("li", element("a", section.title, href=f"#{section.id}")) for section in open_sections]
    body = element(
        "body",
        element("a", "Skip to the report", href="#report", class_="skip"),
        element(
            "header",
            [element("p", text, class_="banner") for text in banners],
            element("p", command, class_="kicker"),
            element("h1", title),
            element("p", subtitle, class_="subtitle"),
        ),
        element("nav", element("ul", contents), aria_label="Contents"),
        element("main", map(_section, sections), id="report", tabindex="-1"),
        element("footer", element("p", f"Made by egmctl {__version__}. This page fetches nothing and runs nothing.")),
    )
    text = ElementTree.tostring(element("html", head, body, lang="en"), encoding="unicode", method="html")
    return f"<!doctype html>\n{text.rstrip()}\n"


@cache
def style(*names: str) -> str:
    """Return the style sheets with these names, concatenated."""
    return "".join((_STYLE / f"{name}.css").read_text(encoding="utf-8") for name in names)


def _section(section: PageSection) -> Element:
    heading = element("h2", section.title, id=f"{section.id}-heading")
    folded = element("details", element("summary", heading), element("div", section.body)) if section.folded else None
    return element(
        "section",
        folded or (heading, section.body),
        id=section.id,
        class_="folded" if section.folded else None,
        aria_labelledby=f"{section.id}-heading",
    )
