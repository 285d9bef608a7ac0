"""Every page is one strict HTML document that fetches nothing, runs nothing, and can be read without seeing it."""

from __future__ import annotations

import base64
import hashlib
import re
from collections.abc import Callable, Mapping
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from xml.etree.ElementTree import Element

import pytest

from egmctl.doctor.check import Scope
from egmctl.doctor.runner import CHECKS
from egmctl.facts.redact import redact
from egmctl.model.answer import Answer, Clauses, State
from egmctl.model.gpu import FAKE
from egmctl.model.machine import OriginKind
from egmctl.model.measurement import MeasurementStatus
from egmctl.report.document import Better, Cell, Document, Matrix, Series
from egmctl.report.kinds import Format
from egmctl.report.render.html import html
from egmctl.report.render.page import style
from egmctl.report.render.tables import matrix_html
from egmctl.report.views.findings import verdict
from egmctl.topology.topology import topology
from egmctl.verdict.answers import answered, with_clauses
from tests.answers import diagnose, render
from tests.conftest import RunEgmctl
from tests.doctor.machines import patched, shipped
from tests.fleet.racks import no_go, rack
from tests.report import comparisons
from tests.report.pages import elements, parse, words
from tests.report.runs import HOSTILE, hostile_run, judged, run
from tests.tiers import LONG

ESCAPED = HOSTILE.replace("\x00", r"\x00").replace("\x1b", r"\x1b").replace("\u202e", r"\u202e").replace("\n", r"\n")
SWEEP = [1 << power for power in range(12, 34, 4)]


PAGES: Mapping[str, Callable[[], str]] = {
    "eight GPUs, every case": lambda: str(render(judged(run("dgx-h100")), Format.HTML)),
    "EGM": lambda: str(render(judged(run("gb200-tray", gpus=2)), Format.HTML)),
    "sweep": lambda: str(render(run(cases=("device_to_device_memcpy_write_ce",), sizes=SWEEP), Format.HTML)),
    "hostile": lambda: str(render(hostile_run(), Format.HTML)),
    "topo": lambda: str(render(topology(shipped("dgx-h100")), Format.HTML)),
    "topo of direct links": lambda: str(render(topology(shipped("gh200x4")), Format.HTML)),
    "doctor": lambda: str(render(diagnose(shipped("hgx-h200x4"), Scope(), CHECKS), Format.HTML)),
    "a rack brought up": lambda: str(render(rack(), Format.HTML)),
    "bring-up": lambda: str(render(no_go(), Format.HTML)),
    "compare of two runs": lambda: str(render(comparisons.two_runs(), Format.HTML)),
    "compare of nodes": lambda: str(render(comparisons.nodes(), Format.HTML)),
    "compare of findings": lambda: str(render(comparisons.findings(), Format.HTML)),
    "compare of hostile words": lambda: str(render(comparisons.hostile(), Format.HTML)),
}


@pytest.fixture(scope="module", params=[pytest.param(name, marks=LONG if "eight" in name else ()) for name in PAGES])
def page(request: pytest.FixtureRequest) -> str:
    return PAGES[request.param]()


@pytest.fixture(scope="module")
def tree(page: str) -> Element:
    """Strict reading: what is no HTML fails here."""
    return parse(page)


@pytest.mark.long
def test_it_is_small_and_holds_no_control_characters(page: str) -> None:
    assert page.isprintable() or set(filter(lambda char: not char.isprintable(), page)) == {"\n"}
    assert len(page.encode()) < 1_000_000


@pytest.mark.long
def test_nothing_in_it_can_be_fetched_or_run(tree: Element) -> None:
    assert list(elements(tree, "script", "img", "link", "iframe", "object", "embed", "form", "base", "image")) == []
    for node in tree.iter():
        for attribute, value in node.attrib.items():
            bare = attribute.rpartition("}")[2].lower()
            assert not bare.startswith("on"), attribute
            assert bare not in ("style", "src", "srcset", "action", "formaction", "xlink:href")
            assert bare != "href" or value.startswith("#"), value
            assert "http" not in value or bare == "xmlns", value
    assert "url(" not in style("colors", "figure", "page")
    assert "@import" not in style("colors", "figure", "page")


