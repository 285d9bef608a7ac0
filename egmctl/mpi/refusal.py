"""What keeps ranks from a run before it begins: each tells all others, and all end with the same sentence and code."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from egmctl.errors import EgmctlError, NothingToDo, UsageError
from egmctl.units import printable


@dataclass(frozen=True, slots=True, kw_only=True)
class Refusal:
    """Why one rank cannot take part."""

    rank: int
    host: str
    why: str
    """A sentence."""
    usage: bool
    """The command was used wrongly there."""


def refusal(rank: int, host: str, error: EgmctlError) -> Refusal:
    """Return what a rank tells of an error."""
    return Refusal(rank=rank, host=host, why=str(error), usage=isinstance(error, UsageError))


def check(refusals: Iterable[Refusal]) -> None:
    """See that there are none.

    Raises
    ------
    UsageError
        If the command was used wrongly on a rank.
    NothingToDo
        If something else keeps ranks from taking part.
    """
    alike: dict[str, list[Refusal]] = {}
    for one in refusals:
        alike.setdefault(one.why, []).append(one)
    told = "; ".join(f"{_who(those)}: {why}" for why, those in alike.items())
    if any(one.usage for those in alike.values() for one in those):
        raise UsageError(told)
    if told:
        raise NothingToDo(told)


def _who(those: list[Refusal]) -> str:
    more = f" and {len(those) - 1} more" if len(those) > 1 else ""
    return f"rank {those[0].rank} ({printable(those[0].host)}){more}"
