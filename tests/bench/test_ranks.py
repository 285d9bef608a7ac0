"""What cases by several processes become on a machine, who works which GPU, and what ends a run before it begins."""

from __future__ import annotations

from dataclasses import replace

import pytest

from egmctl.bench.peaks import peaks
from egmctl.bench.plan import Plan
from egmctl.bench.plan.placement import (
    NvlinkDomain,
    RankInfo,
    assign_gpus,
    check_agreement,
    merge_gpus,
    rank_info,
    rank_of,
    ranks_of,
)
from egmctl.bench.suites import CASES
from egmctl.bench.supervisor import set_beside
from egmctl.errors import EgmctlError, ExitCode, NothingToDo
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
    assert "make it with mknod" in waiver
    assert "nvidia-modprobe -c" not in waiver


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


DOMAIN = NvlinkDomain(cluster="3ac9e5a1-0b64-4f57-8e5c-5a1de7ac1b9d", clique=7)


def at(host: str, *gpus: str, domain: NvlinkDomain = DOMAIN, driver: str = "580.95.05") -> RankInfo:
    return RankInfo(host=host, tool="0.1.0", driver=driver, gpus=gpus, domains=dict.fromkeys(gpus, domain))


@pytest.mark.parametrize(
    ("infos", "gpus"),
    [
        ([at(host, "1b", "2c") for host in "abab"], ("1b", "1b", "2c", "2c")),
        # As of Slurm's --gpu-bind: the first one may use any.
        ([at("a", "1b", "2c", "3d"), at("a", "2c"), at("a", "1b")], ("3d", "2c", "1b")),
    ],
    ids=["all GPUs of the node in turn", "what a launcher has bound"],
)
def test_ranks_take_what_they_may_use(infos: list[RankInfo], gpus: tuple[str, ...]) -> None:
    assert assign_gpus(infos) == gpus


@pytest.mark.parametrize(
    ("infos", "code", "words"),
    [
        ([at("a", "1b"), at("a", "1b")], ExitCode.USAGE, "a has 2 ranks and 1 usable GPU"),
        ([at("a", "1b"), at("b")], ExitCode.NOTHING, "b has no GPU to measure: no GPU was found"),
        (
            [at("a", "1b"), replace(at("b"), waivers=("CUDA_VISIBLE_DEVICES hides GPU0",))],
            ExitCode.NOTHING,
            "b has no GPU to measure: CUDA_VISIBLE_DEVICES hides GPU0",
        ),
    ],
)
def test_a_node_with_too_few_gpus_is_named(infos: list[RankInfo], code: ExitCode, words: str) -> None:
    with pytest.raises(EgmctlError, match=words) as failed:
        assign_gpus(infos)
    assert failed.value.exit_code is code


def test_nodes_that_are_alike_agree_and_cliques_matter_between_nodes_only() -> None:
    check_agreement([at("a", "1b"), at("b", "1b")], ("1b", "1b"))
    check_agreement([at("a", "1b", domain=NvlinkDomain(reason="no domain")), at("a", "2c")], ("1b", "2c"))


@pytest.mark.parametrize(
    ("other", "words"),
    [
        (at("b", "1b", driver="590.10"), "the driver's version differs between nodes: 580.95.05 on a; 590.10 on b"),
        (replace(at("b", "1b"), tool="0.2.0"), "the version of egmctl differs .*0.1.0 on a; 0.2.0 on b"),
        (
            at("b", "1b", domain=NvlinkDomain(cluster="x", clique=8)),
            "the NVLink domain differs .*clique 7 on a; cluster x, clique 8 on b",
        ),
    ],
)
def test_what_differs_is_told_by_node(other: RankInfo, words: str) -> None:
    with pytest.raises(NothingToDo, match=words):
        check_agreement([at("a", "1b"), other], ("1b", "1b"))


def test_nodes_without_a_common_domain_share_nothing() -> None:
    infos = [at(host, "1b", domain=NvlinkDomain(reason="the fabric's state is not-supported")) for host in "ab"]
    with pytest.raises(NothingToDo, match=r"do not go from node to node here .*not-supported"):
        check_agreement(infos, ("1b", "1b"))


def test_what_a_rank_reports_is_what_a_machine_lets_a_rank_use() -> None:
    machine = patched(shipped("gb200-nvl72"), "process", environment={"CUDA_VISIBLE_DEVICES": "1,3"})
    found = rank_info(machine, "a", "0.1.0", (machine.gpus or ())[1:])
    assert found.gpus == ("0009:01:00.0", "0019:01:00.0")
    assert found.waivers == ("CUDA_VISIBLE_DEVICES hides GPU2",)
    assert {str(domain) for domain in (found.domains or {}).values()} == {
        "cluster 00000000-0000-0000-0000-000000000072, clique 1"
    }


def test_a_node_is_put_together_of_what_each_rank_sees_of_its_own_gpu() -> None:
    first, _, third, fourth = GB200.gpus or ()
    # Under a device cgroup each rank sees one GPU, and NVML counts from 0.
    found = merge_gpus(replace(GB200, gpus=(third,)), [replace(gpu, index=0) for gpu in (first, fourth)])
    assert found.gpus == (first, replace(third, index=1), replace(fourth, index=2))


def test_ranks_are_named_by_their_node_where_there_are_several() -> None:
    first, second = (gpu.bus_id for gpu in (GB200.gpus or ())[:2])
    one_node = ranks_of([at("a", first, second)] * 2, (first, second), {"a": GB200})
    assert [rank.label for rank in one_node] == ["GPU0", "GPU1"]
    two = ranks_of([at("a", first), at("b", first)], (first, first), {"a": GB200, "b": GB200})
    assert [(rank.label, rank.host, rank.numa_node) for rank in two] == [("node1:GPU0", "a", 0), ("node2:GPU0", "b", 0)]


@pytest.mark.parametrize(("nodes", "numa_node"), [((0, 1), 1), ((0,), 0), ((), None)])
def test_a_rank_has_host_memory_of_its_own_node_or_else_the_first(
    nodes: tuple[int, ...], numa_node: int | None
) -> None:
    gpu = next(gpu for gpu in GB200.gpus or () if gpu.host_numa_id == 1)
    assert rank_of(0, gpu, nodes).numa_node == numa_node
