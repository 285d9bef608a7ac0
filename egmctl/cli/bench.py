"""Placeholder until the room is furnished."""

from __future__ import annotations

from egmctl.errors import NothingToDo


def bench() -> None:
    """Not there yet."""
    raise NothingToDo("bench is not there yet")
