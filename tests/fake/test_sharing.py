"""Memory and events of the fake driver that two processes really share."""

from __future__ import annotations

import ctypes
import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from egmctl.model.machine import Machine
from tests.fake.machines import nvl4, with_access, with_imex_channel
from tests.fake.memory import DEVICE, FABRIC, HOST_NUMA, MIB, POSIX_FD, access, pool_properties, properties
from tests.fake.plugin import MakeFakeNode
from tests.fake.process import SEGMENTATION_FAULT, code, cu, ending_on, run_on, start_on, use_device

OK, INVALID_VALUE, OUT_OF_MEMORY, INVALID_DEVICE, INVALID_HANDLE = 0, 1, 2, 101, 400
NOT_READY, NOT_PERMITTED, NOT_SUPPORTED = 600, 800, 801


def tell(value: Any) -> None:
    print(json.dumps(value), flush=True)  # noqa: T201 - how the process answers


def export(location: int, identity: int, handle_type: int) -> str:
    """Make memory with a word in it, tell its handle, and answer with what stands there when told to go on."""
    from cuda.bindings import driver

    use_device(0)
    handle = cu("cuMemCreate", 2 * MIB, properties(location, identity, handle_type), 0)
    kind = driver.CUmemAllocationHandleType(handle_type)
    exported = cu("cuMemExportToShareableHandle", handle, kind, 0)
    address = _map(handle)
    _write(address, b"exporter")
    tell(exported if handle_type == POSIX_FD else list(exported.data))
    sys.stdin.readline()
    return _read(address)


def import_and_answer(handle_type: int, exported: Any) -> tuple[int, str]:
    """Import memory, return what stands in it, and write there."""
    from cuda.bindings import driver

    use_device(0)
    kind = driver.CUmemAllocationHandleType(handle_type)
    if handle_type == FABRIC:
        fabric = driver.CUmemFabricHandle()
        fabric.data = bytes(exported)
        exported = fabric.getPtr()
    result, handle = driver.cuMemImportFromShareableHandle(exported, kind)
    if result:
        return int(result), ""
    address = _map(handle)
    text = _read(address)
    _write(address, b"importer")
    return 0, text


def export_legacy() -> str:
    use_device(1)
    address = cu("cuMemAlloc", 2 * MIB)
    _write(int(address), b"exporter")
    handle = cu("cuIpcGetMemHandle", address)
    # The bindings show no fields of a CUipcMemHandle: its 64 bytes are taken as they lie.
    tell(list(ctypes.string_at(handle.getPtr(), 64)))
    sys.stdin.readline()
    return _read(int(address))


def import_legacy(exported: list[int]) -> tuple[int, str]:
    from cuda.bindings import driver

    use_device(0)
    handle = driver.CUipcMemHandle()
    ctypes.memmove(handle.getPtr(), bytes(exported), 64)
    result, address = driver.cuIpcOpenMemHandle(handle, 1)
    if result:
        return int(result), ""
    text = _read(int(address))
    _write(int(address), b"importer")
    return code("cuIpcCloseMemHandle", address), text


def _map(handle: Any) -> int:
    address = cu("cuMemAddressReserve", 2 * MIB, 0, 0, 0)
    cu("cuMemMap", address, 2 * MIB, 0, handle, 0)
    cu("cuMemSetAccess", address, 2 * MIB, [access(DEVICE, 0)], 1)
    return int(address)


def _write(address: int, text: bytes) -> None:
    cu("cuMemcpyHtoD", address, ctypes.create_string_buffer(text, 8), 8)


def _read(address: int) -> str:
    buffer = ctypes.create_string_buffer(8)
    cu("cuMemcpyDtoH", buffer, address, 8)
    return buffer.raw.decode()


def answer_of(process: subprocess.Popen[str]) -> Any:
    assert process.stdout is not None
    line = process.stdout.readline()
    assert line, process.communicate()[1]
    return json.loads(line)


@contextmanager
def borrowed(owner: subprocess.Popen[str], fd: int) -> Iterator[int]:
    """Have another process' descriptor, to be inherited: what a socket would do with SCM_RIGHTS."""
    with open(f"/proc/{owner.pid}/fd/{fd}", "r+b") as file:
        yield file.fileno()


def go_on(process: subprocess.Popen[str]) -> Any:
    out, err = process.communicate("\n", timeout=60)
    assert process.returncode == 0, err
    return json.loads(out)


