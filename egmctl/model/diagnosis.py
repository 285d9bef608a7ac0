"""What ``egmctl doctor`` found on a node: the record that it shows, saves and loads again."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import ClassVar

from egmctl.errors import ExitCode
from egmctl.model.finding import Finding, Guard, Status
from egmctl.model.machine import BusId, Machine


@dataclass(frozen=True, slots=True, kw_only=True)
class Diagnosis:
    """What the checks say of a machine: the key ``result`` of the document."""

    SCHEMA: ClassVar[str] = "egmctl.doctor/1"

    platform: str
    """The platform in one line."""
    gpus_asked: tuple[BusId, ...] | None
    """GPUs that were named with ``--gpus``; null: none were, all count."""
    numa_asked: tuple[int, ...] | None
    """NUMA nodes that were named with ``--numa``."""
    purposes: tuple[Guard, ...]
    """What the findings are about: the words of ``--for``."""
    counts: Mapping[str, int] = field(init=False)
    """Number of checks by status: that of a check's gravest finding; ``explained`` are those whose faults another
    check's finding explains."""
    findings: tuple[Finding, ...]
    """In the order of the checks."""
    strict: bool = False
    """Whether a warning or a note is a failure."""
    machines: tuple[Machine, ...] = ()
    """The node that was checked, with pseudonyms for what is private."""

    def __post_init__(self) -> None:
        statuses = list(self.verdicts.values())
        counts = {status.value: statuses.count(status) for status in Status}
        if explained := len({finding.check for finding in self.findings}) - len(statuses):
            counts["explained"] = explained
        object.__setattr__(self, "counts", counts)

    @property
    def machine(self) -> Machine:
        """The node that was checked.

        Raises
        ------
        IndexError
            If the document is of a version that kept none.
        """
        return self.machines[0]

    @property
    def verdicts(self) -> Mapping[str, Status]:
        """The status of each check: that of its gravest finding."""
        return verdicts(self.findings)

    @property
    def failures(self) -> tuple[str, ...]:
        """The ids of the checks that found a fault."""
        faults = (Status.FAIL, Status.WARN, Status.NOTE) if self.strict else (Status.FAIL,)
        return tuple(check for check, status in self.verdicts.items() if status in faults)

    @property
    def failed(self) -> bool:
        """Whether there is a fault."""
        return bool(self.failures)

    @property
    def nothing(self) -> str | None:
        """Why nothing could be determined, as a sentence; ``None`` where something was."""
        if self.failed:
            return None
        if not self.machine.gpus:
            return "There is no NVIDIA GPU on this machine."
        if not any(self.counts.get(status) for status in (Status.PASS, Status.NOTE, Status.WARN)):
            return "No check could determine anything here."
        return None

    @property
    def undetermined(self) -> bool:
        """Whether too little is known for "no fault" to mean "healthy": nothing, or less than what could not be read.

        A warning does not outweigh what is unknown, and a failure stands whatever else is.
        """
        if self.failed:
            return False
        return self.nothing is not None or self.mostly_unknown

    @property
    def mostly_unknown(self) -> bool:
        """Whether as many checks could not tell anything as passed."""
        unknown = self.counts.get(Status.UNKNOWN, 0)
        return unknown > 0 and unknown >= self.counts.get(Status.PASS, 0)

    @property
    def exit_code(self) -> ExitCode:
        """The command's exit code (``docs/exit-codes.md``)."""
        if self.failed:
            return ExitCode.FAILED
        return ExitCode.NOTHING if self.undetermined else ExitCode.OK

    @property
    def nagios_state(self) -> int:
        """0 OK, 1 WARNING, 2 CRITICAL, 3 UNKNOWN (https://nagios-plugins.org/doc/guidelines.html#AEN78)."""
        if self.failed:
            return 2
        if self.undetermined:
            return 3
        return 1 if self.counts[Status.WARN] else 0


def verdicts(findings: Iterable[Finding]) -> Mapping[str, Status]:
    """Return the status of each check: that of its gravest finding, without those that another check explains."""
    gravity = list(Status)
    worst: dict[str, Status] = {}
    for finding in findings:
        if finding.explained_by:
            continue
        worst[finding.check] = min(worst.get(finding.check, Status.SKIP), finding.status, key=gravity.index)
    return worst
