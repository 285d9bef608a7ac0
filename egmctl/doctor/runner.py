"""The list of all checks in the order in which they run, their selection, and the diagnosis."""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from fnmatch import fnmatchcase
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from egmctl.doctor import checks
from egmctl.doctor.assumed import with_assumed
from egmctl.doctor.causes import explained
from egmctl.doctor.check import Check, Scope
from egmctl.doctor.expected import must_be_known, undecided
from egmctl.doctor.findings import skipped, unknown
from egmctl.doctor.isolation_findings import ISOLATION_CHECKS
from egmctl.doctor.purposes import for_purposes
from egmctl.doctor.remedies import with_fitted_remedy
from egmctl.errors import UsageError
from egmctl.facts.redact import known_words
from egmctl.files import read_toml
from egmctl.model.diagnosis import Diagnosis
from egmctl.model.finding import Finding, Guard, Status
from egmctl.model.machine import Machine
from egmctl.model.record import Reason
from egmctl.topology.platform import platform
from egmctl.units import did_you_mean, printable

if TYPE_CHECKING:
    from egmctl.model.listing import CheckList

_ORDER = (
    *(
        "presence",
        "access",
        "modules",
        "starting",
        "libraries",
        "containers",
        "gpu",
        "memory_limits",
        "siblings",
        "egm",
        "egm_mode",
        "numa",
        "kernel",
        "kernel_log",
    ),
    *("nvlink", "pcie", "fabric", "imex", "ipc", "rdma", "active", "data_direct", "peers"),
)
"""The areas of the checks in the order in which they run; other areas follow."""


def _all_checks() -> Iterator[Check]:
    areas = sorted(area.name for area in pkgutil.iter_modules(checks.__path__))
    for area in sorted(areas, key=lambda name: _ORDER.index(name) if name in _ORDER else len(_ORDER)):
        module = vars(importlib.import_module(f"{checks.__name__}.{area}"))
        yield from module.get("CHECKS", ())
        yield from (value for value in module.values() if isinstance(value, Check))


CHECKS: tuple[Check, ...] = tuple(_all_checks())
DOCUMENTED: tuple[Check, ...] = (*CHECKS, *ISOLATION_CHECKS)
"""All checks, and those that only ``--isolation`` runs."""


def select(
    purposes: Iterable[Guard] | None = None, only: Sequence[str] = (), without: Sequence[str] = ()
) -> tuple[Check, ...]:
    """Return the selected checks, in their order.

    Parameters
    ----------
    purposes
        The purposes of which a check must guard at least one; ``None``: all.
    only, without
        The ids or globs (``numa.*``) of the checks to select (empty: all) and to exclude.

    Raises
    ------
    UsageError
        An id or glob matches no check, or no check is left.
    """
    included = _named("--check", only) if only else set(CHECKS)
    excluded = _named("--skip", without)
    wanted = None if purposes is None else set(purposes)
    selected = tuple(
        check
        for check in CHECKS
        if check in included and check not in excluded and (wanted is None or wanted.intersection(check.guards))
    )
    if not selected:
        raise UsageError("--for, --check and --skip together leave no check; 'egmctl doctor --list' shows all")
    return selected


def find_check(check_id: str) -> Check:
    """Return the check with this id.

    Raises
    ------
    UsageError
        There is none; the message suggests similar ids.
    """
    for check in (*CHECKS, *ISOLATION_CHECKS):
        if check.id == check_id:
            return check
    raise _no_check("--explain", check_id)


def _named(option: str, patterns: Sequence[str]) -> set[Check]:
    matching: set[Check] = set()
    for pattern in patterns:
        fitting = {check for check in CHECKS if fnmatchcase(check.id, pattern)}
        if not fitting:
            raise _no_check(option, pattern)
        matching |= fitting
    return matching


def _no_check(option: str, text: str) -> UsageError:
    hint = did_you_mean(text, (check.id for check in CHECKS), "'egmctl doctor --list' shows all", cutoff=0.5)
    if text.lower().startswith(("cu", "nvml")):
        hint = "'egmctl explain' says what is known of calls and errors"
    return UsageError(f"{option} {printable(text[:100])!r}: there is no such check; {hint}")


def check_list(checks: Iterable[Check]) -> CheckList:
    """Return the records of checks that ``--list`` and ``--explain`` show."""
    # Imported late: a diagnosis needs no list.
    from egmctl.model.listing import CheckEntry, CheckList

    entries = (
        CheckEntry(
            id=check.id, guards=check.guards, blocks=blocked_by(check), sections=check.sections, **texts()[check.id]
        )
        for check in checks
    )
    return CheckList(checks=tuple(entries))


