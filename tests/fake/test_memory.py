"""Memory of the fake driver: what may be made where, who may touch it, and that its bytes are really there."""

from __future__ import annotations

import ctypes
from typing import Any

import pytest

from tests.fake.machines import nvl4, with_imex_channel
from tests.fake.memory import (
    DEVICE,
    FABRIC,
    HOST,
    HOST_NUMA,
    HOST_NUMA_CURRENT,
    MIB,
    NONE,
    POSIX_FD,
    access,
    launch,
    mapped,
    pool_properties,
    properties,
)
from tests.fake.plugin import MakeFakeNode
from tests.fake.process import SEGMENTATION_FAULT, code, cu, ending_on, run_on, use_device

OK, INVALID_VALUE, OUT_OF_MEMORY, ILLEGAL_ADDRESS, NOT_PERMITTED = 0, 1, 2, 700, 800


# --- host memory of a NUMA node ---------------------------------------------------------------------------------------


def host_numa_round_trip() -> str:
    use_device(0)
    size = cu("cuMemGetAllocationGranularity", properties(HOST_NUMA, 1), 0)
    host = mapped(HOST_NUMA, 1, size, access(HOST_NUMA, 1), access(DEVICE, 0))
    device = cu("cuMemAlloc", size)
    ctypes.memmove(host, b"through the GPU", 15)
    cu("cuMemcpyDtoD", device, host, size)
    ctypes.memset(host, 0, size)
    cu("cuMemcpyDtoD", host, device, size)
    return ctypes.string_at(host, 15).decode()


def test_bytes_go_from_the_cpu_through_memory_of_numa_node_1_to_a_gpu_and_back(fake_node: MakeFakeNode) -> None:
    node = fake_node(nvl4())
    assert run_on(node, host_numa_round_trip) == "through the GPU"
    (created,) = node.calls("cuMemCreate")
    assert (created.arguments["location"], created.arguments["size"]) == ("HOST_NUMA:1", str(2 * MIB))
    (opened,) = node.calls("cuMemSetAccess")
    assert opened.arguments["access"] == "HOST_NUMA:1:RW,DEVICE:0:RW"


def touch_without_host_access() -> None:
    use_device(0)
    ctypes.memset(mapped(HOST_NUMA, 1, 2 * MIB, access(DEVICE, 0)), 0, 1)


def touch_device_memory() -> None:
    use_device(0)
    ctypes.memset(int(cu("cuMemAlloc", 4096)), 0, 1)


@pytest.mark.parametrize("program", [touch_without_host_access, touch_device_memory])
def test_the_cpu_may_touch_only_what_it_was_given(fake_node: MakeFakeNode, program: Any) -> None:
    assert ending_on(fake_node(nvl4()), program) == SEGMENTATION_FAULT


def access_for_another_node() -> int:
    use_device(0)
    address = mapped(HOST_NUMA, 1, 2 * MIB)
    return code("cuMemSetAccess", address, 2 * MIB, [access(HOST_NUMA, 0)], 1)


def test_host_access_takes_the_memory_s_own_node(fake_node: MakeFakeNode) -> None:
    assert run_on(fake_node(nvl4()), access_for_another_node) == INVALID_VALUE


# --- what can be made (measured on H200s) -----------------------------------------------------------------------------


def create_all(cases: list[list[int]]) -> list[list[int]]:
    use_device(0)
    answers = []
    for location, identity, handle_types in cases:
        wanted = properties(location, identity, handle_types)
        pool = pool_properties(location, identity, handle_types)
        granularity = code("cuMemGetAllocationGranularity", wanted, 0)
        answers.append([granularity, code("cuMemCreate", 2 * MIB, wanted, 0), code("cuMemPoolCreate", pool)])
    return answers


