"""Completion in a shell: what ``egmctl --show-completion`` prints makes a real bash complete commands and options."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from typer.main import get_command

from egmctl.cli import complete
from egmctl.cli.app import app
from tests.conftest import ended

pytestmark = pytest.mark.processes


@pytest.fixture
def shell(tmp_path: Path) -> Path:
    """A folder with the command in it, for PATH."""
    command = tmp_path / "egmctl"
    command.write_text(f'#!/bin/sh\nexec {sys.executable} -m egmctl "$@"\n')
    command.chmod(0o755)
    return tmp_path


def bash(folder: Path, script: str) -> str:
    done = ended(["bash", "--norc", "-c", f'PATH="{folder}:$PATH"\n{script}'])
    assert done.code == 0, done.err
    return done.out


def completed(folder: Path, *words: str) -> list[str]:
    """Return what bash offers for the last of these words."""
    script = f"""
script=$(egmctl --show-completion) || exit
eval "$script"
COMP_WORDS=({" ".join(map(shlex.quote, words))}) COMP_CWORD={len(words) - 1}
_egmctl_completion egmctl
printf '%s\\n' "${{COMPREPLY[@]}}"
"""
    return bash(folder, script).split()


def test_commands(shell: Path) -> None:
    assert completed(shell, "egmctl", "sn") == ["snapshot"]
    assert set(completed(shell, "egmctl", "")) >= {"topo", "bench", "doctor", "snapshot", "show", "compare", "fleet"}


def test_options_and_their_words(shell: Path) -> None:
    assert completed(shell, "egmctl", "bench", "--sui") == ["--suite"]
    assert completed(shell, "egmctl", "topo", "--color", "a") == ["auto", "always"]


def test_values_of_options(shell: Path) -> None:
    assert completed(shell, "egmctl", "topo", "--machine", "gb200-t") == ["gb200-tray"]
    assert completed(shell, "egmctl", "profile", "show", "gh200x2") == ["gh200x2-480gb"]


@pytest.mark.parametrize(
    ("values", "incomplete", "offered"),
    [
        (complete.machines, "h200-links", ["h200-links-down"]),
        (complete.suites, "qu", ["quick"]),
        (complete.suites, "quick,ipc", ["quick,ipc"]),
        (complete.cases, "device_to_device_memcpy_write_c", ["device_to_device_memcpy_write_ce"]),
        (complete.checks, "fabric.do", ["fabric.domain"]),
        (complete.purposes, "egm,fa", ["egm,fabric"]),
        (complete.profiles, "gb300", ["gb300-nvl72"]),
        (complete.profiles, "no such", []),
    ],
)
def test_each_kind_of_value(values: Callable[[str], list[str]], incomplete: str, offered: list[str]) -> None:
    assert values(incomplete) == offered


def test_the_options_of_the_commands_have_them() -> None:
    """Each by the name of its field, whose parameter completes."""
    commands = get_command(app).commands  # type: ignore[attr-defined]
    for command, name in (
        ("bench", "machine"),
        ("bench", "suites"),
        ("bench", "cases"),
        ("bench", "profile"),
        ("bringup", "machine"),
        ("doctor", "machine"),
        ("doctor", "check"),
        ("doctor", "skip"),
        ("doctor", "explain"),
        ("doctor", "purposes"),
        ("topo", "machine"),
    ):
        (parameter,) = [each for each in commands[command].params if each.name == name]
        assert parameter.shell_complete(None, ""), f"{command} {parameter.opts}"
