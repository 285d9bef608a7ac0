"""Read the table that a binary of nccl-tests prints. Pure."""

from __future__ import annotations

import re

from egmctl.dataclass import dataclass

_NUMBER = r"[\d.e+]+"
_HALF = rf"\s+({_NUMBER})\s+{_NUMBER}\s+({_NUMBER})\s+({_NUMBER}|N/A)(?=\s|$)"
_ROW = re.compile(rf"^\s*(\d+)\s+\d+\s+\w+\s+\w+\s+-?\d+{_HALF}(?:{_HALF})?")
"""A row: size in bytes, count, type, operation, root; then, out of place and in place, the time in microseconds,
algorithm and bus bandwidth in GB/s, and the wrong values (``%g``, so that many are ``1e+06``)."""
_BOUNDS = re.compile(r"^# Out of bounds values : (\d+) (OK|FAILED)", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Row:
    """One size: its time and bandwidth out of place, and whether its values were right."""

    size_bytes: int
    time_us: float
    bus_gb_s: float
    verified: bool | None
    """Whether no value was wrong, out of place and in place; ``None`` if values were not checked."""


class NoTable(ValueError):
    """The output has no such table, or not to its end."""


def is_complete(text: str) -> bool:
    """Return whether a binary ran to its end. Its exit code is 1 also if a value was wrong."""
    return _BOUNDS.search(text) is not None


def read_table(text: str) -> tuple[Row, ...]:
    """Return the rows of the table in a binary's standard output.

    Raises
    ------
    NoTable
        There is no row, or the line after the table is missing: the binary ended before its end.
    """
    bounds = _BOUNDS.search(text)
    # The line counts the wrong values of all sizes.
    is_bad = bounds is not None and bounds[2] == "FAILED"
    rows = tuple(
        Row(
            size_bytes=int(size),
            time_us=float(time_us),
            bus_gb_s=float(bus),
            verified=False if is_bad else _verified(wrong, wrong_in_place),
        )
        for size, time_us, bus, wrong, _, _, wrong_in_place in (
            match.groups() for match in map(_ROW.match, text.splitlines()) if match
        )
    )
    if not rows or bounds is None:
        raise NoTable("nccl-tests printed no complete table")
    return rows


def _verified(*wrong: str | None) -> bool | None:
    """Return whether the columns of wrong values have none; ``None`` if no column has a number."""
    counts = [float(count) for count in wrong if count is not None and count != "N/A"]
    return not any(counts) if counts else None
