"""A real browser shows the pages: nothing leaves them, nothing runs, and both schemes can be read."""

from __future__ import annotations

import re
from collections.abc import Callable, Generator, Mapping
from pathlib import Path

import pytest

from egmctl.doctor.check import Scope
from egmctl.doctor.runner import CHECKS
from egmctl.report.kinds import Format
from egmctl.topology.topology import topology
from tests.answers import diagnose, render
from tests.conftest import ROOT
from tests.doctor.machines import shipped
from tests.fleet.racks import no_go
from tests.report import comparisons
from tests.report.browser import Tab, chromium, find
from tests.report.runs import hostile_run, judged, run
from tests.tiers import why_not

pytestmark = pytest.mark.processes

CASES = ("device_to_device_memcpy_write_ce", "host_numa_to_device_memcpy_ce", "device_to_device_latency_loaded")
PAGES: Mapping[str, Callable[[], str]] = {
    "bench.html": lambda: str(render(judged(run("dgx-h100")), Format.HTML)),
    "sweep.html": lambda: str(render(run(cases=CASES[:2], sizes=[1 << n for n in range(12, 31)]), Format.HTML)),
    "hostile.html": lambda: str(render(hostile_run(), Format.HTML)),
    "hostile.svg": lambda: str(render(hostile_run(), Format.SVG)),
    "bench.svg": lambda: str(render(run(cases=CASES), Format.SVG)),
    "topo.html": lambda: str(render(topology(shipped("gb200-tray")), Format.HTML)),
    "topo-8.html": lambda: str(render(topology(shipped("dgx-h100")), Format.HTML)),
    "topo.svg": lambda: str(render(topology(shipped("gh200x4")), Format.SVG)),
    "doctor.html": lambda: str(render(diagnose(shipped("hgx-h200x4"), Scope(), CHECKS), Format.HTML)),
    "compare.html": lambda: str(render(comparisons.two_runs(), Format.HTML)),
    "compare-nodes.html": lambda: str(render(comparisons.nodes(), Format.HTML)),
    "compare-hostile.html": lambda: str(render(comparisons.hostile(), Format.HTML)),
    "bringup.html": lambda: str(render(no_go(), Format.HTML)),
    "fleet.html": lambda: (ROOT / "docs/gallery/fleet.html").read_text(),
}
SETTLE_S = 0.4
"""What a page does it does within this time after it was loaded."""
CONTRASTS = """
(() => {
  const channel = c => (c /= 255) <= 0.04045 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4;
  const rgba = text => text.match(/[0-9.]+/g).map(Number);
  const luminance = ([r, g, b]) => 0.2126 * channel(r) + 0.7152 * channel(g) + 0.0722 * channel(b);
  const ground = node => {
    for (; node; node = node.parentElement) {
      const color = rgba(getComputedStyle(node).backgroundColor);
      if (color.length < 4 || color[3] === 1) return color;
    }
    return [255, 255, 255];
  };
  const low = [];
  const walk = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  while (walk.nextNode()) {
    const node = walk.currentNode.parentElement;
    if (!walk.currentNode.textContent.trim() || node.closest("svg")) continue;
    const [a, b] = [luminance(rgba(getComputedStyle(node).color)), luminance(ground(node))];
    const contrast = (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05);
    if (contrast < 4.5) low.push(`${contrast.toFixed(2)} ${node.className} ${walk.currentNode.textContent.trim()}`);
  }
  return low;
})()
"""
"""Text whose contrast is below WCAG 2.2's 4.5 to 1 (https://www.w3.org/TR/WCAG22/#contrast-minimum)."""


OFF_SCREEN = """
[...document.querySelectorAll(".rates strong, .ends li, td.number, svg text")].filter(node => {
  const box = node.getBoundingClientRect();
  const small = node.ownerSVGElement && node.getScreenCTM().a * parseFloat(getComputedStyle(node).fontSize) < 9.4;
  return node.checkVisibility() && box.width && node.textContent && (box.left < 0 || box.right > innerWidth || small);
}).map(node => node.textContent)
"""
"""Visible words that leave the window, and words of pictures below 9.4 pixels."""