def test_the_policy_allows_its_own_style_sheet_and_nothing_else(tree: Element) -> None:
    (sheet,) = elements(tree, "style")
    digest = base64.b64encode(hashlib.sha256(words(sheet).encode()).digest()).decode()
    (policy,) = [one.get("content") for one in elements(tree, "meta") if one.get("http-equiv")]
    assert policy == f"default-src 'none'; style-src 'sha256-{digest}'; base-uri 'none'; form-action 'none'"


def test_headings_are_in_order_and_links_lead_to_places_of_the_page(tree: Element) -> None:
    levels = [int(heading.tag[1]) for heading in elements(tree, "h1", "h2", "h3", "h4")]
    assert levels[0] == 1
    assert levels.count(1) == 1
    assert all(after <= before + 1 for before, after in pairwise(levels))
    ids = [node.get("id") for node in tree.iter() if node.get("id")]
    assert len(ids) == len(set(ids))
    links = [link.get("href", "")[1:] for link in elements(tree, "a")]
    assert links
    assert set(links) <= set(ids)


def test_the_answer_is_the_heading_and_the_first_of_the_report(tree: Element) -> None:
    """Without an answer the subject is the heading."""
    (heading,) = elements(tree, "h1")
    (report,) = elements(tree, "main")
    if heading.get("class") != "subject":
        assert report[0].get("id") == "answer"
        assert heading in list(report[0])
        assert "subject" in [node.get("class") for node in elements(tree, "strong")]


def headline(sentence: str) -> tuple[str, str]:
    """Return the largest text of a page that answers with a sentence, and the smaller text below it."""
    answer = with_clauses(Answer(state=State.BAD, word="FAIL", sentence=sentence))
    page = parse(html(Document(body=(verdict(answer),))))
    (heading,) = (element for element in elements(page, "span") if element.get("class") == "sentence")
    reasons = [words(element) for element in elements(page, "p") if element.get("class") == "why"]
    return words(heading), "".join(reasons)


LONG_REASON = f"GPU2: {'a reason, ' * 12}and its end"


def test_of_a_long_clause_what_is_so_is_largest_and_its_reason_smaller() -> None:
    explained = Clauses.explained("2 of 4 GPUs are ready", LONG_REASON)
    assert headline(explained) == ("2 of 4 GPUs are ready", LONG_REASON)
    assert headline(Clauses.of(explained, "and 1 more cause")) == (
        "2 of 4 GPUs are ready",
        f"{LONG_REASON}; and 1 more cause",
    )
    short = Clauses.explained("2 of 4 GPUs are ready", "GPU2: broken")
    assert headline(short) == ("2 of 4 GPUs are ready: GPU2: broken", "")


def test_a_clause_without_a_reason_is_not_cut_at_a_colon() -> None:
    """Such as the words of a finding, which begin with its GPU."""
    assert headline(LONG_REASON) == (LONG_REASON, "")
    assert headline(Clauses.of(LONG_REASON, "and 1 more cause")) == (LONG_REASON, "and 1 more cause")


def test_the_first_link_skips_to_the_report_and_the_language_is_stated(tree: Element) -> None:
    first = next(elements(tree, "a"))
    assert (first.get("href"), words(first)) == ("#report", "Skip to the report")
    assert tree.get("lang") == "en"
    (main,) = elements(tree, "main")
    assert main.get("id") == "report"


def test_each_number_of_a_table_has_its_headings(tree: Element) -> None:
    for table in elements(tree, "table"):
        heads = [head for part in elements(table, "thead") for head in elements(part, "th")]
        assert heads
        assert {head.get("scope") for head in heads} <= {"col", "colgroup"}
        width = _width(next(elements(table, "thead")).find("tr"))
        for row in next(elements(table, "tbody")):
            assert _width(row) == width
            assert all(head.get("scope") == "row" for head in elements(row, "th"))


def test_tables_of_numbers_have_captions(tree: Element) -> None:
    for table in elements(tree, "table"):
        if "rows" not in table.get("class", "").split():
            assert words(next(elements(table, "caption"))).strip()


def test_each_drawing_says_in_words_what_it_shows(tree: Element) -> None:
    for drawing in elements(tree, "svg"):
        if drawing.get("aria-hidden") != "true":
            assert drawing.get("role") == "img"
            assert words(next(elements(drawing, "title"))).strip()
            assert words(next(elements(drawing, "desc"))).strip()


