"""What no line of egmctl does: import in a circle, take names apart that code has made, share a name, or pack a choice.

Each class and each function has a name of its own, so that nobody has to ask which one is meant; the names that modules
share on purpose are listed with the reason. A condition does not multiply, and a conditional expression neither holds
another one nor stands behind a star: plain statements are read at once.
"""

from __future__ import annotations

import ast
import functools
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

from tests.conftest import ROOT
from tests.tiers import LONG


@functools.cache
def sources(root: Path = ROOT, folder: str = "egmctl") -> Mapping[str, str]:
    """Return the text of each module of a folder below another, by the path there."""
    return {str(path.relative_to(root)): path.read_text() for path in (root / folder).rglob("*.py")}


@functools.cache
def tree_of(text: str) -> ast.Module:
    """Return the syntax tree of a module, which no test changes."""
    return ast.parse(text)


@pytest.fixture(scope="module", autouse=True)
def _trees_are_given_back() -> Iterator[None]:
    """Give back 240 MB of trees after these tests: each fork of this process would copy their page tables."""
    yield
    tree_of.cache_clear()


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


def module_names(paths: Iterable[str]) -> list[str]:
    """Return the names of the modules in files."""
    return [path[:-3].replace("/", ".").removesuffix(".__init__") for path in paths]


def circle(root: Path) -> list[str]:
    """Return modules that import each other, each the next one; none where there is no circle."""
    modules = dict(zip(module_names(sources(root)), sources(root).values(), strict=True))
    graph = {name: set(imported(tree_of(text), set(modules))) for name, text in modules.items()}
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
    "egmctl/model/profile.py"
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
    return list(taken_apart(tree_of(source))) if NAMED.search(source) else []


def codes_chosen(texts: Mapping[str, str]) -> list[str]:
    """Return the modules that name the exit codes, and so may choose one."""
    named = (ast.Name, ast.Attribute, ast.alias)
    return [
        path
        for path, text in texts.items()
        if any(
            "ExitCode" in (getattr(node, "id", ""), getattr(node, "attr", ""), getattr(node, "name", ""))
            for node in ast.walk(tree_of(text))
            if isinstance(node, named)
        )
    ]


def test_no_view_and_no_export_chooses_an_exit_code() -> None:
    """import-linter sees modules, and egmctl.errors has what views need too."""
    assert codes_chosen(sources(folder="egmctl/report")) == []


def test_a_view_that_chooses_an_exit_code_is_seen() -> None:
    texts = {
        "a.py": "from egmctl.errors import ExitCode\n",
        "b.py": "code = errors.ExitCode.OK\n",
        "c.py": "code = 1\n",
    }
    assert codes_chosen(texts) == ["a.py", "b.py"]


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
    nodes = ast.walk(tree_of(text))
    return [
        node.lineno
        for node in nodes
        if isinstance(node, ast.AnnAssign) and ast.unparse(node.annotation) in ("ClassVar", "typing.ClassVar")
    ]


def test_each_class_variable_has_a_type_without_which_python_3_10_refuses_the_annotation() -> None:
    assert {path: lines for path, text in sources().items() if (lines := bare_class_variables(text))} == {}
    assert bare_class_variables("class A:\n    x: ClassVar = 1\n    y: ClassVar[int] = 2\n") == [2]


def public_classes(tree: ast.Module) -> Iterator[str]:
    """Yield the classes and the aliases of types that a module defines for others. Constants are in capitals."""
    for node in tree.body:
        if isinstance(node, ast.ClassDef):
            names = [node.name]
        elif isinstance(node, ast.Assign):
            names = [target.id for target in node.targets if isinstance(target, ast.Name)]
        else:
            names = []
        yield from (name for name in names if name[0].isupper() and not name.isupper())


def named_twice(texts: Mapping[str, str], names: Callable[[ast.Module], Iterable[str]]) -> dict[str, list[str]]:
    """Return the names of a kind that several modules define, each with the paths of the modules."""
    paths: dict[str, list[str]] = {}
    for path, text in texts.items():
        for name in names(tree_of(text)):
            paths.setdefault(name, []).append(path)
    return {name: defined_in for name, defined_in in paths.items() if len(defined_in) > 1}


def test_no_public_class_is_defined_twice() -> None:
    assert named_twice(sources(), public_classes) == {}