@pytest.fixture(scope="module")
def tab(tmp_path_factory: pytest.TempPathFactory) -> Generator[Tab, None, None]:
    program = find()
    if program is None:
        pytest.skip(str(why_not(["chromium"])))
    with chromium(program, tmp_path_factory.mktemp("profile")) as one:
        yield one


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    where = tmp_path_factory.mktemp("pages")
    for name, made in PAGES.items():
        (where / name).write_text(made())
    return where


@pytest.mark.long
@pytest.mark.parametrize("name", PAGES)
def test_no_request_leaves_a_page_and_nothing_is_complained_of(tab: Tab, folder: Path, name: str) -> None:
    seen = tab.open(folder / name, settle_s=SETTLE_S)
    assert seen.requests == [(folder / name).as_uri()]
    assert seen.complaints == []


def test_a_page_that_does_both_is_noticed(tab: Tab, tmp_path: Path) -> None:
    """Guards the test above: what it looks for, this browser tells."""
    page = tmp_path / "bad.html"
    page.write_text("<!doctype html><img src=missing.png><script>console.error('seen'); nonsense()</script>")
    seen = tab.open(page, settle_s=SETTLE_S)
    assert (tmp_path / "missing.png").as_uri() in seen.requests
    assert any("seen" in one for one in seen.complaints)
    assert any("Uncaught" in one for one in seen.complaints)


def test_even_a_script_that_got_into_a_page_would_not_run(tab: Tab, folder: Path, tmp_path: Path) -> None:
    page = tmp_path / "injected.html"
    run = "document.title = 'run'"
    added = f'<script>{run}</script><img src=x.png onerror="{run}"><b style="top:1px">'
    page.write_text((folder / "topo.html").read_text().replace("<main", f"{added}<main"))
    seen = tab.open(page, settle_s=SETTLE_S)
    assert tab.evaluate("document.title") == "egmctl topo: gb200-tray"
    assert seen.requests == [page.as_uri()]
    assert sum("Content Security Policy" in one for one in seen.complaints) >= 3


@pytest.mark.long
@pytest.mark.parametrize(("scheme", "width"), [("light", 360), ("dark", 1280)])
@pytest.mark.parametrize("name", [name for name in PAGES if name.endswith(".html")])
def test_a_page_can_be_read_in_both_schemes_and_is_never_wider_than_the_window(
    tab: Tab, folder: Path, name: str, scheme: str, width: int
) -> None:
    tab.open(folder / name, scheme=scheme, width=width)
    color = tab.evaluate("getComputedStyle(document.documentElement).backgroundColor")
    ground = [int(part) for part in re.findall(r"\d+", color)]
    assert (max(ground) < 64) is (scheme == "dark")
    assert tab.evaluate(CONTRASTS) == []
    assert tab.evaluate("document.documentElement.scrollWidth") <= width


CUT = """
[...document.querySelectorAll(".scroll")].filter(node =>
  node.checkVisibility() && node.scrollWidth > node.clientWidth + 1).length
"""
"""The number of visible tables and drawings that are cut until someone scrolls them."""


@pytest.mark.parametrize("width", [390, 1280])
def test_no_gpu_of_eight_is_cut_off_a_table(tab: Tab, folder: Path, width: int) -> None:
    for name in ("topo-8.html", "bench.html"):
        tab.open(folder / name, width=width)
        assert tab.evaluate(CUT) == 0


FIRST = """
(() => {
  const size = node => parseFloat(getComputedStyle(node).fontSize);
  const words = [...document.querySelectorAll("body *")].filter(node =>
    !node.children.length && node.textContent.trim() && !node.closest("svg") && node.checkVisibility());
  const largest = words.reduce((most, node) => size(node) > size(most) ? node : most);
  const first = document.querySelector("#answer h1");
  return [first.contains(largest), first.getBoundingClientRect().bottom];
})()
"""
"""Whether the largest text of a page is in its answer, and where the answer ends."""


@pytest.mark.parametrize("width", [390, 1280])
@pytest.mark.parametrize("name", ["bench.html", "doctor.html", "bringup.html", "compare.html", "fleet.html"])
def test_the_answer_is_the_largest_text_and_on_the_first_screen(tab: Tab, folder: Path, name: str, width: int) -> None:
    tab.open(folder / name, width=width)
    is_largest, bottom = tab.evaluate(FIRST)
    assert is_largest
    assert bottom <= (260 if width == 1280 else 420)


