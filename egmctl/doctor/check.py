"""The framework for checks: the scope of a run, and the functions that turn what a rule yields into findings."""

from __future__ import annotations

import functools
import os
import re
from collections.abc import Callable, Hashable, Iterable, Iterator
from dataclasses import replace
from typing import Any, NoReturn, TypeVar

from egmctl.dataclass import dataclass
from egmctl.doctor.findings import PlaceOrGpus, placed, skipped, unknown
from egmctl.errors import UsageError
from egmctl.facts import replay
from egmctl.model.finding import NODE, Evidence, Finding, Guard, Place, PlaceKind, Status, on_gpus, on_nics, on_numa
from egmctl.model.gpu import Gpu
from egmctl.model.machine import Machine
from egmctl.model.record import Unread
from egmctl.units import printable

T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class Expectation:
    """The counts and the domain that ``--expect`` states for the node; ``None`` for what it does not state."""

    gpus: int | None = None
    nics: int | None = None
    numa_nodes: int | None = None
    """The number of NUMA nodes with CPUs."""
    domain: bool = False
    """Whether the GPUs must be in a multi-node NVLink domain."""
    clique: tuple[str, int] | None = None
    """The cluster UUID and the clique in which they must be; ``None``: any."""
    egm: bool = False
    """Whether EGM must be on."""
    domain_gpus: int | None = None
    """The number of GPUs that the domain must have on all nodes together."""
    reference: Machine | None = None
    """The recorded machine that the counts come from. Devices of it that this machine lacks are reported as missing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Scope:
    """The GPUs, NUMA nodes and purposes to report on."""

    gpus: tuple[str, ...] | None = None
    """The bus ids of ``--gpus``; ``None``: all GPUs."""
    numa: tuple[int, ...] | None = None
    """The ids of CPU NUMA nodes of ``--numa``; ``None``: all."""
    purposes: tuple[Guard, ...] | None = None
    """The purposes of ``--for``; ``None``: none was named. No check reads them (:mod:`egmctl.doctor.purposes`)."""
    whole_node: bool = False
    """Whether all purposes are asked about, and those that are named have to work."""
    expectation: Expectation = Expectation()
    since_s: float | None = None
    """The maximum age of kernel log events, in seconds; ``None``: all since boot."""

    def gpus_of(self, machine: Machine) -> tuple[Gpu, ...]:
        """Return the machine's GPUs in this scope, in the order of their indices."""
        return tuple(gpu for gpu in machine.gpus or () if self.gpus is None or gpu.bus_id in self.gpus)

    def numa_of(self, machine: Machine) -> tuple[int, ...]:
        """Return the ids of the machine's CPU NUMA nodes in this scope, ascending."""
        return tuple(node for node in machine.cpu_nodes if self.numa is None or node in self.numa)

    def names_gpu(self, gpu: Gpu) -> bool:
        """Return whether the user named this GPU with ``--gpus``, so that its loss is a fault."""
        return self.gpus is not None and gpu.bus_id in self.gpus


EVERYTHING = Scope()
"""The scope of a run without selection options."""


Judge = Callable[[Machine, Scope], Iterable[Finding]]
Verdicts = Iterator[Finding | Evidence]
"""The items that a rule yields: evidence, and the findings that follow from it."""
CheckRule = Callable[[Machine, Scope], Iterable[Finding | Evidence]]


@dataclass(frozen=True, slots=True)
class Check:
    """A check: a pure function of a machine, and the sections it needs. Its texts are in the TOML file of its area."""

    id: str
    """The stable id, ``area.what``, for scripts and tickets."""
    judge: Judge
    """The function that returns the findings, at least one; a ``skip`` with the reason if the check does not apply."""
    guards: tuple[Guard, ...]
    """The purposes at risk if the check does not pass; ``--for`` selects checks by them."""
    sections: tuple[str, ...]
    """The sections of the machine that the check requires. If one is missing, the runner does not run it.
    (Single values in them may still be ``None``, and recorded machines can contain anything that their types allow.)"""
    wants: tuple[str, ...] = ()
    """The optional sections that the check reads. It handles their absence itself."""


def check(
    check_id: str, *guards: Guard, sections: tuple[str, ...] = ("gpus",), wants: tuple[str, ...] = ()
) -> Callable[[CheckRule], Check]:
    """Return a decorator that turns a rule, a generator of evidence and findings, into a check.

    A finding gets the evidence that the rule yielded before it. Findings that differ only in their GPUs, NUMA nodes
    or NICs are merged, so a rule may judge each alone (:func:`findings_on`). :func:`skip` and :func:`known` end it.
    """

    def decorate(rule: CheckRule) -> Check:
        @functools.wraps(rule)
        def judge(machine: Machine, scope: Scope) -> tuple[Finding, ...]:
            return _merged(machine, findings_on(NODE, rule(machine, scope)))

        return Check(check_id, judge, guards=guards, sections=sections, wants=wants)

    return decorate


