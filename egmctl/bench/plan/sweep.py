"""The sizes of ``--sweep size``: pure."""

from __future__ import annotations

from collections.abc import Sequence

from egmctl.bench.case import Case
from egmctl.bench.plan.budget import LEAST_BYTES, check_memory, memory_of
from egmctl.bench.plan.make import make_plan
from egmctl.errors import UsageError
from egmctl.model.machine import Gpu, Machine
from egmctl.model.measurement import Settings
from egmctl.units import GIB, KIB

FIRST_BYTES = 4 * KIB
LAST_BYTES = 8 * GIB
"""Where nobody says otherwise: host memory takes half a second a GiB to come by."""


def sweep_sizes(top_bytes: int) -> tuple[int, ...]:
    """Return sizes from :data:`FIRST_BYTES` in steps of 4, and the top itself.

    Raises
    ------
    UsageError
        If the top is below the first.
    """
    if top_bytes < FIRST_BYTES:
        raise UsageError(f"--size {top_bytes}: a sweep begins at {FIRST_BYTES} bytes")
    sizes = []
    size = FIRST_BYTES
    while size < top_bytes:
        sizes.append(size)
        size *= 4
    return (*sizes, top_bytes)


def top_that_fits(
    machine: Machine,
    gpus: Sequence[Gpu],
    numa_nodes: Sequence[int],
    cases: Sequence[Case],
    settings: Settings,
    *,
    no_ucx: str = "",
) -> int:
    """Return the largest power of two, at most :data:`LAST_BYTES`, whose buffers fit (parameters: see ``make_plan``).

    Not less than :data:`egmctl.bench.plan.budget.LEAST_BYTES`, whether or not that fits: buffers of less take as much.
    """
    top = LAST_BYTES
    while True:
        try:
            plan = make_plan(machine, gpus, numa_nodes, cases, settings, (top,), no_ucx=no_ucx)
            check_memory(plan, memory_of(machine))
        except UsageError:
            if top <= LEAST_BYTES:
                return top
            top //= 2
        else:
            return top
