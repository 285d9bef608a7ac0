"""Compare facts of machines and other statements between results."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

from egmctl.comparison.paths import GpuNames
from egmctl.model.codec import to_json
from egmctl.model.comparison import AttributeDifference, Outcome
from egmctl.model.machine import SECTION_VERSIONS, Machine
from egmctl.units import fold, format_kernel_list, format_size, grouped

ABSENT = "not there"
PRESENT = "present"
"""The fact that a thing exists. A thing that exists on one side only has no other differences."""
THERE = "there"
"""The value of a record. If only one side has a record, the facts in the record are not compared."""


class Fact(str):
    """The text of a value for people, and its number. Values with the same text are the same."""

    number: float | None = None

    @classmethod
    def of(cls, value: Any, key: str) -> Fact:
        """Return the fact that a key of a record has this value."""
        fact = cls(fact_text(value, key))
        if isinstance(value, int | float) and not isinstance(value, bool):
            fact.number = value
        return fact


class Subject(NamedTuple):
    """The subject of a statement: a fact or a check of a thing."""

    kind: str
    """The kind of thing: ``GPU``, ``NIC``, ...; empty for the node as a whole."""
    name: str
    """A name that is the same for the same thing in every file: a bus id, a number."""
    what: str
    """The name of the fact or the check."""


Statements = Mapping[Subject, object]
"""The values of one file by subject: texts, or what ``str`` makes a text of."""
Judge = Callable[[Subject, Any, Any], Outcome | None]
"""A function that grades the change from the first value to the second; ``None`` if it is not reported."""


def differences(
    nodes: Sequence[str], files: Sequence[Statements], names: GpuNames, judge: Judge, *, of_nodes: bool
) -> tuple[AttributeDifference, ...]:
    """Return the differences of files from the reference, the most severe first.

    The reference is the first of two files, or else the most frequent values. Nodes with the same differences, and
    things of one kind, share an entry.
    """
    files = shared(files)
    reference = _usual(files) if of_nodes else files[0]
    # Most nodes of a fleet make the same statements.
    of_file: dict[int, list[tuple[AttributeDifference, Subject]]] = {}
    by_nodes: dict[tuple[AttributeDifference, str, str], list[str]] = {}
    for number in range(0 if of_nodes else 1, len(files)):
        file = files[number]
        if id(file) not in of_file:
            of_file[id(file)] = list(_differences(reference, file, judge))
        for difference, subject in of_file[id(file)]:
            if of_nodes and difference.outcome is Outcome.BETTER:
                # Most nodes are the reference, also for their faults, so a node that deviates from them is not better.
                difference = replace(difference, outcome=Outcome.DIFFERENT)
            group = difference, subject.kind, _label(subject, names, number)
            by_nodes.setdefault(group, []).append(nodes[number])
    by_nodes_of_kind = grouped(
        ((difference, kind, tuple(members)), label) for (difference, kind, label), members in by_nodes.items()
    )
    joined = [
        replace(difference, nodes=members, folded=fold(members), about=_folded(labels))
        for (difference, _kind, members), labels in by_nodes_of_kind.items()
    ]
    gravity = list(Outcome)
    return tuple(sorted(joined, key=lambda difference: (gravity.index(difference.outcome), difference.nodes)))


def shared(files: Iterable[Statements]) -> list[Statements]:
    """Return statements of files, those that are equal as the same object, so that each is kept and compared once."""
    known: dict[tuple[tuple[Subject, object], ...], Statements] = {}
    return [known.setdefault(tuple(file.items()), file) for file in files]


def _usual(files: Sequence[Statements]) -> Statements:
    """Return the most frequent value of each subject, without subjects that are most often absent."""
    times = Counter(map(id, files))
    distinct = {id(file): file for file in files}
    usual: dict[Subject, object] = {}
    for subject in sorted({subject for file in distinct.values() for subject in file}):
        counts: Counter[object] = Counter()
        for number, file in distinct.items():
            counts[file.get(subject, ABSENT)] += times[number]
        value = min(counts, key=lambda candidate: (-counts[candidate], str(candidate)))
        if value != ABSENT:
            usual[subject] = value
    return usual


def compared(files: Iterable[Iterable[Hashable]]) -> int:
    """Return the number of subjects that occur in two files or more."""
    return sum(count > 1 for count in Counter(subject for file in files for subject in file).values())


def _differences(
    reference: Statements, file: Statements, judge: Judge
) -> Iterator[tuple[AttributeDifference, Subject]]:
    """Yield each difference of one file, with its subject."""
    devices = {subject[:2] for subject in reference} & {subject[:2] for subject in file}
    for subject in dict.fromkeys((*reference, *file)):
        before, after = reference.get(subject, ABSENT), file.get(subject, ABSENT)
        if before == after or (subject.what != PRESENT and subject[:2] not in devices):
            continue
        if _in_one_sided_record(subject, reference, file) or (outcome := judge(subject, before, after)) is None:
            continue
        difference = AttributeDifference(
            nodes=(),
            folded="",
            about="",
            what=subject.what,
            outcome=outcome,
            reference=str(before),
            value=str(after),
        )
        yield difference, subject


def _label(subject: Subject, names: GpuNames, file: int) -> str:
    """Return a file's name for the subject's thing, for people: ``GPU3``."""
    if subject.kind == "NUMA":
        return f"NUMA{subject.name}"
    return ">".join(names.label(file, part) for part in subject.name.split(">"))


def _in_one_sided_record(subject: Subject, reference: Statements, file: Statements) -> bool:
    """Return whether a fact is part of a record that only one side has."""
    keys = subject.what.split(" ")
    records = (subject._replace(what=" ".join(keys[:count])) for count in range(1, len(keys)))
    return any((reference.get(record) == THERE) is not (file.get(record) == THERE) for record in records)


def _folded(labels: Iterable[str]) -> str:
    """Return labels in short form: ``GPU0-3``, ``NUMA 0,2``; labels that differ otherwise are listed."""
    known = list(dict.fromkeys(labels))
    stems = {label.rstrip("0123456789") for label in known}
    numbers = [label[len(label.rstrip("0123456789")) :] for label in known]
    if len(stems) == 1 and len(known) > 1 and all(number and len(number) < 6 for number in numbers):
        return f"{stems.pop()}{format_kernel_list({int(number) for number in numbers})}"
    return ", ".join(known)


_LEFT_OUT = {
    # Values that change from moment to moment.
    *("memory_available_bytes", "memory_free_bytes", "memory_used_bytes", "memory_limit_used_bytes"),
    *("free", "shm_free_bytes"),
    *("uptime_s", "pid", "processes", "namespaces"),
    *("sm_clock_mhz", "memory_clock_mhz", "performance_state", "power_state", "throttle_reasons", "temperature_c"),
    # PCIe links and NVLinks save power while they are idle.
    *("speed_gt_s", "link_state", "effective_ber", "symbol_ber", "fec_history"),
    # Identifiers of a node, a part, a boot or a job.
    *("bus_id", "index", "ordinal", "major", "minor", "majors", "id", "remote_bus_id", "source", "target"),
    *("uuid", "serial", "slot", "tray", "host_id", "cluster_uuid", "chassis_serial", "node_guid"),
    *("hostname", "interfaces", "cgroups", "device_programs", "device_memory", "device_memory_capacity"),
}
"""Facts that are never compared, because they differ between any two results."""

_THINGS = {
    "gpus": "GPU",
    "numa_nodes": "NUMA",
    "nics": "NIC",
    "switches": "NVSwitch",
    "bridges": "bridge",
    "nodes": "device node",
    "imex_channels": "device node",
    "mounts": "mount",
}
"""Lists whose records are things of their own, with the kind of thing."""

_NAMES = ("bus_id", "id", "link", "number", "path", "page_size_bytes", "name", "nic", "version")
"""The keys that identify a record in a list; the first one that the record has is used."""

UNREAD = "not read"
"""How the text of a value that could not be read begins."""


def sections_of(machines: Sequence[Machine]) -> tuple[str, ...]:
    """Return the sections that all machines have. Probes are left out, as they are measurements and not facts."""
    names = [name for name in SECTION_VERSIONS if name != "probes"]
    return tuple(name for name in names if all(getattr(machine, name) is not None for machine in machines))


def statements(machine: Machine, sections: Sequence[str], names: GpuNames, file: int) -> Statements:
    """Return the statements about some sections of a machine."""
    facts: dict[Subject, str] = {}

    def state(subject: Subject, keys: Sequence[str], text: str) -> None:
        facts[subject._replace(what=" ".join(keys))] = text

    def walk(value: Any, subject: Subject, keys: tuple[str, ...], key: str) -> None:
        """Add a statement for each fact in ``value``, which is under ``key`` below ``keys``."""
        key_path = (*keys, key)
        if isinstance(value, dict):
            state(subject, key_path, THERE)
            walk_record(value, subject, key_path)
        elif isinstance(value, list) and (key in _THINGS or (value and isinstance(value[0], dict))):
            if key in _THINGS:
                # Also stated for an empty list, to tell it from a list that was not read.
                state(subject, key_path, THERE)
            for record in value:
                if key == "pairs":
                    pair = ">".join(names.name(file, record[end]) for end in ("source", "target"))
                    walk_record(record, Subject("pair", pair, ""), ())
                elif key in _THINGS:
                    below = Subject(_THINGS[key], names.name(file, _name_of(record)), "")
                    state(below, (PRESENT,), "yes")
                    walk_record(record, below, (), _named_by(record))
                else:
                    walk_record(record, subject, (*keys, f"{key} {_name_of(record)}"), _named_by(record))
        elif value not in (None, []):
            state(subject, key_path, Fact.of(value, key))

    def walk_record(record: Mapping[str, Any], subject: Subject, keys: tuple[str, ...], name: str = "") -> None:
        """Add statements for the facts of a record; ``name`` is the key that identifies the record."""
        for key, value in record.items():
            if key not in _LEFT_OUT and key not in ("unread", name):
                walk(value, subject, keys, key)
        for key, unread in record.get("unread", {}).items():
            parts = key.split(".")
            if unread["reason"] != "not-asked" and _LEFT_OUT.isdisjoint(parts):
                state(subject, (*keys, *parts), f"{UNREAD} ({unread['reason']})")

    for section in sections:
        walk(to_json(getattr(machine, section)), Subject("", "", ""), (), section)
    return facts


def _name_of(record: Mapping[str, Any]) -> str:
    if "pci" in record and "bus_id" not in record and "name" not in record:
        return str(record["pci"]["bus_id"])
    return str(record.get(_named_by(record), ""))


def _named_by(record: Mapping[str, Any]) -> str:
    return next((key for key in _NAMES if record.get(key) is not None), "")


_NUMBERS = {
    "mode": "{:#o}",
    **dict.fromkeys(("vendor_id", "device_id", "subsystem_vendor_id", "subsystem_device_id"), "{:#06x}"),
}
"""Formats of numbers that are not written in decimal."""


def fact_text(value: Any, key: str) -> str:
    """Return the value of a fact or a setting for people."""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if value is None:
        return "not set"
    if isinstance(value, int) and key.endswith("_bytes"):
        return format_size(value)
    if isinstance(value, list):
        return ", ".join(map(str, value))
    return _NUMBERS.get(key, "{}").format(value) or "empty"
