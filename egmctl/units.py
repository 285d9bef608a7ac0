"""Parse and format sizes, kernel lists, node names and counts."""

from __future__ import annotations

import functools
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TypeVar

from egmctl.errors import UsageError

_Key = TypeVar("_Key")
_Item = TypeVar("_Item")

GB = 1_000_000_000
"""The bytes in 1 GB."""
KIB, MIB, GIB = 1 << 10, 1 << 20, 1 << 30

_SIZE = re.compile(r"(?P<number>[0-9]+)\s*(?P<unit>[kKmMgGtT]?)(?P<form>i?[bB])?")
_SPAN = re.compile(r"([0-9]{1,7})(?:-([0-9]{1,7}))?")
_POWERS = {"": 0, "k": 1, "m": 2, "g": 3, "t": 4}


def parse_size(text: str) -> int:
    """Parse a number of bytes: ``4096``, ``64M`` and ``64MiB`` (2**26), ``64MB`` (64 * 10**6).

    Raises
    ------
    ValueError
        The text is not a size. The message says what is valid.
    """
    match = _SIZE.fullmatch(text.strip())
    if match is None:
        raise ValueError(f"{text!r} is not a size; valid are bytes (4096), powers of two (64M, 64MiB) or of ten (64MB)")
    power = _POWERS[match["unit"].lower()]
    decimal = match["form"] in ("B", "b") and power > 0
    factor: int = (1000 if decimal else 1024) ** power
    return int(match["number"]) * factor


def format_size(size: int) -> str:
    """Return a number of bytes in the largest binary unit that fits, with at most one decimal: ``1.5 GiB``."""
    for power, unit in ((4, "TiB"), (3, "GiB"), (2, "MiB"), (1, "KiB")):
        if size >= 1024**power:
            value = size / 1024**power
            return f"{value:.0f} {unit}" if value == int(value) else f"{value:.1f} {unit}"
    return f"{size} B"