@pytest.mark.parametrize(("location", "identity"), [(DEVICE, 0), (HOST_NUMA, 1)])
def test_a_file_descriptor_carries_memory_to_another_process(
    fake_node: MakeFakeNode, location: int, identity: int
) -> None:
    node = fake_node(nvl4())
    with start_on(node, export, location, identity, POSIX_FD) as exporter:
        with borrowed(exporter, answer_of(exporter)) as fd:
            assert run_on(node, import_and_answer, POSIX_FD, fd, pass_fds=(fd,)) == [OK, "exporter"]
        assert go_on(exporter) == "importer"


@pytest.mark.parametrize(("location", "identity"), [(DEVICE, 0), (HOST_NUMA, 1)])
def test_a_fabric_handle_carries_memory_to_another_process(
    fake_node: MakeFakeNode, location: int, identity: int
) -> None:
    node = fake_node(with_imex_channel(nvl4()))
    with start_on(node, export, location, identity, FABRIC) as exporter:
        handle = answer_of(exporter)
        assert len(handle) == 64
        assert run_on(node, import_and_answer, FABRIC, handle) == [OK, "exporter"]
        assert go_on(exporter) == "importer"
    with_no_channel = fake_node(nvl4())
    with start_on(node, export, location, identity, FABRIC) as exporter:
        assert run_on(with_no_channel, import_and_answer, FABRIC, answer_of(exporter)) == [NOT_PERMITTED, ""]
        go_on(exporter)


def test_a_legacy_handle_carries_memory_of_a_peer_to_another_process(fake_node: MakeFakeNode) -> None:
    node = fake_node(nvl4())
    with start_on(node, export_legacy) as exporter:
        assert run_on(node, import_legacy, answer_of(exporter)) == [OK, "exporter"]
        assert go_on(exporter) == "importer"


def owner_out_of_reach(machine: Machine, minor: int) -> Machine:
    return with_access(machine, f"/dev/nvidia{minor}", "EPERM")


@pytest.mark.long
@pytest.mark.parametrize(
    ("location", "handle_type", "answer"),
    [
        (DEVICE, POSIX_FD, INVALID_DEVICE),
        (HOST_NUMA, POSIX_FD, INVALID_DEVICE),
        (DEVICE, FABRIC, NOT_SUPPORTED),
        (HOST_NUMA, FABRIC, NOT_SUPPORTED),
    ],
)
def test_nothing_is_imported_from_an_owner_that_the_device_cgroup_denies(
    fake_node: MakeFakeNode, location: int, handle_type: int, answer: int
) -> None:
    machine = with_imex_channel(nvl4())
    node, restricted = fake_node(machine), fake_node(owner_out_of_reach(machine, 0))
    with start_on(node, export, location, 0, handle_type) as exporter:
        exported = answer_of(exporter)
        if handle_type == FABRIC:
            assert run_on(restricted, import_and_answer, FABRIC, exported) == [answer, ""]
        else:
            with borrowed(exporter, exported) as fd:
                assert run_on(restricted, import_and_answer, POSIX_FD, fd, pass_fds=(fd,)) == [answer, ""]
        go_on(exporter)


def test_no_legacy_handle_is_opened_either(fake_node: MakeFakeNode) -> None:
    node, restricted = fake_node(nvl4()), fake_node(owner_out_of_reach(nvl4(), 1))
    with start_on(node, export_legacy) as exporter:
        assert run_on(restricted, import_legacy, answer_of(exporter)) == [INVALID_VALUE, ""]
        go_on(exporter)


# --- pools ------------------------------------------------------------------------------------------------------------


def export_pool(location: int, identity: int) -> str:
    """Make memory in a pool, tell the pool's descriptor and the pointer's handle; answer with what stands there."""
    from cuda.bindings import driver

    use_device(0)
    pool = cu("cuMemPoolCreate", pool_properties(location, identity, POSIX_FD))
    cu("cuMemPoolSetAccess", pool, [access(DEVICE, 0)], 1)
    address = cu("cuMemAllocFromPoolAsync", 2 * MIB, pool, 0)
    _write(int(address), b"exporter")
    fd = cu("cuMemPoolExportToShareableHandle", pool, driver.CUmemAllocationHandleType(POSIX_FD), 0)
    data = cu("cuMemPoolExportPointer", address)
    tell([fd, list(ctypes.string_at(data.getPtr(), 64))])
    sys.stdin.readline()
    return _read(int(address))


