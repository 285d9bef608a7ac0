"""What cases by several processes become on a machine: who makes what, who works on it, and why not."""

from __future__ import annotations

import pytest

from egmctl.bench.buffers import peaks
from egmctl.bench.plan import Plan
from egmctl.bench.suites import CASES
from egmctl.bench.supervisor import set_beside
from egmctl.model.host import DeviceNode
from egmctl.model.listing import PlannedTask
from egmctl.model.machine import Machine
from egmctl.model.task import HandleKind
from egmctl.units import MIB
from tests.bench import plans
from tests.bench.plans import waivers, with_attributes
from tests.bench.reports import measured
from tests.doctor.machines import patched, shipped

GB200 = shipped("gb200-tray")
READ_HOST = "ipc_posix_fd_host_numa_read_ce"


def plan_of(*names: str, machine: Machine = GB200, gpus: int = 4) -> Plan:
    return plans.plan_of(*names, machine=machine, gpus=gpus, size_bytes=64 * MIB)


def tasks(plan: Plan, case: str) -> list[PlannedTask]:
    return [task for task in plan.tasks if task.case == case]


@pytest.mark.parametrize("way", ["write", "read"])
def test_device_memory_is_worked_on_over_every_ordered_pair(way: str) -> None:
    name = f"ipc_posix_fd_device_{way}_ce"
    plan = plan_of(name)
    found = tasks(plan, name)
    assert len(found) == 4 * 3
    for task in found:
        (flow,) = task.flows
        near, far = (flow.source, flow.destination) if way == "write" else (flow.destination, flow.source)
        assert (near.rank, near.handle) == (flow.initiator_rank, None)
        assert far.handle is HandleKind.POSIX_FD
        assert far.rank not in (None, flow.initiator_rank)
        assert flow.route.symbol == "NV18"
    assert len({task.ranks for task in found}) == 12
    assert [rank.label for rank in plan.ranks] == ["GPU0", "GPU1", "GPU2", "GPU3"]


def test_host_memory_of_each_node_is_made_by_a_neighbour_whose_node_it_is() -> None:
    plan = plan_of(READ_HOST)
    found = [task.flows[0] for task in tasks(plan, READ_HOST)]
    assert len(found) == 4 * 2
    nearest = {rank.number: rank.numa_node for rank in plan.ranks}
    for flow in found:
        assert flow.source.rank not in (None, flow.initiator_rank)
        assert flow.source.numa_node == nearest[flow.source.rank or 0]


def test_disjoint_pairs_are_measured_at_once_and_lives_and_round_trips_one_at_a_time() -> None:
    plan = plan_of("ipc_legacy_device_write_ce", "ipc_*_life_cycle", "ipc_*_round_trip")
    several = {plan.tasks[step.tasks[0]].case for step in plan.steps if len(step.tasks) > 1}
    assert {case for case in several if case.startswith("ipc_")} == {"ipc_legacy_device_write_ce"}
    assert not any("legacy_host_numa" in planned.case for planned in plan.tasks)


def test_what_is_set_beside_them_comes_first_once() -> None:
    plan = plan_of("ipc_legacy_device_write_ce", "ipc_pool_device_write_ce", "ipc_posix_fd_host_numa_latency")
    cases = list(dict.fromkeys(planned.case for planned in plan.tasks))
    assert cases == [
        "device_to_device_memcpy_write_ce",
        "host_numa_to_device_latency_uncached",
        "ipc_legacy_device_write_ce",
        "ipc_posix_fd_host_numa_latency",
        "ipc_pool_device_write_ce",
    ]


def test_every_path_between_processes_is_set_beside_the_same_path_within_one() -> None:
    found = [measured(task, 100.0) for task in plan_of("ipc_*").runnable]
    counterpart = {case.name: case.in_process for case in CASES}
    for m in set_beside(found, CASES):
        expected = m.headline.median if m.ranks and counterpart[m.case] and m.headline else None
        assert m.in_process == expected, m.case


@pytest.mark.parametrize(
    ("name", "attribute", "value"),
    [
        ("ipc_posix_fd_device_write_ce", "HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED", 0),
        ("ipc_fabric_device_write_ce", "HANDLE_TYPE_FABRIC_SUPPORTED", 0),
        ("ipc_pool_device_write_ce", "MEMPOOL_SUPPORTED_HANDLE_TYPES", 8),
        ("ipc_posix_fd_host_numa_write_ce", "HOST_NUMA_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED", 0),
        ("ipc_pool_host_numa_write_ce", "HOST_NUMA_MEMORY_POOLS_SUPPORTED", 0),
    ],
)
def test_an_attribute_that_forbids_it_is_shown_with_its_value(name: str, attribute: str, value: int) -> None:
    plan = plan_of(name, machine=with_attributes(GB200, **{attribute: value}))
    assert not plan.runnable
    assert all(f"CU_DEVICE_ATTRIBUTE_{attribute} is {value}" in reason for reason in waivers(plan))
    assert plan.ranks == ()
    # Nothing is measured to be set beside nothing.
    assert {planned.case for planned in plan.tasks} == {name}


@pytest.mark.parametrize(
    ("channels", "seen"),
    [
        ((), "/dev/nvidia-caps-imex-channels is empty"),
        ((DeviceNode(path="/dev/nvidia-caps-imex-channels/channel0", exists=True, access="EPERM"),), "channel0: EPERM"),
    ],
)
def test_fabric_handles_need_a_channel(channels: tuple[DeviceNode, ...], seen: str) -> None:
    plan = plan_of("ipc_fabric_device_read_ce", machine=patched(GB200, "driver", imex_channels=channels))
    (waiver,) = waivers(plan)
    assert seen in waiver
    assert "nvidia-modprobe -c 0" in waiver


def test_a_gpu_that_cannot_be_used_has_no_process_and_the_others_do() -> None:
    name = "ipc_legacy_device_write_ce"
    plan = plan_of(name, machine=patched(GB200, "gpus[1].nvml", compute_mode="prohibited"))
    assert [(rank.number, rank.label) for rank in plan.ranks] == [(0, "GPU0"), (1, "GPU2"), (2, "GPU3")]
    for task in tasks(plan, name):
        assert (task.waiver is not None) == ("GPU1" in task.path) == (max(task.ranks) >= len(plan.ranks))


def test_memory_that_is_shared_counts_where_its_owner_makes_it() -> None:
    plan = plan_of("ipc_legacy_device_write_ce", "ipc_legacy_device_write_sm", gpus=2)
    held = peaks([[task] for task in plan.tasks if task.case.startswith("ipc_")], keep=True)
    # Of each GPU: what it writes from, and what the other one writes to.
    assert {peak.name: peak.bytes for peak in held} == {"GPU0": 2 * 64 * MIB, "GPU1": 2 * 64 * MIB}
