"""Render a document as text for a terminal or a log, at a given width and complete without colour.

Nothing is truncated: text is wrapped, and columns that do not fit go below the others. Only a single word, cell or
command can exceed the width.
"""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Sequence
from itertools import zip_longest

from rich.text import Text

from egmctl.report import document as doc
from egmctl.report.document import Align, Level, Tone, Words
from egmctl.units import printable

WIDTH = 80
"""The width in characters without a terminal, so that piped output is always the same."""
NARROWEST, WIDEST = 60, 200
"""The limits of the width in characters, regardless of the terminal's width."""

STYLES = {
    Tone.PLAIN: "",
    Tone.GOOD: "green",
    Tone.WARN: "yellow",
    Tone.BAD: "bold red",
    Tone.UNKNOWN: "magenta",
    Tone.ASSUMED: "dim",
    Tone.DIM: "dim",
    Tone.STRONG: "bold",
}
_VERDICTS = {Tone.GOOD: "bold green", Tone.WARN: "bold yellow", Tone.BAD: "bold red", Tone.UNKNOWN: "bold magenta"}
_HEADING = "bold"
_LEAST_WRAPPED = 20
"""The minimum width in characters of a column of sentences."""
_FIGURE, _LONGEST_TRACK = 9, 40
"""The widths in characters of a number beside a bar, and of the longest track of a bar."""
_BESIDE = 115
"""The width in characters from which paths stand beside bars, and plain names beside the names of cases."""
_BAR_KEY = "█ median │ expected ▕ link{} rate  ! slow ~ a little slow  latency: less is better"
_EIGHTHS = " ▏▎▍▌▋▊▉█"


def text(document: doc.Document, *, width: int = WIDTH, level: Level = Level.NORMAL) -> Text:
    """Return a document as text.

    Parameters
    ----------
    width
        The width in characters.
    level
        The highest level of the blocks that are shown.
    """
    page = _Page(width=min(max(width, NARROWEST), WIDEST))
    for banner in document.banners:
        page.words(banner, style=STYLES[Tone.WARN], further=2)
    body = list(doc.shown(document.body, level))
    first = [block for block in body if isinstance(block, doc.Verdict)]
    page.blocks(first)
    if document.subtitle and level >= Level.NORMAL:
        page.words(document.subtitle, style=STYLES[Tone.DIM], further=2)
    rest = [block for block in body if not isinstance(block, doc.Verdict)]
    if rest:
        page.gap()
    page.blocks(rest)
    return _trimmed(page.text)


