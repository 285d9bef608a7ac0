"""The frame of an HTML page, and functions that create markup with escaped text, words of documents included."""

from __future__ import annotations

import base64
import hashlib
import re
from collections.abc import Iterable, Sequence
from functools import cache
from pathlib import Path
from xml.etree import ElementTree
from xml.etree.ElementTree import Element

from egmctl import __version__
from egmctl.dataclass import dataclass
from egmctl.report import document as doc
from egmctl.report.document import Tone, Words
from egmctl.units import printable

HtmlContent = Element | str | Iterable["HtmlContent"] | None
Value = str | float | bool | None

_INLINE = frozenset({"a", "abbr", "b", "code", "i", "span", "strong", "td", "th", "tspan"})
"""The elements without a line break after them. All others have one, which makes the source readable."""


def element(tag: str, *children: HtmlContent, **attributes: Value) -> Element:
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


def _fill(made: Element, children: Iterable[HtmlContent]) -> None:
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
    """A section of a page with a heading."""

    id: str
    title: str
    body: tuple[HtmlContent, ...]
    folded: bool = False
    """Whether only the heading is shown until the reader opens it."""
    beside: HtmlContent = None
    """What is beside the heading of a folded section: what is in it."""
    look: str | None = None
    """The classes of the section."""
    joins: bool = False
    """Whether it is in one row with the section before it, where there is space."""
    wide: bool = False
    """Whether it has a picture that needs the full width, so that no section is in one row with it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Head:
    """What stands above the sections of a page."""

    command: str
    """The command that wrote it, e.g. ``egmctl bench``."""
    subject: str
    """The page's subject, e.g. the name of a node."""
    facts: Sequence[str]
    """When it was made, on what, and by which version."""
    banners: Sequence[str]
    """Warnings to read first, e.g. that a machine is modelled or its driver is fake."""
    answer: Element | None
    """The answer with the heading of the page; ``None`` if the subject is the heading."""


def page(head: Head, sections: Sequence[Element]) -> str:
    """Return an HTML document."""
    sheet = style("colors", "figure", "page")
    digest = base64.b64encode(hashlib.sha256(sheet.encode()).digest()).decode()
    policy = f"default-src 'none'; style-src 'sha256-{digest}'; base-uri 'none'; form-action 'none'"
    technical = element(
        "head",
        element("meta", charset="utf-8"),
        element("meta", http_equiv="Content-Security-Policy", content=policy),
        element("meta", name="viewport", content="width=device-width, initial-scale=1"),
        element("meta", name="referrer", content="no-referrer"),
        element("meta", name="color-scheme", content="light dark"),
        element("meta", name="generator", content=f"egmctl {__version__}"),
        element("title", f"{head.command}: {head.subject}"),
        raw("style", sheet),
    )
    body = element(
        "body",
        element("a", "Skip to the report", href="#report", class_="skip"),
        element("header", head_line(head), banner_lines(head)),
        element("main", head.answer, sections, id="report", tabindex="-1"),
        element("footer", element("p", f"Made by egmctl {__version__}. This page fetches nothing and runs nothing.")),
    )
    text = ElementTree.tostring(element("html", technical, body, lang="en"), encoding="unicode", method="html")
    return f"<!doctype html>\n{text.rstrip()}\n"


def head_line(head: Head) -> Element:
    """Return the line of a page that says which command it is of, of what, when, and by which version."""
    subject = element("h1" if head.answer is None else "strong", head.subject, class_="subject")
    facts = [element("span", text, class_="fact") for text in head.facts]
    return element("div", element("code", head.command), " ", subject, element("p", facts), class_="about")


def banner_lines(head: Head) -> Iterable[Element]:
    """Return the warnings of a page."""
    return [element("p", text, class_="banner") for text in head.banners]


@cache
def style(*names: str) -> str:
    """Return the style sheets with these names, concatenated, without comments and spaces that mean nothing."""
    sheets = "".join((_STYLE / f"{name}.css").read_text(encoding="utf-8") for name in names)
    sheets = re.sub(r"/\*.*?\*/", "", sheets, flags=re.DOTALL)
    return _SPACED.sub(lambda match: match[0] if match[0].startswith('"') else match[0].strip(), sheets)


_SPACED = re.compile(r'"[^"]*"|:\s+|\s*[{},;]\s*')
"""Strings of a style sheet, which keep their spaces, and the signs that need none around them."""


def section(section: PageSection) -> Element:
    """Return a section of a page."""
    title, name = section.title, f"{section.id}-heading"
    if section.folded:
        summary = element("summary", element("h2", title, id=name), section.beside)
        content: HtmlContent = element("details", summary, element("div", section.body))
    else:
        content = (element("h2", title, id=name) if title else None, section.body)
    return element(
        "section", content, id=section.id, class_=section.look or None, aria_labelledby=name if title else None
    )


LOOKS = {Tone.GOOD: "pass", Tone.WARN: "warn", Tone.BAD: "fail", Tone.UNKNOWN: "plain"}
"""The classes of what has a tone."""


def words_html(words: Words) -> list[HtmlContent]:
    """Return the parts of a line of text."""
    return [span_html(part) for part in doc.parts(words)]


def span_html(span: doc.Span) -> HtmlContent:
    """Return a part of a line of text."""
    if span.code:
        return element("code", span.text)
    look = css_class(span.tone)
    return element("span", arrows(span.text), class_=look) if look else arrows(span.text)


def css_class(tone: Tone) -> str | None:
    """Return the class of words with a tone; ``None`` for plain ones."""
    return f"word-{LOOKS[tone]}" if tone in LOOKS else tone.value or None
