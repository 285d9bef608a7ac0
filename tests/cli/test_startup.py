"""Help and versions come at once, and the command's own process never imports what can load a driver."""

from __future__ import annotations

import gzip
import sys
from pathlib import Path

import pytest
import typer

from benchmarks.startup import BASELINE, LIMITS, measure
from egmctl.cli.app import app
from tests.conftest import ROOT, ended

pytestmark = pytest.mark.processes

RESULTS = ROOT / "tests" / "data" / "runs"
RUNS = (
    ("topo",),
    ("snapshot",),
    ("bench", "--quick"),
    ("bringup", "--machine", "hgx-h200x4"),
    ("doctor", "--active"),
    ("show", "idle.json"),
    ("history",),
    ("docs",),
    ("compare", "idle.json", "idle-again.json"),
    ("profile", "list"),
    ("profile", "match", "--machine", "gb200-tray"),
    ("fleet", "doctor", "-w", "no-such-host.invalid", "--timeout", "1", "-o", "answers"),
)
"""Every command at work, as far as it goes on a machine without a driver."""


FILES = ("answers",)


def leaves() -> list[tuple[str, ...]]:
    """Return every command's words: ``("profile", "show")``."""
    words_of_commands: list[tuple[str, ...]] = []
    groups: list[tuple[tuple[str, ...], object]] = [((), typer.main.get_command(app))]
    while groups:
        words, command = groups.pop()
        below = getattr(command, "commands", None)
        if below is None:
            words_of_commands.append(words)
        else:
            groups += [((*words, name), each) for name, each in below.items()]
    return sorted(words_of_commands)


LISTS_MODULES = """
import atexit, sys
atexit.register(lambda: sys.stderr.writelines(f"\\nmodule: {name}" for name in sys.modules))
from egmctl.__main__ import main
sys.exit(main())
"""


def imported(*arguments: str) -> set[str]:
    """Return the modules that the command imports in its own process."""
    done = ended([sys.executable, "-c", LISTS_MODULES, *arguments])
    return {line.partition(" ")[2] for line in done.err.splitlines() if line.startswith("module: ")}


def packages(modules: set[str]) -> set[str]:
    return {module.partition(".")[0] for module in modules}


@pytest.mark.parametrize(
    "arguments", [("--help",), ("--version",), (), ("no-such-command",), *((*words, "--help") for words in leaves())]
)
def test_help_and_versions_import_nothing_heavy(arguments: tuple[str, ...]) -> None:
    modules = imported(*arguments)
    assert "egmctl.cli.app" in modules, "the list of imports is being read"
    assert {"cuda", "pynvml", "numpy", "ctypes", "pygments", "markdown_it"}.isdisjoint(packages(modules))
    assert {"egmctl.facts", "egmctl.gpu", "egmctl.driver", "egmctl.launch", "egmctl.model"}.isdisjoint(modules)


def test_every_command_is_run() -> None:
    assert {words[0] for words in RUNS} == {words[0] for words in leaves()}


@pytest.mark.long
@pytest.mark.parametrize("arguments", RUNS)
def test_the_command_itself_never_imports_a_driver(arguments: tuple[str, ...], tmp_path: Path) -> None:
    for name in filter(lambda word: word.endswith(".json"), arguments):
        (tmp_path / name).write_bytes(gzip.decompress((RESULTS / f"{name}.gz").read_bytes()))
    modules = imported(
        *(str(tmp_path / word) if word in FILES or word.endswith(".json") else word for word in arguments)
    )
    assert {"egmctl.model", "egmctl.data"} & modules, "it did something: it had facts, or files that ship"
    assert {"cuda", "pynvml"}.isdisjoint(packages(modules))


@pytest.mark.parametrize(("words", "own"), [(("topo",), set()), (("bench", "--dry-run"), {"listing"})])
def test_a_command_loads_neither_the_checks_nor_the_other_kinds_of_results(
    words: tuple[str, ...], own: set[str]
) -> None:
    """A plan is one of the lists that ``egmctl.model.listing`` has."""
    modules = imported(*words, "--machine", "hgx-h200x4", "--json")
    assert "egmctl.report.exports.json" in modules, "it has answered"
    others = {"fleet", "bringup", "comparison", "listing"} - own
    assert modules.isdisjoint({"egmctl.doctor.runner", "egmctl.saved", *(f"egmctl.model.{each}" for each in others)})


@pytest.mark.long
def test_start_up_is_little_more_than_the_import_of_its_libraries() -> None:
    for runs in (8, 30):
        seconds = measure(runs)
        ratios = {option: seconds[option] / seconds[BASELINE] for option in LIMITS}
        if all(ratios[option] <= limit for option, limit in LIMITS.items()):
            return
    pytest.fail(f"times {BASELINE!r}: {ratios}, at most {LIMITS}")
