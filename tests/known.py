"""A value that a test knows to be there, where the model allows null."""

from __future__ import annotations

from typing import TypeVar

T = TypeVar("T")


def known(value: T | None) -> T:
    """Return the value, which must not be null."""
    assert value is not None
    return value
