"""Which Pythons CI tries: those that are declared, and not without the oldest and the newest."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
import try_pythons

from tests.conftest import ROOT

HERE = f"3.{sys.version_info[1]}"


def test_the_declared_versions_are_those_of_the_classifiers_and_begin_with_the_required_one() -> None:
    project = (ROOT / "pyproject.toml").read_text()
    declared = try_pythons.declared_versions(project)
    assert f'requires-python = ">={declared[0]}"' in project
    assert declared == ["3.10", "3.11", "3.12", "3.13", "3.14"]


@pytest.mark.processes
def test_a_version_is_found_by_asking_it() -> None:
    assert try_pythons.interpreter(HERE) == try_pythons.Python(Path(sys.executable))
    assert try_pythons.interpreter("3.99") is None


def test_without_the_oldest_and_the_newest_nothing_is_proved(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(try_pythons, "interpreter", lambda *_: None)
    assert try_pythons.main("no wheel") == 1
    out, err = capsys.readouterr()
    assert out == "declared and not here: 3.10, 3.11, 3.12, 3.13, 3.14\n"
    assert [line.split()[1] for line in err.splitlines()] == ["3.10", "3.14"]