@pytest.mark.long
def test_a_bring_up_fits_on_two_screens_and_opens_into_all_of_its_parts(tab: Tab, folder: Path) -> None:
    tab.open(folder / "bringup.html")
    assert tab.evaluate("document.documentElement.scrollHeight") <= 2050
    tab.evaluate("document.querySelectorAll('details').forEach(node => node.open = true)")
    assert tab.evaluate("document.documentElement.scrollHeight") >= 4000


@pytest.mark.long
@pytest.mark.parametrize("name", ["bench.html", "sweep.html"])
def test_the_first_picture_of_a_bench_is_on_the_first_screen_and_the_page_is_short(
    tab: Tab, folder: Path, name: str
) -> None:
    tab.open(folder / name)
    assert tab.evaluate("document.documentElement.scrollHeight") <= 8000
    assert tab.evaluate("document.querySelector('main svg').getBoundingClientRect().top") <= 800


@pytest.mark.long
@pytest.mark.parametrize("name", ["bench.html", "sweep.html", "bringup.html", "doctor.html", "topo.html"])
def test_on_a_phone_no_number_is_off_the_screen_and_no_words_of_a_picture_are_tiny(
    tab: Tab, folder: Path, name: str
) -> None:
    tab.open(folder / name, width=390)
    assert tab.evaluate(OFF_SCREEN) == []


def test_the_keyboard_skips_to_the_report_and_shows_where_it_is(tab: Tab, folder: Path) -> None:
    tab.open(folder / "doctor.html")
    tab.press("Tab")
    assert tab.evaluate("document.activeElement.textContent") == "Skip to the report"
    assert tab.evaluate("document.activeElement.getBoundingClientRect().left") >= 0
    tab.press("Tab")
    assert tab.evaluate("document.activeElement.localName") == "summary"
    assert float(tab.evaluate("getComputedStyle(document.activeElement).outlineWidth").removesuffix("px")) >= 2


def test_a_screen_reader_finds_tables_with_names(tab: Tab, folder: Path) -> None:
    tab.open(folder / "topo.html")
    nodes = tab.call("Accessibility.getFullAXTree")["nodes"]
    tables = [node["name"]["value"] for node in nodes if node.get("role", {}).get("value") == "table"]
    assert "GPU links" in tables
    images = [node["name"]["value"] for node in nodes if node.get("role", {}).get("value") == "image"]
    assert any(name.startswith("Topology: EGM, single-node multi-GPU") for name in images)


@pytest.mark.long
def test_it_prints_dark_on_white_and_without_the_link_for_keyboards(tab: Tab, folder: Path) -> None:
    tab.open(folder / "topo.html", scheme="dark")
    tab.call("Emulation.setEmulatedMedia", media="print")
    assert tab.evaluate("getComputedStyle(document.body).color") == "rgb(23, 26, 31)"
    assert tab.evaluate("getComputedStyle(document.documentElement).backgroundColor") == "rgb(255, 255, 255)"
    assert tab.evaluate("getComputedStyle(document.querySelector('.skip')).display") == "none"
    assert tab.printed().startswith(b"%PDF-")


@pytest.mark.long
@pytest.mark.parametrize("name", ["bench.html", "doctor.html", "bringup.html"])
def test_a_run_prints_on_four_pages_with_how_it_was_measured_and_the_parts_that_were_opened(
    tab: Tab, folder: Path, name: str
) -> None:
    tab.open(folder / name)
    tab.call("Emulation.setEmulatedMedia", media="print")
    shown = ".printed, :has(> summary .squares)"
    folded = f"[...document.querySelectorAll('details')].filter(node => !node.closest('{shown}')).map(visible)"
    folded = f"(() => {{ const visible = node => node.getBoundingClientRect().height > 0; return {folded}; }})()"
    printed = (
        "[...document.querySelectorAll('.printed details > div')].map(node => node.getBoundingClientRect().height)"
    )
    note = "getComputedStyle(document.querySelector('footer'), '::after').content"
    assert not any(tab.evaluate(folded))
    assert tab.evaluate(printed)
    assert min(tab.evaluate(printed)) > 10
    assert len(re.findall(rb"/Type /Page\b", tab.printed())) <= 4
    assert "Folded parts are not printed" in tab.evaluate(note)
    tab.evaluate("document.querySelectorAll('details').forEach(node => node.open = true)")
    assert all(tab.evaluate(folded))
    assert tab.evaluate(note) == "none"