def test_each_class_that_is_used_is_in_the_style_sheet(tree: Element) -> None:
    known = set(re.findall(r"\.([a-z][a-z0-9-]*)", style("colors", "figure", "page")))
    used = {one for node in tree.iter() for one in node.get("class", "").split()}
    assert used - known <= {"grid", "middle", "plot", "topology", "finding", "curve", "box"}


def test_hostile_words_are_shown_as_they_are_spelled() -> None:
    tree = parse(str(render(hostile_run(), Format.HTML)))
    assert _subjects(tree) == [f"4 x {ESCAPED}"]
    assert any(ESCAPED in words(row) for row in elements(tree, "tr"))


def test_the_verdict_comes_first_and_the_bad_path_with_it() -> None:
    tree = parse(str(render(judged(run(cases=("device_to_device_memcpy_write_ce",))), Format.HTML)))
    first = next(elements(tree, "section"))
    assert first.get("id") == "answer"
    told = words(first)
    for part in ("FAIL", "1 of 1 path classes are slower than expected", "the outliers touch GPU3"):
        assert part in told
    outliers = next(one for one in elements(tree, "section") if one.get("id") == "outliers")
    assert "egress: all of its row is weak" in words(outliers)
    (cell,) = [one for one in elements(tree, "td") if "heat-bad" in one.get("class", "")]
    assert words(cell).endswith(" ✕"), "a sign, not the colour alone"


@pytest.mark.parametrize(("section", "status"), [("failed-or-unstable", "failed"), ("skipped", "waived")])
def test_what_failed_or_was_skipped_has_its_reason(section: str, status: str) -> None:
    tree = parse(str(render(hostile_run(), Format.HTML)))
    (found,) = [one for one in elements(tree, "section") if one.get("id") == section]
    (told,) = [words(one) for one in elements(found, "h3")]
    assert told.lstrip("✕ ").startswith(status)
    assert told.endswith(f": {ESCAPED}")


def test_a_matrix_of_nothing_but_waived_paths_is_not_drawn() -> None:
    made = run(cases=("device_to_device_latency_sm", "device_to_device_latency_uncached"), gpus=3)
    first = made.measurements[0].case
    found = [
        replace(m, status=MeasurementStatus.WAIVED, reason="no peer access", latency_ns=None) if m.case == first else m
        for m in made.measurements
    ]
    tree = parse(str(render(replace(made, measurements=tuple(found)), Format.HTML)))
    names = [words(one) for one in elements(tree, "span") if one.get("class") == "case"]
    assert len(names) == 1
    assert first not in names
    assert "no peer access" in words(tree)


def test_a_matrix_of_a_large_system_is_left_to_programs_and_the_page_says_so() -> None:
    row = tuple(f"GPU{place}" for place in range(100))
    cells = tuple(Cell(text="1.00", value=1.0) for _ in row)
    grid = Matrix(
        caption="memcpy CE GPU(row) -> GPU(column)",
        rows=row,
        groups=tuple((Series(header=(label,), cells=cells),) for label in row),
        better=Better.HIGH,
    )
    figure = matrix_html(grid)
    assert list(elements(figure, "table")) == []
    told = [words(one).strip() for one in elements(figure, "p")]
    assert told == ["memcpy CE GPU(row) → GPU(column)", "10000 cells are too many to show: JSON and CSV have them."]


def test_what_is_worse_comes_first_then_each_path_with_both_numbers_then_the_machines() -> None:
    tree = parse(str(render(comparisons.two_runs(), Format.HTML)))
    sections = {one.get("id"): one for one in elements(tree, "section")}
    assert "30 paths compared: 8 worse, 1 better, 0 different" in words(sections["answer"])
    assert "everything slower touches GPU2" in words(sections["answer"])
    assert "corrupt in today: byte 64 of 1048576 differs (2 of 2 paths)" in words(sections["other-paths"])
    texts = [words(text) for text in elements(sections["changes-the-slowest-first"], "text")]
    named = "device_to_device_memcpy_write_ce, 512 MiB over NV18 (GB/s)"
    assert texts[texts.index(named) - 1] == "GPU → GPU, push, copy engine"
    values = re.fullmatch(r"([0-9.]+) → ([0-9.]+) GB/s", texts[texts.index("GPU2 → GPU0") + 1])
    assert values is not None
    assert float(values[2]) / float(values[1]) == pytest.approx(0.8, abs=0.01)
    assert "999.1" in words(sections["machine-differences"])
    assert words(sections["files"]).count("egmctl 0.1.0") == 2


