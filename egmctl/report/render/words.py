"""Words of documents as elements of a page, with the classes of their tones."""

from __future__ import annotations

from egmctl.report import document as doc
from egmctl.report.document import Tone, Words
from egmctl.report.render.page import HtmlContent, arrows, element

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
