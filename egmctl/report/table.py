"""Tables in plain text: aligned columns, split into blocks where they would be wider than the page.

The page is :data:`WIDTH` characters whatever the terminal is, so that piped, recorded and shown text are the same.
"""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from rich.text import Text

WIDTH = 80
"""Characters of a line that people read; only a single cell can make a line longer."""

HEADING = "bold"
DIM = "dim"
WARN = "yellow"
BAD = "bold red"


@dataclass(frozen=True, slots=True)
class Column:
    """One column: what stands above it, its cells from top to bottom, and how they are aligned."""

    cells: Sequence[str]
    header: tuple[str, ...] = ()
    """Its lines; the last one stands right above the cells."""
    align: str = "<"
    """As in a format string: ``<``, ``>`` or ``^``."""
    styles: dict[str, str] = field(default_factory=dict)
    """Style of each cell text that has one."""

    @property
    def width(self) -> int:
        """Characters of the widest header line or cell."""
        return max(map(len, (*self.header, *self.cells)), default=0)


Group = Sequence[Column]
"""Columns that stay together."""


def table(labels: Sequence[str], groups: Sequence[Group]) -> Text:
    """Lay out rows with a label each and groups of columns, in as many blocks as the page's width asks for.

    Columns are two spaces apart, or one where that makes all of them fit the page.
    """
    gap = next((gap for gap in (2, 1) if len(list(_blocks(labels, groups, gap))) == 1), 2)
    blocks = [_block(labels, block, gap) for block in _blocks(labels, groups, gap)]
    return Text("\n").join(blocks)


def trimmed(text: Text) -> Text:
    """Return the text without spaces at the ends of its lines."""
    lines = text.split("\n", allow_blank=True)
    for line in lines:
        line.rstrip()
    return Text("\n").join(lines)


def wrap(sentence: str, indent: str = "  ", further: str | None = None) -> str:
    """Break a sentence at the page's width; a word that is longer stays whole.

    Parameters
    ----------
    indent
        What the first line begins with.
    further
        What the others begin with: two spaces more if it is not given.
    """
    lines = textwrap.wrap(
        sentence,
        WIDTH,
        initial_indent=indent,
        subsequent_indent=f"{indent}  " if further is None else further,
        break_long_words=False,
        break_on_hyphens=False,
    )
    return "".join(f"{line}\n" for line in lines)


def _blocks(labels: Sequence[str], groups: Sequence[Group], gap: int) -> Iterator[list[Column]]:
    """Yield the columns of each block: as many groups as fit, at least one."""
    label_width = max(map(len, labels), default=0)
    block: list[Column] = []
    width = label_width
    for group in groups:
        group_width = sum(gap + column.width for column in group)
        if block and width + group_width > WIDTH:
            yield block
            block, width = [], label_width
        block = [*block, *group]
        width += group_width
    if block:
        yield block


def _block(labels: Sequence[str], columns: Sequence[Column], gap: int) -> Text:
    label_width = max(map(len, labels), default=0)
    height = max((len(column.header) for column in columns), default=0)
    text = Text()
    for row in range(-height, len(labels)):
        line = Text((labels[row] if row >= 0 else "").ljust(label_width))
        for column in columns:
            if row >= 0:
                cell, style = column.cells[row], column.styles.get(column.cells[row], "")
            else:
                cell, style = column.header[row] if -row <= len(column.header) else "", DIM
            line.append(" " * gap)
            line.append(f"{cell:{column.align}{column.width}}", style)
        text.append_text(line).append("\n")
    return text
