"""What holds for every machine, whatever it was made from: for tests of all packages."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping
from typing import Any

from egmctl.model.machine import SECTION_VERSIONS, Machine, Record

STATEMENTS = {
    ("Driver", "cuda_error"),
    ("Driver", "cuda_failure"),
    ("Driver", "nvml_error"),
    ("Driver", "nvml_failure"),
    ("Pair", "nvlink_through"),
}
"""Fields whose null says something ("no error", "no links") and needs no reason."""


def broken_invariants(machine: Machine) -> list[str]:
    """Return a sentence for each null without a reason and each reason that explains nothing."""
    sections = [
        f"{name} is null and its section's status gives no reason"
        for name in SECTION_VERSIONS
        if getattr(machine, name) is None and not (name in machine.sections and machine.sections[name].unread)
    ]
    return sections + [fault for name in SECTION_VERSIONS for fault in broken_nulls(getattr(machine, name), name)]


def broken_nulls(value: Any, where: str = "record") -> list[str]:
    """Return the same for one record, or a tuple of them."""
    return list(_walk(value, where))


def differences(expected: Any, found: Any, where: str) -> list[str]:
    """Name the places where ``found`` lacks a value of ``expected``; names of GPUs carry the fake's mark."""
    if expected is None:
        return []
    if isinstance(expected, Record) and isinstance(found, Record):
        return [
            fault
            for f in dataclasses.fields(expected)
            if f.name != "unread"
            for fault in differences(getattr(expected, f.name), getattr(found, f.name), f"{where}.{f.name}")
        ]
    if isinstance(expected, Mapping) and isinstance(found, Mapping):
        return [
            fault for key, value in expected.items() for fault in differences(value, found.get(key), f"{where}.{key}")
        ]
    if isinstance(expected, tuple) and isinstance(found, tuple) and len(expected) == len(found):
        return [
            fault
            for i, (a, b) in enumerate(zip(expected, found, strict=True))
            for fault in differences(a, b, where + f"[{i}]")
        ]
    return [] if found in (expected, f"FAKE {expected}") else [f"{where}: {expected!r} came back as {found!r}"]


def _walk(value: Any, where: str) -> Iterator[str]:
    if isinstance(value, Record):
        yield from _record(value, where)
    elif isinstance(value, tuple):
        for i, item in enumerate(value):
            yield from _walk(item, f"{where}[{i}]")


def _record(record: Record, where: str) -> Iterator[str]:
    nulls, names = set(), set()
    for field in dataclasses.fields(record):
        value = getattr(record, field.name)
        names.add(field.name)
        if field.name == "unread":
            continue
        if value is None and (type(record).__name__, field.name) not in STATEMENTS:
            nulls.add(field.name)
        if isinstance(value, Mapping):
            nulls.update(f"{field.name}.{key}" for key, item in value.items() if item is None)
        yield from _walk(value, f"{where}.{field.name}")
    for name in sorted(nulls - set(record.unread)):
        yield f"{where}.{name} is null without a reason"
    for name in record.unread:
        if name.partition(".")[0] not in names:
            yield f"{where} has a reason for {name}, which is none of its fields"
