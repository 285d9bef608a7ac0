"""Writes any result in any format of its kind: an export where the format is data, else its view's document."""

from __future__ import annotations

from pkgutil import resolve_name
from typing import TYPE_CHECKING

from egmctl.report.kinds import Format, kind_of

if TYPE_CHECKING:
    from rich.text import Text

    from egmctl.report.document import Document


def render(
    result: object, format: Format, *, verbose: int = 0, brief: bool = False, width: int | None = None
) -> Text | str:
    """Return a result in one of the formats of its kind (:mod:`egmctl.report.kinds`).

    Parameters
    ----------
    verbose, brief
        More or less detail, for the formats that are text.
    width
        Characters of a line of text; ``None`` where no terminal shows it.

    Raises
    ------
    LookupError
        If it is no result of a command.
    ValueError
        If its kind has no such format.
    """
    kind = kind_of(result)
    if format not in kind.formats:
        raise ValueError(f"a {type(result).__name__} has no format {format}")
    if export := kind.export(format):
        content: Text | str = resolve_name(export)(result)
    else:
        document = resolve_name(kind.view)(result)
        content = rendered(document, format, verbose=verbose, brief=brief, width=width, drawn=kind.drawn)
    return _without_control_characters(content)


def rendered(
    document: Document,
    format: Format,
    *,
    verbose: int = 0,
    brief: bool = False,
    width: int | None = None,
    drawn: bool = False,
) -> Text | str:
    """Return a document in one of the formats that every document has.

    Parameters
    ----------
    drawn
        Whether its picture shows its figures instead of its text.

    Raises
    ------
    ValueError
        If a document has no such format.
    """
    match format:
        case Format.SVG if drawn:
            from egmctl.report.render.svg import svg

            return svg(document)
        case Format.TEXT | Format.SVG:
            from egmctl.report.document import Level
            from egmctl.report.render.svg import picture
            from egmctl.report.render.text import WIDTH, text

            level = Level.SUMMARY if brief else Level(min(Level.NORMAL + verbose, Level.ALL))
            shown = text(document, width=width or WIDTH, level=level)
            return shown if format is Format.TEXT else picture(shown, document.command)
        case Format.HTML:
            from egmctl.report.render.html import html

            return html(document)
        case Format.MARKDOWN:
            from egmctl.report.render.markdown import markdown

            return markdown(document)
    raise ValueError(f"a document of {document.command} has no format {format}")


def _without_control_characters(content: Text | str) -> Text | str:
    """Return a view without control and format characters: no text of a document moves the cursor.

    Views escape what they show; this catches one that does not. Each character becomes one other, which keeps the
    colours of a text in their places.
    """
    plain = content if isinstance(content, str) else content.plain
    if all(map(str.isprintable, plain.split("\n"))):
        return content
    safe = "".join(char if char.isprintable() or char == "\n" else "\N{REPLACEMENT CHARACTER}" for char in plain)
    if isinstance(content, str):
        return safe
    content.plain = safe
    return content
