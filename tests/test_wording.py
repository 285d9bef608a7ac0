"""How things and their numbers are put into a sentence."""

from __future__ import annotations

import pytest

from egmctl.units import counted, gpu_name, listed, several, shortened


@pytest.mark.parametrize(("number", "words"), [(0, "0 paths"), (1, "1 path"), (2, "2 paths")])
def test_a_number_of_things(number: int, words: str) -> None:
    assert several(number, "path") == words


def test_how_often_each_name_occurs_in_the_order_of_their_first() -> None:
    assert counted(["H200", "A2", "H200"]) == "2 x H200, 1 x A2"
    assert counted([]) == ""


@pytest.mark.parametrize(
    ("name", "number", "words"),
    [("NVIDIA H200", 4, "NVIDIA H200"), (None, 1, "GPU of unknown name"), ("", 4, "GPUs of unknown name")],
)
def test_gpus_by_their_product_name(name: str | None, number: int, words: str) -> None:
    assert gpu_name(name, number) == words


@pytest.mark.parametrize(
    ("items", "words"), [(["a"], "a"), (["a", "b"], "a and b"), (["a", "b", "c"], "a, b and c")], ids=len
)
def test_things_in_a_sentence(items: list[str], words: str) -> None:
    assert listed(items) == words
    assert listed(items, "or") == words.replace(" and ", " or ")


@pytest.mark.parametrize(
    ("most", "what", "words"), [(3, "", "a, b, c"), (2, "", "a, b and 1 more"), (1, "cases", "a and 2 more cases")]
)
def test_a_long_list_is_cut_and_says_how_much_is_left(most: int, what: str, words: str) -> None:
    assert shortened(["a", "b", "c"], most, what) == words
