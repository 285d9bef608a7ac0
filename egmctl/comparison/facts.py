"""Facts of machines that differ between results."""

from __future__ import annotations

import contextlib
import re
from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

from egmctl.comparison.paths import GpuNames
from egmctl.model.codec import to_json
from egmctl.model.comparison import AttributeDifference, Outcome
from egmctl.model.machine import SECTION_VERSIONS, Machine
from egmctl.units import fold, format_kernel_list, format_size

ABSENT = "not there"
PRESENT = "present"
"""The fact that a thing is there. Where it is not, nothing else is said of it."""
THERE = "there"
"""What is said of a record. Where it is said on one side only, nothing else is said of what the record holds."""


class Subject(NamedTuple):
    """The subject of a statement: a fact, or a check, of a thing."""

    kind: str
    """``GPU``, ``NIC``, ...; empty for the node as a whole."""
    name: str
    """The same for the same thing in every file: a bus id, a number."""
    what: str
    """The check, or the fact's name."""


Statements = Mapping[Subject, str]
"""The words of one file about each subject."""
Judge = Callable[[Subject, str, str], Outcome | None]
"""Says what it means that a subject's words are the second ones in place of the first; ``None``: nothing."""


def differences(
    nodes: Sequence[str], files: Sequence[Statements], names: GpuNames, judge: Judge, *, of_nodes: bool
) -> tuple[AttributeDifference, ...]:
    """Return how files differ from the reference: the first of two, else what most of all say; the gravest first.

    What nodes, and things of one kind, have in common is one difference.
    """
    reference = _usual(files) if of_nodes else files[0]
    by_nodes: dict[tuple[AttributeDifference, str, str], list[str]] = {}
    for number in range(0 if of_nodes else 1, len(files)):
        for difference, subject in _differences(reference, files[number], judge):
            group = difference, subject.kind, _label(subject, names, number)
            by_nodes.setdefault(group, []).append(nodes[number])
    by_things: dict[tuple[AttributeDifference, str, tuple[str, ...]], list[str]] = {}
    for (difference, kind, label), having in by_nodes.items():
        by_things.setdefault((difference, kind, tuple(having)), []).append(label)
    joined = [
        replace(difference, nodes=having, folded=fold(having), about=_folded(labels))
        for (difference, _kind, having), labels in by_things.items()
    ]
    gravity = list(Outcome)
    return tuple(sorted(joined, key=lambda difference: (gravity.index(difference.outcome), difference.nodes)))


def _usual(files: Sequence[Statements]) -> Statements:
    """Return what most of several files say; nothing of what most do not have."""
    usual: dict[Subject, str] = {}
    for subject in sorted({subject for file in files for subject in file}):
        texts = Counter(file.get(subject, ABSENT) for file in files)
        text = min(texts, key=lambda words: (-texts[words], words))
        if text != ABSENT:
            usual[subject] = text
    return usual


def compared(files: Iterable[Iterable[Hashable]]) -> int:
    """Return how many things two files or more say something of."""
    return sum(times > 1 for times in Counter(thing for file in files for thing in file).values())


def _differences(
    reference: Statements, file: Statements, judge: Judge
) -> Iterator[tuple[AttributeDifference, Subject]]:
    """Yield what differs in one file, and its subject."""
    things = {subject[:2] for subject in reference} & {subject[:2] for subject in file}
    for subject in dict.fromkeys((*reference, *file)):
        before, after = reference.get(subject, ABSENT), file.get(subject, ABSENT)
        if before == after or (subject.what != PRESENT and subject[:2] not in things):
            continue
        if _in_one_sided_record(subject, reference, file) or (outcome := judge(subject, before, after)) is None:
            continue
        difference = AttributeDifference(
            nodes=(), folded="", about="", what=subject.what, outcome=outcome, reference=before, value=after
        )
        yield difference, subject


def _label(subject: Subject, names: GpuNames, file: int) -> str:
    """Return how people call the subject's thing in a file: ``GPU3``."""
    if subject.kind == "NUMA":
        return f"NUMA{subject.name}"
    return ">".join(names.label(file, end) for end in subject.name.split(">"))


def _in_one_sided_record(subject: Subject, reference: Statements, file: Statements) -> bool:
    """Say whether a fact is of a record that only one side has."""
    words = subject.what.split(" ")
    records = (subject._replace(what=" ".join(words[:count])) for count in range(1, len(words)))
    return any((reference.get(record) == THERE) is not (file.get(record) == THERE) for record in records)


def _folded(labels: Iterable[str]) -> str:
    """Return labels in short: ``GPU0-3``, ``NUMA 0,2``; others one after the other."""
    known = list(dict.fromkeys(labels))
    stems = {label.rstrip("0123456789") for label in known}
    numbers = [label[len(label.rstrip("0123456789")) :] for label in known]
    if len(stems) == 1 and len(known) > 1 and all(number and len(number) < 6 for number in numbers):
        return f"{stems.pop()}{format_kernel_list({int(number) for number in numbers})}"
    return ", ".join(known)


