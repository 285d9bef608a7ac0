"""The README's pictures of pages are the first part of what the commands draw: of a real bring-up, and of a rack.

Each is an SVG with the page's own markup, so it is text and can be compared. ``EGMCTL_WRITE_GOLDEN=1`` draws them anew;
a Chromium says how high they are.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from pathlib import Path
from xml.etree import ElementTree

import pytest

from egmctl.report.kinds import answer_html
from tests.conftest import ROOT
from tests.docs.examples import bringup_of_h200, rack
from tests.golden import compare
from tests.report.browser import chromium, find

IMAGES = ROOT / "docs/images"
WIDTH = 1120
PAGES: dict[str, Callable[[Path], object]] = {"rack-page": lambda _: rack(), "bringup-page": bringup_of_h200}
_HEIGHT = re.compile(r'height="([0-9]+)"')
_SLACK = 1.04
"""Other fonts than those of this machine break lines elsewhere."""


def picture(html: str, height: int) -> str:
    """Return an SVG that shows HTML (https://www.w3.org/TR/SVG2/embedded.html#ForeignObjectElement)."""
    inside = html.replace("<div", '<div xmlns="http://www.w3.org/1999/xhtml"', 1)
    inside = inside.replace("<svg ", '<svg xmlns="http://www.w3.org/2000/svg" ')
    inside = inside.replace("<style>", "<style><![CDATA[").replace("</style>", "]]></style>")
    style = "<style>.egmctl { padding: 16px; background: var(--ground); color: var(--ink); min-height: 100%; }</style>"
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{height}" viewBox="0 0 {WIDTH} {height}">'
        f'{style}<foreignObject width="{WIDTH}" height="{height}">{inside}</foreignObject></svg>\n'
    )


@pytest.mark.processes
@pytest.mark.parametrize("name", PAGES)
def test_a_picture_of_a_page_is_the_first_part_of_it(tmp_path: Path, name: str) -> None:
    drawn, file = answer_html(PAGES[name](tmp_path)), IMAGES / f"{name}.svg"
    if os.environ.get("EGMCTL_WRITE_GOLDEN"):
        program = find()
        assert program is not None, "a Chromium measures the height of the picture"
        (tmp_path / "page.html").write_text(f"<!doctype html><body style='margin:0;padding:16px'>{drawn}")
        with chromium(program, tmp_path / "profile") as tab:
            tab.open(tmp_path / "page.html", width=WIDTH)
            height = round(_SLACK * tab.evaluate("document.documentElement.scrollHeight"))
    else:
        kept = _HEIGHT.search(file.read_text())
        assert kept is not None
        height = int(kept[1])
    compare(picture(drawn, height), file)
    # A browser reads it as XML, which is stricter than HTML.
    assert ElementTree.fromstring(file.read_text()).tag.endswith("svg")  # noqa: S314
    assert f"(docs/images/{name}.svg)" in (ROOT / "README.md").read_text()
