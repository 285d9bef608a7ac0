"""Machine documents: writing them (``egmctl snapshot``), and reading recorded and shipped ones."""

from __future__ import annotations

import dataclasses
import os
from collections import Counter
from collections.abc import Hashable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, TypeVar

from egmctl import __version__, files
from egmctl.documents import check_schema, indented, parse_object, read_content, refuse, short, stem
from egmctl.errors import UsageError
from egmctl.facts.cuda import ATTRIBUTES, P2P_ATTRIBUTES
from egmctl.model.codec import DecodeError, Readers, from_json, to_json
from egmctl.model.gpu import Gpu, GpuCuda, GpuPair
from egmctl.model.machine import MACHINE_SCHEMA, SECTION_VERSIONS, Machine, OriginKind, SectionStatus
from egmctl.model.record import NOT_STATED, Reason, Unread
from egmctl.units import did_you_mean, listed


def document(machine: Machine) -> dict[str, Any]:
    """Return a machine's document as JSON data. A live machine's origin becomes recorded."""
    origin = machine.origin
    if origin.kind is OriginKind.LIVE:
        origin = dataclasses.replace(origin, kind=OriginKind.RECORDED)
    body = to_json(dataclasses.replace(machine, origin=origin))
    return {"schema": MACHINE_SCHEMA, "egmctl": __version__, **body}


def machine_text(machine: Machine) -> str:
    """Return a machine's document as ASCII text, so that the machine's strings cannot affect a terminal."""
    return indented(document(machine), " ") + "\n"


R = TypeVar("R", GpuCuda, GpuPair)

_LIMITS = {"gpus": 256, "numa_nodes": 1024, "switches": 256, "nics": 4096}
"""The maximum counts per node, which bound loops over pairs and matrices. Minors of ``/dev/nvidia<minor>`` end at 247
(nv-chardev-numbers.h), Linux' NODES_SHIFT at 10."""


def load_machine(name_or_path: str) -> Machine:
    """Return a shipped machine by its name (:func:`machine_names`) or a recorded machine from a file.

    Raises
    ------
    UsageError
        The machine or file does not exist, or the file does not contain a machine.
    """
    path, source = _find(name_or_path)
    document = parse_object(read_content(path, source), source, "machine")
    if name_or_path in sick():
        healthy, name = _find(document.pop("like"))
        document = _changed(parse_object(read_content(healthy, name), name, "machine"), document)
    check_schema(document, (MACHINE_SCHEMA,), source, "machine")
    return recorded(decode(document, source), path)


def decode(document: dict[str, Any], source: str, where: str = "", readers: Readers | None = None) -> Machine:
    """Return the machine in a document, without sections of a newer version than this tool reads.

    Fields and sections that the document omits are null with the reason "not stated". So are missing CUDA attributes,
    if the document has others of the same kind.

    Parameters
    ----------
    source
        The name of the file in messages.
    where
        The location of the document in the file.
    readers
        As for :func:`egmctl.model.codec.from_json`.

    Raises
    ------
    UsageError
        The document is not a machine, or its parts are inconsistent.
    """
    newer = _drop_newer_sections(document)
    try:
        machine = from_json(Machine, document, where, readers or {})
    except DecodeError as error:
        refuse(source, f"is not a valid machine: {short(str(error))}")
    for fault in _faults(machine):
        refuse(source, f"is not a valid machine: {where and f'{where}: '}{fault}")
    missing = {
        name: SectionStatus(version=version, unread=NOT_STATED)
        for name, version in SECTION_VERSIONS.items()
        if name not in machine.sections and getattr(machine, name) is None
    }
    return dataclasses.replace(
        machine,
        sections={**machine.sections, **missing, **newer},
        gpus=machine.gpus and tuple(_with_attributes(gpu) for gpu in machine.gpus),
        pairs=machine.pairs and tuple(_named(pair, "cuda_attributes", P2P_ATTRIBUTES) for pair in machine.pairs),
    )


def _with_attributes(gpu: Gpu) -> Gpu:
    cuda = None if gpu.cuda is None else _named(gpu.cuda, "attributes", ATTRIBUTES)
    return gpu if cuda is gpu.cuda else dataclasses.replace(gpu, cuda=cuda)


def _named(record: R, field: str, names: tuple[str, ...]) -> R:
    """Return a record whose mapping ``field`` has all these names, missing ones as not stated, unless it has none."""
    known: Mapping[str, int | None] = getattr(record, field)
    missing = [name for name in names if name not in known]
    if not missing or len(missing) == len(names):
        return record
    changes: dict[str, Any] = {
        field: {name: known.get(name) for name in dict.fromkeys((*names, *known))},
        "unread": {**{f"{field}.{name}": NOT_STATED for name in missing}, **record.unread},
    }
    return dataclasses.replace(record, **changes)


