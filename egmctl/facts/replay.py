"""Loads recorded and modelled machines: files that ``egmctl snapshot`` wrote, and those that ship with the tool.

A file comes from anywhere. Whatever is in it, loading gives a :class:`Machine` whose parts fit together, or one
sentence that names the bad part.
"""

from __future__ import annotations

import dataclasses
import json
import os
import re
from collections.abc import Hashable, Iterable
from pathlib import Path
from typing import Any, NoReturn

from egmctl import data
from egmctl.errors import UsageError
from egmctl.model.codec import DecodeError, from_json
from egmctl.model.machine import MACHINE_SCHEMA, SECTION_VERSIONS, Machine, OriginKind, Reason, SectionStatus, Unread
from egmctl.units import format_size

FILE_LIMIT = 64 << 20
"""Bytes of the largest file that is read; a node with 8 GPUs has some 300 KiB."""

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
    document = _parse(_read(path, source), source)
    _check_schema(document, source)
    newer = _drop_newer_sections(document)
    try:
        machine = from_json(Machine, document)
    except DecodeError as error:
        _refuse(source, f"is not a valid machine: {_short(str(error))}")
    if fault := _fault(machine):
        _refuse(source, f"is not a valid machine: {fault}")
    origin = machine.origin
    if origin.kind is not OriginKind.MODELLED:
        origin = dataclasses.replace(origin, kind=OriginKind.RECORDED, name=path.stem)
    return dataclasses.replace(machine, origin=origin, sections={**machine.sections, **newer})


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
        raise UsageError(f"machine file {_short(name_or_path)} does not exist; {_valid()}")
    raise UsageError(f"there is no machine {_short(name_or_path)!r}; {_valid()}")


def _valid() -> str:
    return f"valid are a file that 'egmctl snapshot' wrote and {', '.join(names()) or 'no name: none ships'}"


def _read(path: Path, source: str) -> str:
    try:
        with path.open("rb") as file:
            content = file.read(FILE_LIMIT + 1)
    except OSError as error:
        _refuse(source, f"cannot be read: {error.strerror}")
    if len(content) > FILE_LIMIT:
        _refuse(source, f"is larger than {format_size(FILE_LIMIT)}, which no machine is")
    try:
        return content.decode()
    except UnicodeDecodeError as error:
        _refuse(source, f"is not UTF-8 text: byte {error.start} is {content[error.start]:#04x}")


def _parse(text: str, source: str) -> dict[str, Any]:
    def constant(word: str) -> NoReturn:
        _refuse(source, f"is not JSON: it holds {word}, which JSON has no number for")

    try:
        document = json.loads(text, parse_constant=constant)
    except json.JSONDecodeError as error:
        _refuse(source, f"is not JSON, or is truncated: {error.msg} at line {error.lineno} column {error.colno}")
    except RecursionError:
        _refuse(source, "is nested more deeply than any machine")
    except ValueError:
        # Python refuses to read whole numbers of more than 4300 digits.
        _refuse(source, "holds a whole number of thousands of digits")
    if not isinstance(document, dict):
        _refuse(source, f"is not a machine: expected an object with the schema {MACHINE_SCHEMA}")
    return document


def _check_schema(document: dict[str, Any], source: str) -> None:
    schema = document.get("schema")
    if schema == MACHINE_SCHEMA:
        return
    name, _, major = MACHINE_SCHEMA.partition("/")
    if isinstance(schema, str) and re.fullmatch(rf"{re.escape(name)}/[0-9]+", schema, re.ASCII):
        _refuse(source, f"has the schema {_short(schema)}; this egmctl reads up to version {major}: use a newer egmctl")
    found = f"its schema is {_short(schema)!r}" if isinstance(schema, str) else "it states no schema"
    _refuse(source, f"is not a machine: {found}, expected {MACHINE_SCHEMA}")


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
            return f"{what} {_short(str(value))} is there twice"
        seen.add(value)
    return None


def _disordered(what: str, numbers: list[int]) -> str | None:
    for before, number in zip([-1, *numbers], numbers, strict=False):
        if number <= before:
            return f"{what} {number} after {before}, expected ascending from 0"
    return None


def _refuse(source: str, sentence: str) -> NoReturn:
    raise UsageError(f"{_short(source)} {sentence}")


def _short(text: str) -> str:
    return text if len(text) <= 200 else f"{text[:197]}..."
