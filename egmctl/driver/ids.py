"""Bus ids and UUIDs in the spelling of every source, and reasons for values that a library did not give."""

from __future__ import annotations

import re
from typing import Any

_BUS_ID = re.compile(r"(?:([0-9a-f]{1,8}):)?([0-9a-f]{1,2}):([0-9a-f]{1,2})\.([0-7])", re.IGNORECASE)


def bus_id(text: str) -> str:
    """Return a PCI bus id as sysfs writes it: lower case, a domain of at least 4 digits (``0000:1b:00.0``).

    NVML writes ``00000000:1B:00.0``, CUDA ``0000:1B:00.0``. A domain above ffff (VMD, some hypervisors) keeps its
    digits, as in sysfs.

    Raises
    ------
    ValueError
        If ``text`` is no bus id.
    """
    match = _BUS_ID.fullmatch(text.strip())
    if match is None:
        raise ValueError(f"{text!r} is not a PCI bus id; valid is 0000:1b:00.0")
    domain, bus, device, function = (int(part or "0", 16) for part in match.groups())
    return f"{domain:04x}:{bus:02x}:{device:02x}.{function}"


def bus_order(text: str) -> tuple[int, ...]:
    """Return the numbers of a bus id, to sort by."""
    return tuple(int(part, 16) for part in re.split(r"[:.]", text))


def uuid_text(raw: bytes) -> str:
    """Return 16 bytes as ``8-4-4-4-12`` hexadecimal digits."""
    digits = raw.hex()
    return "-".join((digits[:8], digits[8:12], digits[12:16], digits[16:20], digits[20:]))


NOT_SUPPORTED = "not-supported"
NO_PERMISSION = "no-permission"
DRIVER_TOO_OLD = "driver-too-old"
MISSING_LIBRARY = "missing-library"
TIMED_OUT = "timed-out"
NOT_PRESENT = "not-present"
FAILED = "failed"
"""Words of :class:`egmctl.model.machine.Reason`."""


class Unavailable(Exception):
    """A value cannot be read.

    Parameters
    ----------
    reason
        The reason's word.
    detail
        The call and what it answered.
    name
        The library's own name for the error, e.g. ``NVML_ERROR_NOT_SUPPORTED``; ``None`` where it gave none.
    number
        What the call returned.
    """

    def __init__(self, reason: str, detail: str, name: str | None = None, number: int | None = None) -> None:
        super().__init__(detail)
        self.reason = reason
        self.detail = detail
        self.name = name
        self.number = number

    def json(self) -> dict[str, str]:
        """Return the ``Unread`` record."""
        return {"reason": self.reason, "detail": self.detail}


class Reading:
    """Values by field name; each that is missing is null and has its reason.

    Parameters
    ----------
    **values
        What is known from the start.
    """

    def __init__(self, **values: Any) -> None:
        self.values: dict[str, Any] = values
        self.unread: dict[str, dict[str, str]] = {}

    def miss(self, names: str, why: Unavailable) -> None:
        """Make fields (named with spaces between) null for one reason."""
        for name in names.split():
            self.values[name] = None
            self.unread[name] = why.json()

    def json(self) -> dict[str, Any]:
        """Return the record."""
        return {**self.values, "unread": self.unread} if self.unread else self.values
