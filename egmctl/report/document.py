"""A document as data: blocks that a view makes and a renderer shows, each from some level of detail on."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import IntEnum
from typing import TYPE_CHECKING, TypeVar

from egmctl.compat import StrEnum
from egmctl.units import several

if TYPE_CHECKING:
    from xml.etree.ElementTree import Element


class Level(IntEnum):
    """How much of it a reader wants: a block is shown from its level on."""

    SUMMARY = 0
    """The answer: what ``--brief`` leaves, and what goes to the terminal beside ``-o``."""
    NORMAL = 1
    VERBOSE = 2
    """With ``-v``. A page shows it too, a ticket folds it."""
    ALL = 3
    """With ``-vv``; a page folds it, a ticket leaves it out."""
    PAGE = 4
    """Only on a page, which has room for what another command shows."""


class Tone(StrEnum):
    """The meaning of a word, for its colour; the word itself always says it too."""

    PLAIN = ""
    GOOD = "good"
    WARN = "warn"
    BAD = "bad"
    UNKNOWN = "unknown"
    DIM = "dim"
    STRONG = "strong"


@dataclass(frozen=True, slots=True)
class Span:
    """Words with a tone of their own, or words that are code."""

    text: str
    tone: Tone = Tone.PLAIN
    code: bool = False


Words = str | Span | tuple[str | Span, ...]
"""A line of text: plain, or in parts."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Leveled:
    """The part of every block that says from which level on it is shown."""

    level: Level = Level.NORMAL


@dataclass(frozen=True, slots=True)
class Verdict(_Leveled):
    """The answer: a word, the reason, and the next step. Always shown first."""

    word: str
    """``OK``, ``PASS``, ``FAIL``, ``PROBLEMS``, ``NOT DETERMINED``, ``INCOMPLETE``, ``NO REFERENCE``."""
    tone: Tone
    sentence: Words
    """One sentence with the figures."""
    advice: Words = ""
    """The next step; empty where there is nothing to do."""
    level: Level = field(default=Level.SUMMARY, kw_only=True)


@dataclass(frozen=True, slots=True)
class Paragraph(_Leveled):
    """Sentences."""

    words: Words
    tone: Tone = Tone.PLAIN


@dataclass(frozen=True, slots=True)
class Hint(_Leveled):
    """A line on what ``-v`` would add: only text without ``-v`` shows it; a page and a ticket have all."""

    words: Words
    more: bool = False
    """Whether it ends the list or table before it: "and 3 more"."""


@dataclass(frozen=True, slots=True)
class Bullets(_Leveled):
    """A list of sentences."""

    items: tuple[Words, ...]


@dataclass(frozen=True, slots=True)
class KeyValues(_Leveled):
    """Names and values, one a line."""

    rows: tuple[tuple[str, Words], ...]


@dataclass(frozen=True, slots=True)
class Command(_Leveled):
    """A line that may be pasted into a shell as it is: it is never broken."""

    text: str


@dataclass(frozen=True, slots=True)
class Entry(_Leveled):
    """One thing that was found: a word for how it stands, a title, and what belongs to it."""

    word: str
    tone: Tone
    title: Words
    id: str = ""
    """The check that found it."""
    body: tuple[Block, ...] = ()


class Align(StrEnum):
    """Where the cells of a column stand; numbers on the right."""

    LEFT = "<"
    RIGHT = ">"


class Better(StrEnum):
    """Which numbers of a matrix are the good ones, where it may be shaded as a heat map."""

    HIGH = "high"
    """Bandwidths."""
    LOW = "low"
    """Latencies."""


@dataclass(frozen=True, slots=True)
class Cell:
    """A cell of a :class:`Matrix`."""

    text: Words = "-"
    tone: Tone = Tone.PLAIN
    mark: str = ""
    """A sign that says the tone without colour: ``!`` failed, ``~`` unstable, ``<`` an outlier."""
    value: float | None = None
    """The number, where it may be set against others of the matrix."""
    kind: str = ""
    """Numbers are set against those of the same kind: the same links."""


EMPTY = Cell()


