"""The gallery's pages are what the commands draw of recorded runs and of machines that ship.

``make regenerate`` has the commands draw them anew.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from egmctl.api.bench import judge_run, load_profiles
from egmctl.model.measurement import RunReport
from egmctl.report.exports.json import result_json
from egmctl.report.kinds import Format
from egmctl.saved import load
from egmctl.verdict.explain import with_causes
from tests.answers import render
from tests.comparison.runs import RUNS, unpacked
from tests.conftest import ROOT
from tests.docs.examples import rack
from tests.golden import compare
from tests.in_process import run

GALLERY = ROOT / "docs/gallery"
PAGES = {
    "bench": ("show", "idle.json"),
    "bench-busy": ("show", "beside-traffic.json"),
    "compare": ("compare", "idle.json", "beside-traffic.json"),
    "topo": ("topo", "--machine", "gb200-nvl72"),
    "doctor": ("doctor", "--machine", "h200-links-down"),
    "bringup": ("bringup", "--machine", "gb200-egm-off"),
}
SIZE_LIMIT = 520_000
"""Bytes of all pages."""


@pytest.mark.parametrize("name", PAGES)
def test_a_page_is_what_the_command_draws(tmp_path: Path, name: str) -> None:
    for run_name in RUNS:
        saved = unpacked(run_name, tmp_path)
        report = load(saved).result
        assert isinstance(report, RunReport)
        # Judged as today: the verdict in the file has the words of the version that measured.
        judged = judge_run(report, report.machines[0], load_profiles("hgx-h200"))
        saved.write_text(result_json(with_causes(judged)))
    words = [str(tmp_path / word) if word.endswith(".json") else word for word in PAGES[name]]
    page = tmp_path / "page.html"
    assert run(*words, "-q", "-o", page).code in (0, 1, 3)
    compare(page.read_text(), GALLERY / f"{name}.html")


def test_the_page_of_a_rack_is_that_of_models() -> None:
    page = str(render(rack(), Format.HTML))
    assert "MODEL" in page
    compare(page, GALLERY / "fleet.html")


def test_the_gallery_names_all_its_pages_and_is_small() -> None:
    pages = sorted(GALLERY.glob("*.html"))
    assert {page.stem for page in pages} == {*PAGES, "fleet"}
    text = (ROOT / "docs/gallery.md").read_text()
    assert all(f"](gallery/{page.name})" in text for page in pages)
    assert sum(page.stat().st_size for page in pages) < SIZE_LIMIT
