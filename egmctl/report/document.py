"""The document model: blocks that a view creates and a renderer shows, each from a level of detail upwards."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import field, replace
from enum import IntEnum
from typing import TYPE_CHECKING, TypeVar

from egmctl.compat import StrEnum
from egmctl.dataclass import dataclass
from egmctl.units import several

if TYPE_CHECKING:
    from xml.etree.ElementTree import Element


class Level(IntEnum):
    """A level of detail. A block is shown at its own level and all higher ones."""

    SUMMARY = 0
    """The answer: the output of ``--brief``, and the output on the terminal with ``-o``."""
    NORMAL = 1
    VERBOSE = 2
    """The output of ``-v``. A page shows it, too; a ticket folds it."""
    ALL = 3
    """The output of ``-vv``. A page folds it; a ticket omits it."""
    PAGE = 4
    """Blocks that only a page shows, because another command also shows them."""


class Tone(StrEnum):
    """The meaning of words, which selects their colour. The words always express it without colour, too."""

    PLAIN = ""
    GOOD = "good"
    WARN = "warn"
    BAD = "bad"
    UNKNOWN = "unknown"
    ASSUMED = "assumed"
    """As it is expected to be, and not read."""
    DIM = "dim"
    STRONG = "strong"


@dataclass(frozen=True, slots=True)
class Span:
    """A part of a line with its own tone, or shown as code."""

    text: str
    tone: Tone = Tone.PLAIN
    code: bool = False


Words = str | Span | tuple[str | Span, ...]
"""A line of text, plain or in parts."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Leveled:
    """The base of all blocks: the lowest level of detail that shows the block, and whether pages show it."""

    level: Level = Level.NORMAL
    paged: bool = True
    """Whether pages show the block. They do not if another block of :attr:`Level.PAGE` shows them the same."""


@dataclass(frozen=True, slots=True)
class Verdict(_Leveled):
    """The answer: a word, the reason and the next step. Renderers show it first."""

    word: str
    """The word for the answer, e.g. ``OK``, ``FAIL``, ``NOT DETERMINED`` or ``NO REFERENCE``."""
    tone: Tone
    sentence: Words
    """One sentence with the numbers."""
    advice: Words = ""
    """The next step; empty if there is nothing to do."""
    clauses: tuple[str, ...] = ()
    """The clauses of the sentence, the first of which pages show largest; empty: the sentence is one."""
    lead: tuple[str, str] | None = None
    """The first clause in two, what is so and why, if it says why; pages show the reason of a long one smaller."""
    level: Level = field(default=Level.SUMMARY, kw_only=True)


@dataclass(frozen=True, slots=True)
class Paragraph(_Leveled):
    """A paragraph of text."""

    words: Words
    tone: Tone = Tone.PLAIN


@dataclass(frozen=True, slots=True)
class Hint(_Leveled):
    """A line on what ``-v`` would add. Only text without ``-v`` shows it."""

    words: Words
    more: bool = False
    """Whether the hint ends the list or table before it, e.g. "and 3 more"."""


@dataclass(frozen=True, slots=True)
class Bullets(_Leveled):
    """A list of sentences."""

    items: tuple[Words, ...]


