"""The frame of every HTML report: one self-contained page that runs nothing and fetches nothing.

The policy in its head holds a browser to that, whatever a defect of ours may let into the page: no script, no picture,
no frame, no form, and of styles only the sheet whose hash it states.
"""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from xml.etree.ElementTree import Element

from egmctl import __version__
from egmctl.report.render.markup import Child, element, html, raw

_STYLE = Path(__file__).with_name("style")


@dataclass(frozen=True, slots=True)
class PageSection:
    """A part of a page under a heading, which the list of contents leads to."""

    id: str
    title: str
    body: tuple[Child, ...]


def page(command: str, title: str, subtitle: str, banners: Sequence[str], sections: Sequence[PageSection]) -> str:
    """Return the whole document.

    Parameters
    ----------
    command
        Which command made it: ``egmctl bench``.
    title, subtitle
        What the report is of, and when and how it was made.
    banners
        What everybody has to know first: that a machine was modelled, recorded or fake.
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
    contents = [element("li", element("a", section.title, href=f"#{section.id}")) for section in sections]
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
    return html(element("html", head, body, lang="en"))


@cache
def style(*names: str) -> str:
    """Return the style sheets of these names as one."""
    return "".join((_STYLE / f"{name}.css").read_text(encoding="utf-8") for name in names)


def facts(rows: Sequence[tuple[str, Child]]) -> Element:
    """Return names and values side by side."""
    return element(
        "dl", (element("div", element("dt", name), element("dd", value)) for name, value in rows), class_="facts"
    )


def table(caption: str, head: Sequence[str], labels: Sequence[str], rows: Sequence[Sequence[str]]) -> Element:
    """Return a table whose first column and first row are its headings."""
    return element(
        "div",
        element(
            "table",
            element("caption", element("strong", caption)),
            element("thead", element("tr", element("td"), (element("th", name, scope="col") for name in head))),
            element(
                "tbody",
                (
                    element("tr", element("th", label, scope="row"), (element("td", cell) for cell in row))
                    for label, row in zip(labels, rows, strict=True)
                ),
            ),
            class_="links",
        ),
        class_="scroll",
        tabindex="0" if len(head) > 8 else None,
        role="region" if len(head) > 8 else None,
        aria_label=caption if len(head) > 8 else None,
    )


def rows(head: Sequence[str], body: Sequence[Sequence[Child]], numbers: Collection[str] = ()) -> Element:
    """Return a table that is read row by row: the first cell of each is its heading.

    Parameters
    ----------
    numbers
        The columns of numbers, by their heading.
    """
    looks = ["number" if name in numbers else None for name in head]
    heads = (element("th", name, scope="col", class_=look) for name, look in zip(head, looks, strict=True))
    return element(
        "div",
        element(
            "table",
            element("thead", element("tr", heads)),
            element("tbody", (_row(row, looks) for row in body)),
            class_="rows",
        ),
        class_="scroll",
    )


def _row(row: Sequence[Child], looks: Sequence[str | None]) -> Element:
    first, *others = row
    cells = (element("td", cell, class_=look) for cell, look in zip(others, looks[1:], strict=True))
    return element("tr", element("th", first, scope="row"), cells)


def _section(section: PageSection) -> Element:
    return element(
        "section",
        element("h2", section.title, id=f"{section.id}-heading"),
        section.body,
        id=section.id,
        aria_labelledby=f"{section.id}-heading",
    )
