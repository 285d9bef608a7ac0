"""Every link within the documents leads somewhere: to a file that is there, and in it to a heading that is there."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.conftest import ROOT

DOCUMENTS = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md"), *(ROOT / "benchmarks").rglob("*.md")])
NAMED = re.compile(
    r"(?<![\w/-])(?:docs|benchmarks|tests|tools|profiles)/[\w./-]+\.(?:md|json|txt|sh|1|toml)(?!\w|\.\w|-)"
)
"""How code and documents name a file of the repository."""


def links(text: str) -> Iterator[str]:
    """Yield what a document links to, except other sites; what stands in code is no link."""
    prose = re.sub(r"^```.*?^```|`[^`\n]*`", "", text, flags=re.MULTILINE | re.DOTALL)
    yield from (link for link in re.findall(r"\]\(([^)\s]+)\)", prose) if not link.startswith(("http:", "https:")))


def anchors(text: str) -> set[str]:
    """Return the anchors that GitHub gives a document's headings, the second of a name with ``-1`` and so on."""
    found: dict[str, int] = {}
    for line in re.sub(r"^```.*?^```", "", text, flags=re.MULTILINE | re.DOTALL).splitlines():
        if heading := re.fullmatch(r"#+ (.*)", line):
            words = re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", heading[1]).strip().lower()
            name = re.sub(r"[^\w\- ]", "", words).replace(" ", "-")
            found[name] = found.get(name, -1) + 1
    return {f"{name}-{number}" if number else name for name, last in found.items() for number in range(last + 1)}


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_links_lead_somewhere(document: Path) -> None:
    lost = []
    for link in links(document.read_text()):
        name, _, anchor = link.partition("#")
        target = document.parent / name if name else document
        if not target.exists() or (anchor and target.suffix == ".md" and anchor not in anchors(target.read_text())):
            lost.append(link)
    assert lost == []


@pytest.mark.parametrize("page", [*(ROOT / "docs").rglob("*.md")], ids=lambda path: str(path.relative_to(ROOT)))
def test_links_of_the_guide_stay_in_it(page: Path) -> None:
    """It ships without the rest of the checkout: in the wheel, and in everything that is made of it."""
    targets = [page.parent / name for link in links(page.read_text()) if (name := link.partition("#")[0])]
    assert [target for target in targets if not target.resolve().is_relative_to(ROOT / "docs")] == []


def test_the_files_that_code_names_exist() -> None:
    sources = [*(ROOT / "egmctl").rglob("*.py"), *(ROOT / "tools").rglob("*.py"), *(ROOT / "tests").rglob("*.py")]
    lost = [
        f"{path.relative_to(ROOT)}: {name}"
        for path in sources
        for name in NAMED.findall(path.read_text())
        if not (ROOT / name).exists()
    ]
    assert lost == []


SOURCE = re.compile(r"(?<![\w/-])(?:egmctl|tests|tools|benchmarks)/[a-z0-9_./-]+\.(?:py|toml|sh|S|cu)(?!\w|\.\w|-)")
"""How a document names a source file; capitals stand for a name to choose."""


@pytest.mark.parametrize(
    "document",
    [path for path in DOCUMENTS if path.name != "CHANGELOG.md"],
    ids=lambda path: str(path.relative_to(ROOT)),
)
def test_the_source_files_that_a_document_names_exist(document: Path) -> None:
    named = set(SOURCE.findall(document.read_text()))
    assert sorted(name for name in named if not (ROOT / name).exists()) == []
