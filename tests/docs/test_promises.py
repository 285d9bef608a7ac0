"""Each page of the guide keeps what it promises: tests/promises.toml names the tests; what no other holds is here."""

from __future__ import annotations

import ast
import re
from pathlib import Path
from typing import cast

import pytest
from typer.core import TyperGroup
from typer.main import get_command

from egmctl.cli.app import app
from egmctl.doctor.peers import ALL_PAIRS_UP_TO, _pairs
from egmctl.files import read_toml
from tests.conftest import ROOT
from tests.doctor.scenes import CORPUS

PROMISES: dict[str, dict[str, str | list[str]]] = read_toml((ROOT / "tests/promises.toml").read_text())
PAGES = sorted([ROOT / "README.md", *ROOT.glob("docs/*.md")])


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_page_says_what_it_promises(page: Path) -> None:
    assert PROMISES[str(page.relative_to(ROOT))]


@pytest.mark.parametrize("page", PROMISES)
def test_every_test_of_a_promise_exists(page: str) -> None:
    assert (ROOT / page).exists()
    named = [test for tests in PROMISES[page].values() for test in ([tests] if isinstance(tests, str) else tests)]
    assert [test for test in named if not exists(*test.split("::"))] == []


def exists(file: str, name: str) -> bool:
    path = ROOT / "tests" / file
    return path.exists() and any(
        isinstance(node, ast.FunctionDef) and node.name == name for node in ast.walk(ast.parse(path.read_text()))
    )


@pytest.mark.parametrize(("page", "command"), [("bench.md", "bench"), ("fleet.md", "fleet")])
def test_the_options_of_a_table_are_those_of_the_command(page: str, command: str) -> None:
    text = (ROOT / "docs" / page).read_text()
    cells = re.findall(r"^\| (`--[^|]*)\|", text, re.MULTILINE)
    named = {word for cell in cells for word in re.findall(r"--[\w-]+", cell)}
    group = cast(TyperGroup, get_command(app))
    known = {option for parameter in group.commands[command].params for option in parameter.opts}
    assert named
    assert named - known == set()


def test_what_egm_md_quotes_doctor_says() -> None:
    """The sentences of its table, as doctor tells them of a machine of the corpus or explains the check."""
    rows = re.findall(r"^\| `([^`]+)`", (ROOT / "docs/egm.md").read_text(), re.MULTILINE)
    quoted = [row for row in rows if "--" not in row]
    said = " ".join(" ".join(path.read_text() for path in CORPUS.glob("*/doctor.txt")).split())
    code = " ".join(path.read_text() for path in (ROOT / "egmctl").rglob("*.py"))
    for sentence in quoted:
        pattern = re.escape(sentence).replace("nvidiaN", r"nvidia\d")
        assert re.search(pattern, said) or sentence in code, sentence
    assert len(quoted) >= 8


@pytest.mark.parametrize("ranks", [2, ALL_PAIRS_UP_TO, ALL_PAIRS_UP_TO + 1, 72])
def test_up_to_36_nodes_each_meets_each_and_from_37_on_the_next_one_only(ranks: int) -> None:
    met = [*_pairs(range(ranks))]
    assert "From 37 nodes on each node does so with the next one only" in (ROOT / "docs/fabric.md").read_text()
    assert len(met) == (ranks * (ranks - 1) if ranks <= 36 else 2 * ranks)
    assert len({*met}) == len(met)
    assert all(owner != importer and (importer, owner) in met for owner, importer in met)
