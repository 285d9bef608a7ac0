"""Versions of the driver, the kernel and modules as numbers that can be compared."""

from __future__ import annotations

import re

from egmctl.model.machine import Host, Machine

Version = tuple[int, ...]


def numbers(text: str | None) -> Version | None:
    """Return ``570.86.15`` as numbers, ``None`` for what is no such version."""
    if text is None or not re.fullmatch(r"[0-9]{1,4}(\.[0-9]{1,4}){1,3}", text, re.ASCII):
        return None
    return tuple(map(int, text.split(".")))


def kernel(machine: Machine) -> Version | None:
    """Return the first two numbers of the kernel's release."""
    match = re.match(r"([0-9]{1,3})\.([0-9]{1,3})", (machine.host or Host()).kernel or "", re.ASCII)
    return (int(match[1]), int(match[2])) if match else None


def dotted(version: Version | None) -> str:
    """Return a version for people."""
    return "not read" if version is None else ".".join(map(str, version))
