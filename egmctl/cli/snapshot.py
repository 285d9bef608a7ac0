"""Placeholder until the room is furnished."""

from __future__ import annotations

from egmctl.errors import NothingToDo


def snapshot() -> None:
    """Not there yet."""
    raise NothingToDo("snapshot is not there yet")