def test_a_second_class_of_one_name_is_seen() -> None:
    one = "class Status: ...\nclass _Row: ...\nR = TypeVar('R')\nSIZES = 1, 2\n"
    texts = {"one.py": one, "other.py": one.replace("class Status: ...", "Status = str | None")}
    assert named_twice(texts, public_classes) == {"Status": ["one.py", "other.py"]}


SHARED = {
    "main": "what a program does that is started by the name of its module",
    "run": "what a child of the launcher does, named module:run, and launch.run itself, which starts one",
    "read": "what a child of the launcher reads, named module:read",
    "serve": "what a child of the launcher answers, named module:serve",
    "watch": "a command of cli/, and what its child does, named module:watch",
    "explain": "a command of cli/, and the function of the library that does it",
    "compare": "a command of cli/, and the function that does it",
    "to_json": "a function of the library, which returns text; the codec's, with from_json, returns data",
}
"""The names of functions that several modules define, with the reason."""


def public_functions(tree: ast.Module) -> set[str]:
    """Return the names of the functions that a module defines for others. Overloads of one function are one."""
    functions = (node for node in tree.body if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef))
    return {function.name for function in functions if not function.name.startswith("_")}


def test_no_public_function_is_defined_twice() -> None:
    twice = named_twice(sources(), public_functions)
    assert {name: paths for name, paths in twice.items() if name not in SHARED} == {}
    assert [name for name in SHARED if name not in twice] == [], "defined once, so no reason is needed"


def test_a_second_function_of_one_name_is_seen() -> None:
    one = "@overload\ndef load(path): ...\ndef load(path): ...\ndef _find(): ...\nclass A:\n    def find(self): ...\n"
    other = "async def load(path): ...\ndef _find(): ...\nclass B:\n    def find(self): ...\n"
    assert named_twice({"one.py": one}, public_functions) == {}
    assert named_twice({"one.py": one, "other.py": other}, public_functions) == {"load": ["one.py", "other.py"]}


RENAMED = re.compile(r"\b(\w+) as (?!\1\b)\w+(?=[,\n])")
"""Something with another name in an import."""


def renamed_imports(text: str, modules: Collection[str]) -> list[int]:
    """Return the lines of imports that give a class, a function or a constant of egmctl another name.

    Parameters
    ----------
    modules
        The names of all modules of egmctl, which may have another name: what they hold keeps its own.
    """
    if not RENAMED.search(text):
        # Most files rename none, and need not be parsed.
        return []
    return [
        alias.lineno
        for node in ast.walk(tree_of(text))
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("egmctl")
        for alias in node.names
        if alias.asname not in (None, alias.name) and f"{node.module}.{alias.name}" not in modules
    ]


EVERYWHERE = ("egmctl", "tools", pytest.param("tests", marks=LONG))


@pytest.mark.parametrize("folder", ["egmctl", "tools", "tests"])
def test_what_is_imported_keeps_its_name(folder: str) -> None:
    modules = module_names(sources())
    renamed = {path: renamed_imports(text, modules) for path, text in sources(ROOT, folder).items()}
    assert {path: lines for path, lines in renamed.items() if lines} == {}


@pytest.mark.parametrize("name", ["Status as Found", "TOLD as FAULTS", "failed as broken"])
def test_a_renamed_import_is_seen(name: str) -> None:
    text = f"from egmctl.model.finding import passed, {name}\nfrom egmctl.gpu import ucx as side\n"
    assert renamed_imports(text, {"egmctl.gpu.ucx"}) == [1]


def is_condition(node: ast.expr, flags: set[str]) -> bool:
    """Return whether an expression is surely true or false: a comparison, a negation, or a name of such a value."""
    match node:
        case ast.Compare() | ast.UnaryOp(op=ast.Not()) | ast.BoolOp(op=ast.And()):
            return True
        case ast.Call(func=ast.Name(id=name)):
            return name in ("bool", "isinstance", "any", "all")
        case ast.Name(id=name):
            return name in flags
    return False


def flags_of(function: ast.FunctionDef) -> set[str]:
    """Return the names that stand for conditions in a function: its parameters of type bool, and what it assigns."""
    parameters = (*function.args.args, *function.args.kwonlyargs)
    flags = {each.arg for each in parameters if isinstance(each.annotation, ast.Name) and each.annotation.id == "bool"}
    for node in ast.walk(function):
        if isinstance(node, ast.Assign) and is_condition(node.value, set()):
            flags.update(target.id for target in node.targets if isinstance(target, ast.Name))
    return flags


