"""What a document does not say of a machine is null there, with the reason: not stated.

A model says what its sources say; a recording says what its egmctl read. Neither has to be written anew when the tool
learns to read one more thing.
"""

from __future__ import annotations

import dataclasses
import types
import typing
from collections.abc import Mapping
from typing import Any

from egmctl.facts.cuda import ATTRIBUTES, P2P_ATTRIBUTES
from egmctl.model.codec import field_types
from egmctl.model.machine import SECTION_VERSIONS, GpuCuda, Machine, Pair, Reason, Record

NAMES: Mapping[type[Record], tuple[str, tuple[str, ...]]] = {
    GpuCuda: ("attributes", ATTRIBUTES),
    Pair: ("cuda_attributes", P2P_ATTRIBUTES),
}
"""Fields that map names, and the names that the tool reads: where a document has some of them, it has them all."""

_WHY = {"reason": Reason.NOT_STATED.value, "detail": ""}


def fill(kind: Any, data: Any) -> None:
    """Add the reason to every nullable field of a record that a document leaves out; malformed parts stay as they are.

    Parameters
    ----------
    kind
        The type that ``data`` is to be read as, by :func:`egmctl.model.codec.from_json`.
    data
        JSON data; it is changed.
    """
    origin, arguments = typing.get_origin(kind), typing.get_args(kind)
    if origin is typing.Annotated:
        fill(arguments[0], data)
    elif origin in (typing.Union, types.UnionType):
        for option in arguments:
            fill(option, data)
    elif origin is tuple and isinstance(data, list):
        for item in data:
            fill(arguments[0], item)
    elif dataclasses.is_dataclass(kind) and isinstance(data, dict):
        for name, part in field_types(typing.cast(type, kind)).items():
            if name in data and name != "unread":
                fill(part, data[name])
        if kind is Machine:
            _explain_sections(data)
        elif isinstance(kind, type) and issubclass(kind, Record):
            _explain(kind, data)


def leave_out(data: Any) -> Any:
    """Return JSON data without what :func:`fill` adds: nulls that are not stated and have no more to say."""
    if isinstance(data, list):
        return [leave_out(item) for item in data]
    if not isinstance(data, dict):
        return data
    kept = {key: leave_out(value) for key, value in data.items()}
    for name in _not_stated(kept.get("unread")):
        owner, _, key = name.partition(".")
        (kept[owner] if key else kept).pop(key or owner, None)
        kept["unread"].pop(name)
    if kept.get("unread") == {}:
        del kept["unread"]
    sections = {name: status.get("unread") for name, status in kept.get("sections", {}).items()}
    for name in _not_stated(sections):
        del kept["sections"][name], kept[name]
    return kept


def _not_stated(reasons: Any) -> list[str]:
    return [name for name, why in reasons.items() if why == _WHY] if isinstance(reasons, dict) else []


def _explain(kind: type[Record], data: dict[str, Any]) -> None:
    absent = [name for name in null_by_default(kind) if name not in data]
    if kind in NAMES:
        name, keys = NAMES[kind]
        values = data.get(name)
        if isinstance(values, dict) and not values.keys().isdisjoint(keys):
            absent += [f"{name}.{key}" for key in keys if key not in values]
            data[name] = {key: values.get(key) for key in dict.fromkeys((*keys, *values))}
    unread = data.get("unread", {})
    if absent and isinstance(unread, dict):
        order = {name: number for number, name in enumerate(field_types(kind))}
        reasons = dict.fromkeys(absent, _WHY) | unread
        data["unread"] = dict(
            sorted(reasons.items(), key=lambda item: order.get(item[0].partition(".")[0], len(order)))
        )


def _explain_sections(data: dict[str, Any]) -> None:
    sections = data.get("sections")
    if not isinstance(sections, dict):
        return
    for name, version in SECTION_VERSIONS.items():
        if name not in sections and name not in data:
            sections[name] = {"version": version, "duration_ms": None, "unread": _WHY}


def null_by_default(kind: Any) -> tuple[str, ...]:
    """Return the fields of a record (a dataclass) that are null where nothing is said of them."""
    return tuple(field.name for field in dataclasses.fields(kind) if field.default is None)
