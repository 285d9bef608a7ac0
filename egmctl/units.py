"""Numbers, sizes, lists and names of nodes as people and the kernel spell them, and words that depend on a count."""

from __future__ import annotations

import functools
import re
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import TypeVar

from egmctl.errors import UsageError

_Key = TypeVar("_Key")
_Item = TypeVar("_Item")

GB = 1_000_000_000
"""Bytes in the GB of GB/s."""
KIB, MIB, GIB = 1 << 10, 1 << 20, 1 << 30

_SIZE = re.compile(r"(?P<number>[0-9]+)\s*(?P<unit>[kKmMgGtT]?)(?P<form>i?[bB])?")
_SPAN = re.compile(r"([0-9]{1,7})(?:-([0-9]{1,7}))?")
_POWERS = {"": 0, "k": 1, "m": 2, "g": 3, "t": 4}


def parse_size(text: str) -> int:
    """Read a number of bytes: ``4096``, ``64M`` and ``64MiB`` (2**26), ``64MB`` (64 * 10**6).

    Raises
    ------
    ValueError
        With a sentence that says what is valid.
    """
    match = _SIZE.fullmatch(text.strip())
    if match is None:
        raise ValueError(f"{text!r} is not a size; valid are bytes (4096), powers of two (64M, 64MiB) or of ten (64MB)")
    power = _POWERS[match["unit"].lower()]
    decimal = match["form"] in ("B", "b") and power > 0
    factor: int = (1000 if decimal else 1024) ** power
    return int(match["number"]) * factor


def format_size(size: int) -> str:
    """Write a number of bytes in the largest binary unit that stays exact to one decimal: ``512 MiB``."""
    for power, unit in ((4, "TiB"), (3, "GiB"), (2, "MiB"), (1, "KiB")):
        if size >= 1024**power:
            value = size / 1024**power
            return f"{value:.0f} {unit}" if value == int(value) else f"{value:.1f} {unit}"
    return f"{size} B"


def round_up(size_bytes: int, unit_bytes: int) -> int:
    """Return the least multiple of a unit that holds so many bytes."""
    return -(-size_bytes // unit_bytes) * unit_bytes


def parse_kernel_list(text: str) -> tuple[int, ...]:
    """Read a kernel list such as ``0-3,8`` into ascending numbers; an empty text is an empty list.

    Raises
    ------
    ValueError
        If it is not one: the kernel writes ascending spans, and no number as large as 2**20. (The bounds keep a
        hostile text such as ``0-99999999999`` from filling memory.)
    """
    numbers: list[int] = []
    for part in filter(None, text.strip().split(",")):
        match = _SPAN.fullmatch(part.strip())
        first, last = (int(match[1]), int(match[2] or match[1])) if match else (0, -1)
        if not (numbers[-1] if numbers else -1) < first <= last < 1 << 20:
            raise ValueError(f"{part!r} has no place in a kernel list such as 0-3,8")
        numbers.extend(range(first, last + 1))
    return tuple(numbers)


def format_kernel_list(numbers: tuple[int, ...] | list[int] | set[int]) -> str:
    """Write numbers as a kernel list: ``(0, 1, 2, 3, 8)`` is ``0-3,8``."""
    spans: list[list[int]] = []
    for number in sorted(set(numbers)):
        if spans and number == spans[-1][1] + 1:
            spans[-1][1] = number
        else:
            spans.append([number, number])
    return ",".join(str(first) if first == last else f"{first}-{last}" for first, last in spans)


def natural(name: str) -> tuple[tuple[int, str], ...]:
    """Return a sort key that puts mlx5_2 before mlx5_10, and node9 before node10."""
    return tuple((int(part), "") if part.isdecimal() else (-1, part) for part in re.split("([0-9]+)", name))


def printable(text: object) -> str:
    """Make a string that came from a machine, or a path, safe to show: control and format characters become escapes.

    Bidirectional overrides and zero-width characters are escaped too; everything printable stays. Markup is not
    handled here: views build ``rich.text.Text`` objects, which never interpret markup.
    """
    return "".join(char if char.isprintable() else char.encode("unicode_escape").decode("ascii") for char in str(text))


def several(number: int, what: str) -> str:
    """Return a number of things: ``1 path``, ``3 paths``."""
    return f"{number} {what}{'s' * (number != 1)}"


def counted(names: Iterable[str]) -> str:
    """Return how often each name occurs, in order of first occurrence: ``4 x NVIDIA H200``."""
    return ", ".join(f"{number} x {name}" for name, number in Counter(names).items())


def grouped(pairs: Iterable[tuple[_Key, _Item]]) -> dict[_Key, list[_Item]]:
    """Return items by key, from pairs of key and item, in order of first occurrence."""
    groups: dict[_Key, list[_Item]] = {}
    for key, item in pairs:
        groups.setdefault(key, []).append(item)
    return groups


def gpu_name(name: str | None, number: int = 1) -> str:
    """Return the product name of a GPU, or of several alike: ``NVIDIA H200``, ``GPU of unknown name``."""
    return name or f"{'GPU' if number == 1 else 'GPUs'} of unknown name"


def listed(items: Sequence[str], word: str = "and") -> str:
    """Return one thing or several in a sentence: ``GPU0``, ``GPU0, GPU1 and GPU2``."""
    return items[0] if len(items) == 1 else f"{', '.join(items[:-1])} {word} {items[-1]}"


def shortened(items: Sequence[str], most: int, what: str = "") -> str:
    """Return the first of a list and the number of the others: ``a, b and 7 more``, or ``7 more cases``."""
    shown = ", ".join(items[:most])
    return f"{shown} and {len(items) - most} more{what and f' {what}'}" if len(items) > most else shown


NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.:-]{0,199}")
"""A name can be neither an option of a launcher nor a path, and names of files hold it and some letters more."""


def require_clustershell(what: str) -> None:
    """Raise a clear error if ClusterShell is not installed.

    Parameters
    ----------
    what
        What needs it, as the beginning of a sentence.

    Raises
    ------
    UsageError
        With the command that installs it.
    """
    try:
        import ClusterShell  # noqa: F401
    except ImportError as error:
        raise UsageError(f"{what} needs ClusterShell: pip install 'egmctl[fleet]'") from error


def fold(names: Iterable[str]) -> str:
    """Return names as a short node set, ``node[01-17,19]``; names that no node set can hold follow it."""
    return _fold(tuple(dict.fromkeys(names)))


@functools.lru_cache(maxsize=16)
def _fold(known: tuple[str, ...]) -> str:
    # Kept, as tens of thousands of names with two numbers each take ClusterShell many seconds.
    if len(known) < 2:
        return "".join(known)
    from ClusterShell.NodeSet import RESOLVER_NOGROUP, NodeSet

    plain = [name for name in known if NAME.fullmatch(name)]
    others = [name for name in known if not NAME.fullmatch(name)]
    return ",".join(filter(None, (str(NodeSet.fromlist(plain, resolver=RESOLVER_NOGROUP)), *others)))
