"""A size that the bench chooses fits, for every suite and however little memory is free; and the report says so."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import cache

import pytest
from hypothesis import HealthCheck, Phase, example, given, settings
from hypothesis import strategies as st

from egmctl.bench.buffers import Buffer, Lifetimes, buffers_of, peaks
from egmctl.bench.fabric_run import Asked, alone, plan_for
from egmctl.bench.plan import Plan
from egmctl.bench.plan.budget import LEAST_BYTES, fitted, memory_of
from egmctl.bench.plan.make import make_plan
from egmctl.bench.suites import FABRIC, SUITES, select_cases
from egmctl.errors import UsageError
from egmctl.model.finding import WaiverKind
from egmctl.model.host import HugePages
from egmctl.model.machine import Machine
from egmctl.model.measurement import Settings
from egmctl.model.route import MemoryKind
from egmctl.units import GIB, MIB
from tests.doctor.machines import shipped

USUAL = Settings(size_bytes=512 * MIB, copies=None, samples=3, timeout_s=60)
SIZES = st.integers(0, 40 * GIB // MIB).map(lambda mib: mib * MIB)
POOLS = st.tuples(st.integers(0, 3 * 512), st.integers(0, 4)).map(
    lambda free: (pool(2 * MIB, free[0]), pool(GIB, free[1]))
)


def pool(page_size_bytes: int, free: int) -> HugePages:
    return HugePages(page_size_bytes=page_size_bytes, total=free, free=free)


@cache
def two_gpus() -> Machine:
    """Return an HGX H200 of which two GPUs are there."""
    machine = shipped("hgx-h200x4")
    return replace(machine, gpus=(machine.gpus or ())[:2])


def node(
    gpu_free: int,
    node_free: int,
    available: int,
    huge: tuple[HugePages, ...] = (),
    huge_of_node: tuple[HugePages, ...] | None = None,
) -> Machine:
    """Return it with so much free on GPU 0, on NUMA node 0 and on the host, and in their pools of huge pages."""
    machine = two_gpus()
    assert machine.gpus is not None
    assert machine.host is not None
    first = machine.gpus[0]
    assert first.nvml is not None
    used = replace(first, nvml=replace(first.nvml, memory_total_bytes=gpu_free, memory_used_bytes=0))
    nodes = tuple(
        replace(
            one,
            memory_free_bytes=node_free if one.id == 0 else 100 * GIB,
            huge_pages=huge_of_node,
        )
        for one in machine.host.numa_nodes or ()
    )
    host = replace(machine.host, numa_nodes=nodes, memory_available_bytes=available, huge_pages=huge)
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
@given(gpu_free=SIZES, node_free=SIZES, available=SIZES, pools=POOLS, by_node=st.booleans())
@example(gpu_free=140 * GIB, node_free=4915 * MIB, available=100 * GIB, pools=(pool(2 * MIB, 256),), by_node=False)
@example(gpu_free=0, node_free=0, available=0, pools=(), by_node=True)
def test_every_suite_fits(
    suite: str, gpu_free: int, node_free: int, available: int, pools: tuple[HugePages, ...], by_node: bool
) -> None:
    # Buffers are on node 0: what the host has beside is of no use to them.
    of_host, of_node = ((pool(GIB, 100),), pools) if by_node else (pools, None)
    machine = node(gpu_free, node_free, available, of_host, of_node)
    plan = chosen(machine, suite)
    assert fitted(plan, memory_of(machine)) == plan
    assert huge_pages_last(plan, pools)
    size = plan.settings.size_bytes
    assert LEAST_BYTES <= size <= USUAL.size_bytes
    assert (size < USUAL.size_bytes) == any(note.startswith("buffers of ") for note in plan.notes)
    running = {number for step in plan.steps for number in step.tasks}
    assert running == {number for number, one in enumerate(plan.tasks) if one.waiver is None}
    assert all(one.waiver for number, one in enumerate(plan.tasks) if number not in running)


@pytest.mark.parametrize("suite", ["full", "ipc"])
def test_what_a_plan_holds_at_a_place_is_held_by_some_task_alone(suite: str) -> None:
    """What does not fit is waived by this: else the search for who takes too much would find nobody."""
    plan = chosen(two_gpus(), suite)
    alone = [one for planned in plan.tasks if planned.waiver is None for one in peaks([[planned]])]
    assert plan.peaks
    for peak in plan.peaks:
        assert any(one.bytes > 0 and one.same_place(peak) for one in alone)


def huge_pages_last(plan: Plan, pools: Sequence[HugePages]) -> bool:
    """Say whether a run never lacks a huge page, each buffer made of the smallest of which there are enough."""
    steps = [[plan.tasks[number] for number in step.tasks] for step in plan.steps]
    free = {pool.page_size_bytes: pool.free or 0 for pool in pools}
    taken: dict[Buffer, tuple[int, int]] = {}
    lifetimes = Lifetimes(steps)
    for tasks in steps:
        for buffer in buffers_of(tasks):
            if buffer.end.memory is not MemoryKind.HUGETLB or buffer in taken:
                continue
            wanted = {page: -(-buffer.size_bytes // page) for page in sorted(free)}
            page = next((page for page, count in wanted.items() if count <= free[page]), None)
            if page is None:
                return False
            free[page] -= wanted[page]
            taken[buffer] = page, wanted[page]
        for buffer in lifetimes.finish(tasks):
            if buffer in taken:
                page, count = taken.pop(buffer)
                free[page] += count
    return True


HUGE = ("hugetlb_to_*", "device_to_hugetlb_*")


@pytest.mark.parametrize(
    ("pools", "measured"),
    [
        ((), 0),
        ((pool(2 * MIB, 255),), 0),
        # A source and a destination of 512 MiB, one after the other but never both.
        ((pool(2 * MIB, 256),), 4),
        ((pool(2 * MIB, 512),), 8),
        ((pool(GIB, 1),), 4),
        ((pool(GIB, 2),), 8),
    ],
)
def test_of_huge_pages_all_that_are_free_are_taken_and_none_more(pools: tuple[HugePages, ...], measured: int) -> None:
    # The node and the host have just enough for what is not on huge pages: nothing.
    machine = node(140 * GIB, 0, 0, pools)
    memory = memory_of(machine, cgroup_left_bytes=0)

    def planned(size_bytes: int) -> Plan:
        return make_plan(machine, machine.gpus or (), [0], select_cases(HUGE), replace(USUAL, size_bytes=size_bytes))

    for plan in (fitted(planned(USUAL.size_bytes), memory, planned), fitted(planned(USUAL.size_bytes), memory)):
        assert plan.settings.size_bytes == USUAL.size_bytes
        assert len(plan.runnable) == measured
        assert huge_pages_last(plan, pools)
        gone = [one.waivers[0] for one in plan.tasks if one.waivers]
        assert {waiver.kind for waiver in gone} <= {WaiverKind.NO_PAGES}
        assert all("HugePages_Free" in waiver.reason for waiver in gone)
        assert all(not peak.place or peak.place.bus_id or peak.huge_pages for peak in plan.peaks)


def test_huge_pages_are_counted_on_the_numa_node_that_they_are_taken_from() -> None:
    # Of the host there are enough for every task; node 0 has room for one buffer, node 1 for two.
    machine = shipped("dgx-h100")
    assert machine.host is not None
    first, second = machine.host.numa_nodes or ()
    nodes = replace(first, huge_pages=(pool(2 * MIB, 256),)), replace(second, huge_pages=(pool(2 * MIB, 512),))
    machine = replace(machine, host=replace(machine.host, numa_nodes=nodes, huge_pages=(pool(2 * MIB, 768),)))
    plan = make_plan(machine, (machine.gpus or ())[:1], [0, 1], select_cases(HUGE), USUAL)
    plan = fitted(plan, memory_of(machine, cgroup_left_bytes=0))
    waived = [one for one in plan.tasks if one.waiver is not None]
    on_first = [one for one in plan.tasks if "NUMA0" in one.path]
    assert len(waived) == len(on_first) // 2
    assert {one.path for one in waived} <= {one.path for one in on_first}
    (reason,) = {one.waiver for one in waived}
    assert reason == (
        "beside other buffers of huge pages it needs more than the 512 MiB that are free on NUMA0 "
        "(HugePages_Free, vm.nr_hugepages)"
    )
    assert {peak.name: peak.bytes for peak in plan.peaks if peak.huge_pages} == {
        "NUMA0 huge pages": 512 * MIB,
        "NUMA1 huge pages": 1024 * MIB,
        "huge pages": 1024 * MIB,
    }


@pytest.mark.parametrize("by_node", [False, True])
def test_a_buffer_of_huge_pages_is_counted_in_whole_ones(by_node: bool) -> None:
    pools = (pool(2 * MIB, 8), pool(GIB, 4))
    machine = node(140 * GIB, 0, 0, pools, pools if by_node else None)
    plan = make_plan(machine, machine.gpus or (), [0], select_cases(("hugetlb_to_device_memcpy_ce",)), USUAL)
    assert plan.settings.size_bytes == 512 * MIB
    assert {peak.name: peak.bytes for peak in plan.peaks if peak.huge_pages} == {
        "NUMA0 huge pages": GIB,
        "huge pages": GIB,
    }


def plan_for_size(machine: Machine, size_bytes: int) -> Plan:
    """Return the plan of everything for a size that somebody gave."""
    cases = select_cases((), ("full",))
    return make_plan(machine, machine.gpus or (), [0], cases, replace(USUAL, size_bytes=size_bytes))


@pytest.mark.long
def test_the_largest_size_that_fits_is_chosen() -> None:
    machine = node(140 * GIB, 4915 * MIB, 100 * GIB)
    plan = chosen(machine, "full")
    assert plan.settings.size_bytes > LEAST_BYTES
    larger = plan_for_size(machine, 2 * plan.settings.size_bytes)
    with pytest.raises(UsageError, match=f"; --size {plan.settings.size_bytes // MIB}M fits"):
        fitted(larger, memory_of(machine))
    given = fitted(plan_for_size(machine, plan.settings.size_bytes), memory_of(machine))
    waived = {one.case for one in given.tasks if one.waiver and "has no room" in one.waiver}
    assert all("footprint" in case or "latency" in case for case in waived)
