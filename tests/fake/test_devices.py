"""Which GPUs the fake driver shows to whom, and what it says of them."""

from __future__ import annotations

from typing import Any

import pytest

from egmctl.model.machine import Machine
from tests.fake.answers import stand_in_uuid
from tests.fake.machines import nvl4, with_access
from tests.fake.plugin import MakeFakeNode
from tests.fake.process import code, cu, run_on, use_device

NO_DEVICE, NOT_INITIALIZED, INVALID_VALUE, INVALID_DEVICE, INVALID_CONTEXT = 100, 3, 1, 101, 201


def bus_ids() -> list[str] | int:
    from cuda.bindings import driver

    result = int(driver.cuInit(0)[0])
    if result:
        return result
    return [_bus_id(device) for device in range(cu("cuDeviceGetCount"))]


def nvml_minors() -> list[int] | str:
    import pynvml

    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError as error:
        return type(error).__name__
    count = pynvml.nvmlDeviceGetCount()
    return [pynvml.nvmlDeviceGetMinorNumber(pynvml.nvmlDeviceGetHandleByIndex(index)) for index in range(count)]


def _bus_id(device: int) -> str:
    text: bytes = cu("cuDeviceGetPCIBusId", 32, device)
    return text.split(b"\0")[0].decode().lower()


ALL = [gpu.bus_id for gpu in nvl4().gpus or ()]


@pytest.mark.long
@pytest.mark.parametrize(
    ("visible", "expected"),
    [
        (None, ALL),
        ("2", ALL[2:3]),
        ("3,0", [ALL[3], ALL[0]]),
        ("0,9,1", ALL[:1]),
        ("1,1", NO_DEVICE),
        ("", NO_DEVICE),
        ("-1", NO_DEVICE),
        (stand_in_uuid(ALL[1]), ALL[1:2]),
        (stand_in_uuid(ALL[1])[:12], ALL[1:2]),
    ],
)
def test_cuda_visible_devices(fake_node: MakeFakeNode, visible: str | None, expected: Any) -> None:
    environment = {} if visible is None else {"CUDA_VISIBLE_DEVICES": visible}
    node = fake_node(nvl4())
    assert run_on(node, bus_ids, environment=environment) == expected
    assert run_on(node, nvml_minors, environment=environment) == [0, 1, 2, 3]


def test_cuda_device_order(fake_node: MakeFakeNode) -> None:
    machine = nvl4()
    assert machine.gpus is not None
    shuffled = Machine(origin=machine.origin, host=machine.host, gpus=machine.gpus[::-1], driver=machine.driver)
    node = fake_node(shuffled)
    assert run_on(node, bus_ids) == ALL[::-1]
    assert run_on(node, bus_ids, environment={"CUDA_DEVICE_ORDER": "PCI_BUS_ID"}) == ALL


@pytest.mark.long
def test_what_the_device_cgroup_denies_is_not_there(fake_node: MakeFakeNode) -> None:
    # Measured on H200s: see "Device cgroup" there. CUDA numbers what is left.
    node = fake_node(with_access(nvl4(), "/dev/nvidia0", "EPERM"))
    assert run_on(node, bus_ids) == ALL[1:]
    assert run_on(node, bus_ids, environment={"CUDA_VISIBLE_DEVICES": "0"}) == ALL[1:2]
    assert run_on(node, nvml_minors) == [1, 2, 3]


def test_without_nvidiactl_there_is_no_driver(fake_node: MakeFakeNode) -> None:
    node = fake_node(with_access(nvl4(), "/dev/nvidiactl", "EPERM"))
    assert run_on(node, bus_ids) == NO_DEVICE
    assert run_on(node, nvml_minors) == "NVMLError_Unknown"


def descriptions() -> list[Any]:
    import pynvml

    cu("cuInit", 0)
    pynvml.nvmlInit()
    handle = pynvml.nvmlDeviceGetHandleByPciBusId(_bus_id(1))
    uuid = bytes(cu("cuDeviceGetUuid", 1).bytes).hex()
    return [
        cu("cuDeviceGetName", 64, 1).split(b"\0")[0].decode(),
        pynvml.nvmlDeviceGetName(handle),
        pynvml.nvmlDeviceGetUUID(handle).removeprefix("GPU-").replace("-", "") == uuid,
        int(cu("cuDeviceGetByPCIBusId", _bus_id(1).encode())),
    ]


def test_every_name_says_that_it_is_fake_and_identities_agree(fake_node: MakeFakeNode) -> None:
    assert run_on(fake_node(nvl4()), descriptions) == ["FAKE NVIDIA GB200", "FAKE NVIDIA GB200", True, 1]


def wrong_order() -> list[int]:
    before = code("cuDeviceGetCount")
    cu("cuInit", 0)
    no_context = code("cuMemAlloc", 16)
    use_device(0)
    gone = cu("cuMemAlloc", 16)
    cu("cuDevicePrimaryCtxRelease", 0)
    from cuda.bindings import driver

    return [
        before,
        no_context,
        code("cuMemFree", gone),
        code("cuDeviceGet", 4),
        code("cuDeviceGetByPCIBusId", b"0000:ff:00.0"),
        code("cuDeviceGetAttribute", driver.CUdevice_attribute.CU_DEVICE_ATTRIBUTE_MAX, 0),
    ]


def test_calls_out_of_order_and_out_of_range(fake_node: MakeFakeNode) -> None:
    assert run_on(fake_node(nvl4()), wrong_order) == [
        NOT_INITIALIZED,
        INVALID_CONTEXT,
        INVALID_CONTEXT,
        INVALID_DEVICE,
        INVALID_VALUE,
        INVALID_VALUE,
    ]


def peers() -> list[int]:
    second = use_device(1)
    use_device(0)
    return [
        cu("cuDeviceCanAccessPeer", 0, 1),
        cu("cuDeviceCanAccessPeer", 0, 0),
        *(code("cuCtxEnablePeerAccess", second, 0) for _ in range(2)),
        *(code("cuCtxDisablePeerAccess", second) for _ in range(2)),
    ]


def test_peer_access_is_enabled_once_and_disabled_once(fake_node: MakeFakeNode) -> None:
    assert run_on(fake_node(nvl4()), peers) == [1, 0, 0, 704, 0, 705]


def test_a_node_with_a_driver_and_without_gpus(fake_node: MakeFakeNode) -> None:
    machine = nvl4()
    node = fake_node(Machine(origin=machine.origin, host=machine.host, gpus=(), driver=machine.driver))
    assert run_on(node, bus_ids) == NO_DEVICE
    assert run_on(node, nvml_minors) == []
