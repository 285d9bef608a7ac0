"""Read the table that a binary of nccl-tests prints. Pure."""

from __future__ import annotations

import re
from dataclasses import dataclass

_ROW = re.compile(r"^\s*(\d+)\s+\d+\s+\w+\s+\w+\s+-?\d+\s+([\d.e+]+)\s+([\d.e+]+)\s+([\d.e+]+)\s+(\d+|N/A)\b")
"""A row: size in bytes, count, type, operation, root; then, out of place, the time in microseconds, algorithm and bus
bandwidth in GB/s, and the wrong values."""
_BOUNDS = re.compile(r"^# Out of bounds values : (\d+) (OK|FAILED)", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Row:
    """One size, out of place."""

    size_bytes: int
    time_us: float
    bus_gb_s: float
    verified: bool | None
    """Whether no value was wrong; ``None`` if values were not checked."""


class NoTable(ValueError):
    """The output has no such table, or not to its end."""


def read_table(text: str) -> tuple[Row, ...]:
    """Return the rows of the table in a binary's standard output.

    Raises
    ------
    NoTable
        There is no row, or the line after the table is missing: the binary ended before its end.
    """
    rows = tuple(
        Row(
            size_bytes=int(size),
            time_us=float(time_us),
            bus_gb_s=float(bus),
            verified=None if wrong == "N/A" else wrong == "0",
        )
        for size, time_us, _, bus, wrong in (match.groups() for match in map(_ROW.match, text.splitlines()) if match)
    )
    if not rows or _BOUNDS.search(text) is None:
        raise NoTable("nccl-tests printed no complete table")
    return rows