ABSENT_NODE = 7
CREATES = [
    # location, its id; the answer without handle, with POSIX_FD, with FABRIC without and with an IMEX channel
    (DEVICE, 1, (OK, OK, NOT_PERMITTED, OK)),
    (HOST_NUMA, 0, (OK, OK, NOT_PERMITTED, OK)),
    (HOST_NUMA, 1, (OK, OK, NOT_PERMITTED, OK)),
    (HOST_NUMA, ABSENT_NODE, (INVALID_VALUE, INVALID_VALUE, INVALID_VALUE, INVALID_VALUE)),
    (HOST, 0, (OK, INVALID_VALUE, INVALID_VALUE, INVALID_VALUE)),
    (HOST_NUMA_CURRENT, 0, (INVALID_VALUE, INVALID_VALUE, INVALID_VALUE, INVALID_VALUE)),
]


@pytest.mark.parametrize("imex", [False, True])
def test_what_can_be_made_where(fake_node: MakeFakeNode, imex: bool) -> None:
    node = fake_node(with_imex_channel(nvl4()) if imex else nvl4())
    cases = [(location, identity, kind) for location, identity, _ in CREATES for kind in (NONE, POSIX_FD, FABRIC)]
    expected = [answer for *_, answers in CREATES for answer in (*answers[:2], answers[3 if imex else 2])]
    # The granularity is told for places where nothing can be made, too.
    assert run_on(node, create_all, cases) == [[OK, answer, answer] for answer in expected]


def create_size(size: int) -> int:
    use_device(0)
    return code("cuMemCreate", size, properties(HOST_NUMA, 1), 0)


@pytest.mark.long
def test_sizes_are_multiples_of_the_granularity(fake_node: MakeFakeNode) -> None:
    node = fake_node(nvl4())
    assert [run_on(node, create_size, size) for size in (2 * MIB, 3 * MIB, 0)] == [OK, INVALID_VALUE, INVALID_VALUE]


def fill_up(location: int, identity: int, chunk: int) -> tuple[int, int]:
    use_device(0)
    taken = 0
    while (result := code("cuMemCreate", chunk, properties(location, identity), 0)) == OK:
        taken += 1
    return taken, result


