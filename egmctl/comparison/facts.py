"""Compare facts of machines and other statements between results."""

from __future__ import annotations

import functools
from collections import Counter
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from dataclasses import fields, replace
from typing import Any, NamedTuple, cast

from egmctl.comparison.paths import GpuNames
from egmctl.model.codec import to_json
from egmctl.model.comparison import AttributeDifference, Outcome
from egmctl.model.machine import SECTION_VERSIONS, Machine
from egmctl.units import fold, fold_labels, format_size, grouped

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
"""The values of one file, or of a part of it, by subject: texts, or what ``str`` makes a text of."""
FileStatements = tuple[Statements, ...]
"""The values of one file. No subject is in two parts. Equal parts of several files are the same object."""
Grader = Callable[[Subject, Any, Any], Outcome | None]
"""A function that grades the change from the first value to the second; ``None`` if it is not reported."""


def attribute_differences(
    nodes: Sequence[str], files: Sequence[FileStatements], names: GpuNames, judge: Grader, *, of_nodes: bool
) -> tuple[AttributeDifference, ...]:
    """Return the differences of files from the reference, the most severe first.

    The reference is the first of two files, or else the most frequent values. Nodes with the same differences, and
    things of one kind, share an entry.
    """
    reference = _usual(files) if of_nodes else joined_statements(files[0])
    # Most nodes of a fleet make the same statements.
    of_file: dict[tuple[int, ...], list[tuple[AttributeDifference, Subject]]] = {}
    by_nodes: dict[tuple[AttributeDifference, str, str], list[str]] = {}
    for number in range(0 if of_nodes else 1, len(files)):
        file = tuple(map(id, files[number]))
        if file not in of_file:
            of_file[file] = list(_differences(reference, joined_statements(files[number]), judge))
        for difference, subject in of_file[file]:
            if of_nodes and difference.outcome is Outcome.BETTER:
                # Most nodes are the reference, also for their faults, so a node that deviates from them is not better.
                difference = replace(difference, outcome=Outcome.DIFFERENT)
            group = difference, subject.kind, _label(subject, names, number)
            by_nodes.setdefault(group, []).append(nodes[number])
    by_nodes_of_kind = grouped(
        ((difference, kind, tuple(members)), label) for (difference, kind, label), members in by_nodes.items()
    )
    together = [
        replace(difference, nodes=members, folded=fold(members), about=fold_labels(labels))
        for (difference, _kind, members), labels in by_nodes_of_kind.items()
    ]
    gravity = list(Outcome)
    return tuple(sorted(together, key=lambda difference: (gravity.index(difference.outcome), difference.nodes)))


def joined_statements(parts: FileStatements) -> Statements:
    """Return the statements of all parts of a file."""
    return {subject: value for part in parts for subject, value in part.items()}


def renamed(files: Sequence[Sequence[Statements]], names: GpuNames) -> list[FileStatements]:
    """Return statements that name GPUs by bus id with the names that the same GPUs have in all files."""
    known: dict[tuple[int, int], Statements] = {}
    whole: dict[tuple[int, ...], FileStatements] = {}

    def named(part: Statements, file: int) -> Statements:
        key = id(part), names.alike(file)
        if key not in known:
            known[key] = {
                subject._replace(name=">".join(names.name(file, name) for name in subject.name.split(">"))): value
                for subject, value in part.items()
            }
        return known[key]

    def disjoint(parts: FileStatements) -> FileStatements:
        # The last statement about a subject counts, as of a device node that two sections list.
        key = tuple(map(id, parts))
        if key not in whole:
            all_parts = joined_statements(parts)
            whole[key] = parts if len(all_parts) == sum(map(len, parts)) else (all_parts,)
        return whole[key]

    files = [[named(part, number) for part in parts] for number, parts in enumerate(files)] if names.by_index else files
    return [disjoint(tuple(parts)) for parts in files]


def _usual(files: Sequence[FileStatements]) -> Statements:
    """Return the most frequent value of each subject, without subjects that are most often absent."""
    usual: dict[Subject, object] = {}
    for subject, counts in sorted(_counts(files).items()):
        counts[ABSENT] += len(files) - counts.total()
        value = min(counts, key=lambda candidate: (-counts[candidate], str(candidate)))
        if value != ABSENT:
            usual[subject] = value
    return usual