class _Ended(Exception):
    """The end of a rule, with its last finding."""

    def __init__(self, finding: Finding) -> None:
        self.finding = finding


def end(finding: Finding) -> NoReturn:
    """End the check with a last finding."""
    raise _Ended(finding)


def skip(reason: str) -> NoReturn:
    """End the check with a ``skip``: it does not apply to this machine."""
    end(skipped(reason))


def known(value: T | None, sentence: str, unread: Unread | None = None) -> T:
    """Return a value; if it is ``None``, end the check as ``unknown`` with this sentence and the reason."""
    if value is None:
        end(unknown(f"{sentence} ({unread.detail or unread.reason.value})" if unread else sentence))
    return value


def findings_on(target: PlaceOrGpus, verdicts: Iterable[Finding | Evidence]) -> Iterator[Finding]:
    """Yield a rule's findings with the evidence yielded before them, and with this place if they name none."""
    place = placed(target)
    evidence: tuple[Evidence, ...] = ()
    try:
        for item in verdicts:
            if isinstance(item, Evidence):
                evidence += (item,)
            else:
                item_place = place if item.place == NODE else item.place
                is_complete = item_place == item.place and not evidence
                yield item if is_complete else replace(item, place=item_place, evidence=evidence + item.evidence)
    except _Ended as ended:
        yield replace(ended.finding, place=place, evidence=evidence + ended.finding.evidence)


def _merged(machine: Machine, findings: Iterable[Finding]) -> tuple[Finding, ...]:
    """Merge findings with the same verdict on GPUs, NUMA nodes or NICs, and their evidence; most severe first."""
    groups: dict[Hashable, list[Finding]] = {}
    for finding in findings:
        place = finding.place
        joins = place.kind is not PlaceKind.PAIR and place.label
        verdict = (finding.status, finding.summary, finding.cause, finding.remedy, finding.confidence, finding.note)
        groups.setdefault((place.kind if joins else place, *verdict, finding.blocks), []).append(finding)
    merged = [_joined(machine, group) if len(group) > 1 else group[0] for group in groups.values()]
    return tuple(sorted(merged, key=lambda finding: _SEVERITIES.index(finding.status)))


_SEVERITIES = tuple(Status)


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


_UUID = r"[0-9a-fA-F]{8}(?:-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}"
_COUNTS = {"gpus": "gpus", "nics": "nics", "numa": "numa_nodes", "domain-gpus": "domain_gpus"}
"""The counts that ``--expect`` can state, and their fields of :class:`Expectation`."""
_COUNT = rf"({'|'.join(_COUNTS)})\s*=\s*([0-9]{{1,5}})"
_PART = re.compile(rf"\s*(?:{_COUNT}|egm|domain(?:\s*=\s*({_UUID})/([0-9]{{1,10}}))?)\s*", re.ASCII)
_VALID = "valid are gpus=8,nics=4,numa=2,egm,domain,domain=UUID/CLIQUE,domain-gpus=72, one of them, or a machine"
_WORDS = ("egm", "domain")
"""The words that ``--expect`` takes without a value."""


def expectation(text: str) -> Expectation:
    """Return what ``gpus=8,nics=4,numa=2,domain`` states, or the counts of a recorded or shipped machine.

    Raises
    ------
    UsageError
        The text is neither.
    """
    parts = text.split(",")
    words = {part.strip() for part in parts}
    if text.endswith(".json") or not ("=" in text or words.intersection(_WORDS)):
        if not os.path.exists(text) and text.strip().lower() in ("gpu", "nic", *_COUNTS):
            raise UsageError(f"--expect {text} does not say how many; {_VALID}")
        return _recorded_counts(text)
    values: dict[str, Any] = {}
    for part in parts:
        match = _PART.fullmatch(part)
        if match is None:
            raise UsageError(f"--expect {printable(part[:60])!r} is no count, not egm and no domain; {_VALID}")
        values |= {_COUNTS[match[1]]: int(match[2])} if match[1] else {}
        values |= {"clique": (match[3].lower(), int(match[4]))} if match[3] else {}
    return Expectation(domain="domain" in text, egm="egm" in words, **values)


def expected_domain_gpus(text: str | None) -> int | None:
    """Return the number of GPUs that ``--expect`` states for the NVLink domain, without reading a machine it names.

    Raises
    ------
    UsageError
        As for :func:`expectation`.
    """
    return expectation(text).domain_gpus if text and "domain-gpus" in text else None


def _recorded_counts(name: str) -> Expectation:
    try:
        machine = replay.load_machine(name)
    except UsageError as error:
        no_count = "" if os.path.exists(name) else "no count such as gpus=8,nics=4,numa=2, and "
        raise UsageError(f"--expect: {no_count}{error}") from error
    nodes = machine.host.numa_nodes if machine.host else None
    return Expectation(
        gpus=None if machine.gpus is None else len(machine.gpus),
        nics=None if machine.nics is None else len(machine.nics),
        numa_nodes=None if nodes is None else len(machine.cpu_nodes),
        reference=machine,
    )
