"""Machines as documents: written by ``egmctl snapshot``, read again, and those that ship."""

from __future__ import annotations

import dataclasses
import json
import os
import types
import typing
from collections.abc import Hashable, Iterable, Mapping
from difflib import get_close_matches
from pathlib import Path
from typing import Any, TypeVar

from egmctl import __version__, data
from egmctl.documents import check_schema, read_object, refuse, short, stem
from egmctl.errors import UsageError
from egmctl.facts.cuda import ATTRIBUTES, P2P_ATTRIBUTES
from egmctl.model.codec import DecodeError, field_types, from_json, to_json
from egmctl.model.machine import (
    MACHINE_SCHEMA,
    SECTION_VERSIONS,
    GpuCuda,
    Machine,
    OriginKind,
    Pair,
    Reason,
    Record,
    SectionStatus,
    Unread,
)
from egmctl.units import listed


def document(machine: Machine) -> dict[str, Any]:
    """Return the document as JSON data; a live machine is a recorded one from then on."""
    origin = machine.origin
    if origin.kind is OriginKind.LIVE:
        origin = dataclasses.replace(origin, kind=OriginKind.RECORDED)
    body = to_json(dataclasses.replace(machine, origin=origin))
    return {"schema": MACHINE_SCHEMA, "egmctl": __version__, **body}


def text(machine: Machine) -> str:
    """Return the document as ASCII text, so that no string from the machine can play tricks on who looks at it."""
    return json.dumps(document(machine), indent=1, allow_nan=False) + "\n"


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


T = TypeVar("T")

_LIMITS = {"gpus": 256, "numa_nodes": 1024, "switches": 256, "nics": 4096}
"""Most that a node can have: minors of ``/dev/nvidia<minor>`` end at 247 (nv-chardev-numbers.h), Linux' NODES_SHIFT
at 10. The loops over pairs and matrices need such a bound."""


def load(name_or_path: str) -> Machine:
    """Return a shipped machine by its name (:func:`names`) or a recorded one from a file.

    Raises
    ------
    UsageError
        If there is no such machine, or the file does not hold one.
    """
    path, source = _find(name_or_path)
    document = read_object(path, source, "machine")
    check_schema(document, (MACHINE_SCHEMA,), source, "machine")
    return recorded(decode(document, source), path)


def decode(document: dict[str, Any], source: str, where: str = "") -> Machine:
    """Return the machine that a document holds, without the sections that are newer than this tool.

    What the document leaves out is null because it is not stated (:mod:`egmctl.facts.replay`).

    Parameters
    ----------
    source
        How to call the file in a sentence.
    where
        Place of the document in the file.

    Raises
    ------
    UsageError
        If it is no machine, or its parts do not fit together.
    """
    newer = _drop_newer_sections(document)
    fill(Machine, document)
    try:
        machine = from_json(Machine, document, where)
    except DecodeError as error:
        refuse(source, f"is not a valid machine: {short(str(error))}")
    if fault := _fault(machine):
        refuse(source, f"is not a valid machine: {where and f'{where}: '}{fault}")
    return dataclasses.replace(machine, sections={**machine.sections, **newer})


def recorded(machine: Machine, path: Path) -> Machine:
    """Return the machine of a file with the file's stem as its name; what was modelled stays so."""
    if machine.origin.kind is OriginKind.MODELLED:
        return machine
    origin = dataclasses.replace(machine.origin, kind=OriginKind.RECORDED, name=stem(path))
    return dataclasses.replace(machine, origin=origin)


def names() -> list[str]:
    """Return the names of the shipped machines, in order."""
    return sorted(path.stem for path in data.machines_dir().glob("*.json"))


def _find(name_or_path: str) -> tuple[Path, str]:
    """Return the file, and how to call it in a sentence."""
    if name_or_path in names():
        return data.machines_dir() / f"{name_or_path}.json", f"machine {name_or_path}"
    if os.path.exists(name_or_path):
        return Path(name_or_path), f"machine file {name_or_path}"
    if "/" in name_or_path or name_or_path.endswith(".json"):
        raise UsageError(f"machine file {short(name_or_path)} does not exist; {_valid()}")
    begun = [name for name in names() if name_or_path and name.startswith(name_or_path.lower())]
    alike = begun or get_close_matches(name_or_path[:100].lower(), names())
    hint = f"did you mean {listed(alike, 'or')}? --machine list shows all" if alike else _valid()
    raise UsageError(f"there is no machine {short(name_or_path)!r}; {hint}")


def _valid() -> str:
    return f"valid are a file that 'egmctl snapshot' wrote and {', '.join(names()) or 'no name: none ships'}"


def _drop_newer_sections(document: dict[str, Any]) -> dict[str, SectionStatus]:
    """Take out the sections whose newer version would mislead this tool; return their statuses."""
    newer: dict[str, SectionStatus] = {}
    sections = document.get("sections")
    if not isinstance(sections, dict):
        return newer
    for name, known in SECTION_VERSIONS.items():
        status = sections.get(name)
        version = status.get("version") if isinstance(status, dict) else None
        if isinstance(version, int) and known < version < 1 << 31:
            detail = f"version {version} of this section is newer than this egmctl reads, which is {known}"
            newer[name] = SectionStatus(version=version, unread=Unread(reason=Reason.NOT_SUPPORTED, detail=detail))
            del sections[name]
            document.pop(name, None)
    return newer


def _fault(machine: Machine) -> str | None:
    """Return what in a machine does not fit together, as half a sentence."""
    host, gpus = machine.host, machine.gpus or ()
    nodes = (host and host.numa_nodes) or ()
    nics, switches = machine.nics or (), machine.switches or ()
    sizes = {"gpus": len(gpus), "numa_nodes": len(nodes), "switches": len(switches), "nics": len(nics)}
    for what, size in sizes.items():
        if size > _LIMITS[what]:
            return f"{size} {what}, a node has at most {_LIMITS[what]}"
    known = {gpu.bus_id for gpu in gpus}
    if machine.gpus is not None:
        for pair in machine.pairs or ():
            for bus_id in (pair.source, pair.target):
                if bus_id not in known:
                    return f"pairs: there is no GPU {bus_id}"
    return (
        _repeated("gpus: the bus id", (gpu.bus_id for gpu in gpus))
        or _disordered("gpus: index", [gpu.index for gpu in gpus])
        or _repeated("pairs: the pair", ((pair.source, pair.target) for pair in machine.pairs or ()))
        or _disordered("host.numa_nodes: id", [node.id for node in nodes])
        or _repeated("nics: the name", (nic.name for nic in nics))
        or next(
            (
                f"host.numa_nodes: node {node.id} has {len(node.distances)} distances to {len(nodes)} nodes"
                for node in nodes
                if node.distances is not None and len(node.distances) != len(nodes)
            ),
            None,
        )
    )


def _repeated(what: str, values: Iterable[Hashable]) -> str | None:
    seen = set()
    for value in values:
        if value in seen:
            return f"{what} {short(str(value))} is there twice"
        seen.add(value)
    return None


def _disordered(what: str, numbers: list[int]) -> str | None:
    for before, number in zip([-1, *numbers], numbers, strict=False):
        if number <= before:
            return f"{what} {number} after {before}, expected ascending from 0"
    return None
