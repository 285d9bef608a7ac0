"""What would be measured on a node, over which route, and why the rest would not: from facts alone."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from egmctl.bench.plan.flows import IDLE_MEMORY_BYTES, gpu_use
from egmctl.bench.plan.paths import cuda_visible
from egmctl.errors import UsageError
from egmctl.model.gpu import GpuProcess
from egmctl.model.host import Process
from egmctl.model.record import Reason, Unread
from egmctl.model.route import Egm, MemoryKind
from tests.bench.four import NAMES
from tests.bench.plans import plan_of, waivers, with_attributes
from tests.doctor.machines import patched, shipped

DGX = shipped("dgx-h100")
GPUS = DGX.gpus or ()


@given(st.lists(st.integers(0, 7), min_size=1, unique=True), st.lists(st.integers(0, 1), min_size=1, unique=True))
def test_every_combination_of_ends_is_a_path_once(gpus: list[int], nodes: list[int]) -> None:
    paths = Counter((task.case, task.path) for task in plan_of(*NAMES, gpus=gpus, nodes=nodes).tasks)
    assert paths == Counter(
        [
            *(("host_numa_to_device_memcpy_ce", f"NUMA{n} -> GPU{g}") for n in nodes for g in gpus),
            *(("device_to_host_numa_memcpy_ce", f"GPU{g} -> NUMA{n}") for n in nodes for g in gpus),
            *(
                (f"device_to_device_memcpy_{way}_ce", f"GPU{a} -> GPU{b}")
                for way in ("write", "read")
                for a in gpus
                for b in gpus
                if a != b
            ),
        ]
    )


def test_a_write_is_issued_by_the_source_a_read_by_the_destination_and_host_memory_is_worked_by_the_gpu() -> None:
    for task in plan_of(*NAMES).tasks:
        (flow,) = task.flows
        by_destination = "read" in task.case or flow.source.memory is MemoryKind.HOST_NUMA
        assert flow.initiator == (flow.destination if by_destination else flow.source).bus_id


def test_one_gpu_makes_no_pair_and_the_plan_says_so() -> None:
    pairs = ("device_to_device_memcpy_write_ce", "all_to_host_one_node_memcpy_ce", "ipc_legacy_device_write_ce")
    plan = plan_of(NAMES[0], *pairs, gpus=[3])
    assert {task.case for task in plan.tasks} == {NAMES[0]}
    (note,) = plan.notes
    assert note.startswith("these cases need two GPUs: ")
    assert set(note.partition(": ")[2].split(", ")) == set(pairs)


def routes(machine: str, case: str) -> dict[str, tuple[str, Egm | None]]:
    """Return the links of each path of a case, and whether it is EGM."""
    return {
        task.path: (task.flows[0].route.symbol, task.flows[0].route.egm)
        for task in plan_of(case, machine=machine).tasks
    }


def test_egm_where_the_bit_and_c2c_say_so_local_and_through_a_peer() -> None:
    found = routes("gb200-tray", "host_numa_to_device_memcpy_ce")
    assert found["NUMA0 -> GPU0"] == ("C2C", Egm.YES)
    assert found["NUMA1 -> GPU0"] == ("NV18>C2C", Egm.YES)


def test_the_same_calls_on_a_pcie_node_are_not_called_egm_and_between_gpus_it_is_no_question() -> None:
    found = set(routes("dgx-h100", "host_numa_to_device_memcpy_ce").values())
    assert found == {("PCIe", Egm.NO), ("PCIe>SMP", Egm.NO)}
    assert set(routes("dgx-h100", "device_to_device_memcpy_write_ce").values()) == {("NV18", None)}


UNSEEN = Unread(reason=Reason.NOT_PRESENT, detail="CUDA does not list this bus id")
BUSY = "GPU1 is in use by process 4711; 'egmctl bench --allow-busy' measures it anyway"


def environment(**variables: str) -> Process:
    return Process(environment=variables)


@pytest.mark.parametrize(
    ("path", "changes", "reason"),
    [
        ("gpus[1]", {"cuda": None, "unread": {"cuda": UNSEEN}}, f"GPU1: CUDA does not see it ({UNSEEN.detail})"),
        ("gpus[1].nvml", {"mig_mode": True}, "GPU1: MIG is on: it can only be used in parts"),
        ("gpus[1].nvml", {"processes": (GpuProcess(pid=4711, name="python3"),)}, BUSY),
        ("", {"process": environment(CUDA_VISIBLE_DEVICES="0,2")}, "CUDA_VISIBLE_DEVICES hides GPU1"),
        ("host", {"allowed_numa_nodes": "0"}, "Mems_allowed"),
    ],
    ids=["CUDA does not see it", "MIG", "busy", "hidden", "cpuset"],
)
def test_what_stops_a_gpu_or_a_node_waives_its_paths_and_no_others(
    path: str, changes: dict[str, Any], reason: str
) -> None:
    plan = plan_of(*NAMES, machine=patched(DGX, path, **changes), gpus=3)
    (waiver, *others) = waivers(plan)
    assert reason in waiver
    end = "NUMA1" if path == "host" else "GPU1"
    assert others == [] or end == "NUMA1"
    assert {task.path for task in plan.tasks if task.waiver} == {task.path for task in plan.tasks if end in task.path}


def test_a_gpu_that_nothing_but_pci_sees_is_waived_with_what_stands_in_the_way() -> None:
    denied = patched(patched(DGX, "gpus[1]", nvml=None, cuda=None), "gpus[1].node", access="EPERM")
    assert any("device cgroup" in reason for reason in waivers(plan_of(*NAMES, machine=denied, gpus=2)))


@pytest.mark.parametrize(
    ("attributes", "case", "reason"),
    [
        (
            {"COMPUTE_CAPABILITY_MAJOR": 8, "COMPUTE_CAPABILITY_MINOR": 0},
            "device_local_copy_tma",
            "GPU0 has compute capability 8.0, and memcpy bulk needs 9.0",
        ),
        (
            {"COMPUTE_CAPABILITY_MAJOR": 8, "COMPUTE_CAPABILITY_MINOR": 0},
            "device_to_device_latency_tma",
            "GPU0 has compute capability 8.0, and pointer chase by TMA needs 9.0",
        ),
        (
            {"HOST_NUMA_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED": 0},
            "host_numa_to_device_memcpy_ce",
            "GPU0 cannot use HOST_NUMA memory: CU_DEVICE_ATTRIBUTE_HOST_NUMA_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED is 0",
        ),
    ],
)
def test_what_a_gpu_cannot_do_is_waived_with_what_it_has_and_what_is_needed(
    attributes: dict[str, int], case: str, reason: str
) -> None:
    plan = plan_of(case, machine=with_attributes(DGX, 0, **attributes), gpus=2, nodes=(0,))
    assert all(task.waiver == (reason if "GPU0" in task.path else None) for task in plan.tasks)
    assert reason in waivers(plan)


def test_a_pair_without_peer_access_is_staged_and_says_what_nvml_says() -> None:
    ends = [gpu.bus_id for gpu in GPUS[:2]]
    pairs = tuple(
        replace(pair, can_access_peer=False, p2p_status={"read": "CNS", "write": "OK", "pci": None})
        if [pair.source, pair.target] == ends
        else pair
        for pair in DGX.pairs or ()
    )
    plan = plan_of(*NAMES, machine=replace(DGX, pairs=pairs), gpus=2)
    staged = [flow for task in plan.tasks for flow in task.flows if flow.route.staged]
    assert [(flow.initiator_label, flow.source.label) for flow in staged] == [("GPU0", "GPU0"), ("GPU0", "GPU1")]
    assert {flow.route.staged_reason for flow in staged} == {"GPU0 has no peer access to GPU1: P2P read is CNS"}
    assert waivers(plan) == set()


@pytest.mark.parametrize(
    ("value", "visible"),
    [
        ("", []),
        ("-1", []),
        ("0", [0]),
        ("3,1", [1, 3]),
        ("1,9,2", [1]),
        ("1,-1,2", [1]),
        ("GPU-nonsense", []),
        (" 2 , 0 ", [0, 2]),
        ("GPU-4c1f", [4]),
    ],
)
def test_cuda_visible_devices_ends_at_its_first_invalid_entry(value: str, visible: list[int]) -> None:
    machine = patched(DGX, "gpus[4].nvml", uuid="GPU-4c1f0000-1111")
    machine = replace(machine, process=environment(CUDA_VISIBLE_DEVICES=value))
    assert cuda_visible(machine) == frozenset(GPUS[index].bus_id for index in visible)


def test_without_the_variable_everything_is_visible() -> None:
    assert cuda_visible(replace(DGX, process=environment())) is None


def test_a_busy_gpu_is_measured_when_asked_for_and_the_report_says_so() -> None:
    busy = patched(DGX, "gpus[1].nvml", processes=(GpuProcess(pid=4711),))
    plan = plan_of(*NAMES, machine=busy, gpus=2, allow_busy=True)
    assert waivers(plan) == set()
    assert plan.notes == ("measured anyway: GPU1 is in use by process 4711",)


@pytest.mark.parametrize(
    ("nvml", "sentence"),
    [
        ({"memory_used_bytes": 12 << 30}, "12 GiB of GPU0 are in use, by no process that is visible from here"),
        ({"memory_used_bytes": IDLE_MEMORY_BYTES}, None),
        ({"memory_used_bytes": 12 << 30, "numa_node": 2}, None),
        (
            {"processes": tuple(GpuProcess(pid=pid) for pid in range(100, 107))},
            "GPU0 is in use by process 100, 101, 102 and 4 more",
        ),
    ],
    ids=["memory of nobody in sight", "the driver's own memory", "memory of a NUMA node", "many processes"],
)
def test_who_uses_a_gpu(nvml: dict[str, Any], sentence: str | None) -> None:
    machine = patched(DGX, "gpus[0].nvml", **{"processes": (), "numa_node": None} | nvml)
    use = gpu_use((machine.gpus or ())[0])
    assert (use and str(use)) == sentence


@pytest.mark.parametrize("size", [0, 8, 1000])
def test_a_size_that_is_no_whole_number_of_the_widest_words_is_refused(size: int) -> None:
    with pytest.raises(UsageError, match=rf"--size {size}: it must be a multiple of 16 bytes above 0"):
        plan_of(*NAMES, size_bytes=size)
