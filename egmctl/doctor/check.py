"""Checks: rules over a machine and a scope, and the frame that makes findings of what a rule yields."""

from __future__ import annotations

import functools
import os
import re
from collections.abc import Callable, Hashable, Iterable, Iterator
from dataclasses import dataclass, replace
from typing import NoReturn, TypeVar

from egmctl.doctor.findings import Where, placed, skipped, unknown
from egmctl.errors import UsageError
from egmctl.facts import replay
from egmctl.model.finding import (
    NODE,
    Evidence,
    Finding,
    Guard,
    Place,
    PlaceKind,
    Status,
    on_gpus,
    on_nics,
    on_numa,
)
from egmctl.model.gpu import Gpu
from egmctl.model.host import NumaKind
from egmctl.model.machine import Machine
from egmctl.model.record import Unread
from egmctl.units import printable

T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class Expectation:
    """The counts that ``--expect`` states for the node; ``None`` where it states none."""

    gpus: int | None = None
    nics: int | None = None
    numa_nodes: int | None = None
    """CPU NUMA nodes."""
    reference: Machine | None = None
    """The recorded machine that the counts were taken from: what it has and this one has not is missing here."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Scope:
    """GPUs, NUMA nodes and purposes that the findings are about."""

    gpus: tuple[str, ...] | None = None
    """Bus ids that the user named; ``None``: the user named none, and all count."""
    numa: tuple[int, ...] | None = None
    """Ids of CPU NUMA nodes that the user named; ``None`` as above."""
    purposes: tuple[Guard, ...] | None = None
    """The words of ``--for``; ``None`` as above."""
    expectation: Expectation | None = None
    since_s: float | None = None
    """Events of the kernel's log that are older than so many seconds do not count; ``None``: all since boot."""

    def gpus_of(self, machine: Machine) -> tuple[Gpu, ...]:
        """Return the machine's GPUs in this scope, in the order of their indices."""
        return tuple(gpu for gpu in machine.gpus or () if self.gpus is None or gpu.bus_id in self.gpus)

    def numa_of(self, machine: Machine) -> tuple[int, ...]:
        """Return the ids of the machine's CPU NUMA nodes in this scope, ascending."""
        nodes = (machine.host.numa_nodes if machine.host else None) or ()
        cpu = (node.id for node in nodes if node.kind in (NumaKind.CPU, NumaKind.CPU_ONLY))
        return tuple(node for node in cpu if self.numa is None or node in self.numa)

    def asked_for(self, gpu: Gpu) -> bool:
        """Say whether the user named this GPU: that it cannot be used is a fault then."""
        return self.gpus is not None and gpu.bus_id in self.gpus

    def asked_purpose(self, guard: Guard) -> bool:
        """Say whether the user named this purpose with ``--for``."""
        return self.purposes is not None and guard in self.purposes


EVERYTHING = Scope()
"""The scope of a user who named nothing."""


Judge = Callable[[Machine, Scope], Iterable[Finding]]
Verdicts = Iterator[Finding | Evidence]
"""The items that a rule yields: evidence, and the findings that follow from it."""
Rule = Callable[[Machine, Scope], Iterable[Finding | Evidence]]


@dataclass(frozen=True, slots=True)
class Check:
    """A pure function of a machine, and what it needs; its texts are in the TOML file of its area."""

    id: str
    """Stable, ``area.what``: scripts and tickets name it."""
    judge: Judge
    """Returns at least one finding; a check that does not concern this machine returns a ``skip`` with the reason."""
    guards: tuple[Guard, ...]
    """The uses at risk where it does not pass; ``--for`` chooses by them."""
    sections: tuple[str, ...]
    """Sections of the machine without which the check cannot say anything: the runner answers for it then.
    (Single values in them may still be ``None``, and recorded machines hold anything that their types allow.)"""
    wants: tuple[str, ...] = ()
    """Sections that the check reads too, and can do without: what it says then is its own."""


def check(
    check_id: str, *guards: Guard, sections: tuple[str, ...] = ("gpus",), wants: tuple[str, ...] = ()
) -> Callable[[Rule], Check]:
    """Make a check of a rule, a generator of evidence and findings.

    A finding gets the evidence that the rule has yielded before it. Findings that differ only in their GPUs, NUMA nodes
    or NICs become one: a rule judges each of them by itself (:func:`about`). :func:`skip` and :func:`known` end it.
    """

    def decorate(rule: Rule) -> Check:
        @functools.wraps(rule)
        def judge(machine: Machine, scope: Scope) -> tuple[Finding, ...]:
            return _merged(machine, about(NODE, rule(machine, scope)))

        return Check(check_id, judge, guards=guards, sections=sections, wants=wants)

    return decorate


