"""What cases by several processes become on a machine: who makes what, who works on it, and why not."""

from __future__ import annotations

from dataclasses import replace

import pytest

from egmctl.bench.case import Case, Processes
from egmctl.bench.plan import Plan
from egmctl.bench.plan.make import make_plan
from egmctl.bench.plan.ranks import node_flows
from egmctl.bench.results import summarize
from egmctl.bench.suites import CASES, select_cases
from egmctl.bench.supervisor import set_beside
from egmctl.model.host import DeviceNode
from egmctl.model.machine import Machine
from egmctl.model.measurement import Settings, Status, finish
from egmctl.model.route import Rank
from egmctl.model.task import HandleKind, Pattern, Quantity, Task
from egmctl.units import MIB
from tests.doctor.machines import shipped

GB200 = shipped("gb200-tray")
SETTINGS = Settings(size_bytes=64 * MIB, copies=4, samples=3, timeout_s=60)


def plan_of(*names: str, machine: Machine = GB200, gpus: int = 4, nodes: tuple[int, ...] = (0, 1)) -> Plan:
    return make_plan(machine, (machine.gpus or ())[:gpus], nodes, select_cases(names), SETTINGS)


def tasks(plan: Plan, case: str) -> list[Task]:
    return [planned for planned in plan.tasks if planned.case == case]


def waivers(plan: Plan, case: str) -> set[str | None]:
    return {planned.waiver for planned in plan.tasks if planned.case == case}


def with_attributes(machine: Machine, **attributes: int) -> Machine:
    """Return a machine whose GPUs have these attributes."""
    gpus = []
    for gpu in machine.gpus or ():
        assert gpu.cuda is not None
        gpus.append(replace(gpu, cuda=replace(gpu.cuda, attributes={**gpu.cuda.attributes, **attributes})))
    return replace(machine, gpus=tuple(gpus))


def with_channels(*channels: DeviceNode) -> Machine:
    assert GB200.driver is not None
    return replace(GB200, driver=replace(GB200.driver, imex_channels=channels))


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
    name = "ipc_posix_fd_host_numa_read_ce"
    plan = plan_of(name)
    found = tasks(plan, name)
    assert len(found) == 4 * 2
    nearest = {rank.number: rank.numa_node for rank in plan.ranks}
    for task in found:
        (flow,) = task.flows
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


def test_each_has_a_counterpart_that_there_is() -> None:
    names = {case.name for case in CASES if case.processes is Processes.ONE}
    for case in CASES:
        assert case.in_process is None or case.in_process in names, case.name


def test_every_path_between_processes_is_set_beside_the_same_path_within_one() -> None:
    plan = plan_of("ipc_*")
    value = summarize([100.0])
    found = [
        finish(
            planned,
            Status.OK,
            bandwidth_gb_s=value if planned.quantity is Quantity.BANDWIDTH else None,
            latency_ns=value if planned.quantity is Quantity.LATENCY else None,
        )
        for planned in plan.tasks
        if planned.waiver is None
    ]
    counterpart = {case.name: case.in_process for case in CASES}
    for m in set_beside(found, CASES):
        expected = 100.0 if m.ranks and counterpart[m.case] and m.headline else None
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
    assert all(f"CU_DEVICE_ATTRIBUTE_{attribute} is {value}" in (waiver or "") for waiver in waivers(plan, name))
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
    plan = plan_of("ipc_fabric_device_read_ce", machine=with_channels(*channels))
    (waiver,) = waivers(plan, "ipc_fabric_device_read_ce")
    assert seen in (waiver or "")
    assert "nvidia-modprobe -c 0" in (waiver or "")


def test_a_gpu_that_cannot_be_used_has_no_process_and_the_others_do() -> None:
    gpus = GB200.gpus or ()
    assert gpus[1].nvml is not None
    broken = replace(gpus[1], nvml=replace(gpus[1].nvml, compute_mode="prohibited"))
    machine = replace(GB200, gpus=(gpus[0], broken, *gpus[2:]))
    name = "ipc_legacy_device_write_ce"
    plan = plan_of(name, machine=machine)
    assert [(rank.number, rank.label) for rank in plan.ranks] == [(0, "GPU0"), (1, "GPU2"), (2, "GPU3")]
    for planned in plan.tasks:
        if planned.case == name:
            touched = {end.label for flow in planned.flows for end in (flow.source, flow.destination)}
            assert (planned.waiver is not None) == ("GPU1" in touched)
            if planned.waiver is None:
                assert max(planned.ranks) < len(plan.ranks)


def test_memory_that_is_shared_counts_where_its_owner_makes_it() -> None:
    cases = [alone(f"ipc_legacy_device_write_{by}") for by in ("ce", "sm")]
    plan = make_plan(GB200, (GB200.gpus or ())[:2], (0,), cases, SETTINGS)
    peaks = {peak.place.label: peak.bytes for peak in plan.peaks if peak.place is not None}
    # Of each GPU: what it writes from, and what the other one writes to.
    assert peaks == {"GPU0": 2 * 64 * MIB, "GPU1": 2 * 64 * MIB}


@pytest.mark.parametrize(
    ("pattern", "count", "flows"), [(Pattern.RING, 1, 4), (Pattern.BISECT, 1, 4), (Pattern.ONE_TO_ALL, 4, 3)]
)
def test_patterns_of_many_ranks(pattern: Pattern, count: int, flows: int) -> None:
    ranks = [Rank(number=n, label=f"node{n // 2}:GPU{n % 2}", bus_id=f"0000:0{n}:00.0") for n in range(4)]
    made = list(node_flows(replace(alone("ipc_fabric_device_ring_write_ce"), pattern=pattern), ranks, ()))
    assert (len(made), len(made[0])) == (count, flows)


def alone(name: str) -> Case:
    (case,) = select_cases([name])
    return replace(case, in_process=None)
