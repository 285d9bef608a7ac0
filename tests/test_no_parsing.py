"""What a case, a path or a route is, it has as fields: no code takes names and labels apart that code has made."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

from tests.conftest import ROOT

MADE = {"case", "label", "initiator_label", "symbol", "link"}
"""Attributes that hold a case's name, an end's label or a route's symbol."""
NAMED = re.compile(rf"\.({'|'.join(sorted(MADE))})\b")
TAKES_APART = {
    *("split", "rsplit", "partition", "rpartition", "removeprefix", "removesuffix", "startswith", "endswith"),
    *("find", "rfind", "index", "rindex", "replace"),
}
BY_PATTERN = {"match", "search", "fullmatch", "sub", "subn", "split", "findall", "finditer"}
PEOPLE_WRITE_IT = {
    # Profiles name links by their symbols.
    "egmctl/model/profile.py",
}


def made(node: ast.expr) -> bool:
    return isinstance(node, ast.Attribute) and node.attr in MADE


def taken_apart(tree: ast.AST) -> Iterator[int]:
    """Yield the lines in which such a text is taken apart or searched."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            method, of = node.func.attr, node.func.value
            on_it = method in TAKES_APART and made(of)
            by_pattern = method in BY_PATTERN and isinstance(of, ast.Name) and any(map(made, node.args))
            if on_it or by_pattern:
                yield node.lineno
        elif isinstance(node, ast.Compare) and any(isinstance(op, ast.In | ast.NotIn) for op in node.ops):
            # `"_footprint_" in m.case`: a part of it; `m.case in names` is the whole of it.
            if isinstance(node.left, ast.Constant) and any(map(made, node.comparators)):
                yield node.lineno
        elif isinstance(node, ast.Subscript) and made(node.value) and isinstance(node.slice, ast.Slice):
            yield node.lineno


def found_in(source: str) -> list[int]:
    # Most files name none of them, and need not be parsed.
    return list(taken_apart(ast.parse(source))) if NAMED.search(source) else []


def test_no_code_takes_names_and_labels_apart() -> None:
    files = {str(path.relative_to(ROOT)): path for path in Path(ROOT / "egmctl").rglob("*.py")}
    found = {name: found_in(path.read_text()) for name, path in files.items() if name not in PEOPLE_WRITE_IT}
    assert {name: lines for name, lines in found.items() if lines} == {}


def test_it_sees_what_there_was() -> None:
    was = (
        're.sub("^device_local_", "device_to_device_", measurement.case)',
        '"_footprint_" in measurement.case',
        'end.label.rpartition(":")[0]',
        'rank.label.partition(":")[0]',
        "flow.route.symbol[:2]",
    )
    assert [line for line in was if not found_in(line)] == []
    assert found_in('one.case in names or one.link == "NV18" or label.split()') == []
