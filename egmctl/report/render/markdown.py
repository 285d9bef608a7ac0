"""Render a document as GitHub Flavored Markdown. No text of a machine can become markup, a mention or a reference."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

from egmctl.report import document as doc
from egmctl.report.document import Align, Level, Tone, Words
from egmctl.units import printable

_MARKUP = re.compile(r"([\\`*{}\[\]<>#|~&$!]|(?<![^\W_])_|_(?![^\W_])|^[-+=]|^\d+(?=[.)](?:\s|$))|:(?=//)|(?<=www)\.)")
_REFERENCE = re.compile(r"(@|\\#|GH-)(?=\w)")


def escaped(text: str) -> str:
    """Escape a text so that it is shown literally in any position.

    A backslash escapes ASCII punctuation (https://spec.commonmark.org/0.31.2/#backslash-escapes). GitHub still links
    mentions and issues in the result; an empty comment after their sign prevents this.
    """
    return _REFERENCE.sub(r"\1<!-- -->", _MARKUP.sub(_plain, printable(text)))


def code(text: str) -> str:
    """Return a text as inline code, delimited by more backticks than any run of backticks in it."""
    shown = printable(text)
    fence = "`" * (1 + max(map(len, re.findall("`+", shown)), default=0))
    pad = " " if shown.startswith("`") or shown.endswith("`") else ""
    return f"{fence}{pad}{shown}{pad}{fence}".replace("|", "\\|")


def code_block(*lines: str, language: str = "") -> str:
    """Return lines of text as a fenced code block."""
    shown = "\n".join(map(printable, lines))
    fence = "`" * max(3, 1 + max(map(len, re.findall("`+", shown)), default=0))
    return f"{fence}{language}\n{shown}\n{fence}\n"


def markdown_table(head: Sequence[str], rows: Iterable[Sequence[str]], right: Iterable[bool]) -> str:
    """Return a table of cells that are already Markdown.

    Parameters
    ----------
    right
        Whether each column is aligned right.
    """
    marks = ["---:" if number else "---" for number in right]
    return "".join(f"| {' | '.join(cell or ' ' for cell in row)} |\n" for row in (head, marks, *rows))


def details(summary: str, body: str) -> str:
    """Return Markdown that is folded below a summary line."""
    return f"<details>\n<summary>{escaped(summary)}</summary>\n\n{body.rstrip()}\n\n</details>\n"


def warning(lines: Sequence[str]) -> str:
    """Return lines as an alert box of GitHub, or an empty string without lines."""
    return "> [!WARNING]\n" + "".join(f"> {escaped(line)}\n" for line in lines) + "\n" if lines else ""


def _plain(match: re.Match[str]) -> str:
    # A backslash escapes punctuation but not digits: in "1." it goes before the dot.
    return f"{match[0]}\\" if match[0][0].isdigit() else f"\\{match[0]}"


LIMIT = 60_000
"""The maximum length in characters; GitHub accepts 65536 in one comment."""


def markdown(document: doc.Document) -> str:
    """Return a document as Markdown. Parts that would exceed :data:`LIMIT` are omitted and listed at the end."""
    body = list(doc.shown(document.body, Level.VERBOSE))
    verdicts = [block for block in body if isinstance(block, doc.Verdict)]
    title = f"## {escaped(document.command)}: {escaped(verdicts[0].word if verdicts else document.subject)}\n"
    named = verdicts and not document.subtitle.startswith(document.subject)
    about = ", ".join(filter(None, (document.subject if named else "", document.subtitle)))
    parts = [title, warning(document.banners), *(_block(verdict, 3) for verdict in verdicts)]
    parts.append(f"{escaped(about)}\n" if about else "")
    left_out = []
    for block in body:
        part = "" if isinstance(block, doc.Verdict) else _folded(block)
        if sum(map(len, parts)) + len(part) > LIMIT:
            left_out.append(_name(block))
        else:
            parts.append(part)
    if left_out:
        parts.append(f"Too long for a ticket, left out: {escaped('; '.join(left_out))}. The page and JSON have it.\n")
    return "\n".join(filter(None, parts))


def _folded(block: doc.DocumentBlock) -> str:
    if block.level < Level.VERBOSE:
        return _block(block, 3)
    if isinstance(block, doc.Section):
        return details(block.title, _blocks(doc.body_of(block), 4))
    return details(_name(block), _block(block, 4))


def _name(block: doc.DocumentBlock) -> str:
    match block:
        case doc.Section():
            return block.title
        case doc.Matrix() | doc.Bars() | doc.Chart():
            return block.caption or "table"
        case doc.Entry():
            return doc.plain(block.title)
        case _:
            return "more"


def _blocks(blocks: Sequence[doc.DocumentBlock], depth: int) -> str:
    return "\n".join(filter(None, (_block(block, depth) for block in blocks)))


def _block(block: doc.DocumentBlock, depth: int) -> str:
    match block:
        case doc.Verdict():
            advice = f"\n**Next:** {_words(block.advice)}\n" if block.advice else ""
            return f"**{escaped(block.word)}**: {_words(block.sentence)}\n{advice}"
        case doc.Paragraph():
            return f"{_words(block.words)}\n"
        case doc.Bullets():
            return "".join(f"- {_words(item)}\n" for item in block.items)
        case doc.KeyValues():
            return "".join(f"- {escaped(name)}: {_words(value)}\n" for name, value in block.rows)
        case doc.Parts():
            return _block(block.key_values, depth)
        case doc.ShellCommand():
            return f"- {escaped(block.name)}:\n\n{code_block(block.text, language='sh')}"
        case doc.Entry():
            check = f" {code(block.id)}" if block.id else ""
            head = f"{'#' * depth} {escaped(block.word)} {_words(block.title)}{check}\n"
            return "\n".join(filter(None, (head, *map(_folded, block.body))))
        case doc.Matrix():
            return _matrix(block)
        case doc.Bars():
            return _matrix(block.table(names=True))
        case doc.Section() if block.folded:
            return details(block.title, _blocks(doc.body_of(block), depth + 1))
        case doc.Section():
            return f"{'#' * depth} {escaped(block.title)}\n\n{_blocks(doc.body_of(block), depth + 1)}"
        case doc.Diagram() if block.lines is not None:
            return code_block(*(doc.plain(line).rstrip() for line in block.lines(80)), language="text")
        case doc.Chart() | doc.Diagram() | doc.Hint():
            return ""


def _matrix(block: doc.Matrix) -> str:
    series = doc.columns(block)
    head = [escaped(block.corner), *(escaped(" ".join(filter(None, column.header))) for column in series)]
    rows = [[_words(name), *(_cell(column.cells[place]) for column in series)] for place, name in enumerate(block.rows)]
    caption = f"**{escaped(block.caption)}**" if block.caption else ""
    names = f" {code(block.names)}" if block.names else ""
    notes = "".join(f"<br>{escaped(note)}" for note in (*block.notes, *block.after))
    right = (False, *(column.align is Align.RIGHT for column in series))
    return f"{caption}{names}{notes}\n\n{markdown_table(head, rows, right)}".lstrip()


def _cell(cell: doc.Cell) -> str:
    words = cell.text if cell.tone is Tone.PLAIN else doc.Span(f"{doc.plain(cell.text).strip()}{cell.mark}", cell.tone)
    return f"{_words(words)}{escaped(cell.mark) if cell.tone is Tone.PLAIN else ''}"


def _words(words: Words) -> str:
    text = ""
    for span in doc.parts(words):
        part = _span(span)
        # Two adjacent spans of code, or two bold ones, would merge without a separator.
        text += f"<!-- -->{part}" if text.endswith(("`", "**")) and part.startswith(("`", "**")) else part
    return text


def _span(span: doc.Span) -> str:
    return code(span.text) if span.code else _marked(span.text, span.tone)


def _marked(text: str, tone: Tone) -> str:
    shown_text = text if text == "-" else escaped(text)
    return f"**{shown_text}**" if tone in (Tone.BAD, Tone.WARN, Tone.STRONG) and text.strip() else shown_text