def test_memory_ends_where_the_machine_s_does(fake_node: MakeFakeNode) -> None:
    machine = nvl4()
    node = fake_node(machine)
    assert machine.host is not None
    assert machine.gpus is not None
    assert machine.host.numa_nodes is not None
    assert machine.gpus[0].nvml is not None
    chunk = 16 << 30
    for location, identity, total in (
        (HOST_NUMA, 1, machine.host.numa_nodes[1].memory_total_bytes),
        (DEVICE, 0, machine.gpus[0].nvml.memory_total_bytes),
    ):
        assert total is not None
        assert run_on(node, fill_up, location, identity, chunk) == [total // chunk, OUT_OF_MEMORY]


def memory_info() -> list[int]:
    use_device(0)
    before, total = cu("cuMemGetInfo")
    address = cu("cuMemAlloc", 3 * MIB)
    after, _ = cu("cuMemGetInfo")
    cu("cuMemFree", address)
    return [total - before, before - after, before - cu("cuMemGetInfo")[0]]


def test_the_memory_of_a_device_is_counted(fake_node: MakeFakeNode) -> None:
    assert run_on(fake_node(nvl4()), memory_info) == [0, 3 * MIB, 0]


# --- who may touch it -------------------------------------------------------------------------------------------------


def kernel_without_access() -> list[int]:
    use_device(0)
    address = mapped(DEVICE, 0, 2 * MIB)
    results = [launch("fill_pattern", address, 4, 1, 1, 1)]
    return [*results, code("cuMemAlloc", 4096), code("cuCtxSynchronize"), code("cuStreamCreate", 1)]


def test_a_kernel_on_memory_without_access_breaks_the_context_for_good(fake_node: MakeFakeNode) -> None:
    assert run_on(fake_node(nvl4()), kernel_without_access) == [ILLEGAL_ADDRESS] * 4


def read_only() -> list[int]:
    from cuda.bindings import driver

    use_device(0)
    read = int(driver.CUmemAccess_flags.CU_MEM_ACCESS_FLAGS_PROT_READ)
    address = mapped(DEVICE, 0, 2 * MIB, access(DEVICE, 0, read))
    device = cu("cuMemAlloc", 4096)
    return [code("cuMemcpyDtoD", device, address, 64), code("cuMemcpyDtoD", address, device, 64)]


def test_access_to_read_is_none_to_write(fake_node: MakeFakeNode) -> None:
    assert run_on(fake_node(nvl4()), read_only) == [OK, ILLEGAL_ADDRESS]


def peer_memory(enable: bool) -> list[int]:
    peer = use_device(1)
    remote = cu("cuMemAlloc", 4096)
    use_device(0)
    local = cu("cuMemAlloc", 4096)
    if enable:
        cu("cuCtxEnablePeerAccess", peer, 0)
    return [code("cuMemcpyDtoD", local, remote, 4096), launch("fill_pattern", int(remote), 4, 1, 1, 1)]


def test_kernels_need_peer_access_and_copies_do_not(fake_node: MakeFakeNode) -> None:
    node = fake_node(nvl4())
    assert run_on(node, peer_memory, True) == [OK, OK]
    assert run_on(node, peer_memory, False) == [OK, ILLEGAL_ADDRESS]


def bad_addresses() -> list[int]:
    use_device(0)
    address = int(cu("cuMemAlloc", 4096))
    freed = int(cu("cuMemAlloc", 4096))
    cu("cuMemFree", freed)
    return [
        code("cuMemcpyDtoD", address, freed, 64),
        code("cuMemcpyDtoD", address + 4000, address, 128),
        code("cuMemFree", freed),
        code("cuMemFree", address + 1),
    ]


def test_addresses_that_cuda_does_not_know_are_refused(fake_node: MakeFakeNode) -> None:
    assert run_on(fake_node(nvl4()), bad_addresses) == [INVALID_VALUE] * 4


def one_range_of_two_mappings() -> list[int]:
    use_device(0)
    address = int(cu("cuMemAddressReserve", 4 * MIB, 0, 0, 0))
    for half in range(2):
        handle = cu("cuMemCreate", 2 * MIB, properties(DEVICE, 0), 0)
        cu("cuMemMap", address + half * 2 * MIB, 2 * MIB, 0, handle, 0)
        cu("cuMemRelease", handle)
    cu("cuMemSetAccess", address, 4 * MIB, [access(DEVICE, 0)], 1)
    result = cu("cuMemHostAlloc", 16, 0)
    words = (ctypes.c_uint64 * 2).from_address(int(result))
    words[0], words[1] = 0, 2**64 - 1
    launch("fill_pattern", address, 4 * MIB // 16, 5, 1, 1)
    launch("verify_pattern", address, 4 * MIB // 16, 5, int(result))
    return [words[0], code("cuMemAddressFree", address, 4 * MIB), code("cuMemUnmap", address, 4 * MIB)]


def test_a_kernel_sees_neighbouring_mappings_as_one_range(fake_node: MakeFakeNode) -> None:
    node = fake_node(nvl4())
    assert run_on(node, one_range_of_two_mappings) == [0, INVALID_VALUE, OK]
    assert not any("mapping" in line for line in node.leaks())


def from_a_pool(give_access: bool) -> list[int]:
    use_device(0)
    pool = cu("cuMemPoolCreate", pool_properties(HOST_NUMA, 1, NONE))
    if give_access:
        cu("cuMemPoolSetAccess", pool, [access(DEVICE, 0)], 1)
    address = int(cu("cuMemAllocFromPoolAsync", 2 * MIB, pool, 0))
    ctypes.memset(address, 0, 2 * MIB)
    results = [launch("fill_pattern", address, 4, 1, 1, 1)]
    return [*results, int.from_bytes(ctypes.string_at(address, 8), "little") != 0]


def test_memory_of_a_host_pool_is_open_to_the_host_and_to_the_gpus_named(fake_node: MakeFakeNode) -> None:
    node = fake_node(nvl4())
    assert run_on(node, from_a_pool, True) == [OK, True]
    assert run_on(node, from_a_pool, False) == [ILLEGAL_ADDRESS, False]
