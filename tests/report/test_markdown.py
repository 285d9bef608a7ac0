"""Markdown shows what it was given: whatever a machine is called, it is neither markup nor a mention."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping

import html5lib
import pytest
from hypothesis import given
from hypothesis import strategies as st
from markdown_it import MarkdownIt

from egmctl.doctor.check import Scope
from egmctl.doctor.runner import CHECKS
from egmctl.report.kinds import Format
from egmctl.report.render.markdown import code, code_block, escaped, markdown_table
from egmctl.topology.topology import topology
from egmctl.units import printable
from tests.answers import diagnose, render
from tests.doctor.machines import shipped
from tests.report.pages import elements, words
from tests.report.runs import hostile_run, judged, run
from tests.tiers import LONG

READER = MarkdownIt("commonmark").enable("table").enable("strikethrough")


def shown(markdown: str) -> str:
    """Return the text that a reader sees."""
    tree = html5lib.parse(READER.render(markdown), namespaceHTMLElements=False)
    return words(next(elements(tree, "body"))).strip()


@given(st.text(min_size=1).filter(str.strip))
def test_a_text_is_shown_as_it_is(text: str) -> None:
    told = printable(text).strip()
    assert shown(escaped(told)) == told


@given(st.text(min_size=1).filter(str.strip))
def test_a_cell_of_a_table_holds_its_text_and_is_one_cell(text: str) -> None:
    told = printable(text).strip()
    html = READER.render(markdown_table(("a", "b"), [[escaped(told), "2"]], (False, False)))
    assert html.count("<td>") == 2
    (cell, _) = elements(html5lib.parse(html, namespaceHTMLElements=False), "td")
    assert words(cell) == told


@given(st.text(min_size=1).filter(lambda text: "|" not in text and printable(text).strip()))
def test_code_is_shown_as_it_is(text: str) -> None:
    told = printable(text)
    assert shown(code(told)) == told.strip()
    assert shown(code_block(told)) == told.strip()


@pytest.mark.parametrize(
    ("text", "written"),
    [
        ("@torvalds fixed #12", "@<!-- -->torvalds fixed \\#<!-- -->12"),
        ("GH-7", "GH-<!-- -->7"),
        ("see https://evil.example", "see https\\://evil.example"),
        ("<script>", "\\<script\\>"),
        ("a|b", "a\\|b"),
        ("1. first", "1\\. first"),
        ("host_numa_to_device", "host_numa_to_device"),
    ],
)
def test_what_github_would_find_in_plain_words_is_taken_apart(text: str, written: str) -> None:
    assert escaped(text) == written


DOCUMENTS: Mapping[str, Callable[[], str]] = {
    "hostile": lambda: str(render(hostile_run(), Format.MARKDOWN)),
    "bench": lambda: str(render(judged(run()), Format.MARKDOWN)),
    "bench of eight GPUs": lambda: str(render(judged(run("dgx-h100")), Format.MARKDOWN)),
    "topo": lambda: str(render(topology(shipped("dgx-h100")), Format.MARKDOWN)),
    "doctor": lambda: str(render(diagnose(shipped("hgx-h200x4"), Scope(), CHECKS), Format.MARKDOWN)),
}


@pytest.fixture(
    scope="module", params=[pytest.param(name, marks=LONG if "eight" in name else ()) for name in DOCUMENTS]
)
def text(request: pytest.FixtureRequest) -> str:
    return DOCUMENTS[request.param]()


class TestDocuments:
    def test_its_only_markup_is_its_own(self, text: str) -> None:
        tags = set(re.findall(r"<([a-z0-9]+)", READER.render(text)))
        inline = {"strong", "code", "br"}
        tables = {"table", "thead", "tbody", "tr", "th", "td"}
        assert tags <= inline | tables | {"h2", "h3", "h4", "p", "ul", "li", "pre", "details", "summary", "blockquote"}

    def test_every_row_of_a_table_has_as_many_cells_as_its_head(self, text: str) -> None:
        html = READER.render(text)
        for found in re.findall(r"<table>.*?</table>", html, re.DOTALL):
            counts = {len(re.findall(r"<t[hd]", row)) for row in re.findall(r"<tr>.*?</tr>", found, re.DOTALL)}
            assert len(counts) == 1

    def test_details_are_closed_and_their_tables_are_tables(self, text: str) -> None:
        assert text.count("<details>") == text.count("</details>") >= 1
        assert "| ---" not in shown(text)


@pytest.mark.long
def test_a_run_that_is_too_long_for_a_comment_is_cut_and_says_so() -> None:
    """GitHub takes 65536 characters."""
    text = str(render(judged(run("dgx-h100")), Format.MARKDOWN))
    assert len(text) < 65_536
    assert "Too long for a ticket, left out: " in text
    assert "left out" not in str(render(judged(run("hgx-h200x4", cases=("ring_write_ce",))), Format.MARKDOWN))


def test_a_run_for_a_ticket_names_its_gpus_once() -> None:
    assert str(render(judged(run()), Format.MARKDOWN)).count("4 x NVIDIA H200") == 1


def test_a_run_for_a_ticket_has_the_verdict_first_and_the_matrix_folded() -> None:
    text = str(render(judged(run(cases=("device_to_device_memcpy_write_ce",), gpus=2)), Format.MARKDOWN))
    assert text.index("**FAIL**") < text.index("Path classes") < text.index("<summary>Between GPUs</summary>")
    assert "| GPU0 | - | 100.00 |\n" in text
