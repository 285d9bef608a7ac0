"""Markdown as GitHub reads it: nothing that came from a machine can be markup, a mention or a reference."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

from egmctl.units import printable

_MARKUP = re.compile(r"([\\`*{}\[\]<>#|~&$!]|(?<![^\W_])_|_(?![^\W_])|^[-+=]|^\d+(?=[.)](?:\s|$))|:(?=//)|(?<=www)\.)")
_REFERENCE = re.compile(r"(@|\\#|GH-)(?=\w)")


def escaped(text: str) -> str:
    """Return a text that is shown as it is, wherever it stands.

    A backslash makes ASCII punctuation plain (https://spec.commonmark.org/0.31.2/#backslash-escapes). GitHub finds
    people and issues in what is left; an empty comment behind the sign keeps it from that.
    """
    return _REFERENCE.sub(r"\1<!-- -->", _MARKUP.sub(_plain, printable(text)))


def code(text: str) -> str:
    """Return a text as code within a line: a fence longer than any run of backticks in it."""
    shown = printable(text)
    fence = "`" * (1 + max(map(len, re.findall("`+", shown)), default=0))
    pad = " " if shown.startswith("`") or shown.endswith("`") else ""
    return f"{fence}{pad}{shown}{pad}{fence}".replace("|", "\\|")


def block(text: str, language: str = "") -> str:
    """Return lines of code."""
    shown = printable(text)
    fence = "`" * max(3, 1 + max(map(len, re.findall("`+", shown)), default=0))
    return f"{fence}{language}\n{shown}\n{fence}\n"


def table(head: Sequence[str], rows: Iterable[Sequence[str]], right: Iterable[bool]) -> str:
    """Return a table; the cells are Markdown already.

    Parameters
    ----------
    right
        Of each column, whether it holds numbers.
    """
    marks = ["---:" if one else "---" for one in right]
    return "".join(f"| {' | '.join(row)} |\n" for row in (head, marks, *rows))


def details(summary: str, body: str) -> str:
    """Return what is folded away below a line."""
    return f"<details>\n<summary>{escaped(summary)}</summary>\n\n{body.rstrip()}\n\n</details>\n"


def warning(lines: Sequence[str]) -> str:
    """Return a box that GitHub shows as a warning; nothing of nothing."""
    return "> [!WARNING]\n" + "".join(f"> {escaped(line)}\n" for line in lines) + "\n" if lines else ""


def _plain(match: re.Match[str]) -> str:
    found = match[0]
    # A backslash makes punctuation plain, no digit: of "1." it stands before the dot.
    return f"{found}\\" if found[0].isdigit() else f"\\{found}"
