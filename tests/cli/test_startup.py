"""Help and versions come at once, and the command's own process never imports what can load a driver."""

from __future__ import annotations

import gzip
import json
import sys
from collections.abc import Sequence
from itertools import islice
from pathlib import Path

import pytest
import typer

from benchmarks.startup import BASELINE, LIMITS, fastest
from egmctl.cli.app import app
from tests.conftest import ROOT, ended

pytestmark = pytest.mark.processes

RESULTS = ROOT / "tests" / "data" / "runs"
RUNS = (
    ("topo",),
    ("watch", "--once"),
    ("snapshot",),
    ("bench", "--quick"),
    ("bringup", "--machine", "hgx-h200x4"),
    ("doctor", "--active"),
    ("explain", "cuInit", "100"),
    ("show", "idle.json"),
    ("history",),
    ("docs",),
    ("compare", "idle.json", "idle-again.json"),
    ("profile", "list"),
    ("profile", "match", "--machine", "gb200-tray"),
    ("fleet", "doctor", "-w", "no-such-host.invalid", "--timeout", "1", "-o", "answers"),
)
"""Every command at work, as far as it goes on a machine without a driver."""


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


RUNS_EACH = """
import contextlib, io, json, sys
from egmctl.__main__ import main
runs = []
for sys.argv[1:] in json.loads(sys.argv[1]):
    before = set(sys.modules)
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
        try:
            main()
        except SystemExit as end:
            runs.append((end.code, sorted(set(sys.modules) - before)))
print(json.dumps(runs))
"""


def runs_of(commands: Sequence[Sequence[str]], folder: Path = ROOT) -> list[tuple[int, set[str]]]:
    """Run commands one after another in one process; return their exit codes and the modules that each adds."""
    done = ended([sys.executable, "-c", RUNS_EACH, json.dumps(commands)], cwd=folder)
    return [(code, set(modules)) for code, modules in json.loads(done.out)]


def packages(modules: set[str]) -> set[str]:
    return {module.partition(".")[0] for module in modules}


def test_help_and_versions_import_nothing_heavy() -> None:
    commands = [("--help",), ("--version",), (), ("no-such-command",), *((*words, "--help") for words in leaves())]
    runs = runs_of(commands)
    assert [code for code, _ in runs] == [0, 0, 2, 2] + [0] * len(leaves())
    assert "egmctl.cli.app" in runs[0][1], "the list of imports is being read"
    for words, (_, modules) in zip(commands, runs, strict=True):
        assert {"cuda", "pynvml", "numpy", "ctypes", "pygments", "markdown_it"}.isdisjoint(packages(modules)), words
        assert {"egmctl.facts", "egmctl.gpu", "egmctl.driver", "egmctl.launch", "egmctl.model"}.isdisjoint(modules)


@pytest.mark.long
def test_the_command_itself_never_imports_a_driver(tmp_path: Path) -> None:
    assert {words[0] for words in RUNS} == {words[0] for words in leaves()}, "every command is run"
    for name in ("idle.json", "idle-again.json"):
        (tmp_path / name).write_bytes(gzip.decompress((RESULTS / f"{name}.gz").read_bytes()))
    for words, (code, modules) in zip(RUNS, runs_of(RUNS, tmp_path), strict=True):
        assert code != 2, f"{words} did something"
        assert {"cuda", "pynvml"}.isdisjoint(packages(modules)), words


@pytest.mark.parametrize(
    ("words", "own"), [(("topo",), {"egmctl.doctor.runner"}), (("bench", "--dry-run"), {"egmctl.model.listing"})]
)
def test_a_command_loads_neither_the_checks_nor_the_other_kinds_of_results(
    words: tuple[str, ...], own: set[str]
) -> None:
    """A plan is one of the lists that ``egmctl.model.listing`` has; topo answers what doctor's checks know of links."""
    ((_, modules),) = runs_of([(*words, "--machine", "hgx-h200x4", "--json")])
    assert "egmctl.report.exports.json" in modules, "it has answered"
    others = {"egmctl.doctor.runner", "egmctl.saved"}
    others |= {f"egmctl.model.{kind}" for kind in ("fleet", "bringup", "comparison", "listing")}
    assert modules & others == own


@pytest.mark.long
def test_start_up_is_little_more_than_the_import_of_its_libraries() -> None:
    """On a busy machine it takes more turns until each command has had an undisturbed one."""
    ratios: dict[str, float] = {}
    for turns, seconds in enumerate(islice(fastest(), 40), 1):
        ratios = {option: seconds[option] / seconds[BASELINE] for option in LIMITS}
        if turns >= 5 and all(ratios[option] <= limit for option, limit in LIMITS.items()):
            return
    pytest.fail(f"times {BASELINE!r}: {ratios}, at most {LIMITS}")