def packed(tree: ast.Module) -> list[int]:
    """Return the lines with a condition that multiplies, or with a conditional that is nested or behind a star."""
    found = set()
    products: list[tuple[ast.BinOp, set[str]]] = []
    for node in ast.walk(tree):
        match node:
            case ast.FunctionDef():
                inner = [one for one in ast.walk(node) if isinstance(one, ast.BinOp) and isinstance(one.op, ast.Mult)]
                flags = flags_of(node) if inner else set()
                products += [(product, flags) for product in inner]
            case ast.BinOp(op=ast.Mult()):
                products.append((node, set()))
            case ast.IfExp():
                choices = [one for one in ast.walk(node) if isinstance(one, ast.IfExp)]
                if len(choices) > 1:
                    found.add(node.lineno)
            case ast.Starred(value=ast.IfExp()):
                found.add(node.lineno)
    for product, flags in products:
        if is_condition(product.left, flags) or is_condition(product.right, flags):
            found.add(product.lineno)
    return sorted(found)


def packed_loops(tree: ast.Module) -> list[int]:
    """Return the lines of comprehensions with more than three clauses, or with a loop over a single thing."""
    found = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.ListComp | ast.SetComp | ast.GeneratorExp | ast.DictComp):
            clauses = len(node.generators) + sum(len(loop.ifs) for loop in node.generators)
            single = any(isinstance(loop.iter, ast.Tuple) and len(loop.iter.elts) == 1 for loop in node.generators)
            if clauses > 3 or single:
                found.add(node.lineno)
    return sorted(found)


def test_no_comprehension_packs_loops() -> None:
    found = {path: lines for path, text in sources().items() if (lines := packed_loops(tree_of(text)))}
    assert found == {}


def test_a_packed_comprehension_is_seen() -> None:
    packs = (
        "gpus = [gpu for node in nodes if node.answered for gpu in node.gpus if gpu.ready]",
        "tones = {name: tone for name in names for tone in (tone_of(name),)}",
    )
    assert [line for line in packs if not packed_loops(tree_of(line))] == []
    assert packed_loops(tree_of("gpus = [gpu for node in nodes for gpu in node.gpus if gpu.ready]")) == []


@pytest.mark.parametrize("folder", EVERYWHERE)
def test_no_expression_packs_a_choice(folder: str) -> None:
    found = {path: lines for path, text in sources(ROOT, folder).items() if (lines := packed(tree_of(text)))}
    assert found == {}


@pytest.mark.parametrize(
    "line",
    [
        'text = "s" * (count != 1)',
        "parts += [note] * bool(note)",
        "parts = (*own, *(others if several else ()))",
        'word = "on" if value else "off" if value is False else "?"',
        "text = f\"{'a' if one else 'b'}\" if both else \"\"",
        "def words(*, small: bool) -> str:\n    return 'small' * small",
        "def words(count: int) -> str:\n    several = count > 1\n    return 's' * several",
    ],
)
def test_a_packed_expression_is_seen(line: str) -> None:
    assert len(packed(tree_of(line))) == 1


def test_plain_expressions_are_none() -> None:
    plain = (
        'words = "on" if value else "off"',
        "line = '-' * width + (pool.free or 0) * pool.page_size_bytes",
        "all_of = (*(names or known), *map(str, (1 if one else 2, 3 if two else 4)))",
    )
    assert [line for line in plain if packed(tree_of(line))] == []


def imports_of_tests(texts: Mapping[str, str]) -> list[str]:
    """Return the files that import from a file of tests."""
    return [
        path
        for path, text in texts.items()
        if any(
            (node.module or "").rpartition(".")[2].startswith("test_")
            for node in ast.walk(tree_of(text))
            if isinstance(node, ast.ImportFrom)
        )
    ]


def test_no_test_imports_from_a_file_of_tests() -> None:
    """What two files need is a module beside them: a test that changes breaks no other one."""
    assert imports_of_tests(sources(folder="tests")) == []


def test_such_an_import_is_seen() -> None:
    assert imports_of_tests({"tests/one.py": "def late():\n    from tests.two.test_three import four\n"}) == [
        "tests/one.py"
    ]
