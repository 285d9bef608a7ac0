"""A run takes no more than its share of what is free: a size that was chosen is refused, any other gives way."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cache
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, example, given, settings
from hypothesis import strategies as st

from egmctl.api.bench import Bench
from egmctl.bench.buffers import Buffer, Lifetimes, buffers_of
from egmctl.bench.fabric_run import RunRequest, alone, plan_for
from egmctl.bench.peaks import Peak, peaks
from egmctl.bench.plan import Plan
from egmctl.bench.plan.budget import LEAST_BYTES, fitted, memory_of, most_bytes
from egmctl.bench.suites import FABRIC, SUITES, select_cases
from egmctl.errors import UsageError
from egmctl.model.finding import WaiverKind
from egmctl.model.host import HugePages, Process
from egmctl.model.machine import Machine
from egmctl.model.route import MemoryKind
from egmctl.model.task import Endpoint
from egmctl.units import GIB, MIB
from tests.bench.four import NAMES
from tests.bench.plans import SETTINGS, plan_of, waivers
from tests.doctor.machines import patched, shipped

USUAL_BYTES = SETTINGS.size_bytes
HUGE = ("hugetlb_to_*", "device_to_hugetlb_*")


def pool(page_size_bytes: int, free: int) -> HugePages:
    return HugePages(page_size_bytes=page_size_bytes, total=free, free=free)


SIZES = st.integers(0, 40 * GIB // MIB).map(lambda mib: mib * MIB)
POOLS = st.tuples(st.integers(0, 3 * 512), st.integers(0, 4)).map(
    lambda free: (pool(2 * MIB, free[0]), pool(GIB, free[1]))
)


@cache
def two_gpus() -> Machine:
    machine = shipped("hgx-h200x4")
    return patched(replace(machine, gpus=(machine.gpus or ())[:2]), "host.numa_nodes[*]", memory_free_bytes=500 * GIB)


def node(
    *,
    gpu: int = 140 * GIB,
    numa: int = 500 * GIB,
    host: int = 900 * GIB,
    huge: tuple[HugePages, ...] = (),
    huge_of_node: tuple[HugePages, ...] | None = None,
) -> Machine:
    """Return an HGX H200 of two GPUs with so much free on GPU 0, on NUMA node 0, on the host and in huge pages."""
    machine = patched(two_gpus(), "gpus[0].nvml", memory_total_bytes=gpu, memory_used_bytes=0)
    machine = patched(machine, "host.numa_nodes[*]", huge_pages=huge_of_node)
    machine = patched(machine, "host.numa_nodes[0]", memory_free_bytes=numa)
    return patched(machine, "host", memory_available_bytes=host, huge_pages=huge)


def chosen(machine: Machine, *names: str, suites: Sequence[str] = (), cgroup: int | None = None) -> Plan:
    """Return the plan of cases for the first NUMA node where nobody has given a size."""

    def planned(size_bytes: int) -> Plan:
        return plan_of(*names, machine=machine, nodes=(0,), suites=suites, size_bytes=size_bytes)

    return fitted(planned(USUAL_BYTES), memory_of(machine, cgroup), planned)


def given_size(machine: Machine, *names: str, cgroup: int | None = None, **settings: Any) -> Plan:
    """Return the plan of cases for the first NUMA node and a size that somebody gave: 512 MiB if none is named."""
    return fitted(plan_of(*names or NAMES, machine=machine, nodes=(0,), **settings), memory_of(machine, cgroup))


@pytest.mark.parametrize(
    ("free", "settings"),
    [
        ({"gpu": 2 * GIB, "numa": GIB, "host": GIB}, {}),
        ({"gpu": 2 * GIB - 1}, {"memory_percent": 60}),
        ({}, {"cgroup": GIB}),
    ],
    ids=["half of what is free", "a larger share", "the cgroup's limit"],
)
def test_a_size_that_fits_is_taken(free: Mapping[str, Any], settings: Mapping[str, Any]) -> None:
    assert waivers(given_size(node(**free), **settings)) == set()


@pytest.mark.parametrize(
    ("free", "settings", "words"),
    [
        ({"gpu": 2 * GIB - 1}, {}, "takes 1 GiB on GPU0, .*; --size 256M fits"),
        # One buffer at a time: those of one direction are given back before the other's are made.
        ({"numa": GIB - 1}, {}, "takes 512 MiB on NUMA0, .*; --size 256M fits"),
        ({"host": GIB - 1}, {}, "takes 512 MiB on the host, .*; --size 256M fits"),
        ({}, {"cgroup": 1023 * MIB}, "512 MiB on the host, more than half of the 1023 MiB"),
        # A soak holds everything at the same time.
        ({"numa": 2 * GIB - 1}, {"duration_s": 60}, "takes 1 GiB on NUMA0"),
    ],
)
def test_less_is_refused_with_the_place_and_what_would_fit(
    free: Mapping[str, Any], settings: Mapping[str, Any], words: str
) -> None:
    with pytest.raises(UsageError, match=words):
        given_size(node(**free), **settings)


@pytest.mark.parametrize("free", [{"gpu": 2 * GIB - 1}, {"numa": 400 * MIB}, {"host": GIB - 1}])
def test_a_size_that_nobody_chose_gives_way_to_what_is_free(free: Mapping[str, Any]) -> None:
    machine = node(**free)
    plan = chosen(machine, *NAMES)
    size = plan.settings.size_bytes
    assert f"buffers of {size // MIB} MiB, not of the usual 512 MiB" in plan.notes[-1]
    assert given_size(machine, size_bytes=size).tasks == plan.tasks
    with pytest.raises(UsageError, match=f"; --size {size // MIB}M fits"):
        given_size(machine, size_bytes=2 * size)


def test_where_the_least_size_does_not_fit_what_has_no_room_is_waived_and_the_rest_measured() -> None:
    plan = chosen(node(gpu=0), *NAMES)
    assert plan.settings.size_bytes == LEAST_BYTES
    assert any("more than half of the 0 B free there" in why for why in waivers(plan))
    assert {task.path for task in plan.runnable} == {"NUMA0 -> GPU1", "GPU1 -> NUMA0"}


def test_a_latency_whose_footprint_does_not_fit_is_waived_and_the_others_are_measured() -> None:
    assert waivers(given_size(node(gpu=40 * GIB), "device_local_footprint", gpus=1)) == {
        f"it takes {size} GiB on GPU0, more than half of the 40 GiB free there" for size in (32, 64)
    }


def test_what_the_facts_do_not_know_is_no_reason_to_refuse_and_waived_tasks_take_nothing() -> None:
    given_size(patched(node(), "host", numa_nodes=None, memory_available_bytes=None))
    given_size(replace(node(gpu=0), process=Process(environment={"CUDA_VISIBLE_DEVICES": "1"})))


@pytest.mark.long
@pytest.mark.parametrize("suite", SUITES)
@settings(
    max_examples=6, deadline=None, phases=[Phase.explicit, Phase.generate], suppress_health_check=list(HealthCheck)
)
@given(gpu=SIZES, numa=SIZES, host=SIZES, pools=POOLS, by_node=st.booleans())
@example(gpu=140 * GIB, numa=4915 * MIB, host=100 * GIB, pools=(pool(2 * MIB, 256),), by_node=False)
@example(gpu=0, numa=0, host=0, pools=(), by_node=True)
def test_every_suite_fits(
    suite: str, gpu: int, numa: int, host: int, pools: tuple[HugePages, ...], by_node: bool
) -> None:
    # Buffers are on node 0: what the host has beside is of no use to them.
    of_host, of_node = ((pool(GIB, 100),), pools) if by_node else (pools, None)
    machine = node(gpu=gpu, numa=numa, host=host, huge=of_host, huge_of_node=of_node)
    if suite == FABRIC:
        layout = alone(machine, machine.gpus or ())
        plan = plan_for(layout, RunRequest(cases=select_cases((), (suite,)), settings=SETTINGS))
    else:
        plan = chosen(machine, suites=(suite,))
    assert fitted(plan, memory_of(machine)) == plan
    assert huge_pages_last(plan, pools)
    assert LEAST_BYTES <= plan.settings.size_bytes <= USUAL_BYTES
    assert (plan.settings.size_bytes < USUAL_BYTES) == any(note.startswith("buffers of ") for note in plan.notes)
    running = {number for step in plan.steps for number in step.tasks}
    assert running == {number for number, task in enumerate(plan.tasks) if task.waiver is None}


def huge_pages_last(plan: Plan, pools: Sequence[HugePages]) -> bool:
    """Say whether a run never lacks a huge page, each buffer made of the smallest of which there are enough."""
    free = {pool.page_size_bytes: pool.free or 0 for pool in pools}
    taken: dict[Buffer, tuple[int, int]] = {}
    steps_buffers = [buffers_of([plan.tasks[number] for number in step.tasks]) for step in plan.steps]
    lifetimes = Lifetimes(steps_buffers)
    for buffers in steps_buffers:
        for buffer in buffers:
            if buffer.end.memory is not MemoryKind.HUGETLB or buffer in taken:
                continue
            wanted = {page: -(-buffer.size_bytes // page) for page in sorted(free)}
            page = next((page for page, count in wanted.items() if count <= free[page]), None)
            if page is None:
                return False
            free[page] -= wanted[page]
            taken[buffer] = page, wanted[page]
        for buffer in lifetimes.finish(buffers):
            if buffer in taken:
                page, count = taken.pop(buffer)
                free[page] += count
    return True


@pytest.mark.parametrize("suite", ["full", "ipc"])
def test_what_a_plan_holds_at_a_place_is_held_by_some_task_alone(suite: str) -> None:
    """What does not fit is waived by this: else the search for who takes too much would find nobody."""
    plan = plan_of(machine=two_gpus(), nodes=(0,), suites=(suite,))
    by_itself = [peak for task in plan.runnable for peak in peaks([[task]]) if peak.bytes > 0]
    assert plan.peaks
    assert all(any(own.same_place(peak) for own in by_itself) for peak in plan.peaks)


def test_a_plan_holds_at_a_place_what_is_there_at_the_same_time() -> None:
    plan = plan_of("all_to_host_numa_one_node_memcpy_ce", gpus=4)
    # Four destinations on one node, given back before those on the other are made.
    assert {peak.name: peak.bytes for peak in plan.peaks} == {
        **dict.fromkeys(("NUMA0", "NUMA1", "host"), 4 * USUAL_BYTES),
        **{f"GPU{index}": USUAL_BYTES for index in range(4)},
    }
    assert peaks([]) == ()


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
    machine = node(numa=0, host=0, huge=pools)
    for plan in (chosen(machine, *HUGE, cgroup=0), given_size(machine, *HUGE, cgroup=0)):
        assert (plan.settings.size_bytes, len(plan.runnable)) == (USUAL_BYTES, measured)
        assert huge_pages_last(plan, pools)
        gone = [waiver for task in plan.tasks for waiver in task.waivers[:1]]
        assert {waiver.kind for waiver in gone} <= {WaiverKind.NO_PAGES}
        assert all("HugePages_Free" in waiver.reason for waiver in gone)
        assert all(not peak.place or peak.place.bus_id or peak.huge_pages for peak in plan.peaks)


def test_huge_pages_are_counted_on_the_numa_node_that_they_are_taken_from() -> None:
    # Of the host there are enough for every task; node 0 has room for one buffer, node 1 for two.
    machine = patched(shipped("dgx-h100"), "host", huge_pages=(pool(2 * MIB, 768),))
    for numa_node, free in enumerate((256, 512)):
        machine = patched(machine, f"host.numa_nodes[{numa_node}]", huge_pages=(pool(2 * MIB, free),))
    plan = fitted(plan_of(*HUGE, machine=machine, gpus=1), memory_of(machine, cgroup_left_bytes=0))
    waived = [task for task in plan.tasks if task.waiver is not None]
    assert len(waived) == sum("NUMA0" in task.path for task in plan.tasks) // 2
    assert all("NUMA0" in task.path for task in waived)
    assert waivers(plan) == {
        "beside other buffers of huge pages it needs more than the 512 MiB that are free on NUMA0 "
        "(HugePages_Free, vm.nr_hugepages)"
    }
    assert {peak.name: peak.bytes for peak in plan.peaks if peak.huge_pages} == {
        "NUMA0 huge pages": 512 * MIB,
        "NUMA1 huge pages": 1024 * MIB,
        "huge pages": 1024 * MIB,
    }


@pytest.mark.parametrize("by_node", [False, True])
def test_a_buffer_of_huge_pages_is_counted_in_whole_ones(by_node: bool) -> None:
    pools = (pool(2 * MIB, 8), pool(GIB, 4))
    machine = node(numa=0, host=0, huge=pools, huge_of_node=pools if by_node else None)
    plan = plan_of("hugetlb_to_device_memcpy_ce", machine=machine, nodes=(0,))
    assert {peak.name: peak.bytes for peak in plan.peaks if peak.huge_pages} == {
        "NUMA0 huge pages": GIB,
        "huge pages": GIB,
    }


@pytest.mark.parametrize("engine", ["ce", "sm"])
def test_a_sweep_of_egm_up_to_a_given_size_names_the_sizes_that_do_not_fit(engine: str) -> None:
    case = f"host_numa_to_device_memcpy_{engine}"
    plan = Bench(sweep="size", size="256G", memory=90, cases=[case, "host_numa_read_sm"]).plan(shipped("gh200"))
    left_out = {(task.case, task.size_bytes): task.waivers[0] for task in plan.tasks if task.waivers}
    assert list(left_out) == [(case, 256 * GIB)]
    assert left_out[case, 256 * GIB].kind is WaiverKind.NO_ROOM
    assert left_out[case, 256 * GIB].reason == "it takes 256 GiB on GPU0, more than 90 % of the 95.6 GiB free there"
    assert tuple(
        max(task.size_bytes for task in plan.runnable if task.case == name) for name in (case, "host_numa_read_sm")
    ) == (64 * GIB, 256 * GIB)


def test_a_sweep_without_a_top_ends_where_half_of_the_memory_does() -> None:
    bench = Bench(gpus="0-1", numa="0", sweep="size", cases=[NAMES[0]])
    assert bench.plan(shipped("dgx-h100")).settings.size_bytes == 8 * GIB
    plan = bench.plan(node(numa=300 * MIB))
    # Smaller buffers hold several slots: all sizes together are to fit.
    assert plan.settings.size_bytes == max(task.size_bytes for task in plan.tasks) < 300 * MIB
    assert plan.notes[-1].startswith(f"buffers of {plan.settings.size_bytes // MIB} MiB, not of the usual 8 GiB")


@pytest.mark.parametrize(
    ("place", "total"),
    [
        (None, 64 * GIB),
        (Endpoint(memory=MemoryKind.HOST_NUMA, label="NUMA1", numa_node=1), 32 * GIB),
        (Endpoint(memory=MemoryKind.DEVICE, label="GPU0", bus_id="0000:1b:00.0"), 16 * GIB),
    ],
)
def test_where_free_memory_is_unknown_all_of_it_counts(place: Endpoint | None, total: int) -> None:
    machine = patched(shipped("dgx-h100"), "host", memory_available_bytes=None, memory_total_bytes=64 * GIB)
    machine = patched(machine, "host.numa_nodes[1]", memory_free_bytes=None, memory_total_bytes=32 * GIB)
    machine = patched(machine, "gpus[*].nvml", memory_used_bytes=None, memory_total_bytes=16 * GIB)
    assert most_bytes(machine, Peak(place, 1)) == total
    assert most_bytes(machine, Peak(place, 1, huge_pages=True)) != total