def test_of_nodes_those_out_of_line_have_their_medians_and_the_others_are_folded() -> None:
    told = words(parse(str(render(comparisons.nodes(), Format.HTML))))
    assert "only node5 is slower: GPU2 → *" in told
    assert re.search(r"node5 ?80 ✕ ?80 ✕ ?7 others ?100 ?100", " ".join(told.split()))
    assert "node5: GPU2 → * 19.9 % slower (6 of 6 paths)" in told
    assert "push, copy engine: 200.17 GB/s, all nodes 249.90 (device_to_device_memcpy_write_ce, 512 MiB)" in told
    assert "SAME  node[1-4,6-8]" in told


def test_nothing_to_compare_is_no_pass() -> None:
    found = comparisons.two_runs()
    nothing = replace(
        found, compared=0, paths=(), affected=(), machines=(), notes=("the files have no path in common",)
    )
    told = words(parse(str(render(answered(nothing), Format.HTML))))
    assert "NOT COMPARED" in told
    assert "the files have no path in common" in told


@pytest.mark.parametrize(
    ("made", "banner"),
    [
        (lambda: str(render(run("gb200-tray", gpus=2), Format.HTML)), "MODEL of gb200-tray"),
        (lambda: str(render(topology(shipped("dgx-h100")), Format.HTML)), "MODEL of dgx-h100"),
        (
            lambda: str(render(diagnose(shipped("gh200"), Scope(), CHECKS), Format.HTML)),
            "MODEL of gh200, built from public documentation, not captured from hardware",
        ),
    ],
)
def test_what_is_not_live_says_so_before_anything_else(made: object, banner: str) -> None:
    tree = parse(made())  # type: ignore[operator]
    first = next(node for node in elements(tree, "p", "h1", "h2") if node.get("class") == "banner" or node.tag != "p")
    assert words(first).startswith(banner)


def test_a_recorded_machine_says_when_it_was_recorded_in_the_heading() -> None:
    (subject,) = _subjects(parse(str(render(topology(shipped("hgx-h200x4")), Format.HTML))))
    assert subject.startswith("hgx-h200x4, recorded 2026-")


def test_the_title_is_the_nodes_name_unless_the_result_has_pseudonyms() -> None:
    node = patched(patched(shipped("hgx-h200x4"), "host", hostname="rack7-n12"), "origin", name="", redacted=False)
    live = patched(node, "origin", kind=OriginKind.LIVE)
    titles = [
        _subjects(parse(str(render(diagnose(machine, Scope(), CHECKS), Format.HTML))))
        for machine in (live, redact(live))
    ]
    assert titles == [["rack7-n12"], ["this node"]]


@pytest.mark.long
def test_a_run_of_the_command_on_a_fake_node_is_a_page_that_says_fake(
    egmctl: RunEgmctl, fake_node: object, tmp_path: Path
) -> None:
    node = fake_node("gb200-tray")  # type: ignore[operator]
    page = tmp_path / "report.html"
    case = ("--case", "device_to_device_memcpy_write_ce", "--size", "64K", "--copies", "2", "--samples", "1")
    done = egmctl("bench", *case, "--no-verdict", "-o", page, "-q", env=node.environment())
    assert done.code == 0, done.err
    tree = parse(page.read_text())
    assert FAKE in [words(node) for node in elements(tree, "p") if node.get("class") == "banner"]
    drawing, phone = (one for one in elements(tree, "svg") if "topology" in one.get("class", ""))
    assert "GPU3" in words(phone)
    assert "GPU3" in words(drawing)
    assert "NUMA 1" in words(drawing)


def _subjects(tree: Element) -> list[str]:
    return [words(node) for node in elements(tree, "strong", "h1") if node.get("class") == "subject"]


def _width(row: Element | None) -> int:
    assert row is not None
    return sum(int(cell.get("colspan", "1")) for cell in row)
