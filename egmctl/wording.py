"""How things and their numbers are put into a sentence: once, for every answer, view and refusal."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence


def several(number: int, what: str) -> str:
    """Return a number of things: ``1 path``, ``3 paths``."""
    return f"{number} {what}{'s' * (number != 1)}"


def counted(names: Iterable[str]) -> str:
    """Return how often each name occurs, in the order of their first: ``4 x NVIDIA H200``; nothing of none."""
    return ", ".join(f"{number} x {name}" for name, number in Counter(names).items())


def gpu_name(name: str | None, number: int = 1) -> str:
    """Return the product name of a GPU, or of several alike: ``NVIDIA H200``, ``GPU of unknown name``."""
    return name or f"{'GPU' if number == 1 else 'GPUs'} of unknown name"


def listed(items: Sequence[str], word: str = "and") -> str:
    """Return one thing or several in a sentence: ``GPU0``, ``GPU0, GPU1 and GPU2``."""
    return items[0] if len(items) == 1 else f"{', '.join(items[:-1])} {word} {items[-1]}"


def shortened(items: Sequence[str], most: int, what: str = "") -> str:
    """Return the first of a list, and how many there are besides: ``a, b and 7 more``, or ``7 more cases``."""
    shown = ", ".join(items[:most])
    return f"{shown} and {len(items) - most} more{what and f' {what}'}" if len(items) > most else shown
