"""Bus ids and UUIDs in the spelling of every source."""

from __future__ import annotations

import re

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