_LEFT_OUT = {
    # They are of a moment.
    *("memory_available_bytes", "memory_free_bytes", "memory_used_bytes", "free", "shm_free_bytes"),
    *("uptime_s", "pid", "processes", "namespaces"),
    *("sm_clock_mhz", "memory_clock_mhz", "performance_state", "power_state", "throttle_reasons", "temperature_c"),
    # They save power while they are idle: PCIe links and NVLinks.
    *("speed_gt_s", "link_state", "effective_ber", "symbol_ber", "fec_history"),
    # They tell a node, a part, a boot or a job from its equals.
    *("bus_id", "index", "ordinal", "major", "minor", "majors", "id", "remote_bus_id", "source", "target"),
    *("uuid", "serial", "slot", "tray", "host_id", "cluster_uuid", "chassis_serial", "node_guid"),
    *("hostname", "interfaces", "cgroups", "device_programs"),
}
"""Facts that no two results have in common."""

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
"""Lists of things of their own, and what kind of thing each holds."""

_NAMES = ("bus_id", "id", "link", "number", "path", "page_size_bytes", "name", "nic", "version")
"""What tells the records of a list apart: the first that they have."""

_UNREAD = "not read"

_LESS_IS_WORSE = frozenset({"nvlink_count", "width", "rate_gbit_s"})
_MORE_IS_WORSE = re.compile(
    r".*errors|replays.*|(failed_)?recoveries|ecc_uncorrected_volatile|remapped_rows_(un)?correctable"
)
_GOOD = {
    **dict.fromkeys((PRESENT, "active", "c2c_enabled", "can_access_peer", "responds"), "yes"),
    **dict.fromkeys(("read", "write", "nvlink", "atomics"), "OK"),
    **dict.fromkeys(("remapped_rows_pending", "remapped_rows_failure"), "no"),
    "access": "ok",
    "state": "ACTIVE",
    "recovery_action": "none",
}
"""Facts of which one word is the good one."""


def sections_of(machines: Sequence[Machine]) -> tuple[str, ...]:
    """Return the sections that all of several machines have; probes are no facts but trials."""
    every = [name for name in SECTION_VERSIONS if name != "probes"]
    return tuple(name for name in every if all(getattr(machine, name) is not None for machine in machines))


def statements(machine: Machine, sections: Sequence[str], names: GpuNames, file: int) -> Statements:
    """Return what there is to say of some sections of a machine."""
    facts: dict[Subject, str] = {}

    def state(thing: Subject, words: Sequence[str], text: str) -> None:
        facts[thing._replace(what=" ".join(words))] = text

    def walk(value: Any, thing: Subject, words: tuple[str, ...], key: str) -> None:
        """State each fact below a value, which has this key in what the words lead to."""
        whole = (*words, key)
        if isinstance(value, dict):
            state(thing, whole, THERE)
            walk_record(value, thing, whole)
        elif isinstance(value, list) and (key in _THINGS or (value and isinstance(value[0], dict))):
            if key in _THINGS:
                # Also where there is none: read is another thing than not read.
                state(thing, whole, THERE)
            for record in value:
                if key == "pairs":
                    pair = ">".join(names.name(file, record[end]) for end in ("source", "target"))
                    walk_record(record, Subject("pair", pair, ""), ())
                elif key in _THINGS:
                    below = Subject(_THINGS[key], names.name(file, _name_of(record)), "")
                    state(below, (PRESENT,), "yes")
                    walk_record(record, below, (), _named_by(record))
                else:
                    walk_record(record, thing, (*words, f"{key} {_name_of(record)}"), _named_by(record))
        elif value not in (None, []):
            state(thing, whole, fact_text(value, key))

    def walk_record(record: Mapping[str, Any], thing: Subject, words: tuple[str, ...], name: str = "") -> None:
        """State the facts of a record; ``name`` is the key that tells it from others."""
        for key, value in record.items():
            if key not in _LEFT_OUT and key not in ("unread", name):
                walk(value, thing, words, key)
        for key, unread in record.get("unread", {}).items():
            parts = key.split(".")
            if unread["reason"] != "not-asked" and _LEFT_OUT.isdisjoint(parts):
                state(thing, (*words, *parts), f"{_UNREAD} ({unread['reason']})")

    for section in sections:
        walk(to_json(getattr(machine, section)), Subject("", "", ""), (), section)
    return facts


def outcome_of(subject: Subject, before: str, after: str) -> Outcome:
    """Say what it means that a fact is another one."""
    fact = subject.what.rpartition(" ")[2]
    if subject.kind in ("device node", "mount", "bridge") or any(text.startswith(_UNREAD) for text in (before, after)):
        return Outcome.DIFFERENT
    if fact in _GOOD and _GOOD[fact] in (before, after):
        return Outcome.BETTER if after == _GOOD[fact] else Outcome.WORSE
    more_is_worse = _MORE_IS_WORSE.fullmatch(fact) is not None
    if more_is_worse or fact in _LESS_IS_WORSE:
        with contextlib.suppress(ValueError):
            return Outcome.WORSE if (float(after) > float(before)) is more_is_worse else Outcome.BETTER
    return Outcome.DIFFERENT


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
"""Numbers that nobody writes in decimal."""


def fact_text(value: Any, key: str) -> str:
    """Return the value of a fact, or of a setting, in words."""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if value is None:
        return "not set"
    if isinstance(value, int) and key.endswith("_bytes"):
        return format_size(value)
    if isinstance(value, list):
        return ", ".join(map(str, value))
    return _NUMBERS.get(key, "{}").format(value) or "empty"
