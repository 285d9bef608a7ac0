"""What ranks say of themselves: that of another version of egmctl, or of none, is a sentence that names the rank."""

from __future__ import annotations

import json

import pytest

from egmctl import __version__
from egmctl.errors import UsageError
from egmctl.model.codec import from_json, to_json
from egmctl.mpi.world import Refusal, read_parts

GOOD = Refusal(host="a", reason="no GPU", usage=False)
SAID = json.dumps(to_json(GOOD))
SENTENCE = f"rank 1 does not speak as egmctl {__version__} does: install one version on all nodes"


def parsed(text: str) -> Refusal:
    return from_json(Refusal, json.loads(text))


def test_what_is_said_comes_back() -> None:
    assert read_parts([SAID, SAID], parsed) == [GOOD, GOOD]


@pytest.mark.parametrize(
    "said", ["", "{", "[]", "{}", "7", "\ufffd", "[" * 100_000, "9" * 5000, SAID.replace("false", "0")]
)
def test_what_is_none_is_a_sentence_that_names_the_rank(said: str) -> None:
    with pytest.raises(UsageError) as caught:
        read_parts([SAID, said], parsed)
    assert str(caught.value) == SENTENCE
