"""Placeholder until the room is furnished."""

from __future__ import annotations

from egmctl.errors import NothingToDo


def topo() -> None:
    """Not there yet."""
    raise NothingToDo("topo is not there yet")
