"""What no line of egmctl does: import in a circle, or take names and labels apart that code has made."""

from __future__ import annotations

import ast
import functools
import re
from collections.abc import Iterator, Mapping
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

from tests.conftest import ROOT


@functools.cache
def sources(root: Path = ROOT) -> Mapping[str, str]:
    """Return the text of each module of the package below a folder, by the path there."""
    return {str(path.relative_to(root)): path.read_text() for path in (root / "egmctl").rglob("*.py")}


def imported(node: ast.AST, names: set[str]) -> Iterator[str]:
    """Yield the modules that a tree imports when it runs: not what only the type checker sees."""
    if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING":
        return
    if isinstance(node, ast.Import):
        yield from (alias.name for alias in node.names)
    elif isinstance(node, ast.ImportFrom) and node.module is not None:
        for alias in node.names:
            module = f"{node.module}.{alias.name}"
            yield module if module in names else node.module
    if isinstance(node, ast.stmt | ast.Module | ast.ExceptHandler | ast.match_case):
        # No expression imports anything.
        for child in ast.iter_child_nodes(node):
            yield from imported(child, names)


def circle(root: Path) -> list[str]:
    """Return modules that import each other, each the next one; none where there is no circle."""
    modules = {path[:-3].replace("/", ".").removesuffix(".__init__"): text for path, text in sources(root).items()}
    graph = {name: set(imported(ast.parse(text), set(modules))) for name, text in modules.items()}
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        return list(error.args[1])
    return []


def test_no_modules_import_each_other_in_a_circle() -> None:
    """Imports inside functions count; egmctl itself offers names of egmctl.api when they are first used."""
    assert circle(ROOT) == []


@pytest.mark.parametrize("later", [False, True], ids=["at the top", "inside a function"])
def test_a_circle_is_seen(tmp_path: Path, later: bool) -> None:
    (tmp_path / "egmctl").mkdir()
    (tmp_path / "egmctl" / "one.py").write_text("from egmctl import other\n")
    text = "from egmctl.one import thing\n"
    (tmp_path / "egmctl" / "other.py").write_text(f"def work():\n    {text}" if later else text)
    assert set(circle(tmp_path)) == {"egmctl.one", "egmctl.other"}


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
    found = {name: found_in(text) for name, text in sources().items() if name not in PEOPLE_WRITE_IT}
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


def bare_class_variables(text: str) -> list[int]:
    """Return the lines of annotations that are ClassVar without a type."""
    nodes = ast.walk(ast.parse(text))
    return [
        node.lineno
        for node in nodes
        if isinstance(node, ast.AnnAssign) and ast.unparse(node.annotation) in ("ClassVar", "typing.ClassVar")
    ]


def test_each_class_variable_has_a_type_without_which_python_3_10_refuses_the_annotation() -> None:
    assert {path: lines for path, text in sources().items() if (lines := bare_class_variables(text))} == {}
    assert bare_class_variables("class A:\n    x: ClassVar = 1\n    y: ClassVar[int] = 2\n") == [2]
