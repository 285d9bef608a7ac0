"""What ranks say of themselves: that of another version of egmctl, or of none, is a sentence that names the rank."""

from __future__ import annotations

import json

import pytest

from egmctl import __version__
from egmctl.errors import UsageError
from egmctl.model.codec import to_json
from egmctl.mpi.world import Refusal, read_told

GOOD = Refusal(rank=0, host="a", why="no GPU", usage=False)
SAID = json.dumps(to_json(GOOD)).encode()
SENTENCE = f"rank 1 does not speak as egmctl {__version__} does: install one version on all nodes"


def test_what_is_said_comes_back() -> None:
    assert read_told(Refusal, [SAID, SAID]) == [GOOD, GOOD]


@pytest.mark.parametrize(
    "said", [b"", b"{", b"[]", b"{}", b"7", b"\xff", b"[" * 100_000, b"9" * 5000, SAID.replace(b"false", b"0")]
)
def test_what_is_none_is_a_sentence_that_names_the_rank(said: bytes) -> None:
    with pytest.raises(UsageError) as caught:
        read_told(Refusal, [SAID, said])
    assert str(caught.value) == SENTENCE
