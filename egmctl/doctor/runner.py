"""Runs checks over a machine. It reads nothing: the same machine and scope always give the same findings."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

from egmctl.doctor.causes import explained
from egmctl.doctor.check import Check, skipped, unknown
from egmctl.doctor.scope import Scope
from egmctl.facts.redact import known_words
from egmctl.model.diagnosis import Diagnosis, counts
from egmctl.model.finding import Finding, Guard
from egmctl.model.machine import Machine, Reason
from egmctl.topology.platform import platform


def diagnose(machine: Machine, scope: Scope, checks: Sequence[Check], *, strict: bool = False) -> Diagnosis:
    """Run checks, in their order; every check has at least one finding.

    Parameters
    ----------
    strict
        Whether a warning or a note is a failure.
    """
    machine = _without_secrets(machine)
    findings = explained(
        machine,
        tuple(
            replace(finding, check=check.id, guards=check.guards, docs=f"docs/doctor.md#{anchor(check.id)}")
            for check in checks
            for finding in _findings(check, machine, scope)
        ),
    )
    return Diagnosis(
        platform=platform(machine).line,
        gpus_asked=scope.gpus,
        numa_asked=scope.numa,
        purposes=scope.purposes or tuple(Guard),
        counts=counts(findings),
        findings=findings,
        strict=strict,
        machines=(machine,),
    )


def anchor(check_id: str) -> str:
    """Return the anchor of a check's heading as GitHub makes it: ``numa.cpuset-mems`` is ``numacpuset-mems``."""
    return check_id.replace(".", "")


def _findings(check: Check, machine: Machine, scope: Scope) -> Iterable[Finding]:
    for section in check.sections:
        if getattr(machine, section) is None:
            return (_without(machine, section),)
    try:
        return tuple(check.judge(machine, scope)) or (unknown("the check reported nothing"),)
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
    return skipped(f"the section {section} was not requested")
