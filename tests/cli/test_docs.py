"""``egmctl docs``: every page of the guide and every example can be read where there is nothing but the command."""

from __future__ import annotations

import compileall
import re
import shutil
from pathlib import Path

import pytest

from egmctl import files
from egmctl.cli.docs import topics
from tests.conftest import ROOT
from tests.in_process import run


def test_every_page_and_example_is_a_topic() -> None:
    ended = run("docs")
    assert ended.code == 0
    assert run("docs", str(ROOT / "README.md")).code == 2, "a path is no topic"
    listed = {line.split()[0] for line in ended.out.splitlines() if line.startswith("  ")}
    pages = {path.stem for path in (ROOT / "docs").glob("*.md")} - {"README"}
    examples = {path.relative_to(ROOT / "docs").as_posix() for path in (ROOT / "docs/examples").rglob("*.*")}
    assert listed >= pages | examples
    assert re.search(r"^  start +Five-minute start$", ended.out, re.M), "a topic stands beside its title"


def test_the_guide_comes_first_as_the_index_has_it() -> None:
    headings = [line for line in run("docs").out.splitlines() if line and not line.startswith(" ")]
    assert [heading.split(":")[0] for heading in headings] == ["Guide", "Reference", "Method", "Examples and decisions"]
    assert run("docs").out.splitlines()[1].split()[0] == "start"


def test_what_an_installer_compiles_is_no_topic(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    shutil.copytree(ROOT / "docs", tmp_path / "docs")
    compiled = compileall_of(tmp_path / "docs/examples")
    monkeypatch.setattr(files, "docs_dir", lambda: tmp_path / "docs")
    assert len(compiled) > 1
    assert not [topic for group in topics().values() for topic in group if "pyc" in topic]


def compileall_of(folder: Path) -> list[Path]:
    """Compile the programs of a folder as pip does, and return what that made."""
    assert compileall.compile_dir(folder, quiet=1)
    return list(folder.rglob("*.pyc"))


def test_a_topic_is_printed_as_it_is_written() -> None:
    assert run("docs", "exit-codes").out == (ROOT / "docs/exit-codes.md").read_text()
    example = "examples/slurm-prolog.sh"
    assert run("docs", example).out == (ROOT / "docs" / example).read_text()
