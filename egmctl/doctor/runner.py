"""Runs checks over a machine. It reads nothing: the same machine and scope always give the same findings."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from egmctl.doctor.check import Check, skipped, unknown
from egmctl.doctor.scope import Scope
from egmctl.errors import ExitCode
from egmctl.facts.redact import known_words
from egmctl.model.finding import Finding, Status
from egmctl.model.machine import Machine, Reason


@dataclass(frozen=True, slots=True, kw_only=True)
class Diagnosis:
    """What the checks say of a machine."""

    machine: Machine
    scope: Scope
    findings: tuple[Finding, ...]
    """In the order of the checks."""
    strict: bool = False
    """Whether a warning is a failure."""

    @property
    def verdicts(self) -> Mapping[str, Status]:
        """The status of each check: that of its gravest finding."""
        gravity = list(Status)
        verdicts: dict[str, Status] = {}
        for finding in self.findings:
            verdicts[finding.check] = min(verdicts.get(finding.check, Status.SKIP), finding.status, key=gravity.index)
        return verdicts

    @property
    def counts(self) -> Mapping[Status, int]:
        """The number of checks with each status."""
        statuses = list(self.verdicts.values())
        return {status: statuses.count(status) for status in Status}

    @property
    def failures(self) -> tuple[str, ...]:
        """The ids of the checks that found a fault."""
        faults = (Status.FAIL, Status.WARN) if self.strict else (Status.FAIL,)
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
        if not self.counts[Status.PASS] + self.counts[Status.WARN]:
            return "None of the checks could tell anything here."
        return None

    @property
    def exit_code(self) -> ExitCode:
        """The command's exit code (``docs/exit-codes.md``)."""
        if self.failed:
            return ExitCode.FAILED
        return ExitCode.OK if self.nothing is None else ExitCode.NOTHING

    @property
    def nagios_state(self) -> int:
        """0 OK, 1 WARNING, 2 CRITICAL, 3 UNKNOWN (https://nagios-plugins.org/doc/guidelines.html#AEN78)."""
        if self.failed:
            return 2
        if self.nothing is not None:
            return 3
        return 1 if self.counts[Status.WARN] else 0


def diagnose(machine: Machine, scope: Scope, checks: Sequence[Check], *, strict: bool = False) -> Diagnosis:
    """Run checks, in their order; every check has at least one finding.

    Parameters
    ----------
    strict
        Whether a warning is a failure.
    """
    machine = _without_secrets(machine)
    findings = tuple(
        replace(finding, check=check.id, guards=check.guards, docs=f"docs/doctor.md#{anchor(check.id)}")
        for check in checks
        for finding in _findings(check, machine, scope)
    )
    return Diagnosis(machine=machine, scope=scope, findings=findings, strict=strict)


def anchor(check_id: str) -> str:
    """Return the anchor of a check's heading as GitHub makes it: ``numa.cpuset-mems`` is ``numacpuset-mems``."""
    return check_id.replace(".", "")


def _findings(check: Check, machine: Machine, scope: Scope) -> Iterable[Finding]:
    for section in check.sections:
        if getattr(machine, section) is None:
            return (_without(machine, section),)
    try:
        return tuple(check.judge(machine, scope)) or (unknown("the check found nothing to say"),)
    except Exception as error:
        # A recorded machine can hold what no real one does: that must not cost the other checks.
        return (unknown(f"the check itself failed ({type(error).__name__}); please report it"),)


def _without_secrets(machine: Machine) -> Machine:
    """Return the machine with what is well known of the environment: no check can tell what it does not get."""
    if machine.process is None or machine.process.environment is None or machine.origin.redacted:
        return machine
    environment = {name: known_words(value) for name, value in machine.process.environment.items()}
    return replace(machine, process=replace(machine.process, environment=environment))


def _without(machine: Machine, section: str) -> Finding:
    status = machine.sections.get(section)
    if status is None:
        return unknown(f"this machine was recorded without the section {section}")
    if status.unread is not None and status.unread.reason is not Reason.NOT_ASKED:
        return unknown(f"the section {section} could not be read ({status.unread.reason.value})")
    return skipped(f"the section {section} was not asked for")