def import_pool(fd: int, exported: list[int]) -> list[Any]:
    """Open the pool and the memory, return what stands there, write, close; then allocate from a pool of its own."""
    from cuda.bindings import driver

    use_device(0)
    result, pool = driver.cuMemPoolImportFromShareableHandle(fd, driver.CUmemAllocationHandleType(POSIX_FD), 0)
    if result:
        return [int(result)]
    cu("cuMemPoolSetAccess", pool, [access(DEVICE, 0)], 1)
    data = driver.CUmemPoolPtrExportData()
    ctypes.memmove(data.getPtr(), bytes(exported), 64)
    result, address = driver.cuMemPoolImportPointer(pool, data)
    if result:
        return [0, int(result)]
    text = _read(int(address))
    _write(int(address), b"importer")
    cu("cuMemFreeAsync", address, 0)
    cu("cuCtxSynchronize")
    cu("cuMemPoolDestroy", pool)
    own = cu("cuMemPoolCreate", pool_properties(HOST_NUMA, 1, POSIX_FD))
    return [0, 0, text, code("cuMemAllocFromPoolAsync", 2 * MIB, own, 0)]


@pytest.mark.parametrize(
    ("location", "identity", "own_pool"), [(DEVICE, 0, OK), (HOST_NUMA, 1, OUT_OF_MEMORY)], ids=["device", "host"]
)
def test_a_pool_carries_memory_to_another_process(
    fake_node: MakeFakeNode, location: int, identity: int, own_pool: int
) -> None:
    node = fake_node(nvl4())
    with start_on(node, export_pool, location, identity) as exporter:
        fd, data = answer_of(exporter)
        with borrowed(exporter, fd) as ours:
            assert run_on(node, import_pool, ours, data, pass_fds=(ours,)) == [OK, OK, "exporter", own_pool]
        assert go_on(exporter) == "importer"


def test_pools_of_an_owner_that_the_device_cgroup_denies(fake_node: MakeFakeNode) -> None:
    node, restricted = fake_node(nvl4()), fake_node(owner_out_of_reach(nvl4(), 0))
    for location, ending in ((HOST_NUMA, None), (DEVICE, SEGMENTATION_FAULT)):
        with start_on(node, export_pool, location, 0) as exporter:
            fd, data = answer_of(exporter)
            with borrowed(exporter, fd) as ours:
                if ending is None:
                    assert run_on(restricted, import_pool, ours, data, pass_fds=(ours,)) == [OK, INVALID_DEVICE]
                else:
                    assert ending_on(restricted, import_pool, ours, data, pass_fds=(ours,)) == ending
            go_on(exporter)


# --- events -----------------------------------------------------------------------------------------------------------


def share_event(gated: bool) -> bool:
    """Record an event, behind a wait for a word where it is gated, and tell its handle; open the gate when told to."""
    from cuda.bindings import driver

    use_device(0)
    interprocess = driver.CUevent_flags.CU_EVENT_INTERPROCESS
    assert code("cuEventCreate", interprocess) == INVALID_VALUE, "it must not have times"
    event = cu("cuEventCreate", interprocess | driver.CUevent_flags.CU_EVENT_DISABLE_TIMING)
    word = ctypes.c_uint32.from_address(cu("cuMemHostAlloc", 4, 0))
    word.value = 0
    stream = cu("cuStreamCreate", 0)
    if gated:
        cu("cuStreamWaitValue32", stream, ctypes.addressof(word), 1, 1)
    cu("cuEventRecord", event, stream)
    handle = cu("cuIpcGetEventHandle", event)
    tell(list(ctypes.string_at(handle.getPtr(), 64)))
    sys.stdin.readline()
    word.value = 1
    cu("cuStreamSynchronize", stream)
    return True


def wait_for_event(exported: list[int]) -> list[int]:
    from cuda.bindings import driver

    use_device(0)
    handle = driver.CUipcEventHandle()
    ctypes.memmove(handle.getPtr(), bytes(exported), 64)
    result, event = driver.cuIpcOpenEventHandle(handle)
    if result:
        return [int(result)]
    stream = cu("cuStreamCreate", 0)
    cu("cuStreamWaitEvent", stream, event, 0)
    states = [code("cuEventQuery", event), code("cuStreamQuery", stream)]
    cu("cuEventDestroy", event)
    return states


@pytest.mark.parametrize("gated", [False, True])
def test_another_process_sees_whether_a_recording_has_been_reached(fake_node: MakeFakeNode, gated: bool) -> None:
    node = fake_node(nvl4())
    with start_on(node, share_event, gated) as owner:
        handle = answer_of(owner)
        assert run_on(node, wait_for_event, handle) == [NOT_READY if gated else OK] * 2
        assert go_on(owner)


def test_what_is_no_events_handle_is_refused(fake_node: MakeFakeNode) -> None:
    assert run_on(fake_node(nvl4()), wait_for_event, [0] * 64) == [INVALID_HANDLE]
