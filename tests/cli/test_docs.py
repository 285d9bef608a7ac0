"""``egmctl docs``: every page of the guide and every example can be read where there is nothing but the command."""

from __future__ import annotations

from tests.conftest import ROOT, RunEgmctl


def test_every_page_and_example_is_a_topic(egmctl: RunEgmctl) -> None:
    ended = egmctl("docs")
    assert ended.code == 0
    listed = {line.split()[0] for line in ended.out.splitlines()}
    pages = {path.stem for path in (ROOT / "docs").glob("*.md")}
    examples = {path.relative_to(ROOT / "docs").as_posix() for path in (ROOT / "docs/examples").rglob("*.*")}
    assert listed >= pages | examples
    assert "doctor      " in ended.out, "a topic stands beside its title"


def test_a_topic_is_printed_as_it_is_written(egmctl: RunEgmctl) -> None:
    assert egmctl("docs", "exit-codes").out == (ROOT / "docs/exit-codes.md").read_text()
    example = "examples/slurm-prolog.sh"
    assert egmctl("docs", example).out == (ROOT / "docs" / example).read_text()


def test_an_unknown_topic_is_refused_with_the_nearest(egmctl: RunEgmctl) -> None:
    ended = egmctl("docs", "fabrik")
    assert (ended.code, ended.out) == (2, "")
    assert ended.err == "egmctl: docs has no topic 'fabrik'; did you mean fabric?; 'egmctl docs' lists them\n"


def test_a_path_is_no_topic(egmctl: RunEgmctl) -> None:
    assert egmctl("docs", "../README").code == 2
    assert egmctl("docs", str(ROOT / "README.md")).code == 2
