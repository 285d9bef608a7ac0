"""No modules of egmctl import each other in a circle, imports inside functions included."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

from tests.conftest import ROOT


def modules(root: Path) -> dict[str, Path]:
    """Return the file of each module of the package below a folder."""
    return {".".join(path.relative_to(root).with_suffix("").parts): path for path in (root / "egmctl").rglob("*.py")}


def imported(node: ast.AST, names: Mapping[str, Path]) -> Iterator[str]:
    """Yield the modules that a tree imports when it runs: not what only the type checker sees."""
    if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING":
        return
    if isinstance(node, ast.Import):
        yield from (alias.name for alias in node.names)
    elif isinstance(node, ast.ImportFrom) and node.module is not None:
        for alias in node.names:
            module = f"{node.module}.{alias.name}"
            yield module if {module, f"{module}.__init__"} & set(names) else node.module
    for child in ast.iter_child_nodes(node):
        yield from imported(child, names)


def circle(root: Path) -> list[str]:
    """Return modules that import each other, each the next one; none where there is no circle."""
    names = modules(root)
    graph = {
        name.removesuffix(".__init__"): set(imported(ast.parse(path.read_text()), names))
        for name, path in names.items()
    }
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        return list(error.args[1])
    return []


def test_no_modules_import_each_other_in_a_circle() -> None:
    # egmctl itself offers names of egmctl.api when they are first used.
    assert circle(ROOT) == []


@pytest.mark.parametrize("later", [False, True], ids=["at the top", "inside a function"])
def test_a_circle_is_seen(tmp_path: Path, later: bool) -> None:
    (tmp_path / "egmctl").mkdir()
    (tmp_path / "egmctl" / "one.py").write_text("from egmctl import other\n")
    text = "from egmctl.one import thing\n"
    (tmp_path / "egmctl" / "other.py").write_text(f"def work():\n    {text}" if later else text)
    assert set(circle(tmp_path)) == {"egmctl.one", "egmctl.other"}
