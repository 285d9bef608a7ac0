"""Render a document as an HTML page: the answer first, then its parts as cards, the further ones folded."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from itertools import groupby
from xml.etree.ElementTree import Element, tostring

from egmctl.report import document as doc
from egmctl.report.document import Level, Tone, Words
from egmctl.report.render import figures, page
from egmctl.report.render.page import LOOKS, HtmlContent, arrows, css_class, element, span_html, words_html
from egmctl.report.render.tables import matrix_html

_SHADES = (
    "Red with a cross fails, amber warns, grey is neither or not judged itself; stronger below 95, 85 and 67 % of the "
    "best over the same links."
)


def html(document: doc.Document) -> str:
    """Return a document as an HTML page."""
    blocks = list(doc.shown(document.body, Level.PAGE))
    return page.page(_head(document, blocks), list(_rows(list(_cards(blocks)))))


def fragment(document: doc.Document) -> str:
    """Return the answer of a document's page with its picture, without the other sections. Its style applies to nothing
    around it (CSS nesting: https://www.w3.org/TR/css-nesting-1/)."""
    blocks = [
        block
        for block in doc.shown(document.body, Level.PAGE)
        if not isinstance(block, doc.Section) or (not block.folded and _is_picture(block))
    ]
    head = _head(document, blocks)
    sheet = page.style("colors", "figure", "page").replace(":root", "&")
    style = page.raw("style", f".egmctl {{\n{sheet}}}\n")
    cards = (page.section(card) if isinstance(card, page.PageSection) else card for card in _cards(blocks))
    root = element("div", style, page.head_line(head), page.banner_lines(head), head.answer, cards, class_="egmctl")
    return tostring(root, encoding="unicode", method="html")


def _is_picture(block: doc.Section) -> bool:
    """Return whether a section is the picture of the answer: only pages have it, as text draws it elsewhere."""
    return block.level is Level.PAGE and any(isinstance(part, doc.Diagram) for part in doc.body_of(block))


def _head(document: doc.Document, blocks: Sequence[doc.DocumentBlock]) -> page.Head:
    answers = [block for block in blocks if isinstance(block, doc.Verdict)]
    subtitle = (document.subtitle,) if document.subtitle else ()
    return page.Head(
        command=document.command,
        subject=document.subject,
        facts=document.facts or subtitle,
        banners=document.banners,
        answer=_answer(answers[0]) if answers else None,
    )


def _answer(block: doc.Verdict) -> Element:
    """Return the answer: the largest text of a page. The clauses after the first one explain it and are smaller."""
    first, *others = block.clauses or (doc.plain(block.sentence),)
    if len(first) > _HEADLINE and block.lead is not None:
        first, reason = block.lead
        others.insert(0, reason)
    rest = "; ".join(others)
    short = " short" if len(block.word) <= _SHORT_WORD else ""
    heading = element(
        "h1",
        element("span", f"{_SIGNS[block.tone]}{block.word}", class_=f"word{short}"),
        " ",
        element("span", arrows(first), class_="sentence"),
        id="answer-heading",
    )
    why = element("p", arrows(rest), class_="why") if rest else None
    step = element("p", element("strong", "Next: "), words_html(block.advice), class_="next") if block.advice else None
    look = f"answer {LOOKS.get(block.tone, 'plain')}"
    return element("section", heading, why, step, id="answer", class_=look, aria_labelledby="answer-heading")


_SIGNS = dict.fromkeys(Tone, "") | {Tone.GOOD: "✓ ", Tone.BAD: "✕ ", Tone.WARN: "▲ ", Tone.UNKNOWN: "? "}
_HEADLINE = 100
"""The length of a clause above which its reason is smaller, too."""
_SHORT_WORD = 6
"""The length of words that are shown larger than the sentence: ``GO``, ``NO-GO``, ``FAIL``."""


def _cards(blocks: Sequence[doc.DocumentBlock]) -> Iterator[page.PageSection | Element]:
    """Yield the cards of a page in their order: sections, causes, and the blocks between them."""
    names: dict[str, int] = {}
    first = next((block for block in blocks if isinstance(block, doc.Verdict)), None)
    rest = [block for block in blocks if block is not first]
    for (kind, brief), run in groupby(rest, _kind):
        members = list(run)
        if brief and len(members) > 1:
            yield _lines([entry for entry in members if isinstance(entry, doc.Entry)], "h2")
            continue
        if kind is None:
            yield page.PageSection(_id("overview", names), "", tuple(_blocks(members)))
            continue
        for block in members:
            match block:
                case doc.Section():
                    yield _card(block, _id(block.title, names))
                case doc.Entry():
                    yield _entry(block, "h2")
                case doc.Parts():
                    yield _parts(block)
                case doc.Bars():
                    yield page.PageSection(_id("rates", names), block.caption, (_bars(block, titled=False),))


def _kind(block: doc.DocumentBlock) -> tuple[type | None, bool]:
    """Return what kind of card a block is, and whether it is a line, which shares a card with the lines beside it."""
    return type(block) if isinstance(block, _ALONE) else None, isinstance(block, doc.Entry) and not block.body


_ALONE = (doc.Section, doc.Entry, doc.Parts, doc.Bars)
"""The blocks that are cards of a page by themselves. What is between them shares one."""


def _card(block: doc.Section, name: str) -> page.PageSection:
    body = tuple(_blocks(doc.body_of(block)))
    looks = {"folded": block.folded, "printed": block.printed, "on-paper": block.on_paper}
    beside = [_squares(block.marks), element("span", block.note, class_="note")] if block.note else None
    look = " ".join(name for name, holds in looks.items() if holds)
    wide = any(isinstance(part, doc.Diagram) and _is_wide(part) for part in doc.body_of(block))
    return page.PageSection(name, block.title, body, block.folded, beside, look, joins=block.beside, wide=wide)


_HALF_PAGE = 660
"""The natural width of a picture in pixels up to which its words can be read on half of a page."""


def _is_wide(picture: doc.Diagram) -> bool:
    """Return whether a picture needs the full width of a page."""
    return float(picture.draw().get("width", "0").rstrip("%")) > _HALF_PAGE


def _squares(marks: Sequence[Tone]) -> HtmlContent:
    """Return a square for each of what is in a section, with a sign where it is no pass."""
    if not marks:
        return None
    squares = [
        element("i", _SIGNS[tone].strip() if tone is not Tone.GOOD else "", class_=css_class(tone)) for tone in marks
    ]
    return element("span", squares, class_="squares", aria_hidden="true")


def _rows(cards: Sequence[page.PageSection | Element]) -> Iterator[Element]:
    """Yield the elements of cards; two that are beside each other share a row."""
    pending: Element | None = None
    wide_before = False
    for card in cards:
        shown = page.section(card) if isinstance(card, page.PageSection) else card
        wide = isinstance(card, page.PageSection) and card.wide
        joins = isinstance(card, page.PageSection) and card.joins and not wide and not wide_before
        if pending is not None and joins:
            shown = element("div", pending, shown, class_="row")
        elif pending is not None:
            yield pending
        pending, wide_before = shown, wide
    if pending is not None:
        yield pending


def _id(title: str, names: dict[str, int]) -> str:
    name = re.sub(r"[^a-z0-9]+", "-", title.lower()).strip("-") or "part"
    names[name] = names.get(name, 0) + 1
    return name if names[name] == 1 else f"{name}-{names[name]}"


def _blocks(blocks: Sequence[doc.DocumentBlock]) -> Iterator[HtmlContent]:
    """Yield the elements of blocks. Consecutive matrices and charts share a grid and a key to the shades."""
    for figure, run in groupby(blocks, lambda block: isinstance(block, (doc.Matrix, doc.Chart))):
        if figure:
            yield from _figures([block for block in run if isinstance(block, (doc.Matrix, doc.Chart))])
            continue
        for lines, alike in groupby(run, lambda block: isinstance(block, doc.Entry) and not block.body):
            members = list(alike)
            if lines and len(members) > 1:
                yield _lines([entry for entry in members if isinstance(entry, doc.Entry)], "h3")
                continue
            for block in members:
                folded = block.level is Level.ALL and not isinstance(block, doc.Section)
                yield element("details", element("summary", "more"), _block(block)) if folded else _block(block)


def _lines(entries: Sequence[doc.Entry], heading: str) -> Element:
    """Return entries without anything below them as lines of one card, with the edge of the first."""
    look = LOOKS.get(entries[0].tone, "plain")
    return element("article", [_entry_head(each, heading) for each in entries], class_=f"finding lines {look}-edge")


def _figures(blocks: Sequence[doc.Matrix | doc.Chart]) -> Iterator[HtmlContent]:
    drawn = [matrix_html(block) if isinstance(block, doc.Matrix) else _chart(block) for block in blocks]
    yield element("div", drawn, class_="grids")
    if any(isinstance(block, doc.Matrix) and block.better is not None and block.keyed for block in blocks):
        yield element("p", _SHADES, class_="key")


def _bars(block: doc.Bars, *, titled: bool = True) -> HtmlContent:
    """Return bars as lists, one for each heading. Only a narrow page and the main questions repeat what numbers are."""
    rows = any(bar.case for bar in block.bars)
    lists: list[HtmlContent] = []
    for heading, bars in block.groups:
        if heading:
            lists.append(element("h4" if titled else "h3", arrows(heading)))
        lists.append(element("ul", map(_bar, bars), class_="rates rows" if rows else "rates"))
    hollow = any(dot.doubted for bar in block.bars for dot in bar.dots)
    lists.append(element("p", _BAR_KEY + _DOUBTED if hollow else _BAR_KEY, class_="key"))
    if rows:
        heads = [element("span", head) for head in ("path class", "share of the link's or memory's rate", *_NUMBERS)]
        title = element("h3", block.caption) if titled else None
        return [title, element("p", heads, class_="rate-heads", aria_hidden="true"), lists]
    beside = [element("div", _block(picture)) for picture in block.beside if not _is_wide(picture)]
    below = [_block(picture) for picture in block.beside if _is_wide(picture)]
    return [element("div", element("div", lists), beside, class_="beside"), below]


_NUMBERS = ("median", "worst", "expected")
_BAR_KEY = (
    "Bar: median. Tick: expected. End of the track: the rate of the links, or of memory that carries less; a latency "
    "has none. Each dot is one path, red or amber if slow. Percentages are of the expected value."
)
_DOUBTED = " A hollow dot is not believed, or not all of it: see Doubts."


def _bar(bar: doc.Bar) -> Element:
    """Return the bar of one path class with its numbers."""
    share = f" · {100 * bar.worst.value / bar.expected:.0f} %" if bar.expected else ""
    limit = " · less is better" if bar.less else ""
    if bar.limit:
        limit = f" · {bar.limit_of} {bar.limit:.0f}"
    sign = {Tone.GOOD: "✓ ", Tone.BAD: "✕ ", Tone.WARN: "▲ "}.get(bar.state.tone, "")
    rest = (f" {bar.unit}", f" {arrows(bar.worst.label)}{share}", limit)
    values = (bar.median, bar.worst.value, bar.expected)
    tones = (None, css_class(bar.worst.tone), None)
    numbers = [
        element(
            "p",
            element("span", f"{word} ", class_="what"),
            element("strong", doc.number(value), class_=look),
            element("span", more, class_="aside"),
            class_=word,
        )
        for word, value, look, more in zip(_NUMBERS, values, tones, rest, strict=True)
    ]
    name = [arrows(bar.name), " ", span_html(doc.Span(f"{sign}{bar.state.text}", bar.state.tone))]
    case = element("code", bar.case, class_="case") if bar.case else None
    return element("li", element("p", name, case, class_="name"), figures.track(bar), numbers)


def _chart(chart: doc.Chart) -> Element:
    if chart.small:
        note = f" {chart.note}" if chart.note else ""
        caption = element("figcaption", element("strong", arrows(chart.caption)), note)
        return element("figure", caption, figures.plot(chart), class_="small")
    names = [
        element("li", element("strong", f"{value} ", class_=look), arrows(name))
        for look, value, name in figures.curve_ends(chart)
    ]
    return element(
        "figure",
        element("div", figures.plot(chart), class_="scroll only-wide"),
        element("div", figures.plot(chart, phone=True), element("ul", names, class_="ends"), class_="only-narrow"),
        element("p", _RING, class_="key") if chart.steep else None,
        class_="plotted",
    )


_RING = "Each line is the median of its paths; its ring is at half of its best. Dashes are rates of links or memory."


def _block(block: doc.DocumentBlock) -> HtmlContent:
    match block:
        case doc.Verdict():
            return _verdict(block)
        case doc.Paragraph():
            return element("p", words_html(block.words), class_=css_class(block.tone))
        case doc.Hint():
            return []
        case doc.Bullets():
            return element("ul", (element("li", words_html(item)) for item in block.items), class_="sentences")
        case doc.KeyValues():
            rows = ((element("dt", name), element("dd", words_html(value))) for name, value in block.rows)
            return element("dl", (element("div", row) for row in rows), class_="facts")
        case doc.Parts():
            return _parts(block)
        case doc.ShellCommand():
            name = element("span", f"{block.name} $ ", class_="command")
            return element("pre", name, element("code", list(_unbroken(block.text))))
        case doc.Entry():
            return _entry(block)
        case doc.Matrix():
            return matrix_html(block)
        case doc.Chart():
            return _chart(block)
        case doc.Bars():
            return _bars(block)
        case doc.Diagram():
            wide = element("div", block.draw(), class_="scroll drawing only-wide" if block.narrow else "scroll drawing")
            narrow = element("div", block.narrow(), class_="only-narrow") if block.narrow else None
            return [wide, narrow, element("p", block.note, class_="key") if block.note else None]
        case doc.Section() if block.folded:
            beside = [_squares(block.marks), element("span", block.note, class_="note")] if block.note else None
            summary = element("summary", element("span", block.title, class_="strong"), beside)
            return element(
                "details", summary, element("div", list(_blocks(doc.body_of(block))), id=block.anchor or None)
            )
        case doc.Section():
            return [element("h3", block.title, id=block.anchor or None), list(_blocks(doc.body_of(block)))]


def _unbroken(command: str) -> Iterator[HtmlContent]:
    """Yield the words of a command, its options as elements: browsers break lines after a hyphen."""
    for place, word in enumerate(command.split(" ")):
        yield " " if place else ""
        yield element("span", word) if word.startswith("-") else word


def _verdict(block: doc.Verdict) -> Element:
    look = LOOKS.get(block.tone, "plain")
    said = [element("p", block.word, class_="word"), element("p", words_html(block.sentence), class_="why")]
    if block.advice:
        said.append(element("p", element("strong", "Next: "), words_html(block.advice), class_="why"))
    return element("div", element("div", said), class_=f"verdict {look}")


def _entry(block: doc.Entry, heading: str = "h3") -> Element:
    """Return a cause: what it is on the left, what to do on the right, and folded below it what only ``-v`` shows."""
    look, head = LOOKS.get(block.tone, "plain"), _entry_head(block, heading)
    why: list[HtmlContent] = []
    steps: list[HtmlContent] = []
    more: list[HtmlContent] = []
    for part in block.body:
        if isinstance(part, doc.ShellCommand):
            steps.append(_block(part))
        elif isinstance(part, doc.KeyValues):
            steps[:0] = [element("p", words_html(value)) for name, value in part.rows if name == _FIX]
            rows = [(name, value) for name, value in part.rows if name != _FIX]
            if Level.VERBOSE <= part.level < Level.PAGE:
                more += _folded_reasons(rows)
            else:
                why += _reasons(rows)
        else:
            why.append(_block(part))
    do = element("div", element("p", "What to do", class_="label"), steps, class_=f"do {look}") if steps else None
    left = element("div", why, more) if why or more else None
    columns = element("div", left, do, class_="columns") if left is not None or do is not None else None
    return element("article", head, columns, class_=f"finding {look}-edge")


def _entry_head(block: doc.Entry, heading: str) -> Element:
    look = LOOKS.get(block.tone, "plain")
    label = element("span", f"{_SIGNS[block.tone]}{block.word.lower()}", class_=f"word-{look}") if block.word else None
    check = element("code", block.id) if block.id else None
    return element(heading, label, element("span", words_html(block.title)), check)


_FIX = "fix"
_REASONS = {
    "cause": "Why",
    "costs": "What it costs",
    "explains": "What it explains",
    "paths": "Slow paths",
    "broke": "Paths that broke",
    "not made": "Paths that were not measured",
    "seen": "What was read",
    "on": "Where",
}
"""The labels of the rows of a cause on a page, where there is space for them."""


def _reasons(rows: Sequence[tuple[str, Words]]) -> Iterator[Element]:
    """Yield the rows of a cause, those with the same name below one label."""
    for name, alike in groupby(rows, lambda row: row[0]):
        yield element("p", _REASONS.get(name, name), class_="label")
        yield from (element("p", words_html(value)) for _, value in alike)


def _folded_reasons(rows: Sequence[tuple[str, Words]]) -> Iterator[Element]:
    """Yield the rows of a cause folded below their label; rows with names of their own below one."""
    names = {name for name, _ in rows}
    if rows and len(names) == 1:
        shown: list[HtmlContent] = [element("p", words_html(value)) for _, value in rows]
        yield element("details", element("summary", _REASONS.get(rows[0][0], rows[0][0])), element("div", shown))
    elif rows:
        items = ((element("dt", arrows(name)), element("dd", words_html(value))) for name, value in rows)
        listed = element("dl", (element("div", item) for item in items), class_="facts")
        yield element("details", element("summary", "Each of them"), element("div", listed))


def _parts(block: doc.Parts) -> Element:
    """Return the answers of parts as cards side by side."""
    cards = [
        element(
            "div",
            element("p", element("strong", part.name), " ", span_html(doc.Span(part.word, part.tone)), class_="name"),
            element("p", arrows(part.sentence), class_="sentence") if part.sentence else None,
            class_=f"part {LOOKS.get(part.tone, 'plain')}-edge",
        )
        for part in block.parts
    ]
    return element("div", cards, class_="parts")
