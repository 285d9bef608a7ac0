"""Old words do not come back: ``tools/terms.py`` finds them, and finds none in the repository."""

from __future__ import annotations

from pathlib import Path

import pytest

import terms
from terms import found


def hits(text: str, line: str) -> list[tuple[int, str, str]]:
    return list(found(text, terms.terms(line)))


def test_an_old_word_is_found_with_its_line_and_the_better_one() -> None:
    assert hits("one\nA seat, or two\n", "seat = rank") == [(2, "seat", "rank")]


def test_lower_case_is_found_in_any_case_and_a_name_only_as_it_is() -> None:
    assert hits("Seat", "seat = rank") == [(1, "Seat", "rank")]
    assert hits("seat", "Seat = Rank") == []


def test_a_part_of_another_word_is_none() -> None:
    assert hits("seated, re-seat, seat_of", "seat = rank") == []


def test_words_apart_are_found_across_the_end_of_a_line_and_of_a_comment() -> None:
    assert hits("# could not\n# be told", "could not be told = unknown") == [(1, "could not # be told", "unknown")]


def test_a_line_that_names_no_better_word_is_refused() -> None:
    with pytest.raises(ValueError, match="line 2: 'seat' is not"):
        terms.terms("# comment\nseat\n")


def test_each_line_of_the_list_is_found_in_a_text() -> None:
    text = terms.TERMS.read_text()
    lines = [line for line in text.splitlines() if not line.startswith("#")]
    words = terms.terms(text)
    assert len(lines) == len(words) >= 40
    assert [line for line in lines if not list(found(f"so {line.partition(' = ')[0]} was", words))] == []


@pytest.mark.processes
def test_the_check_reads_tests_of_gpus_and_hardware_notes_too() -> None:
    names = {str(Path(name).relative_to(terms.ROOT)) for name in terms.known_to_git()} - terms.EXEMPT
    assert {"tests/gpu/test_bench.py", "docs/hardware-notes.md", "README.md", "tools/man_page.py"} <= names


@pytest.mark.processes
def test_no_old_word_is_left(capsys: pytest.CaptureFixture[str]) -> None:
    assert (terms.main([]), capsys.readouterr().out) == (0, "")
