"""Old words do not come back: ``tools/terms.py``, which ``make lint`` runs, finds them."""

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


OLD = (
    "tells people what is connected to what and by which wire",
    "MODELLED from public documents, no such node was read: gh200",
    "recorded: gh200, this is not the live node",
    "?  could not be told",
    "Not plainly measured",
    "What it should be",
    "Not as it should be",
    "held back by a gate kernel until all are queued",
    "the median of their medians, the least of them",
    "Bytes shown to take the expected wire: 58 of 58",
    "this pair alone reaches 51 % of its siblings' 391.7",
    "a warning begins 1.5 times as far from the typical value",
    "medians that are farther from the first run than 5 %",
    "Of single paths",
    "Differences of the machines",
    "not measured alike: allow busy is no in idle",
    "NVLinks were trained anew 7 times",
    "have the GPU, its board or the cable looked at",
    "the clocks are held down: the hardware slows the clocks down",
    "it is too hot",
    "denies /dev/nvidia3, which was asked for",
    "what was not asked for is not missed",
    "nothing tells where its pages are",
    "nothing tells who made it",
    "the kernel's command line has nothing that harms",
    "mode bits, security modules and mounts let this process in",
    "one side waited in vain for the other",
    "gave no sign within 60 s",
    "to ask the nodes without an answer again: egmctl fleet",
    "each walk verified by where it ended",
    "Write CSV, one row a fact",
    "Something is wrong",
    "a room of the code",
    "thrown away",
    "it went astray",
)
"""What commands, help and the guide once said, in the words that the glossary has better ones for."""


@pytest.mark.parametrize("sentence", OLD)
def test_each_old_sentence_fails_the_check(sentence: str) -> None:
    assert list(found(sentence, terms.terms(terms.TERMS.read_text())))


@pytest.mark.processes
def test_the_check_reads_tests_of_gpus_and_hardware_notes_too() -> None:
    names = {str(Path(name).relative_to(terms.ROOT)) for name in terms.known_to_git()} - terms.EXEMPT
    assert {"tests/gpu/test_bench.py", "docs/hardware-notes.md", "README.md", "tools/man_page.py"} <= names
