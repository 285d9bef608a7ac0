"""The changes of tools/mutants.toml fit the sources, and tests exist that try them."""

from __future__ import annotations

from mutants import ROOT, mutants, selection


def test_each_change_is_of_a_text_that_occurs_once_and_changes_it() -> None:
    for mutant in mutants():
        assert mutant.old != mutant.new, mutant.name


def test_each_change_has_tests_that_exist() -> None:
    for mutant in mutants():
        files = [word for word in selection(mutant) if word.startswith("tests/")]
        assert files, mutant.name
        assert all((ROOT / file).exists() for file in files), mutant.name


def test_words_choose_by_parts_of_names() -> None:
    assert {mutant.file for mutant in mutants(["NUMA mask"])} == {"egmctl/gpu/cpu_threads.py"}
