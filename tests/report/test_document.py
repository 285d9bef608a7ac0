"""Any document in any format: nothing is lost, nothing is markup, and text keeps within its width."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from dataclasses import replace
from functools import partial
from xml.etree import ElementTree

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from egmctl.report.document import (
    Align,
    Better,
    Bullets,
    Cell,
    Chart,
    CurvePoint,
    Diagram,
    Document,
    DocumentBlock,
    Entry,
    Hint,
    KeyValues,
    Level,
    Matrix,
    Paragraph,
    Section,
    Series,
    ShellCommand,
    Span,
    Tone,
    Verdict,
    Words,
    body_of,
    shown,
    table,
)
from egmctl.report.render.html import html
from egmctl.report.render.markdown import markdown
from egmctl.report.render.page import element
from egmctl.report.render.text import NARROWEST, WIDEST, text

HOSTILE = ["a\x1b[31mb", "<script>alert(1)</script>", "x|y", "@someone #1", "[link](http://x)", "\u202eabc", "`code`"]
WORD = st.one_of(st.text("abcdefgh", min_size=1, max_size=9), st.sampled_from(HOSTILE))
SENTENCE = st.lists(WORD, min_size=1, max_size=20).map(" ".join)
SPANS = st.tuples(SENTENCE, st.sampled_from(Tone), st.booleans()).map(
    lambda made: Span(f" {made[0]} ", made[1], made[2])
)
WORDS: st.SearchStrategy[Words] = st.one_of(
    SENTENCE, SPANS, st.lists(st.one_of(SENTENCE, SPANS), min_size=1).map(tuple)
)
LEVEL = st.sampled_from([Level.SUMMARY, Level.NORMAL, Level.VERBOSE])
TONE = st.sampled_from(Tone)


FEW = settings(max_examples=40, suppress_health_check=[HealthCheck.too_slow], deadline=None)


@st.composite
def tables(draw: st.DrawFn) -> Matrix:
    count = draw(st.integers(1, 4))
    heads = draw(st.tuples(*[WORD] * count))
    rows = draw(st.lists(st.tuples(*[WORD] * (count - 1), SENTENCE), max_size=4))
    right = draw(st.sets(st.sampled_from(heads[:-1]))) if count > 1 else ()
    made = table(heads, rows, right=right, wrap=heads[-1:], caption=draw(SENTENCE))
    return replace(made, level=draw(LEVEL))


@st.composite
def matrices(draw: st.DrawFn) -> Matrix:
    rows = tuple(draw(st.lists(WORD, min_size=1, max_size=3)))
    cell = st.builds(
        Cell,
        text=st.integers(0, 999).map(str),
        tone=TONE,
        mark=st.sampled_from(["", "!"]),
        value=st.one_of(st.none(), st.floats(1, 1e3)),
    )
    series = st.builds(Series, header=st.tuples(WORD), cells=st.tuples(*[cell] * len(rows)))
    groups = draw(st.lists(st.tuples(series), min_size=1, max_size=9))
    better = draw(st.sampled_from([None, *Better]))
    return Matrix(caption=draw(SENTENCE), rows=rows, groups=tuple(groups), better=better, level=draw(LEVEL))


SIMPLE: st.SearchStrategy[DocumentBlock] = st.one_of(
    st.builds(Paragraph, words=WORDS, tone=TONE, level=LEVEL),
    st.builds(Bullets, items=st.lists(WORDS, min_size=1, max_size=3).map(tuple), level=LEVEL),
    st.builds(KeyValues, rows=st.lists(st.tuples(WORD, WORDS), min_size=1, max_size=3).map(tuple), level=LEVEL),
    st.builds(ShellCommand, text=SENTENCE, name=st.sampled_from(["look", "run"]), level=LEVEL),
    tables(),
    matrices(),
)
NESTED = st.lists(SIMPLE, max_size=3).map(tuple)
BLOCK: st.SearchStrategy[DocumentBlock] = st.one_of(
    SIMPLE,
    st.builds(Verdict, word=st.just("OK"), tone=TONE, sentence=WORDS, advice=st.one_of(st.just(""), WORDS)),
    st.builds(Entry, word=st.just("FAIL"), tone=TONE, title=WORDS, id=WORD, body=NESTED, level=LEVEL),
    st.builds(Section, title=SENTENCE, body=NESTED, level=LEVEL),
    st.builds(Section, title=SENTENCE, body=NESTED, folded=st.just(True), level=LEVEL),
)
DOCUMENT = st.builds(
    Document,
    command=st.just("egmctl test"),
    subject=SENTENCE,
    subtitle=SENTENCE,
    banners=st.lists(SENTENCE, max_size=2).map(tuple),
    body=st.lists(BLOCK, max_size=5).map(tuple),
)


def words_of(shown: str) -> list[str]:
    return re.findall(r"[a-h]+", shown)


@pytest.mark.long
@FEW
@given(DOCUMENT, st.sampled_from([NARROWEST, 80, WIDEST]))
def test_text_keeps_within_its_width_and_is_harmless(document: Document, width: int) -> None:
    shown = text(document, width=width, level=Level.VERBOSE).plain
    # Tables and matrices have at least one column, commands are never broken: all others are.
    whole = any(isinstance(one, (Matrix, ShellCommand)) for one in _all(document.body))
    for line in shown.split("\n"):
        assert line.isprintable()
        assert line == line.rstrip()
        assert whole or len(line) <= width


@pytest.mark.long
@FEW
@given(DOCUMENT)
def test_a_page_is_well_formed_and_runs_nothing(document: Document) -> None:
    shown = html(document)
    assert "<script" not in shown
    ElementTree.fromstring(_as_xml(shown))  # noqa: S314


@pytest.mark.long
@FEW
@given(DOCUMENT)
def test_every_word_is_in_every_format(document: Document) -> None:
    whole = words_of(text(document, width=WIDEST, level=Level.VERBOSE).plain)
    page = " ".join(ElementTree.fromstring(_as_xml(html(document))).itertext())  # noqa: S314
    assert set(whole) <= set(words_of(page))
    assert set(words_of(text(document, level=Level.SUMMARY).plain)) <= set(whole)


@pytest.mark.long
@FEW
@given(DOCUMENT)
def test_a_ticket_mentions_nobody(document: Document) -> None:
    shown = re.sub("(?<!`)(`+)(?!`).*?(?<!`)\\1(?!`)", "", markdown(document), flags=re.DOTALL)
    assert "@someone" not in shown
    assert "<script" not in shown.replace("\\<", "")


def test_colours_never_say_anything_alone() -> None:
    matrix = Matrix(
        caption="c", rows=("a",), groups=((Series(header=("b",), cells=(Cell(text="1.0", tone=Tone.BAD, mark="!"),)),),)
    )
    shown = text(Document(command="x", subject="y", body=(matrix,)))
    assert "1.0!" in shown.plain
    assert any(span.style == "bold red" for span in shown.spans)


def test_signs_stand_behind_the_column_of_numbers() -> None:
    cells = (Cell(text="396.2"), Cell(text="98.1", tone=Tone.BAD, mark="!"))
    matrix = Matrix(caption="c", rows=("a", "b"), groups=((Series(header=("x",), cells=cells),),))
    assert text(Document(command="x", subject="y", body=(matrix,))).plain.splitlines()[2:] == ["a  396.2", "b   98.1!"]
    words = Series(header=("x",), cells=(Cell(text="NV16", mark="*"), Cell(text="NV18")), align=Align.LEFT)
    others = Series(header=("y",), cells=(Cell(text="1"), Cell(text="2")))
    matrix = Matrix(caption="c", rows=("a", "b"), groups=((words, others),))
    assert text(Document(command="x", subject="y", body=(matrix,))).plain.splitlines()[2:] == [
        "a  NV16*  1",
        "b  NV18   2",
    ]


def test_a_matrix_is_split_into_blocks_of_columns_where_the_terminal_is_narrow() -> None:
    series = tuple((Series(header=(f"GPU{n}",), cells=(Cell(text="396.00"),)),) for n in range(16))
    document = Document(command="x", subject="y", body=(Matrix(caption="c", rows=("GPU0",), groups=series),))
    assert len(text(document, width=200).plain.splitlines()) == 3
    narrow = text(document, width=60).plain.splitlines()
    assert max(map(len, narrow)) <= 60
    assert [name for line in narrow for name in re.findall(r"GPU\d+(?= |$)", line) if line.startswith("  ")] == [
        f"GPU{n}" for n in range(16)
    ]


def test_a_picture_and_curves_are_on_the_page_only() -> None:
    drawing = partial(element, "svg", element("text", "GPU<0>", x=1, y=2), width=100, height=50)
    curve = ("GPU0", (CurvePoint(x=1, y=2, low=1, high=3), CurvePoint(x=4, y=5, low=4, high=6)))
    body: tuple[DocumentBlock, ...] = (Diagram(drawing), Chart(caption="c", x="size", y="ns", curves=(curve,)))
    document = Document(command="x", subject="y", body=body)
    assert text(document).plain == ""
    assert markdown(document) == "## x: y\n"
    page = html(document)
    assert "GPU&lt;0&gt;" in page
    assert page.count("<svg") == 3, "a chart for a laptop, one for a phone"


@pytest.mark.parametrize("level", [Level.SUMMARY, Level.NORMAL, Level.VERBOSE, Level.ALL])
def test_levels(level: Level) -> None:
    body = tuple(Paragraph(words=f"{one.name.lower()}-words", level=one) for one in Level)
    shown = text(Document(command="x", subject="y", body=body), level=level).plain
    assert [f"{one.name.lower()}-words" in shown for one in Level] == [one <= level for one in Level]


@pytest.mark.parametrize("level", Level)
@pytest.mark.parametrize(
    "rendered",
    [
        pytest.param(lambda document, level: text(document, level=level).plain, id="text"),
        pytest.param(lambda document, level: html(document) if level <= Level.PAGE else "", id="page"),
    ],
)
def test_bodies_of_sections_are_called_where_they_are_shown_and_only_there(
    rendered: Callable[[Document, Level], str], level: Level
) -> None:
    called: list[Level] = []

    def body(of: Level) -> list[DocumentBlock]:
        called.append(of)
        return [Paragraph(words=f"{of.name.lower()}-words", level=Level.SUMMARY)]

    sections = [Section(title=of.name, body=partial(body, of), level=of) for of in Level]
    within = Section(title="all", body=lambda: sections, level=Level.SUMMARY)
    shown_text = rendered(Document(command="x", subject="y", body=(within,)), level)
    assert [of for of in Level if f"{of.name.lower()}-words" in shown_text] == called
    assert called == list(Level) if "<html" in shown_text else [of for of in Level if of <= level]


def test_what_is_empty_has_no_heading() -> None:
    empty = (Bullets(items=()), KeyValues(rows=()), Section(title="inner", body=list))
    document = Document(command="x", subject="y", body=(Section(title="outer", body=empty), *empty))
    assert text(document).plain == ""
    assert "outer" not in html(document) + markdown(document)


def test_a_hint_stands_below_what_it_continues_and_goes_with_what_it_promises() -> None:
    entries = (Entry(word="FAIL", tone=Tone.BAD, title="one"), Entry(word="FAIL", tone=Tone.BAD, title="two"))
    document = Document(command="x", subject="y", body=(*entries, Hint(words="and 3 more (-v)", more=True)))
    assert text(document).plain == "FAIL  one\nFAIL  two\n      and 3 more (-v)\n"
    for told in (text(document, level=Level.VERBOSE).plain, markdown(document), html(document)):
        assert "one" in told
        assert "and 3 more" not in told


def _all(blocks: Iterable[DocumentBlock]) -> list[DocumentBlock]:
    """Return blocks with those in their bodies."""
    found: list[DocumentBlock] = []
    for block in shown(blocks, Level.ALL):
        inner = block.body if isinstance(block, Entry) else ()
        found += [block, *_all(body_of(block) if isinstance(block, Section) else inner)]
    return found


def _as_xml(page: str) -> str:
    """Close what HTML leaves open."""
    page = page.removeprefix("<!doctype html>\n")
    return re.sub(r"<meta([^>]*)>", r"<meta\1/>", page)
