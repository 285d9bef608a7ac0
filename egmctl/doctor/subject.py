"""The GPUs that a check judges, and the reason to skip it where there are none."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from egmctl.doctor.check import Check, Scope, Verdicts, about, check, skip
from egmctl.doctor.situation import (
    NO_COHERENT_GPU,
    NO_DOMAIN,
    NO_GPU,
    NOT_COHERENT,
    coherent,
    coherent_gpus,
    in_domain,
    usable,
)
from egmctl.model.finding import Guard
from egmctl.model.machine import Gpu, Machine

GpuRule = Callable[[Machine, Scope, Gpu], Verdicts]


def usable_gpus(machine: Machine, scope: Scope) -> tuple[Gpu, ...]:
    """Return the GPUs in scope that this process can use; skip the check without one."""
    return usable(machine, scope.gpus_of(machine)) or skip(NO_GPU)


def usable_coherent_gpus(machine: Machine, scope: Scope) -> tuple[Gpu, ...]:
    """Return the usable GPUs in scope that have NVLink-C2C, or may have it; skip the check without one."""
    if coherent(machine) is False:
        skip(NOT_COHERENT)
    return coherent_gpus(machine, usable_gpus(machine, scope)) or skip(NO_COHERENT_GPU)


def check_gpus(
    check_id: str,
    *guards: Guard,
    sections: tuple[str, ...] = ("gpus",),
    gpus_of: Callable[[Machine, Scope], Iterable[Gpu]] = usable_gpus,
) -> Callable[[GpuRule], Check]:
    """Make a check of a rule for one GPU.

    Parameters
    ----------
    gpus_of
        Returns the GPUs to judge, or ends the check.
    """

    def decorate(rule: GpuRule) -> Check:
        @check(check_id, *guards, sections=sections)
        def judge(machine: Machine, scope: Scope) -> Verdicts:
            for gpu in gpus_of(machine, scope):
                yield from about(gpu, rule(machine, scope, gpu))

        return judge

    return decorate


def need_c2c(machine: Machine, reason: str = NOT_COHERENT) -> None:
    """Skip the check on a machine none of whose GPUs has NVLink-C2C."""
    if not coherent(machine):
        skip(reason)


def need_domain(machine: Machine) -> None:
    """Skip the check on a machine outside of a multi-node NVLink domain."""
    if not in_domain(machine):
        skip(NO_DOMAIN)
