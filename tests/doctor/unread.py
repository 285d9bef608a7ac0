"""The facts of a machine, one by one: which of them a check reads, a machine without some, or with another value."""

from __future__ import annotations

import dataclasses
import importlib
import typing
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import pytest

from egmctl.model.codec import field_types
from egmctl.model.machine import SECTION_VERSIONS, Machine, SectionStatus
from egmctl.model.record import Reason, Unread

Path = tuple[str | int, ...]
"""Names of fields, indices of tuples and keys of mappings: ``("gpus", 0, "nvml", "nvlinks", 3, "active")``."""

WHY = Unread(reason=Reason.FAILED, detail="999 (Unknown Error)")
_NO_FACT = ("unread", "origin", "sections")


def shape(path: Path) -> str:
    """Return a path without its indices: ``gpus.*.nvml.nvlinks.*.active``."""
    return ".".join("*" if isinstance(part, int) else part for part in path)


def facts(record: Any, at: Path = ()) -> Iterator[tuple[Path, Any, bool]]:
    """Yield the place of every value that is stated, the value, and whether it may be null."""
    cls: Any = type(record)
    for name, kind in field_types(cls).items():
        if name in _NO_FACT or not hasattr(record, name) or (value := getattr(record, name)) is None:
            continue
        yield (*at, name), value, _may_be_null(kind)
        if dataclasses.is_dataclass(value):
            yield from facts(value, (*at, name))
        elif isinstance(value, tuple):
            for number, item in enumerate(value):
                if dataclasses.is_dataclass(item):
                    yield from facts(item, (*at, name, number))
        elif isinstance(value, Mapping):
            options = [kind, *typing.get_args(kind)]
            (mapping,) = [option for option in options if typing.get_origin(option) is Mapping]
            null = _may_be_null(typing.get_args(mapping)[1])
            yield from (((*at, name, key), item, null) for key, item in value.items() if item is not None)


def _may_be_null(kind: Any) -> bool:
    return type(None) in typing.get_args(typing.get_args(kind)[0] if hasattr(kind, "__metadata__") else kind)


def value_at(record: Any, path: Path) -> Any:
    for part in path:
        record = getattr(record, part) if isinstance(part, str) and not isinstance(record, Mapping) else record[part]
    return record


def without(machine: Machine, paths: Iterable[Path]) -> Machine:
    """Return the machine as it is where these facts could not be read: null, each with the reason."""
    changed: Machine = _changed(machine, paths, None)
    statuses = {
        name: SectionStatus(version=version, unread=WHY)
        for name, version in SECTION_VERSIONS.items()
        if getattr(changed, name) is None and getattr(machine, name) is not None
    }
    return dataclasses.replace(changed, sections={**machine.sections, **statuses})


def having(machine: Machine, paths: Iterable[Path], value: object) -> Machine:
    """Return the machine with one value at all of these places."""
    changed: Machine = _changed(machine, paths, value)
    return changed


def _changed(value: Any, paths: Iterable[Path], new: Any) -> Any:
    inner: dict[str | int, list[Path]] = {}
    for head, *rest in paths:
        inner.setdefault(head, []).append(tuple(rest))
    parts: dict[Any, Any] = {
        head: new if () in rests else _changed(value_at(value, (head,)), rests, new) for head, rests in inner.items()
    }
    if isinstance(value, Mapping):
        return {**value, **parts}
    if isinstance(value, tuple):
        return tuple(parts.get(number, item) for number, item in enumerate(value))
    if new is None and hasattr(value, "unread"):
        keys = [".".join(map(str, (head, *rest))) for head, rests in inner.items() for rest in rests if len(rest) < 2]
        null = [key for key in keys if "." not in key or isinstance(getattr(value, key.partition(".")[0]), Mapping)]
        parts["unread"] = {**value.unread, **dict.fromkeys(null, WHY)}
    return dataclasses.replace(value, **parts)


class Readings:
    """Notes which facts of a machine are read.

    Parameters
    ----------
    patch
        Takes back, at the end of the test, that every record of the model notes it.
    """

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self._seen: set[tuple[int, str]] = set()
        self._noting = False
        names = ("gpu", "host", "machine", "probes", "record")
        modules = [importlib.import_module(f"egmctl.model.{name}") for name in names]
        kinds = {kind for module in modules for kind in vars(module).values() if isinstance(kind, type)}
        for kind in filter(dataclasses.is_dataclass, kinds):
            patch.setattr(kind, "__getattribute__", self._noted(), raising=False)

    def _noted(self) -> Callable[[object, str], object]:
        def attribute(record: object, name: str) -> object:
            if self._noting:
                self._seen.add((id(record), name))
            return object.__getattribute__(record, name)

        return attribute

    def of(self, machine: Machine, use: Callable[[Machine], object]) -> list[Path]:
        """Return the facts that may be null and that a function reads; of a mapping that it reads, all."""
        self._seen.clear()
        self._noting = True
        try:
            use(machine)
        finally:
            self._noting = False
        return [path for path, _, may_be_null in facts(machine) if may_be_null and self._was_read(machine, path)]

    def _was_read(self, machine: Machine, path: Path) -> bool:
        owner = value_at(machine, path[:-1])
        if isinstance(owner, Mapping):
            return (id(value_at(machine, path[:-2])), path[-2]) in self._seen
        return (id(owner), path[-1]) in self._seen