def texts() -> dict[str, dict[str, str]]:
    """Return the texts of each check by id: title, why, read, fix."""
    return {
        check_id: {key: " ".join(text.split()) for key, text in entry.items() if isinstance(text, str)}
        for check_id, entry in _entries().items()
    }


def blocked_by(check: Check) -> tuple[Guard, ...]:
    """Return the purposes that do not work if a check fails: its ``blocks``, or all that it guards."""
    blocks = _entries().get(check.id, {}).get("blocks")
    return check.guards if blocks is None else tuple(map(Guard, blocks))


def is_of_hardware(check: Check) -> bool:
    """Return whether what a check finds may be a broken part: its ``hardware``."""
    return bool(_entries().get(check.id, {}).get("hardware"))


@cache
def _entries() -> dict[str, dict[str, Any]]:
    """Return what the TOML files next to the checks state of each check, by its id."""
    folder = Path(checks.__path__[0])
    stated = {}
    for file in (*sorted(folder.glob("*.toml")), folder.parent / "isolation_findings.toml"):
        for area, entries in read_toml(file.read_text(encoding="utf-8")).items():
            stated.update({f"{area}.{name}": entry for name, entry in entries.items()})
    return stated


def diagnose(
    machine: Machine, scope: Scope, checks: Sequence[Check], *, completed: Machine | None = None, strict: bool = False
) -> Diagnosis:
    """Run checks in their order and return the diagnosis; every check has at least one finding.

    Parameters
    ----------
    completed
        A model with what a healthy node of its kind states (:mod:`egmctl.doctor.assumed`); what a check finds only
        there is ``assumed``. ``None``: nothing is assumed.
    strict
        Whether a warning or note is a failure.
    """
    machine = _without_secrets(machine)
    findings = explained(
        machine,
        tuple(
            with_fitted_remedy(
                machine,
                replace(
                    finding,
                    check=check.id,
                    guards=check.guards,
                    docs=f"docs/doctor.md#{anchor(check.id)}",
                    hardware=is_of_hardware(check),
                ),
            )
            for check in checks
            for finding in _stated_or_assumed(check, machine, completed, scope)
        ),
    )
    named = None if scope.whole_node else scope.purposes
    return Diagnosis(
        platform=platform(machine).line,
        gpus_asked=scope.gpus,
        numa_asked=scope.numa,
        purposes=named or tuple(Guard),
        purposes_asked=named,
        findings=findings,
        undecided=undecided(machine, scope, findings),
        strict=strict,
        machines=(machine,),
    )


def _stated_or_assumed(check: Check, machine: Machine, completed: Machine | None, scope: Scope) -> tuple[Finding, ...]:
    stated = findings_of(check, machine, scope)
    if completed is None or all(finding.status is not Status.UNKNOWN for finding in stated):
        return stated
    return with_assumed(stated, findings_of(check, completed, scope))


def anchor(check_id: str) -> str:
    """Return the anchor that GitHub makes for a check's heading, e.g. ``numacpuset-mems`` for ``numa.cpuset-mems``."""
    return check_id.replace(".", "")


def findings_of(check: Check, machine: Machine, scope: Scope) -> tuple[Finding, ...]:
    """Return the findings of a check as they count for the purposes that the user named."""
    blocks = blocked_by(check)
    return tuple(
        for_purposes(finding, blocks, scope.purposes, whole_node=scope.whole_node)
        for finding in _findings(check, machine, scope)
    )


def _findings(check: Check, machine: Machine, scope: Scope) -> Iterable[Finding]:
    for section in check.sections:
        if getattr(machine, section) is None:
            return (_without(machine, section, is_needed=must_be_known(scope, check.id)),)
    try:
        return tuple(check.judge(machine, scope)) or (unknown("the check reported nothing"),)
    except Exception as error:
        # A recorded machine can contain what no real one does. The other checks must still run.
        return (unknown(f"the check itself failed ({type(error).__name__}); please report it"),)


def _without_secrets(machine: Machine) -> Machine:
    """Return the machine with only well-known words in environment values, so that no check can reveal a secret."""
    if machine.process is None or machine.process.environment is None or machine.origin.redacted:
        return machine
    environment = {name: known_words(value) for name, value in machine.process.environment.items()}
    return replace(machine, process=replace(machine.process, environment=environment))


def _without(machine: Machine, section: str, *, is_needed: bool) -> Finding:
    status = machine.sections.get(section)
    if status is None:
        return unknown(f"this machine was recorded without the section {section}")
    if status.unread is not None and status.unread.reason is not Reason.NOT_ASKED:
        return unknown(f"the section {section} could not be read ({status.unread.reason.value})")
    if is_needed:
        return unknown(f"the section {section} was not recorded")
    return skipped(f"the section {section} was not requested")
