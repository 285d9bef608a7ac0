"""Reads an HTML page with a real parser, as strictly as the standard asks."""

from __future__ import annotations

from collections.abc import Iterator
from xml.etree.ElementTree import Element

import html5lib


def parse(page: str) -> Element:
    """Return a page's tree without namespaces.

    Raises
    ------
    html5lib.html5parser.ParseError
        If the page is not HTML as the standard wants it written.
    """
    parser = html5lib.HTMLParser(strict=True, namespaceHTMLElements=False)
    tree: Element = parser.parse(page)
    return tree


def name(node: Element) -> str:
    """Return an element's name without its namespace."""
    return str(node.tag).rpartition("}")[2]


def words(node: Element) -> str:
    """Return all text of an element, without comments."""
    inside = "" if not isinstance(node.tag, str) else node.text or ""
    return inside + "".join(words(child) + (child.tail or "") for child in node)


def elements(node: Element, *names: str) -> Iterator[Element]:
    """Yield the elements of these names, in the order of the page."""
    yield from (one for one in node.iter() if name(one) in names)
