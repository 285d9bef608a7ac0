"""``tools/shape.py`` sees what runs: its figures are worth nothing where a name that it looks for has gone."""

from __future__ import annotations

from pathlib import Path

import pytest

import shape
from tests.conftest import ROOT


@pytest.mark.long
@pytest.mark.processes
def test_the_functions_of_a_plan_are_those_that_run_inside_it() -> None:
    plan = shape.one_plan(ROOT).by_process
    names = {line.split()[1].rpartition(".")[2] for line in plan["command"]}
    assert shape.PLANS in names
    assert not {"main", "bench", "bench_plan"} & names


def test_the_longest_file_and_the_lines_are_those_of_the_package(tmp_path: Path) -> None:
    (tmp_path / "egmctl/deep").mkdir(parents=True)
    (tmp_path / "egmctl/short.py").write_text("1\n")
    (tmp_path / "egmctl/deep/long.py").write_text("1\n2\n3\n")
    (tmp_path / "egmctl/style.css").write_text("1\n" * 9)
    assert shape.size(tmp_path) == {"lines": "4", "files": "2", "longest file, lines": "3"}


def test_help_says_what_it_counts_and_of_what(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        shape.main(["--help"])
    assert ended.value.code == 0
    assert "a checkout's folder or a commit" in capsys.readouterr().out


@pytest.mark.processes
@pytest.mark.parametrize("argument", ["no-such-commit", "HEAD:egmctl"])
def test_what_is_no_commit_is_one_sentence(argument: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert _refused(argument, capsys) == f"{argument!r} is neither a folder nor a commit of this repository"


def test_a_folder_without_the_package_is_one_sentence(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    said = _refused(str(tmp_path), capsys)
    assert said == f"folder {tmp_path} is no checkout of egmctl: it has no egmctl/__main__.py"


def _refused(argument: str, capsys: pytest.CaptureFixture[str]) -> str:
    with pytest.raises(SystemExit) as ended:
        shape.main([argument])
    assert ended.value.code == 2
    usage, sentence = capsys.readouterr().err.splitlines()
    assert usage.startswith("usage: ")
    return sentence.partition(": error: ")[2]
