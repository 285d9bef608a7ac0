"""What holds for every machine and for what doctor says of it, whatever it was made from: for tests of all packages."""

from __future__ import annotations

import dataclasses
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping
from typing import Any

from egmctl.errors import ExitCode
from egmctl.model.diagnosis import Diagnosis
from egmctl.model.finding import TOLD, Finding, PlaceKind, Status, root_causes
from egmctl.model.machine import SECTION_VERSIONS, Machine
from egmctl.model.record import Record
from egmctl.topology.access import classify, elsewhere
from egmctl.units import several

STATEMENTS = {
    ("Driver", "cuda_error"),
    ("Driver", "cuda_failure"),
    ("Driver", "nvml_error"),
    ("Driver", "nvml_failure"),
    ("GpuPair", "nvlink_through"),
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


def broken_diagnosis(diagnosis: Diagnosis) -> list[str]:
    """Return a sentence for each thing that nobody would expect of what doctor says, and of how it says it."""
    return [
        *(fault for finding in diagnosis.findings for fault in _finding(finding, diagnosis)),
        *_told_once(diagnosis),
        *_contradictions(diagnosis),
        *_answer(diagnosis),
    ]


def _finding(finding: Finding, diagnosis: Diagnosis) -> Iterator[str]:
    who = f"{finding.check} of {finding.place.label or 'the node'}"
    if finding.status in (Status.FAIL, Status.WARN) and finding.remedy is None:
        yield f"{who} is a {finding.status} without a remedy"
    if finding.place.kind in (PlaceKind.GPU, PlaceKind.PAIR):
        if not finding.place.ids:
            yield f"{who} is about no GPU"
        if len({*finding.place.ids}) < len(finding.place.ids):
            yield f"{who} is about a GPU twice"
    for check in finding.explained_by:
        roots = [
            root for root in diagnosis.findings if root.check == check and root.status in TOLD and not root.explained_by
        ]
        if not roots:
            yield f"{who} is explained by {check}, which found no fault"
        if finding.status in TOLD and not any(_as_grave(root, finding) for root in roots):
            yield f"{who} is graver than {check}, which explains it"


def _as_grave(root: Finding, finding: Finding) -> bool:
    return TOLD.index(root.status) <= TOLD.index(finding.status)


def _told_once(diagnosis: Diagnosis) -> Iterator[str]:
    listed = Counter(id(one) for cause in root_causes(diagnosis.findings) for one in (cause.finding, *cause.explains))
    for finding in diagnosis.findings:
        if (finding.status in TOLD or finding.explained_by) and listed[id(finding)] != 1:
            yield f"{finding.check} of {finding.place.label or 'the node'} is told {listed[id(finding)]} times"


def _contradictions(diagnosis: Diagnosis) -> Iterator[str]:
    said: dict[tuple[str, str], set[Status]] = defaultdict(set)
    for finding in diagnosis.findings:
        for bus_id in finding.place.ids if finding.place.kind is PlaceKind.GPU else ():
            said[finding.check, bus_id].add(finding.status)
    for (check, bus_id), statuses in said.items():
        if Status.PASS in statuses and statuses & {Status.FAIL, Status.WARN}:
            yield f"{check} says of {bus_id} that it passes and that it does not"


def _answer(diagnosis: Diagnosis) -> Iterator[str]:
    machine, code = diagnosis.machine, diagnosis.exit_code
    lost = [gpu.bus_id for gpu in machine.gpus or () if classify(machine, gpu) is not None]
    if not elsewhere(machine) and {*lost} & {*(diagnosis.gpus_asked or ())} and code is not ExitCode.FAILED:
        yield f"a GPU that was asked for cannot be used, and the exit code is {code}"
    if lost and len(lost) == len(machine.gpus or ()) and code is ExitCode.OK:
        yield "no GPU can be used, and the exit code is 0"
    answer = diagnosis.answer
    words = answer.sentence.replace(";", ",").split(", ")
    roots = [cause.finding.status for cause in root_causes(diagnosis.findings)]
    found = " and ".join(
        several(number, what)
        for status, what in ((Status.FAIL, "failure"), (Status.WARN, "warning"))
        if (number := roots.count(status))
    )
    # An answer for purposes names what blocks them.
    if found and found not in words and not answer.purposes:
        yield f"{found} are listed, and the answer is: {answer.sentence}"


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