def _counts(files: Sequence[FileStatements]) -> dict[Subject, Counter[object]]:
    """Return how many files state each value of each subject."""
    times = Counter(id(part) for parts in files for part in parts)
    distinct = {id(part): part for parts in files for part in parts}
    counts: dict[Subject, Counter[object]] = {}
    for number, part in distinct.items():
        for subject, value in part.items():
            counts.setdefault(subject, Counter())[value] += times[number]
    return counts


def compared(files: Sequence[FileStatements]) -> int:
    """Return the number of subjects that occur in two files or more."""
    return sum(counts.total() > 1 for counts in _counts(files).values())


def _differences(
    reference: Statements, file: Statements, judge: Grader
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


def sections_of(machine: Machine) -> tuple[str, ...]:
    """Return the sections that a machine has. Probes are left out, as they are measurements and not facts."""
    return tuple(name for name in SECTION_VERSIONS if name != "probes" and getattr(machine, name) is not None)


class MachineFacts:
    """The statements of machines. Those of equal parts of several machines are made and kept once."""

    RECORDS_LIMIT = 16384
    """The number of records whose numbers are kept: as many as a :class:`egmctl.model.codec.Pool` shares."""

    def __init__(self) -> None:
        self._parts: dict[Hashable, Statements] = {}
        self._same: dict[Hashable, Statements] = {}
        self._numbers: dict[Hashable, int] = {}
        self._records: dict[int, tuple[object, int]] = {}

    def of(self, machine: Machine) -> dict[str, FileStatements]:
        """Return the statements about a machine by section; GPUs have their bus ids as names."""
        return {section: self._section(section, getattr(machine, section)) for section in sections_of(machine)}

    def _section(self, section: str, value: Any) -> FileStatements:
        # Each GPU by itself: a value that one of them has alone must not cost statements about all.
        if section not in _THINGS:
            return (self._part(section, value),)
        return (self._part(section, ()), *(self._part(section, (item,)) for item in value))

    def _part(self, section: str, content: Any) -> Statements:
        key = section, self._number(content)
        if key not in self._parts:
            part = statements(section, content)
            if content and section in _THINGS:
                # The part without an item says that the list is there.
                del part[Subject("", "", section)]
            # Values that differ may have the same text: 2.0 TiB.
            self._parts[key] = self._same.setdefault(tuple(part.items()), part)
        return self._parts[key]

    def _number(self, value: Any) -> Hashable:
        """Return a key that two values share only if the same statements are made about them."""
        if isinstance(value, bool | float):
            # Python takes True, 1 and 1.0 for the same key.
            return type(value), str(value)
        if value is None or isinstance(value, str | int):
            return value
        if isinstance(value, tuple | list):
            return tuple([self._number(item) for item in value])
        if isinstance(value, Mapping):
            return tuple([(key, self._number(item)) for key, item in value.items()])
        known = self._records.get(id(value))
        if known is not None:
            return known[1]
        fields = [self._number(getattr(value, name)) for name in _stated_fields(cast(Hashable, type(value)))]
        unread = [(key, unread.reason) for key, unread in getattr(value, "unread", {}).items()]
        number = self._numbers.setdefault((type(value), *fields, *unread), len(self._numbers))
        if len(self._records) >= self.RECORDS_LIMIT:
            self._records.clear()
        # The record is kept, so that no other one gets its id.
        self._records[id(value)] = value, number
        return number


@functools.cache
def _stated_fields(kind: Any) -> tuple[str, ...]:
    """Return the fields of a record about which statements are made, or which name it."""
    names = {*_NAMES, "source", "target"}
    return tuple(f.name for f in fields(kind) if f.name != "unread" and (f.name in names or f.name not in _LEFT_OUT))


def statements(section: str, content: Any) -> dict[Subject, object]:
    """Return the statements about a section of a machine, or about some records of it."""
    facts: dict[Subject, object] = {}

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
                    walk_record(record, Subject("pair", f"{record['source']}>{record['target']}", ""), ())
                elif key in _THINGS:
                    below = Subject(_THINGS[key], _name_of(record), "")
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

    walk(to_json(content), Subject("", "", ""), (), section)
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
