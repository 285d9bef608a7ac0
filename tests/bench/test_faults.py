"""Each kind of memory and each way through it: a call that fails is named, a byte that is damaged is found."""

from __future__ import annotations

from dataclasses import dataclass

import pytest

from egmctl.model.machine import Machine
from tests.bench.conftest import FEW, STAYS, Bench
from tests.bench.four import cases
from tests.fake.machines import nvl4, with_imex_channel
from tests.mpi.nodes import QUICK


@dataclass(frozen=True)
class Way:
    """What is measured, and what goes wrong in turn: calls that fail, and what damages a byte."""

    options: tuple[str, ...]
    calls: tuple[str, ...] = ()
    damage: tuple[str, ...] = ()
    machine: Machine | str = "gb200-tray"
    others: int | None = None
    """How many measurements are whole where a byte is damaged; ``None`` where the damage may reach several."""


TWO = ("--numa", "1", "--gpus", "0-1", *FEW)
ONE = ("--numa", "1", "--gpus", "2", *FEW)
MAPPED = ("cuMemGetAllocationGranularity", "cuMemCreate", "cuMemAddressReserve", "cuMemMap", "cuMemSetAccess")
UNMAPPED = ("cuMemUnmap", "cuMemAddressFree", "cuMemRelease")
TAKEN = ("cuMemGetDefaultMemPool@1", "cuMemPoolSetAccess@1", "cuMemAllocFromPoolAsync@1")
FABRIC = (*QUICK, "--gpus", "0,2")
EGM_TO_EGM = with_imex_channel(nvl4())
WAYS = {
    "memory by owner": Way(
        ("--numa", "0-1", "--gpus", "0-3", *FEW, *cases("host_numa_by_owner_to_device_memcpy_ce")),
        calls=tuple(
            f"{call}@{number}"
            for call in ("cuDevicePrimaryCtxRetain", *MAPPED, "cuMemcpyAsync", *UNMAPPED)
            for number in (2, 3)
        ),
        damage=("cuMemcpyAsync@3=corrupt:100",),
    ),
    "node to node by copy engine": Way(
        (*ONE, *cases("host_numa_to_host_numa_memcpy_ce")),
        calls=tuple(f"{call}@2" for call in (*MAPPED[1:], "cuMemcpyAsync", "cuMemRelease")),
        damage=("cuMemcpyAsync@3=corrupt:100",),
        others=0,
    ),
    "node to node by kernel": Way(
        (*ONE, *cases("host_numa_to_host_numa_memcpy_sm")), damage=("cuLaunchKernel@4=corrupt:100",), others=0
    ),
    "EGM to EGM by copy engine": Way(
        (*FABRIC, *cases("fabric_host_numa_to_host_numa_write_ce")),
        calls=(
            *("cuMemCreate@1", "cuMemCreate@2", "cuMemExportToShareableHandle", "cuMemImportFromShareableHandle"),
            *("cuMemAddressReserve@2", "cuMemMap@2", "cuMemSetAccess@2", "cuMemcpyAsync@2", "cuStreamSynchronize@5"),
            "cuMemRelease@1",
        ),
        damage=("cuMemcpyAsync@4=corrupt:4096",),
        machine=EGM_TO_EGM,
    ),
    "EGM to EGM by kernel": Way(
        (*FABRIC, *cases("fabric_host_numa_to_host_numa_read_sm")),
        damage=("cuLaunchKernel@5=corrupt:4096",),
        machine=EGM_TO_EGM,
    ),
    "pages": Way(
        (*ONE, *cases("thp_to_device_memcpy_ce", "device_to_managed_memcpy_ce", "managed_to_device_memcpy_sm")),
        calls=("cuMemAllocManaged@1", "cuMemAdvise@1", "cuMemHostRegister@1", "cuMemFree@1"),
    ),
    "huge pages": Way((*ONE, *cases("device_to_thp_memcpy_ce")), damage=("cuMemcpyAsync@3=corrupt:100",), others=0),
    "managed pages": Way(
        (*ONE, *cases("device_to_managed_memcpy_ce")), damage=("cuMemcpyAsync@3=corrupt:100",), others=0
    ),
    "the pool of a node": Way(
        (*TWO, *cases("host_numa_default_pool_to_device_memcpy_ce")),
        calls=(*TAKEN, "cuMemPoolTrimTo@1"),
        damage=("cuMemcpyAsync@4=corrupt:99",),
        others=1,
    ),
    "the pool of the host": Way(
        (*TWO, *cases("host_default_pool_to_device_memcpy_ce")), calls=(*TAKEN, "cuMemPoolGetAccess@1")
    ),
    "to the pool of the host": Way(
        (*TWO, *cases("device_to_host_default_pool_memcpy_ce")), damage=("cuMemcpyAsync@4=corrupt:99",), others=1
    ),
    "pools of GPUs": Way(
        (*TWO, *cases("device_default_pool_memcpy_write_ce")),
        calls=(
            *("cuDeviceGetDefaultMemPool@1", "cuMemPoolGetAccess@1", "cuMemPoolSetAccess@1", "cuMemPoolSetAccess@2"),
            *("cuMemAllocFromPoolAsync@1", "cuMemAllocFromPoolAsync@2", "cuMemPoolTrimTo@1", "cuMemFreeAsync@2"),
        ),
        damage=("cuMemcpyAsync@4=corrupt:99", "cuMemcpyAsync@6=corrupt:99"),
    ),
    "other memory": Way(
        (
            *TWO,
            *cases(
                *("host_numa_pool_to_device_memcpy_ce", "device_to_registered_memcpy_ce", "device_to_device_read_sm")
            ),
        ),
        calls=("cuMemPoolTrimTo@1",),
    ),
    "pools and registered memory": Way(
        (*TWO, *cases("host_numa_pool_to_device_memcpy_ce", "registered_to_device_memcpy_ce")),
        calls=(
            *("cuMemPoolCreate@1", "cuMemPoolSetAccess@1", "cuMemAllocFromPoolAsync@1", "cuMemHostRegister@1"),
            *("cuMemFreeAsync@1", "cuMemPoolDestroy@1", "cuMemHostUnregister@1"),
        ),
    ),
    "streams": Way(
        (*TWO, "--sweep", "streams", *cases("host_numa_to_device_memcpy_ce")), calls=("cuStreamWaitEvent@1",)
    ),
    "peer access": Way(
        (
            *TWO,
            *cases(
                *("device_to_device_memcpy_write_ce", "device_to_device_staged_memcpy_ce", "device_to_device_write_sm")
            ),
        ),
        calls=("cuCtxDisablePeerAccess@1", "cuCtxDisablePeerAccess@2", "cuCtxEnablePeerAccess@3"),
    ),
    "staged copies": Way(
        (*TWO, *cases("device_to_device_staged_memcpy_ce")), damage=("cuMemcpyAsync@4=corrupt:7",), others=1
    ),
    **{
        f"{case} by few SMs": Way(
            (*TWO, "--sweep", "sms", *cases(case)), damage=("cuLaunchKernel@4=corrupt:100",), others=7
        )
        for case in ("device_to_device_memcpy_write_sm", "device_to_device_memcpy_write_tma")
    },
    **{
        case: Way((*TWO, *cases(case)), damage=(f"cuLaunchKernel@{launch}=corrupt:{offset}",), others=1)
        for case, launch, offset in (
            ("device_to_device_memcpy_write_sm", 4, 100),
            ("device_to_device_memcpy_write_tma", 4, 100),
            ("device_to_device_atomic_add", 3, 100),
            ("device_to_device_read_sm", 4, 1),
            ("device_to_device_write_sm", 3, 100),
        )
    },
    "latencies": Way(
        (
            *("--gpus", "0-1", "--numa", "0", "--samples", "2"),
            *cases("device_to_device_ping_pong_latency", "device_to_device_latency_cached"),
        ),
        calls=("cuMemAlloc@3", "cuLaunchKernel@2", "cuMemsetD32Async@1", "cuMemcpyAsync@2"),
    ),
    "atomic latencies": Way(
        (
            *("--gpus", "0-1", "--numa", "0", "--samples", "2"),
            *cases("device_to_device_atomic_round_trip", "host_numa_to_device_atomic_round_trip"),
        ),
        calls=(
            *("cuMemAlloc@1", "cuMemAlloc@3", "cuMemsetD32Async@1", "cuLaunchKernel@1"),
            *("cuMemcpyAsync@1", "cuMemcpyAsync@2"),
        ),
    ),
}