class _Page:
    """The text written so far, and its width."""

    def __init__(self, *, width: int) -> None:
        self.text = Text()
        self._width = width
        self._names = 0
        """The length of the longest name of a row or a command in the current entry."""

    def blocks(self, blocks: Sequence[doc.DocumentBlock], indent: int = 0, *, close: bool = False) -> None:
        """Write blocks, with an empty line between blocks of different types.

        Parameters
        ----------
        close
            Whether to omit the empty lines, as in the body of an entry.
        """
        if close:
            names = [name for block in blocks if isinstance(block, doc.KeyValues) for name, _ in block.rows]
            names += [block.name for block in blocks if isinstance(block, doc.ShellCommand)]
            self._names = max(map(len, names), default=0)
        for place, run in enumerate(_runs(blocks)):
            if place and not close:
                self.gap()
            label = max(map(_head, run))
            for number, block in enumerate(run):
                if number and isinstance(block, (doc.Section, doc.Matrix, doc.Bars)):
                    self.gap()
                # A hint is indented below the block that it continues.
                below = label + 2 if isinstance(run[0], (doc.Entry, doc.Bullets)) else 1
                self._block(block, indent + below if number and isinstance(block, doc.Hint) else indent, label)

    def words(
        self, words: Words, indent: int = 0, *, style: str = "", head: Text | None = None, further: int = 0
    ) -> None:
        """Write a line of text, wrapped at the width.

        Parameters
        ----------
        head
            A label before the first line, in place of the indent. The other lines are aligned with the text after it.
        further
            The additional indent of the other lines without a ``head``.
        """
        line = Text(" " * indent) if head is None else head
        offset = len(line) + (further if head is None else 0)
        for piece in _broken(line.append_text(_line(words, style)), self._width, offset):
            self.text.append_text(piece).append("\n")

    def gap(self) -> None:
        """Write an empty line, unless the text is empty or already ends with one."""
        if self.text and not self.text.plain.endswith("\n\n"):
            self.text.append("\n")

    def _block(self, block: doc.DocumentBlock, indent: int, label: int) -> None:
        match block:
            case doc.Verdict():
                self._verdict(block, indent)
            case doc.Paragraph():
                self.words(block.words, indent, style=STYLES[block.tone])
            case doc.Hint():
                self.words(block.words, indent, style=STYLES[Tone.DIM])
            case doc.Bullets():
                for item in block.items:
                    self.words(item, indent + 2, further=2)
            case doc.KeyValues():
                self._key_values(block, indent, label)
            case doc.Parts():
                self._key_values(block.key_values, indent, label)
            case doc.ShellCommand():
                head = " " * indent + block.name.ljust(max(self._names, label))
                self.text.append(f"{head}  ", STYLES[Tone.DIM]).append(f"$ {printable(block.text)}\n", _HEADING)
            case doc.Entry():
                self._entry(block, indent, label)
            case doc.Matrix():
                self._matrix(block)
            case doc.Bars() if any(bar.case for bar in block.bars):
                self._matrix(block.table(names=self._width >= _BESIDE))
            case doc.Bars():
                self._bars(block)
            case doc.Section():
                self.words(block.title, indent, style=_HEADING)
                self.blocks(doc.body_of(block), indent)
            case doc.Diagram() if block.lines is not None:
                for line in block.lines(self._width):
                    self.text.append_text(_line(line)).append("\n")
            case doc.Chart() | doc.Diagram():
                # Other blocks contain the same facts.
                return

    def _verdict(self, block: doc.Verdict, indent: int) -> None:
        word = Text(" " * indent).append(f"{block.word}:", _VERDICTS.get(block.tone, _HEADING)).append(" ")
        for piece in _broken(word.append_text(_line(block.sentence)), self._width, indent + 2):
            self.text.append_text(piece).append("\n")
        if block.advice:
            self.words(block.advice, head=Text(" " * indent).append("Next: ", _HEADING))

    def _key_values(self, block: doc.KeyValues, indent: int, label: int) -> None:
        width = max(self._names, label)
        for name, value in block.rows:
            self.words(value, head=Text(" " * indent).append(f"{printable(name).ljust(width)}  ", STYLES[Tone.DIM]))

    def _entry(self, block: doc.Entry, indent: int, label: int) -> None:
        head = Text(" " * indent).append(block.word.ljust(label), STYLES[block.tone]).append("  ")
        check = (doc.Span(f"  [{block.id}]", Tone.DIM),) if block.id else ()
        self.words((*doc.parts(block.title), *check), head=head)
        self.blocks(block.body, indent + label + 2, close=True)
        self._names = 0

    def _matrix(self, block: doc.Matrix) -> None:
        self.words(block.caption, style=_HEADING)
        if block.names:
            self.text.append(f"{printable(block.names)}\n", STYLES[Tone.DIM])
        for note in block.notes:
            self.words(note, style=STYLES[Tone.DIM], further=2)
        for line in _matrix_lines(block, self._width):
            self.text.append_text(line).append("\n")
        for after in block.after:
            self.words(after)

    def _bars(self, block: doc.Bars) -> None:
        """Write a line for each bar, with the worst path beside it if there is space, else below slow ones."""
        heads = "".join(head.rjust(_FIGURE) for head in ("median", "worst", "expect"))
        name = max(len(bar.name) for bar in block.bars)
        paths = {bar: _line((bar.state, f", worst {bar.worst.label}")) for bar in block.bars}
        beside = 2 + max(map(len, paths.values())) if self._width >= _BESIDE else 0
        track = min(self._width - name - len(heads) - 2 - beside, _LONGEST_TRACK)
        self.words(block.caption, style=_HEADING)
        self.text.append(f"{' ' * (name + track + 2)}{heads}\n", STYLES[Tone.DIM])
        for bar in block.bars:
            self.text.append(f"{bar.name.ljust(name)}  ").append_text(track_text(bar, track))
            self.text.append(doc.number(bar.median).rjust(_FIGURE), STYLES[Tone.STRONG])
            self.text.append(f"{doc.number(bar.worst.value)}{bar.mark}".rjust(_FIGURE), STYLES[bar.worst.tone])
            self.text.append(doc.number(bar.expected).rjust(_FIGURE))
            if beside or bar.mark:
                self.text.append("  " if beside else "\n  ").append_text(paths[bar])
            self.text.append("\n")
        memory = " or memory" if any(bar.limit_of != "link" for bar in block.bars) else ""
        self.words(_BAR_KEY.format(memory), style=STYLES[Tone.DIM])


