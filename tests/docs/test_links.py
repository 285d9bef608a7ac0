"""Every link within the documents leads somewhere: to a file that is there, and in it to a heading that is there."""

from __future__ import annotations

import functools
import itertools
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


OF_DEVELOPERS = [ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs" / "decisions").glob("*.md"))]
"""The documents that name parts of the code."""
OF_OTHERS = {"NO_PADDING", "evil.py"}
"""What they name of other projects: a variable of NVIDIA's mock, and a file of an attacker."""
IN_CODE = re.compile(r"`([^`\n]+)`")
FILE = re.compile(r"(?<!\w)[a-z0-9_]+\.(?:py|toml|sh|S)\b")
"""Capitals stand for a name to choose."""


@functools.cache
def names_in_code() -> frozenset[str]:
    """Return the names of all files of sources, tests, tools and examples, and all words in them."""
    folders = ("egmctl", "profiles", "tests", "tools", "benchmarks", "docs/examples")
    paths = [path for folder in folders for path in (ROOT / folder).rglob("*.*")]
    texts = (path.read_text() for path in paths if path.suffix in (".py", ".toml", ".sh", ".c", ".h", ".S"))
    words = (re.findall(r"\w+", text) for text in (*texts, *(path.stem for path in paths)))
    return frozenset(itertools.chain((path.name for path in paths), *words))


def lost_names(text: str) -> list[str]:
    """Return the files, and the names with a capital or an underscore, that a document quotes and no source has."""
    quotes = IN_CODE.findall(text)
    words = {word for quote in quotes for word in re.findall(r"[A-Za-z_]\w*", quote)}
    named = {word for word in words if "_" in word or re.search(r"[a-z][A-Z]", word)}
    files = {name for quote in quotes for name in FILE.findall(quote)}
    return sorted((named | files) - names_in_code() - OF_OTHERS)


@pytest.mark.parametrize("document", OF_DEVELOPERS, ids=lambda path: path.name)
def test_the_names_of_the_code_in_documents_for_developers_are_those_of_today(document: Path) -> None:
    assert lost_names(document.read_text()) == []


def test_a_name_that_is_no_more_is_seen() -> None:
    gone = "_".join(("no", "such", "name"))
    assert lost_names(f"`Engine` and `measure_transfers()`, as `{gone}` in `bench/{gone}.py`") == [gone, f"{gone}.py"]