def recorded(machine: Machine, path: Path) -> Machine:
    """Return a file's machine as recorded, named by the file's stem. A modelled machine is returned unchanged."""
    if machine.origin.kind is OriginKind.MODELLED:
        return machine
    origin = dataclasses.replace(machine.origin, kind=OriginKind.RECORDED, name=stem(path))
    return dataclasses.replace(machine, origin=origin)


def machine_names() -> list[str]:
    """Return the sorted names of the shipped machines."""
    return sorted(path.stem for path in files.machines_dir().glob("*.json"))


def sick() -> list[str]:
    """Return the sorted names of the shipped machines with a fault. Their files have the changes to a healthy one."""
    return sorted(path.stem for path in (files.machines_dir() / "sick").glob("*.json"))


def _changed(value: Any, change: Any) -> Any:
    """Return a JSON value with a change, which for objects is one of RFC 7386, except that null stays a value; a list
    is changed by an object with its indices, or ``*`` for each item, and null removes an item."""
    if isinstance(change, dict) and isinstance(value, list):
        changes = [change.get(str(number), change.get("*", {})) for number in range(len(value))]
        return [_changed(item, part) for item, part in zip(value, changes, strict=True) if part is not None]
    if isinstance(change, dict) and isinstance(value, dict):
        return value | {key: _changed(value.get(key), part) for key, part in change.items()}
    return change


def _find(name_or_path: str) -> tuple[Path, str]:
    """Return the path of a machine's file and its name in messages."""
    if name_or_path in (*machine_names(), *sick()):
        folder = files.machines_dir() / ("" if name_or_path in machine_names() else "sick")
        return folder / f"{name_or_path}.json", f"machine {name_or_path}"
    if os.path.exists(name_or_path):
        return Path(name_or_path), f"machine file {name_or_path}"
    if "/" in name_or_path or name_or_path.endswith(".json"):
        raise UsageError(f"machine file {short(name_or_path)} does not exist; {_valid()}")
    known = [*machine_names(), *sick()]
    begun = [name for name in known if name_or_path and name.startswith(name_or_path.lower())]
    question = f"did you mean {listed(begun, 'or')}?" if begun else did_you_mean(name_or_path.lower(), known)
    hint = f"{question} --machine list shows all" if question else _valid()
    raise UsageError(f"there is no machine {short(name_or_path)!r}; {hint}")


def _valid() -> str:
    shipped = ", ".join((*machine_names(), *sick())) or "no name: none ships"
    return f"valid are a file that 'egmctl snapshot' wrote and {shipped}"


def _drop_newer_sections(document: dict[str, Any]) -> dict[str, SectionStatus]:
    """Remove the sections of a newer version than this tool reads from a document; return their statuses."""
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


def _faults(machine: Machine) -> Iterator[str]:
    """Yield a clause on each inconsistency between the parts of a machine."""
    gpus, pairs, nics = machine.gpus or (), machine.pairs or (), machine.nics or ()
    nodes = (machine.host and machine.host.numa_nodes) or ()
    sizes = {"gpus": len(gpus), "numa_nodes": len(nodes), "switches": len(machine.switches or ()), "nics": len(nics)}
    for what, size in sizes.items():
        if size > _LIMITS[what]:
            yield f"{size} {what}, a node has at most {_LIMITS[what]}"
    known = {gpu.bus_id for gpu in gpus}
    for bus_id in (bus_id for pair in pairs for bus_id in (pair.source, pair.target)):
        if machine.gpus is not None and bus_id not in known:
            yield f"pairs: there is no GPU {bus_id}"
    names: dict[str, Iterable[Hashable]] = {
        "gpus: the bus id": (gpu.bus_id for gpu in gpus),
        "pairs: the pair": ((pair.source, pair.target) for pair in pairs),
        "nics: the name": (nic.name for nic in nics),
    }
    for what, values in names.items():
        for value, times in Counter(values).items():
            if times > 1:
                yield f"{what} {short(str(value))} is there twice"
    numbers = {"gpus: index": [gpu.index for gpu in gpus], "host.numa_nodes: id": [node.id for node in nodes]}
    for what, in_order in numbers.items():
        for before, number in zip([-1, *in_order], in_order, strict=False):
            if number <= before:
                yield f"{what} {number} after {before}, expected ascending from 0"
    for node in nodes:
        if node.distances is not None and len(node.distances) != len(nodes):
            yield f"host.numa_nodes: node {node.id} has {len(node.distances)} distances to {len(nodes)} nodes"
