"""Help and versions come at once, and the command's own process never imports what can load a driver."""

from __future__ import annotations

import subprocess
import sys

import pytest

from benchmarks.startup import BASELINE, LIMITS, measure
from tests.conftest import ROOT, command_environment

SUBCOMMANDS = ("topo", "bench", "snapshot", "show", "compare", "fleet")


def imported(*arguments: str) -> set[str]:
    """Return the modules that the command imports in its own process."""
    done = subprocess.run(
        [sys.executable, "-X", "importtime", "-m", "egmctl", *arguments],
        cwd=ROOT,
        env=command_environment({}),
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    lines = [line for line in done.stderr.splitlines() if line.startswith("import time:")]
    return {line.rpartition("|")[2].strip() for line in lines}


def packages(modules: set[str]) -> set[str]:
    return {module.partition(".")[0] for module in modules}


@pytest.mark.parametrize(
    "arguments", [("--help",), ("--version",), (), ("no-such-command",), *((name, "--help") for name in SUBCOMMANDS)]
)
def test_help_and_versions_import_nothing_heavy(arguments: tuple[str, ...]) -> None:
    modules = imported(*arguments)
    assert "egmctl.cli.app" in modules, "the list of imports is being read"
    assert {"cuda", "pynvml", "numpy", "ctypes", "pygments", "markdown_it"}.isdisjoint(packages(modules))
    assert {"egmctl.facts", "egmctl.gpu", "egmctl.launch", "egmctl.model"}.isdisjoint(modules)


@pytest.mark.parametrize("arguments", [("topo",), ("snapshot",), ("bench",)])
def test_the_command_itself_never_imports_a_driver(arguments: tuple[str, ...]) -> None:
    assert {"cuda", "pynvml"}.isdisjoint(packages(imported(*arguments)))


def test_start_up_is_little_more_than_the_import_of_its_libraries() -> None:
    for runs in (8, 30):
        seconds = measure(runs)
        ratios = {option: seconds[option] / seconds[BASELINE] for option in LIMITS}
        if all(ratios[option] <= limit for option, limit in LIMITS.items()):
            return
    pytest.fail(f"times {BASELINE!r}: {ratios}, at most {LIMITS}")
