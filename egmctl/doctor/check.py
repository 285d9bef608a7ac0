"""What a check is, and what it is asked about: purposes, GPUs, NUMA nodes and expectations."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from egmctl.errors import UsageError
from egmctl.facts import replay
from egmctl.model.finding import Finding, Guard, Remedy, Status
from egmctl.model.machine import Gpu, GpuNvml, Machine, NumaKind, Reason, Record
from egmctl.units import printable


@dataclass(frozen=True, slots=True, kw_only=True)
class Expectation:
    """What ``--expect`` says the node has; ``None``: it does not say."""

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
"""What is checked where the user named nothing."""


Judge = Callable[[Machine, Scope], Iterable[Finding]]
Need = Callable[[Machine, Scope], Finding | None]
"""Returns the finding of a check that does not concern this machine, or that has nothing to judge."""


@dataclass(frozen=True, slots=True)
class Check:
    """A pure function of a machine, and what it needs; its texts are in the TOML file of its area."""

    id: str
    """Stable, ``area.what``: scripts and tickets name it."""
    judge: Judge
    """Yields at least one finding; a check that does not concern this machine yields a ``skip`` with why."""
    guards: tuple[Guard, ...]
    """What is at risk where it does not pass; ``--for`` chooses by them."""
    sections: tuple[str, ...]
    """Sections of the machine without which the check cannot say anything: the runner answers for it then.
    (Single values in them may still be ``None``, and recorded machines hold anything that their types allow.)"""
    wants: tuple[str, ...] = ()
    """Sections that the check reads too, and can do without: what it says then is its own."""


def needing(*needs: Need) -> Callable[[Judge], Judge]:
    """Give a check's function its conditions: the first that is not met answers in its place."""

    def decorate(judge: Judge) -> Judge:
        def check(machine: Machine, scope: Scope) -> Iterable[Finding]:
            unmet = next((finding for need in needs if (finding := need(machine, scope)) is not None), None)
            return judge(machine, scope) if unmet is None else (unmet,)

        return check

    return decorate


def passed(summary: str, **more: Any) -> Finding:
    """It is as it should be."""
    return Finding(status=Status.PASS, summary=summary, **more)


def warned(summary: str, remedy: Remedy, **more: Any) -> Finding:
    """It works, with harm that was measured or is documented."""
    return Finding(status=Status.WARN, summary=summary, remedy=remedy, **more)


def noted(summary: str, **more: Any) -> Finding:
    """It is as somebody set it up, and something does not work because of that."""
    return Finding(status=Status.NOTE, summary=summary, **more)


def failed(summary: str, remedy: Remedy, **more: Any) -> Finding:
    """It does not work."""
    return Finding(status=Status.FAIL, summary=summary, remedy=remedy, **more)


def skipped(why: str, **more: Any) -> Finding:
    """It does not concern this machine."""
    return Finding(status=Status.SKIP, summary=why, **more)


def unknown(why: str, **more: Any) -> Finding:
    """It concerns this machine and is unknown."""
    return Finding(status=Status.UNKNOWN, summary=why, **more)


def gap(record: Record | None, *names: str, newer: bool = False) -> str:
    """Return why the first of these fields was not read; empty where all were, or there is no such thing to read.

    Parameters
    ----------
    newer
        Fields that recordings of before them do not state: there nobody could look at them.
    """
    nothing = {Reason.NOT_SUPPORTED, Reason.DRIVER_TOO_OLD} | ({Reason.NOT_STATED} if newer else set())
    for name in names:
        if record is None:
            return "not read"
        if getattr(record, name) is None:
            why = record.unread.get(name)
            if why is None:
                return "" if newer else "not read"
            if why.reason not in nothing:
                return why.detail or why.reason.value
    return ""


def unreported(nvml: GpuNvml, name: str, label: str, not_supported: str) -> Finding:
    """Return a finding on a field that NVML did not report: a skip where the GPU does not have it, else ``unknown``.

    Parameters
    ----------
    label, not_supported
        The name of the field for people, and the sentence where the GPU does not have it.
    """
    why = nvml.unread.get(name)
    if why is not None and why.reason is Reason.NOT_SUPPORTED:
        return skipped(not_supported)
    return unknown(f"{label}: NVML did not report it" + (f" ({why.reason.value})" if why else ""))


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