def round_up(size_bytes: int, unit_bytes: int) -> int:
    """Return the smallest multiple of ``unit_bytes`` that is at least ``size_bytes``."""
    return -(-size_bytes // unit_bytes) * unit_bytes


def parse_kernel_list(text: str) -> tuple[int, ...]:
    """Parse a kernel list such as ``0-3,8`` into ascending numbers. An empty text is an empty list.

    Raises
    ------
    ValueError
        The ranges do not ascend, or a number is 2**20 or more. This limit keeps a text such as ``0-99999999999`` from
        filling memory.
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
    """Return numbers as a kernel list: ``(0, 1, 2, 3, 8)`` is ``0-3,8``."""
    spans: list[list[int]] = []
    for number in sorted(set(numbers)):
        if spans and number == spans[-1][1] + 1:
            spans[-1][1] = number
        else:
            spans.append([number, number])
    return ",".join(str(first) if first == last else f"{first}-{last}" for first, last in spans)


def natural(name: str) -> tuple[tuple[int, str], ...]:
    """Return a sort key that orders the numbers in names by value: mlx5_2 before mlx5_10."""
    return tuple((int(part), "") if part.isdecimal() else (-1, part) for part in re.split("([0-9]+)", name))


def printable(text: object) -> str:
    """Return a machine's text or a path with control and format characters escaped, so that it is safe to print.

    The escaped characters include bidirectional overrides and zero-width characters. Markup is left as it is, because
    views build ``rich.text.Text`` objects, which do not interpret markup.
    """
    return "".join(char if char.isprintable() else char.encode("unicode_escape").decode("ascii") for char in str(text))


def several(number: int, what: str) -> str:
    """Return a count with its noun: ``1 path``, ``3 paths``."""
    return f"1 {what}" if number == 1 else f"{number} {what}s"


def counted(names: Iterable[str]) -> str:
    """Return the number of occurrences of each name, in order of first occurrence: ``4 x NVIDIA H200``."""
    return ", ".join(f"{number} x {name}" for name, number in Counter(names).items())


def grouped(pairs: Iterable[tuple[_Key, _Item]]) -> dict[_Key, list[_Item]]:
    """Return the items of (key, item) pairs by key, in order of first occurrence."""
    groups: dict[_Key, list[_Item]] = {}
    for key, item in pairs:
        groups.setdefault(key, []).append(item)
    return groups


def group_by(items: Iterable[_Item], value: Callable[[_Item], _Key]) -> Iterator[tuple[_Key, tuple[_Item, ...]]]:
    """Yield each value and the items that have it, in the order of first occurrence."""
    for key, members in grouped((value(item), item) for item in items).items():
        yield key, tuple(members)


def gpu_name(name: str | None, number: int = 1) -> str:
    """Return the product name of ``number`` equal GPUs: ``NVIDIA H200``, ``GPU of unknown name``."""
    return name or f"{'GPU' if number == 1 else 'GPUs'} of unknown name"


def listed(items: Sequence[str], word: str = "and") -> str:
    """Return items as a list in a sentence: ``GPU0``, ``GPU0, GPU1 and GPU2``."""
    return items[0] if len(items) == 1 else f"{', '.join(items[:-1])} {word} {items[-1]}"


def did_you_mean(text: str, known: Iterable[str], otherwise: str = "", *, most: int = 3, cutoff: float = 0.6) -> str:
    """Return a question with the names that a misspelt one resembles: ``did you mean GPU0 or GPU1?``.

    Parameters
    ----------
    otherwise
        The result if no name is alike.
    most, cutoff
        The largest number of names, and the least likeness of each (:func:`difflib.get_close_matches`).
    """
    # Imported here because few commands need it.
    from difflib import get_close_matches

    alike = get_close_matches(text[:100], list(known), most, cutoff)
    return f"did you mean {listed(alike, 'or')}?" if alike else otherwise


def shortened(items: Sequence[object], most: int, what: str = "") -> str:
    """Return the first ``most`` items and the number of the others: ``a, b and 7 more``, ``a, b and 7 more cases``."""
    shown = ", ".join(map(str, items[:most]))
    return f"{shown} and {len(items) - most} more{what and f' {what}'}" if len(items) > most else shown


NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.:-]{0,199}")
"""The pattern of node names. A match is never an option of a launcher or a path, and fits a file name with a suffix."""


def require_clustershell(what: str) -> None:
    """Check that ClusterShell is installed.

    Parameters
    ----------
    what
        The feature that needs it, as the beginning of a sentence.

    Raises
    ------
    UsageError
        It is not installed. The message has the command to install it.
    """
    try:
        import ClusterShell  # noqa: F401
    except ImportError as error:
        raise UsageError(f"{what} needs ClusterShell: pip install 'egmctl[fleet]'") from error


def fold_labels(labels: Iterable[str]) -> str:
    """Return labels in short form: ``GPU0-3``, ``NUMA 0,2``; labels that differ otherwise are listed."""
    known = list(dict.fromkeys(labels))
    stems = {label.rstrip("0123456789") for label in known}
    numbers = [label[len(label.rstrip("0123456789")) :] for label in known]
    if len(stems) == 1 and len(known) > 1 and all(number and len(number) < 6 for number in numbers):
        return f"{stems.pop()}{format_kernel_list({int(number) for number in numbers})}"
    return ", ".join(known)


def fold(names: Iterable[str]) -> str:
    """Return names as a folded node set, ``node[01-17,19]``, followed by invalid node names."""
    return _fold(tuple(dict.fromkeys(names)))


@functools.lru_cache(maxsize=16)
def _fold(known: tuple[str, ...]) -> str:
    # Cached: tens of thousands of names with two numbers each take ClusterShell many seconds.
    if len(known) < 2:
        return "".join(known)
    from ClusterShell.NodeSet import RESOLVER_NOGROUP, NodeSet

    plain = [name for name in known if NAME.fullmatch(name)]
    others = [name for name in known if not NAME.fullmatch(name)]
    return ",".join(filter(None, (str(NodeSet.fromlist(plain, resolver=RESOLVER_NOGROUP)), *others)))