@dataclass(frozen=True, slots=True)
class KeyValues(_Leveled):
    """Names and values, one pair per line."""

    rows: tuple[tuple[str, Words], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """The answer of a part of a command."""

    name: str
    word: str = ""
    """The word of its answer; empty without one."""
    tone: Tone = Tone.PLAIN
    sentence: str


@dataclass(frozen=True, slots=True)
class Parts(_Leveled):
    """The answers of the parts of a command, one per line; cards on a page."""

    parts: tuple[Part, ...]

    @property
    def key_values(self) -> KeyValues:
        """The same as names and values."""
        rows = ((part.name, ": ".join(filter(None, (part.word, part.sentence)))) for part in self.parts)
        return KeyValues(tuple(rows), level=self.level)


@dataclass(frozen=True, slots=True)
class ShellCommand(_Leveled):
    """A shell command, which renderers never wrap, so that it can be pasted."""

    text: str
    name: str
    """What it is for: ``look`` shows more, ``run`` mends."""


@dataclass(frozen=True, slots=True)
class Entry(_Leveled):
    """An entry of a list: a word for its status, a title, and the blocks below it."""

    word: str
    tone: Tone
    title: Words
    id: str = ""
    """The id of the check."""
    body: tuple[DocumentBlock, ...] = ()


class Align(StrEnum):
    """The alignment of a column's cells; numbers are aligned right."""

    LEFT = "<"
    RIGHT = ">"


class Better(StrEnum):
    """Whether high or low numbers of a matrix are better. Only a matrix that has this is shaded as a heat map."""

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
    """A sign that shows the tone without colour: ``!`` fails, ``~`` warns, ``<`` an outlier, ``*`` unstable."""
    value: float | None = None
    """The number, if it may be compared with others of the matrix."""
    kind: str = ""
    """The links of the path. Numbers are compared only with others of the same kind."""


EMPTY = Cell()


@dataclass(frozen=True, slots=True)
class Series:
    """A column of a :class:`Matrix`: the lines of its header, and its cells from top to bottom."""

    header: tuple[str, ...]
    cells: tuple[Cell, ...]
    align: Align = Align.RIGHT
    wrap: bool = False
    """Whether the cells are sentences that may be wrapped."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Matrix(_Leveled):
    """A table: cells by row and column."""

    caption: str = ""
    """The title, with direction and unit."""
    headed: bool = False
    """Whether a heading above it says the same as the caption, which pages then leave to screen readers."""
    corner: str = ""
    """The heading of the row names."""
    names: str = ""
    """The names of the cases."""
    notes: tuple[str, ...] = ()
    """The sentences above the table."""
    rows: tuple[Words, ...]
    groups: tuple[tuple[Series, ...], ...]
    """The columns in groups; the columns of a group stay together."""
    after: tuple[str, ...] = ()
    """The lines below the table."""
    better: Better | None = None
    """``None`` if the matrix is not shaded."""
    keyed: bool = True
    """Whether pages explain the shades."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Dot:
    """One path of a :class:`Bar`."""

    label: str
    value: float
    tone: Tone = Tone.PLAIN
    doubted: bool = False
    """Whether its value is not believed, or not all of it; drawn hollow."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Bar:
    """A measured rate or latency beside what is expected, and what the link can."""

    name: str
    """The name of the path class in plain words."""
    case: str = ""
    """The case and its point; empty if the bar is the answer to a question, not a row of a table."""
    unit: str
    median: float
    worst: Dot
    expected: float | None = None
    limit: float | None = None
    """The ceiling of the path, where the track ends; ``None`` if it is unknown, and for a latency."""
    limit_of: str = "link"
    """What has that rate: ``link``, or the memory that carries less than the links."""
    fail: float | None = None
    """The latency from which a path fails; ``None`` for a bandwidth, which fails below its expected value."""
    less: bool = False
    """Whether less is better."""
    state: Span
    """The number of paths, and how many of them are slow."""
    mark: str = ""
    """The sign of the worst grade: ``!`` fails, ``~`` warns."""
    dots: tuple[Dot, ...] = ()

    @property
    def end(self) -> float:
        """The value at the end of the track: the ceiling, or a little more than the largest value."""
        most = max(self.median, self.worst.value, self.expected or 0.0)
        return max(self.limit, most) if self.limit else 1.1 * most


@dataclass(frozen=True, slots=True, kw_only=True)
class Bars(_Leveled):
    """Measured rates as bars: the answers to the main questions, or a table of path classes under headings."""

    caption: str
    notes: tuple[str, ...] = ()
    groups: tuple[tuple[str, tuple[Bar, ...]], ...]
    """The bars under their headings; an empty heading is not shown."""
    beside: tuple[Diagram, ...] = ()
    """The pictures beside the answers to the main questions."""

    @property
    def bars(self) -> tuple[Bar, ...]:
        """The bars of all groups."""
        return tuple(bar for _, bars in self.groups for bar in bars)

    def table(self, *, names: bool = False) -> Matrix:
        """Return the same numbers as a table, with or without the plain names of cases."""
        rows: list[tuple[str, dict[str, str | Cell]]] = []
        longest = max(len(bar.name) for bar in self.bars) if names and self.bars[0].case else 0
        heads = (*_BAR_HEADS, "") if names else _BAR_HEADS
        for heading, bars in self.groups:
            if heading:
                rows.append((heading, dict.fromkeys(heads, "")))
            rows += [(f" {bar.case}" if bar.case else bar.name, _bar_cells(bar, longest)) for bar in bars]
        return grid(self.caption, rows, notes=self.notes, together=True, level=self.level)


@dataclass(frozen=True, slots=True, kw_only=True)
class CurvePoint:
    """One point of a curve, with the range of the samples whose median it is."""

    x: float
    y: float
    low: float
    high: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Chart(_Leveled):
    """A chart of curves. Text omits it, so a table next to it always contains the same numbers."""

    caption: str
    note: str = ""
    """How to read it."""
    x: str
    """The title of the x axis, with its unit."""
    y: str
    curves: tuple[tuple[str, tuple[CurvePoint, ...]], ...]
    """The curves, each with its name."""
    sizes: bool = False
    """Whether ``x`` is a size in bytes, drawn on a logarithmic scale."""
    logarithmic: bool = False
    """Whether ``x`` is another number of at least 1, drawn on a logarithmic scale."""
    limits: tuple[tuple[str, float], ...] = ()
    """The horizontal lines of upper limits, each with its name."""
    steep: bool = False
    """Whether ``y`` has a logarithmic scale, too, and a ring marks where each curve reaches half of its maximum."""
    small: bool = False
    """Whether it is one of several small charts: thin curves of the paths of one case."""


@dataclass(frozen=True, slots=True)
class Diagram(_Leveled):
    """A picture, which text shows as characters or omits: other blocks contain the same facts."""

    draw: Callable[[], Element]
    """The function that returns the picture as SVG with a width and a height, or as HTML where there is no SVG of the
    document; called only if the picture is shown."""
    narrow: Callable[[], Element] | None = None
    """The function that returns the picture for a phone; ``None`` if there is only one."""
    note: str = ""
    """How to read it."""
    lines: Callable[[int], Iterable[Words]] | None = None
    """The function that returns the lines of the picture in text, at most so many characters wide."""


@dataclass(frozen=True, slots=True)
class Section(_Leveled):
    """Blocks under a heading. A section without blocks is omitted."""

    title: str
    body: Body
    folded: bool = False
    """Whether pages and tickets show only the heading until the reader opens it."""
    note: str = ""
    """What a reader finds in it, in few words; pages show it beside the heading."""
    marks: tuple[Tone, ...] = ()
    """The tones of what is in it, one for each; pages show a square for each beside the heading."""
    printed: bool = False
    """Whether paper shows a folded section, too."""
    on_paper: bool = False
    """Whether only paper shows it."""
    beside: bool = False
    """Whether pages show it in one row with the section before it, where there is space."""
    anchor: str = ""
    """The id of its heading within a page, if a link leads to it."""


Body = tuple["DocumentBlock", ...] | Callable[[], Iterable["DocumentBlock"]]
"""Blocks, or a function that returns them, called only if they are shown."""

DocumentBlock = (
    Verdict
    | Paragraph
    | Hint
    | Bullets
    | KeyValues
    | Parts
    | ShellCommand
    | Entry
    | Matrix
    | Bars
    | Chart
    | Diagram
    | Section
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Document:
    """The complete output of a command."""

    command: str = ""
    """The command, e.g. ``egmctl doctor``. It and the subject are the title of a page, which lists do not have."""
    subject: str = ""
    """The described object, e.g. ``this node`` or ``4 x NVIDIA H200``."""
    subtitle: str = ""
    """How and when it was measured, or the platform."""
    facts: tuple[str, ...] = ()
    """When it was made, on what, by which version, and how long it took. Pages show it in place of the subtitle; text
    omits it, so that the outputs of equal nodes are equal."""
    banners: tuple[str, ...] = ()
    """Warnings to read first, e.g. that the machine is modelled or its driver is fake."""
    body: tuple[DocumentBlock, ...]


def plain(words: Words) -> str:
    """Return a line of text without its tones."""
    return "".join(part.text for part in parts(words))


def parts(words: Words) -> tuple[Span, ...]:
    """Return the parts of a line of text."""
    pieces = words if isinstance(words, tuple) else (words,)
    return tuple(Span(part) if isinstance(part, str) else part for part in pieces)


def shown(blocks: Iterable[DocumentBlock], level: Level) -> Iterator[DocumentBlock]:
    """Yield the blocks that are shown at a level, with their bodies evaluated; omit empty blocks."""
    for block in blocks:
        if block.level > level or (level is Level.PAGE and not block.paged):
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
            case Bars():
                empty = not block.bars
            case Parts():
                empty = not block.parts
            case _:
                empty = False
        if not empty:
            yield block


def body_of(block: Section) -> tuple[DocumentBlock, ...]:
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
    """Return a table with these headings and rows; the first cell of each row is its name.

    Parameters
    ----------
    right
        The headings of columns of numbers.
    wrap
        The headings of columns of sentences.
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
    """Return a matrix with these rows: the name of each, and its cells by heading. A missing cell is a dash.

    Parameters
    ----------
    rows
        A heading is one line, or a tuple of lines.
    align
        The alignment of all columns.
    together
        Whether all columns form one group, which stays together on a narrow page.
    """
    rows = list(rows)
    columns = []
    for header in dict.fromkeys(header for _, row in rows for header in row):
        cells = (row.get(header, EMPTY) for _, row in rows)
        lines = header if isinstance(header, tuple) else (header,)
        columns.append(Series(lines, tuple(Cell(cell) if isinstance(cell, str) else cell for cell in cells), align))
    return Matrix(
        caption=caption,
        names=names,
        notes=tuple(notes),
        rows=tuple(name for name, _ in rows),
        groups=(tuple(columns),) if together else tuple((column,) for column in columns),
        after=after,
        better=better,
        level=level,
    )


_BAR_HEADS = ("n", "median", "worst", "expect", "link")
_WHOLE = 1000
"""The number from which no decimal is shown."""


def number(value: float | None) -> str:
    """Return a bandwidth or a latency with the decimals that tables and sentences show."""
    if value is None:
        return "-"
    return f"{value:.1f}" if value < _WHOLE else f"{value:.0f}"


def _bar_cells(bar: Bar, name: int) -> dict[str, str | Cell]:
    """Return the numbers of a bar, and its plain name in a column of a width; without the name if that is 0."""
    worst = Cell(number(bar.worst.value), bar.worst.tone, bar.mark)
    mark = "" if bar.limit_of == "link" else "#"
    share = Cell(f"{100 * bar.median / bar.limit:.0f} %" if bar.limit else "-", mark=mark)
    cells = (str(len(bar.dots)), number(bar.median), worst, number(bar.expected), share)
    named: dict[str, str | Cell] = {"": bar.name.ljust(name)} if name else {}
    return {**dict(zip(_BAR_HEADS, cells, strict=True)), **named}


def limited(blocks: Iterable[Entry], most: int, what: str = "", level: Level = Level.NORMAL) -> Iterator[Entry | Hint]:
    """Yield ``most`` entries, the others for ``-v``, and a hint at their number: ``and 3 more causes (-v)``."""
    entries = list(blocks)
    yield from entries[:most]
    yield from (replace(entry, level=Level.VERBOSE) for entry in entries[most:])
    if more := len(entries[most:]):
        words = f"{more} more" if not what else several(more, f"more {what}")
        yield Hint(f"and {words} (-v)", more=True, level=level)


def columns(matrix: Matrix) -> Sequence[Series]:
    """Return the columns of all groups of a matrix."""
    return [series for group in matrix.groups for series in group]
