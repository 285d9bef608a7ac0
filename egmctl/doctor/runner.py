"""Runs checks over a machine. It reads nothing: the same machine and scope always give the same findings."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

from egmctl.doctor.check import Check, skipped, unknown
from egmctl.doctor.scope import Scope
from egmctl.model.finding import Finding
from egmctl.model.machine import Machine, Reason


def judge(machine: Machine, scope: Scope, checks: Sequence[Check]) -> tuple[Finding, ...]:
    """Return what the checks find, in their order; every check has at least one finding."""
    return tuple(
        replace(finding, check=check.id, guards=check.guards, docs=f"docs/doctor.md#{anchor(check.id)}")
        for check in checks
        for finding in _findings(check, machine, scope)
    )


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
        return (unknown(f"the check itself failed: {type(error).__name__}; please report it"),)


def _without(machine: Machine, section: str) -> Finding:
    status = machine.sections.get(section)
    if status is None:
        return unknown(f"this machine was recorded without the section {section}")
    if status.unread is not None and status.unread.reason is not Reason.NOT_ASKED:
        return unknown(f"the section {section} could not be read: {status.unread.reason.value}")
    return skipped(f"the section {section} was not asked for")
