"""What is given back: everything, the latest first, and the first failure is the one that is raised."""

from __future__ import annotations

import pytest

from egmctl.gpu.context import ReleaseStack


class Given:
    """Notes what is given back, and fails where it is to."""

    def __init__(self, *failing: str) -> None:
        self.names: list[str] = []
        self._failing = failing

    def __call__(self, name: str) -> None:
        self.names.append(name)
        if name in self._failing:
            raise ValueError(name)


@pytest.mark.parametrize(("failing", "first"), [(("b", "a"), "b"), (("c", "a"), "c"), (("a",), "a")])
def test_all_is_given_back_and_the_first_failure_is_raised(failing: tuple[str, ...], first: str) -> None:
    given, undo = Given(*failing), ReleaseStack()
    for name in "abc":
        undo.callback(given, name)
    with pytest.raises(ValueError, match=first):
        undo.close()
    assert given.names == ["c", "b", "a"]


def test_what_failed_before_outranks_what_fails_at_giving_back_also_in_a_part_of_it() -> None:
    given = Given("a", "b")

    def take() -> None:
        with ReleaseStack() as undo:
            undo.callback(given, "a")
            with ReleaseStack() as part:
                part.callback(given, "b")
                undo.push(part.pop_all())
            raise LookupError("the cause")

    with pytest.raises(LookupError, match="the cause"):
        take()
    assert given.names == ["b", "a"]


def test_a_part_that_fails_is_the_first() -> None:
    given, undo, part = Given("a", "b"), ReleaseStack(), ReleaseStack()
    undo.callback(given, "a")
    part.callback(given, "b")
    undo.push(part.pop_all())
    with pytest.raises(ValueError, match="b"):
        undo.close()
    assert given.names == ["b", "a"]
