"""The guide as a site (`make docs`): it is built without a warning, and lists the pages in the groups of the index."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest
from site_nav import navigation

from tests.conftest import ROOT, ended

DOCS = ROOT / "docs"


def test_the_navigation_has_every_page_once() -> None:
    """The man page is no page of the site; the index is its first."""
    pages = re.findall(r"'([\w/-]+\.md)'", str(navigation(DOCS)))
    assert sorted(pages) == sorted(path.relative_to(DOCS).as_posix() for path in DOCS.rglob("*.md"))


@pytest.mark.needs("mkdocs")
@pytest.mark.long
@pytest.mark.processes
def test_the_site_is_built_strictly(tmp_path: Path) -> None:
    """A link or an anchor that leads nowhere is a warning of mkdocs, and a warning ends it with 1."""
    command = [sys.executable, "-m", "mkdocs", "build", "--quiet", "--strict", "--site-dir", str(tmp_path)]
    done = ended(command, env={"NO_MKDOCS_2_WARNING": "1"})
    assert done.code == 0, done.err
    assert [line for line in done.err.splitlines() if line.startswith("WARNING")] == []
    page = (tmp_path / "egm.html").read_text()
    assert 'href="doctor.html#egmcgroup-route"' in page
    assert 'id="egmcgroup-route"' in (tmp_path / "doctor.html").read_text()
    assert (tmp_path / "examples" / "nvsentinel" / "preflight.py").is_file()
    assert re.findall(r'(?:src|href)="(https?://[^"]+)"', page.partition("<article")[0]) == [], "nothing is fetched"