def track_text(bar: doc.Bar, width: int) -> Text:
    """Return a bar in eighths of a character, with strokes at the expected value and at the ceiling."""
    eighths = round(8 * (width - 1) * bar.median / bar.end)
    line = "█" * (eighths // 8) + _EIGHTHS[eighths % 8].strip()
    line = line.ljust(width - 1, "·")
    if bar.expected and len(line.rstrip("·")) <= (place := int((width - 1) * bar.expected / bar.end)) < width - 1:
        line = f"{line[:place]}│{line[place + 1 :]}"
    return Text(line + ("▕" if bar.limit else " "))


def _head(block: doc.DocumentBlock) -> int:
    """Return the length of the label before a block's text: of the longest name, or of an entry's word."""
    if isinstance(block, (doc.KeyValues, doc.Parts)):
        rows = block.rows if isinstance(block, doc.KeyValues) else block.key_values.rows
        return max((len(name) for name, _ in rows), default=0)
    return len(block.word) if isinstance(block, doc.Entry) else 0


def _runs(blocks: Sequence[doc.DocumentBlock]) -> Iterator[list[doc.DocumentBlock]]:
    """Yield the runs of consecutive blocks of the same type; a hint with ``more`` belongs to the run before it."""
    run: list[doc.DocumentBlock] = []
    for block in blocks:
        joins = isinstance(block, doc.Hint) and block.more
        if run and type(block) is not type(run[0]) and not joins:
            yield run
            run = []
        run.append(block)
    if run:
        yield run


def _matrix_lines(matrix: doc.Matrix, width: int) -> Iterator[Text]:
    """Yield the lines of a matrix, in as many blocks of columns as the width requires.

    If the columns form one group and leave too little space for the row names, the longest names get their own lines.
    """
    names = [_line(matrix.corner, STYLES[Tone.DIM]), *map(_line, matrix.rows)]
    label = max(map(len, names))
    sizes = _widths(doc.columns(matrix), width - label)
    left = width - sum(sizes) - len(sizes)
    if len(matrix.groups) == 1 and label > left:
        label = max(left, _LEAST_WRAPPED)
    gap = 1 if label <= left < label + len(sizes) else 2
    widths = iter(sizes)
    groups = [[(series, next(widths)) for series in group] for group in matrix.groups]
    for number, block in enumerate(_column_blocks(groups, width - label, gap)):
        if number:
            yield Text()
        height = max([len(series.header) for series, _ in block] + [bool(matrix.corner)])
        marks = [_mark_of(series) for series, _ in block]
        for row in range(-height, len(matrix.rows)):
            name = names[row + 1] if row >= -1 else Text()
            if len(name) > label:
                yield name
                name = Text()
                if row >= 0 and not any(series.cells[row].text for series in doc.columns(matrix)):
                    continue
            cells = [_cell_lines(*column, mark, row) for column, mark in zip(block, marks, strict=True)]
            for pieces in list(zip_longest(*cells, fillvalue=Text())) or [(Text(),) * len(block)]:
                line = _aligned(name, label, Align.LEFT)
                for (series, size), piece in zip(block, pieces, strict=True):
                    line.append(" " * gap).append_text(_aligned(piece, size, series.align))
                yield line
                name = Text()


def _widths(columns: Sequence[doc.Series], room: int) -> list[int]:
    """Return the width of each column: that of its longest cell, or less for columns of sentences that are wrapped."""
    widths = []
    for series in columns:
        mark = _mark_of(series)
        cells = (len(_line(cell.text)) + max(mark, len(cell.mark)) for cell in series.cells)
        widths.append(max((*map(len, series.header), *cells), default=0))
    excess = sum(widths) + 2 * len(widths) - room
    for place in sorted(range(len(columns)), key=lambda place: -widths[place]):
        if columns[place].wrap:
            words = (len(word) for cell in columns[place].cells for word in _line(cell.text).plain.split())
            least = max((_LEAST_WRAPPED, *words))
            taken = min(max(excess, 0), max(widths[place] - least, 0))
            widths[place] -= taken
            excess -= taken
    return widths


_Columns = list[tuple[doc.Series, int]]
"""Columns with their widths."""


def _column_blocks(groups: Sequence[_Columns], width: int, gap: int) -> Iterator[_Columns]:
    """Yield blocks of columns, each with as many groups as fit into the width."""
    block: _Columns = []
    used = 0
    for group in groups:
        size = sum(gap + size for _, size in group)
        if block and used + size > width:
            yield block
            block, used = [], 0
        block = [*block, *group]
        used += size
    yield block


def _cell_lines(series: doc.Series, size: int, mark: int, row: int) -> list[Text]:
    """Return the lines of a column's cell in a row. Header rows have negative numbers; -1 is the lowest one."""
    if row < 0:
        return [_line(series.header[row] if -row <= len(series.header) else "", STYLES[Tone.DIM])]
    cell = series.cells[row]
    unmarked = " " * (mark - len(cell.mark))
    line = _line(cell.text, STYLES[cell.tone]).append(cell.mark, STYLES[cell.tone]).append(unmarked)
    return list(_broken(line, size, 0)) if series.wrap else [line]


def _mark_of(series: doc.Series) -> int:
    """Return the width of the marks after a column's numbers, which keeps the numbers aligned."""
    return max((len(cell.mark) for cell in series.cells), default=0) if series.align is Align.RIGHT else 0


def _line(words: Words, style: str = "") -> Text:
    line = Text()
    for part in doc.parts(words):
        line.append(printable(part.text), STYLES[part.tone] or style)
    return line


def _aligned(piece: Text, width: int, align: Align) -> Text:
    spaces = " " * max(width - len(piece), 0)
    return Text(spaces).append_text(piece) if align is Align.RIGHT else Text().append_text(piece).append(spaces)


def _broken(line: Text, width: int, indent: int) -> Iterator[Text]:
    """Yield the pieces of a line wrapped at a width, with its styles. A longer word is not split."""
    words = line.plain
    lead = len(words) - len(words.lstrip(" "))
    pieces = textwrap.wrap(
        words[lead:],
        width,
        initial_indent=words[:lead],
        subsequent_indent=" " * indent,
        break_long_words=False,
        break_on_hyphens=False,
    )
    place = 0
    for number, piece in enumerate(pieces):
        content = piece.strip(" ")
        start = words.index(content, place)
        place = start + len(content)
        yield Text(" " * (lead if number == 0 else indent)).append_text(line[start:place])


def _trimmed(text: Text) -> Text:
    lines = text.split("\n", allow_blank=True)
    for line in lines:
        line.rstrip()
    return Text("\n").join(lines)
