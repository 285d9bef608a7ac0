"""Every check, in the order in which they are run and told: what the files of ``checks/`` state as their ``CHECKS``."""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import fields
from difflib import get_close_matches
from fnmatch import fnmatchcase

from egmctl.doctor import checks
from egmctl.doctor.check import Check
from egmctl.errors import UsageError
from egmctl.model.finding import Guard
from egmctl.model.listing import CheckEntry, CheckList
from egmctl.units import printable

_ORDER = (
    "presence",
    "binding",
    "access",
    "device_nodes",
    "libraries",
    "environment",
    "driver",
    "gpu",
    "gpu_modes",
    "egm",
    "egm_routes",
    "numa",
    "numa_memory",
    "cpu",
    "kernel",
    "kernel_log",
    "nvlink",
    "nvlink_mode",
    "c2c",
    "p2p",
    "pcie",
    "fabric",
    "fabric_nvlink5",
    "imex",
    "ipc",
    "rdma_ports",
    "rdma",
    "rdma_coherent",
    "active",
    "peers",
)
"""Of the areas; one that is not named here comes after them."""


def _all_checks() -> Iterator[Check]:
    areas = sorted(area.name for area in pkgutil.iter_modules(checks.__path__))
    for area in sorted(areas, key=lambda name: _ORDER.index(name) if name in _ORDER else len(_ORDER)):
        yield from importlib.import_module(f"{checks.__name__}.{area}").CHECKS


CHECKS: tuple[Check, ...] = tuple(_all_checks())


def select(
    purposes: Iterable[Guard] | None = None, only: Sequence[str] = (), without: Sequence[str] = ()
) -> tuple[Check, ...]:
    """Return the checks that the user chose, in their order.

    Parameters
    ----------
    purposes
        Only checks that guard one of these; ``None`` for all.
    only, without
        Ids or globs (``numa.*``) of the checks to take, and of those to leave out.

    Raises
    ------
    UsageError
        If an id or glob fits no check, or nothing is left.
    """
    taken = _named("--check", only) if only else set(CHECKS)
    left_out = _named("--skip", without)
    wanted = None if purposes is None else set(purposes)
    chosen = tuple(
        check
        for check in CHECKS
        if check in taken and check not in left_out and (wanted is None or wanted.intersection(check.guards))
    )
    if not chosen:
        raise UsageError("--for, --check and --skip together leave no check; 'egmctl doctor --list' shows all")
    return chosen


def find(check_id: str) -> Check:
    """Return the check with this id.

    Raises
    ------
    UsageError
        If there is none, naming those that are spelled alike.
    """
    for check in CHECKS:
        if check.id == check_id:
            return check
    raise _no_check("--explain", check_id)


def _named(option: str, patterns: Sequence[str]) -> set[Check]:
    named: set[Check] = set()
    for pattern in patterns:
        fitting = {check for check in CHECKS if fnmatchcase(check.id, pattern)}
        if not fitting:
            raise _no_check(option, pattern)
        named |= fitting
    return named


def _no_check(option: str, text: str) -> UsageError:
    alike = get_close_matches(text[:100], [check.id for check in CHECKS], cutoff=0.5)
    hint = f"did you mean {' or '.join(alike)}?" if alike else "'egmctl doctor --list' shows all"
    return UsageError(f"{option} {printable(text[:100])!r}: there is no such check; {hint}")


def check_list(checks: Iterable[Check]) -> CheckList:
    """Return the records that ``--list`` and ``--explain`` show of checks."""
    names = [field.name for field in fields(CheckEntry)]
    return CheckList(checks=tuple(CheckEntry(**{name: getattr(check, name) for name in names}) for check in checks))