class _Ended(Exception):
    """A rule has nothing more to judge."""

    def __init__(self, finding: Finding) -> None:
        self.finding = finding


def end(finding: Finding) -> NoReturn:
    """End the check with a last finding."""
    raise _Ended(finding)


def skip(reason: str) -> NoReturn:
    """End the check: it does not concern this machine."""
    end(skipped(reason))


def known(value: T | None, sentence: str, unread: Unread | None = None) -> T:
    """Return a value; end the check as ``unknown``, with this sentence and the reason, where it was not read."""
    if value is None:
        end(unknown(f"{sentence} ({unread.detail or unread.reason.value})" if unread else sentence))
    return value


def about(where: Where, verdicts: Iterable[Finding | Evidence]) -> Iterator[Finding]:
    """Place what a rule for one thing yields: its findings get the place, and the evidence yielded before them."""
    place = placed(where)
    evidence: tuple[Evidence, ...] = ()
    try:
        for item in verdicts:
            if isinstance(item, Evidence):
                evidence += (item,)
            else:
                item_place = place if item.place == NODE else item.place
                yield replace(item, place=item_place, evidence=evidence + item.evidence)
    except _Ended as ended:
        yield replace(ended.finding, place=place, evidence=evidence + ended.finding.evidence)


def _merged(machine: Machine, findings: Iterable[Finding]) -> tuple[Finding, ...]:
    """Join findings with the same verdict on GPUs, NUMA nodes or NICs, with the evidence of all; the gravest first."""
    groups: dict[Hashable, list[Finding]] = {}
    for finding in findings:
        place = finding.place
        joins = place.kind is not PlaceKind.PAIR and place.label
        verdict = (finding.status, finding.summary, finding.cause, finding.remedy, finding.confidence, finding.note)
        groups.setdefault((place.kind if joins else place, *verdict), []).append(finding)
    merged = [_joined(machine, group) if len(group) > 1 else group[0] for group in groups.values()]
    return tuple(sorted(merged, key=lambda finding: list(Status).index(finding.status)))


def _joined(machine: Machine, group: list[Finding]) -> Finding:
    evidence = dict.fromkeys(evidence for finding in group for evidence in finding.evidence)
    place = _union(machine, [finding.place for finding in group])
    return replace(group[0], place=place, evidence=tuple(evidence))


def _union(machine: Machine, places: list[Place]) -> Place:
    ids = dict.fromkeys(place_id for place in places for place_id in place.ids)
    match places[0].kind:
        case PlaceKind.GPU:
            return on_gpus(gpu for gpu in machine.gpus or () if gpu.bus_id in ids)
        case PlaceKind.NUMA:
            return on_numa(map(int, ids))
        case PlaceKind.NIC:
            return on_nics(ids)
        case _:
            return places[0]


_COUNT = re.compile(r"\s*(gpus|nics|numa)\s*=\s*([0-9]{1,5})\s*", re.ASCII)
_VALID = "valid are gpus=8,nics=4,numa=2, one of them, or a machine"


def expectation(text: str) -> Expectation:
    """Return what ``gpus=8,nics=4,numa=2``, or a recorded or shipped machine, says that should be here.

    Raises
    ------
    UsageError
        If it is neither.
    """
    if "=" not in text or text.endswith(".json"):
        if not os.path.exists(text) and text.strip().lower() in ("gpu", "gpus", "nic", "nics", "numa"):
            raise UsageError(f"--expect {text} does not say how many; {_VALID}")
        return _of_machine(text)
    values: dict[str, int] = {}
    for part in text.split(","):
        match = _COUNT.fullmatch(part)
        if match is None:
            raise UsageError(f"--expect {printable(part[:40])!r} is no count; {_VALID}")
        values[match[1]] = int(match[2])
    return Expectation(gpus=values.get("gpus"), nics=values.get("nics"), numa_nodes=values.get("numa"))


def _of_machine(name: str) -> Expectation:
    try:
        machine = replay.load(name)
    except UsageError as error:
        no_count = "" if os.path.exists(name) else "no count such as gpus=8,nics=4,numa=2, and "
        raise UsageError(f"--expect: {no_count}{error}") from error
    nodes = machine.host.numa_nodes if machine.host else None
    return Expectation(
        gpus=None if machine.gpus is None else len(machine.gpus),
        nics=None if machine.nics is None else len(machine.nics),
        numa_nodes=None if nodes is None else sum(n.kind in (NumaKind.CPU, NumaKind.CPU_ONLY) for n in nodes),
        reference=machine,
    )
