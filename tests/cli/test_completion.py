"""Completion in a shell: what ``egmctl --show-completion`` prints makes a real bash complete commands and options."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path

import pytest

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
