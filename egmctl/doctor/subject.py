"""The GPUs that a check judges, and the reason to skip it where there are none."""

from __future__ import annotations

from egmctl.doctor.check import Scope, skip
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
from egmctl.model.machine import Gpu, Machine


def usable_gpus(machine: Machine, scope: Scope) -> tuple[Gpu, ...]:
    """Return the GPUs in scope that this process can use; skip the check without one."""
    return usable(machine, scope.gpus_of(machine)) or skip(NO_GPU)


def usable_coherent_gpus(machine: Machine, scope: Scope) -> tuple[Gpu, ...]:
    """Return the usable GPUs in scope that have NVLink-C2C, or may have it; skip the check without one."""
    return coherent_gpus(machine, usable_gpus(machine, scope)) or skip(NO_COHERENT_GPU)


def need_c2c(machine: Machine, reason: str = NOT_COHERENT) -> None:
    """Skip the check on a machine none of whose GPUs has NVLink-C2C."""
    if not coherent(machine):
        skip(reason)


def need_domain(machine: Machine) -> None:
    """Skip the check on a machine outside of a multi-node NVLink domain."""
    if not in_domain(machine):
        skip(NO_DOMAIN)
