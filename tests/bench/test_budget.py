"""A size that the bench chooses fits, for every suite and however little memory is free; and the report says so."""

from __future__ import annotations

from dataclasses import replace
from functools import cache

import pytest
from hypothesis import HealthCheck, Phase, example, given, settings
from hypothesis import strategies as st

from egmctl.bench.fabric_run import Asked, alone, plan_for
from egmctl.bench.plan import Plan
from egmctl.bench.plan.budget import LEAST_BYTES, check_memory, checked, fitted, memory_of
from egmctl.bench.plan.make import make_plan
from egmctl.bench.suites import FABRIC, SUITES, select_cases
from egmctl.errors import UsageError
from egmctl.model.machine import Machine
from egmctl.model.measurement import Settings
from egmctl.units import GIB, MIB
from tests.doctor.machines import shipped

USUAL = Settings(size_bytes=512 * MIB, copies=None, samples=3, timeout_s=60)
SIZES = st.integers(0, 40 * GIB // MIB).map(lambda mib: mib * MIB)


@cache
def two_gpus() -> Machine:
    """Return an HGX H200 of which two GPUs are there."""
    machine = shipped("hgx-h200x4")
    return replace(machine, gpus=(machine.gpus or ())[:2])


def node(gpu_free: int, node_free: int, available: int) -> Machine:
    """Return it with so much free on GPU 0, on NUMA node 0 and on the host."""
    machine = two_gpus()
    assert machine.gpus is not None
    assert machine.host is not None
    first = machine.gpus[0]
    assert first.nvml is not None
    used = replace(first, nvml=replace(first.nvml, memory_total_bytes=gpu_free, memory_used_bytes=0))
    nodes = tuple(
        replace(one, memory_free_bytes=node_free if one.id == 0 else 100 * GIB) for one in machine.host.numa_nodes or ()
    )
    host = replace(machine.host, numa_nodes=nodes, memory_available_bytes=available)
    return replace(machine, gpus=(used, machine.gpus[1]), host=host)


def chosen(machine: Machine, suite: str) -> Plan:
    """Return the plan of a suite where nobody has given a size."""
    cases = select_cases((), (suite,))
    gpus = machine.gpus or ()
    if suite == FABRIC:
        return plan_for(alone(machine, gpus), Asked(cases=cases, settings=USUAL))

    def planned(size_bytes: int) -> Plan:
        return make_plan(machine, gpus, [0], cases, replace(USUAL, size_bytes=size_bytes))

    return fitted(planned(USUAL.size_bytes), memory_of(machine), planned)


@pytest.mark.long
@pytest.mark.parametrize("suite", SUITES)
@settings(
    max_examples=6, deadline=None, phases=[Phase.explicit, Phase.generate], suppress_health_check=list(HealthCheck)
)
@given(gpu_free=SIZES, node_free=SIZES, available=SIZES)
@example(gpu_free=140 * GIB, node_free=4915 * MIB, available=100 * GIB)
@example(gpu_free=0, node_free=0, available=0)
def test_every_suite_fits(suite: str, gpu_free: int, node_free: int, available: int) -> None:
    machine = node(gpu_free, node_free, available)
    plan = chosen(machine, suite)
    check_memory(plan, memory_of(machine))
    size = plan.settings.size_bytes
    assert LEAST_BYTES <= size <= USUAL.size_bytes
    assert (size < USUAL.size_bytes) == any(note.startswith("buffers of ") for note in plan.notes)
    running = {number for step in plan.steps for number in step.tasks}
    assert running == {number for number, one in enumerate(plan.tasks) if one.waiver is None}
    assert all(one.waiver for number, one in enumerate(plan.tasks) if number not in running)


def plan_for_size(machine: Machine, size_bytes: int) -> Plan:
    """Return the plan of everything for a size that somebody gave."""
    cases = select_cases((), ("full",))
    return make_plan(machine, machine.gpus or (), [0], cases, replace(USUAL, size_bytes=size_bytes))


@pytest.mark.long
def test_the_largest_size_that_fits_is_chosen() -> None:
    machine = node(140 * GIB, 4915 * MIB, 100 * GIB)
    plan = chosen(machine, "full")
    assert plan.settings.size_bytes > LEAST_BYTES
    larger = plan_for_size(machine, plan.settings.size_bytes + MIB)
    with pytest.raises(UsageError, match=f"at most --size {plan.settings.size_bytes // MIB}M fits"):
        checked(larger, memory_of(machine))
    given = checked(plan_for_size(machine, plan.settings.size_bytes), memory_of(machine))
    waived = {one.task.case for one in given.tasks if one.waiver and "has no room" in one.waiver}
    assert all("footprint" in case or "latency" in case for case in waived)
