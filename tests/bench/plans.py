"""Plans of shipped machines, and machines that differ from those in a word: for tests of what is planned."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from egmctl.bench.plan import Plan
from egmctl.bench.plan.flows import Pair
from egmctl.bench.plan.make import make_plan
from egmctl.bench.suites import select_cases
from egmctl.model.machine import Machine
from egmctl.model.measurement import Settings
from egmctl.units import MIB
from tests.doctor.machines import patched, shipped

SETTINGS = Settings(size_bytes=512 * MIB, copies=None, samples=3, timeout_s=60)


def plan_of(
    *names: str,
    machine: Machine | str = "dgx-h100",
    gpus: int | Sequence[int] = 8,
    nodes: Sequence[int] = (0, 1),
    suites: Sequence[str] = (),
    pairs: Sequence[Pair] = (),
    **settings: Any,
) -> Plan:
    """Plan cases (by shell patterns of names) for the first GPUs of a machine, or for some by index."""
    node = shipped(machine) if isinstance(machine, str) else machine
    there = node.gpus or ()
    chosen = there[:gpus] if isinstance(gpus, int) else [there[index] for index in gpus]
    return make_plan(node, chosen, nodes, select_cases(names, suites), replace(SETTINGS, **settings), pairs=pairs)


def with_attributes(machine: Machine, *indices: int, **attributes: int) -> Machine:
    """Return a machine of which some GPUs, or all, have these attributes."""
    for index, gpu in enumerate(machine.gpus or ()):
        if gpu.cuda is not None and index in (indices or (index,)):
            machine = patched(machine, f"gpus[{index}].cuda", attributes={**gpu.cuda.attributes, **attributes})
    return machine


def waivers(plan: Plan) -> set[str]:
    """Return the reasons why tasks of a plan will not run."""
    return {task.waiver for task in plan.tasks if task.waiver}