@pytest.mark.long
@pytest.mark.parametrize(("way", "call"), [(way, call) for way, tried in WAYS.items() for call in tried.calls])
def test_a_call_that_fails_is_named_and_all_else_is_given_back(bench: Bench, way: str, call: str) -> None:
    run = bench("bench", *WAYS[way].options, machine=WAYS[way].machine, faults=f"{call}=error:719")
    name = call.partition("@")[0]
    sentence = f"{name} failed: CUDA_ERROR_LAUNCH_FAILED (719)"
    failed = [measurement["reason"] for measurement in run.measurements if measurement["status"] == "failed"]
    assert run.code == 4
    assert sentence in run.said()
    assert all(sentence in reason for reason in failed)
    assert failed or "latencies" not in way, "none of these calls is made after the measurement"
    assert run.left() <= STAYS.get(name, set())
    access = [made.arguments["access"] for made in run.node.calls("cuMemPoolSetAccess")]
    if "pools of GPUs" in way and "SetAccess" not in name and any("RW" in given for given in access):
        assert access[-1].endswith("NONE"), "what was given to a peer is taken back"


@pytest.mark.long
@pytest.mark.parametrize(("way", "fault"), [(way, fault) for way, tried in WAYS.items() for fault in tried.damage])
def test_a_byte_that_is_damaged_is_found_and_the_rest_is_measured(bench: Bench, way: str, fault: str) -> None:
    run = bench("bench", *WAYS[way].options, machine=WAYS[way].machine, faults=fault)
    assert run.code == 1
    assert run.corrupt()
    if (others := WAYS[way].others) is not None:
        assert (len(run.corrupt()), len(run.statuses())) == (1, 1 + others)
    assert set(run.statuses()) <= {"corrupt", "ok", "unstable"}
    of_a_sum = way == "device_to_device_read_sm"
    assert {found["mismatch"]["words"] for found in run.corrupt()} == {0 if of_a_sum else 1}
    assert run.node.leaks() == []
