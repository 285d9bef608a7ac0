"""Any options of any command in any order: a result or one sentence, and never a fault of the tool itself.

The options are those that the commands themselves say they have: a new one is tried from its first day.
``EGMCTL_TEST_ROUNDS=2000`` is 200 combinations of each command, some 2,800 together.
"""

from __future__ import annotations

import os
import random
from pathlib import Path
from typing import Any

import pytest
from typer.main import get_command

from egmctl.cli.app import app
from tests.fuzz.documents import Totals, faulty, original

ROUNDS = max(4, int(os.environ.get("EGMCTL_TEST_ROUNDS", "0")) // 10)
"""Combinations of each command."""

WORDS = (
    *("all", "0", "0-3,5", "9", "-1", "", "1-", "GPU-", "0000:1b:00.0", "\x1b[31m", "0-99999999999", "²"),
    "0:1,2:NUMA0",
    *("egm", "p2p", "size", "fabric", "full,ipc", "gpus=4", "nagios", "x" * 300, "\u202e", "=1", "*", "node[1-9]"),
    *("text", "json", "yaml", "boot", "30m", "always", "failed", "1M", "1e9", "99999T", "4k", "1MiB", "@x'", "ssh"),
    *("srun", "doctor", "last~1", "standard", "ring_*", "egm.*"),
)
NUMBERS = ("0", "1", "-1", "50", "1e308", "nan", "", "9" * 20, "2.5", "3", "x", "inf")
FILES = (
    *("-", "x.json", "x.html", "x.toml", "no/x", "/dev/null", "x" * 300 + ".json", "", "x.yaml", "x\n.json", ".", "@"),
)
MACHINES = ("gh200", "gb200-tray", "hgx-h200x4", "list", "none", "", "good.json")
LOOKS = {
    "topo": ("--machine",),
    "doctor": ("--machine",),
    "bringup": ("--machine",),
    "bench": ("--machine", "--dry-run"),
    "profile match": ("--machine",),
}
"""What keeps a command from reading this node, which takes a second each time and is no matter of options."""


def _commands(group: Any = None, name: str = "") -> dict[str, Any]:
    group = group or get_command(app)
    found: dict[str, Any] = {}
    for word, command in group.commands.items():
        if hasattr(command, "commands"):
            found |= _commands(command, f"{name}{word} ")
        else:
            found[f"{name}{word}"] = command
    return found


COMMANDS = _commands()


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a folder with two good files, where an ssh and an srun reach nobody."""
    monkeypatch.chdir(tmp_path)
    bin_folder = tmp_path / "bin"
    bin_folder.mkdir()
    for name in ("ssh", "srun"):
        (bin_folder / name).write_text("#!/bin/sh\nexit 255\n")
        (bin_folder / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{bin_folder}:{os.environ['PATH']}")
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    (tmp_path / "good.json").write_bytes(original("machine", tmp_path))
    (tmp_path / "run.json").write_bytes(original("bench", tmp_path))
    return tmp_path


@pytest.mark.long
@pytest.mark.processes
@pytest.mark.timeout(120 + 4 * ROUNDS)
@pytest.mark.parametrize("name", COMMANDS)
def test_any_options(name: str, here: Path) -> None:
    choice = random.Random(name)  # noqa: S311
    totals = Totals()
    faults = []
    for _ in range(ROUNDS):
        words = _combination(name, choice)
        if fault := faulty(words, totals):
            faults.append(f"{words}: {fault}")
    print(f"{name}: {ROUNDS} combinations, {totals}")  # noqa: T201
    assert faults == []
    assert not list(here.glob("core*"))


def _combination(name: str, choice: random.Random) -> list[str]:
    words = name.split()
    parameters = COMMANDS[name].params
    arguments = [one for one in parameters if one.param_type_name == "argument"]
    options = [one for one in parameters if one.param_type_name == "option"]
    must = LOOKS.get(name, ())
    for option in must:
        words.append(option)
        if option == "--machine":
            words.append(choice.choice(MACHINES))
    for argument in arguments:
        for _ in range(choice.choice((0, 1, 1, 1, 2)) if argument.nargs == -1 or not argument.required else 1):
            words.append(_value(argument, choice))
    for option in choice.sample(options, choice.randint(0, min(4, len(options)))):
        if set(option.opts) & {*must, "--mpi"}:
            continue
        words.append(choice.choice(option.opts))
        if not option.is_flag and not option.count:
            words.append(_value(option, choice))
    return words


def _value(parameter: Any, choice: random.Random) -> str:
    if parameter.name in ("files", "file", "runs", "machine"):
        return choice.choice(("good.json", "run.json", "hgx-h200x4") if choice.random() < 0.7 else FILES)
    if "path" in parameter.type.name or "file" in str(parameter.metavar).lower() or parameter.name == "output":
        return choice.choice(FILES)
    if hasattr(parameter.type, "choices") and choice.random() < 0.9:
        return str(choice.choice([getattr(one, "value", one) for one in parameter.type.choices]))
    if parameter.type.name in ("integer", "int", "float", "integer range"):
        return choice.choice(NUMBERS)
    if parameter.name == "command" and choice.random() < 0.8:
        return choice.choice(("doctor", "topo", "snapshot", "bench"))
    if parameter.name == "nodes" and choice.random() < 0.5:
        return choice.choice(("a", "node[1-3]"))
    return choice.choice(WORDS)