@dataclass(frozen=True, slots=True)
class Series:
    """A column of a :class:`Matrix`: what stands above it, line by line, and its cells from top to bottom."""

    header: tuple[str, ...]
    cells: tuple[Cell, ...]
    align: Align = Align.RIGHT
    wrap: bool = False
    """Its cells are sentences, which may be broken."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Matrix(_Leveled):
    """A table: cells by row and column."""

    caption: str = ""
    """With the direction and the unit."""
    corner: str = ""
    """The heading of the rows' names."""
    names: str = ""
    """The cases."""
    notes: tuple[str, ...] = ()
    """A sentence each, above it."""
    rows: tuple[Words, ...]
    groups: tuple[tuple[Series, ...], ...]
    """Columns; those of a group stay together."""
    after: tuple[str, ...] = ()
    """Lines below it."""
    better: Better | None = None
    """``None`` where the cells are no numbers of one kind."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Point:
    """One point of a curve, with the span of what it is the median of."""

    x: float
    y: float
    low: float
    high: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Chart(_Leveled):
    """Curves. What it shows stands in a table beside it, which text shows in its place."""

    caption: str
    x: str
    """With its unit."""
    y: str
    curves: tuple[tuple[str, tuple[Point, ...]], ...]
    """By name."""
    sizes: bool = False
    """``x`` are bytes, drawn by their logarithm."""
    logarithmic: bool = False
    """``x`` are other numbers from 1 on, drawn by their logarithm."""
    limits: tuple[tuple[str, float], ...] = ()
    """Level lines that no curve can be above, each by its name."""


@dataclass(frozen=True, slots=True)
class Diagram(_Leveled):
    """A picture; text leaves it out, so what it shows stands elsewhere too."""

    draw: Callable[[], Element]
    """Returns the picture as SVG with a width and a height; it is called where it is shown, and only there."""


@dataclass(frozen=True, slots=True)
class Section(_Leveled):
    """Blocks under a heading; it is left out where it has none."""

    title: str
    body: Body
    folded: bool = False
    """A page shows the heading alone until it is opened."""


Body = tuple["Block", ...] | Callable[[], Iterable["Block"]]
"""Blocks, or a function that makes them: it is called where they are shown, and only there."""

Block = Verdict | Paragraph | Hint | Bullets | KeyValues | Command | Entry | Matrix | Chart | Diagram | Section


@dataclass(frozen=True, slots=True, kw_only=True)
class Document:
    """All that a command has to say."""

    command: str
    """``egmctl doctor``."""
    subject: str
    """The thing that it describes: ``this node``, ``4 x NVIDIA H200``."""
    subtitle: str = ""
    """When and how it was made."""
    banners: tuple[str, ...] = ()
    """Warnings to read first: the machine was modelled, or is fake."""
    body: tuple[Block, ...]


def plain(words: Words) -> str:
    """Return a line of text without its tones."""
    return "".join(part.text for part in parts(words))


def parts(words: Words) -> tuple[Span, ...]:
    """Return a line of text in its parts."""
    pieces = words if isinstance(words, tuple) else (words,)
    return tuple(Span(part) if isinstance(part, str) else part for part in pieces)


def shown(blocks: Iterable[Block], level: Level) -> Iterator[Block]:
    """Yield the blocks that are shown at a level, with their bodies; nothing that is empty."""
    for block in blocks:
        if block.level > level:
            continue
        match block:
            case Hint():
                empty = level >= Level.VERBOSE
            case Section() | Entry():
                body = block.body if isinstance(block.body, tuple) else block.body()
                block = replace(block, body=tuple(shown(body, level)))
                empty = not block.body and not isinstance(block, Entry)
            case Bullets():
                empty = not block.items
            case KeyValues() | Matrix():
                empty = not block.rows
            case _:
                empty = False
        if not empty:
            yield block


def body_of(block: Section) -> tuple[Block, ...]:
    """Return the blocks of a section that :func:`shown` has yielded."""
    if not isinstance(block.body, tuple):
        raise TypeError(f"the body of {block.title!r} was not called")
    return block.body


def table(
    heads: Sequence[str],
    rows: Iterable[Sequence[Words]],
    *,
    right: Collection[str] = (),
    wrap: Collection[str] = (),
    caption: str = "",
) -> Matrix:
    """Return a table by its headings and rows, the first cell of each its name.

    Parameters
    ----------
    right, wrap
        The headings of the columns of numbers, and of those of sentences.
    """
    names, *columns = zip(*(heads, *rows), strict=True)
    return Matrix(
        caption=caption,
        corner=heads[0],
        rows=names[1:],
        groups=(
            tuple(
                Series(
                    (head,) if head else (),
                    tuple(map(Cell, cells)),
                    Align.RIGHT if head in right else Align.LEFT,
                    head in wrap,
                )
                for head, *cells in columns
            ),
        ),
    )


_Header = TypeVar("_Header", bound="str | tuple[str, ...]")


def columns_of(
    columns: Mapping[_Header, Sequence[str | Cell]], align: Align = Align.RIGHT
) -> tuple[tuple[Series, ...], ...]:
    """Return the columns of a matrix by their headings: one line each, or several."""
    return tuple(
        (
            Series(
                header=header if isinstance(header, tuple) else (header,),
                cells=tuple(Cell(text=cell) if isinstance(cell, str) else cell for cell in cells),
                align=align,
            ),
        )
        for header, cells in columns.items()
    )


def grid(
    caption: str,
    rows: Iterable[tuple[str, Mapping[_Header, str | Cell]]],
    *,
    names: str = "",
    notes: Iterable[str] = (),
    after: tuple[str, ...] = (),
    align: Align = Align.RIGHT,
    better: Better | None = None,
    together: bool = False,
    level: Level = Level.NORMAL,
) -> Matrix:
    """Return a matrix by its rows: the name of each and its cells by heading, with a dash where it has none.

    Parameters
    ----------
    align
        How the cells of all columns stand.
    together
        Whether all columns stay together, however narrow the page.
    """
    rows = list(rows)
    cells = {
        header: [row.get(header, EMPTY) for _, row in rows]
        for header in dict.fromkeys(header for _, row in rows for header in row)
    }
    columns = columns_of(cells, align)
    return Matrix(
        caption=caption,
        names=names,
        notes=tuple(notes),
        rows=tuple(name for name, _ in rows),
        groups=(sum(columns, ()),) if together else columns,
        after=after,
        better=better,
        level=level,
    )


def limited(blocks: Iterable[Entry], most: int, what: str = "", level: Level = Level.NORMAL) -> Iterator[Entry | Hint]:
    """Yield the first entries, those for ``-v``, and a hint at the number of these: ``and 3 more causes (-v)``."""
    entries = list(blocks)
    yield from entries[:most]
    yield from (replace(entry, level=Level.VERBOSE) for entry in entries[most:])
    if more := len(entries[most:]):
        words = f"{more} more" if not what else several(more, f"more {what}")
        yield Hint(f"and {words} (-v)", more=True, level=level)


def columns(matrix: Matrix) -> Sequence[Series]:
    """Return the columns of all groups of a matrix."""
    return [series for group in matrix.groups for series in group]
