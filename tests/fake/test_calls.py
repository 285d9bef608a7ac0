"""The fake driver's call log: what was called, by whom, with what, and what was not given back."""

from __future__ import annotations

from tests.fake.calls import Call, leaks
from tests.fake.machines import nvl4
from tests.fake.memory import DEVICE, HOST_NUMA, MIB, access, mapped, properties
from tests.fake.plugin import MakeFakeNode
from tests.fake.process import cu, run_on, start_on, use_device


def take_everything(give_back: bool) -> None:
    import pynvml

    pynvml.nvmlInit()
    use_device(0)
    size = 2 * MIB
    device, pinned = cu("cuMemAlloc", size), cu("cuMemHostAlloc", 16, 0)
    address = mapped(HOST_NUMA, 0, size, access(DEVICE, 0))
    kept = cu("cuMemCreate", size, properties(DEVICE, 0), 0)
    stream, event = cu("cuStreamCreate", 1), cu("cuEventCreate", 0)
    module = cu("cuModuleLoadData", b"any bytes")
    if give_back:
        for name, *arguments in (
            ("cuModuleUnload", module),
            ("cuEventDestroy", event),
            ("cuStreamDestroy", stream),
            ("cuMemRelease", kept),
            ("cuMemUnmap", address, size),
            ("cuMemAddressFree", address, size),
            ("cuMemFreeHost", pinned),
            ("cuMemFree", device),
            ("cuDevicePrimaryCtxRelease", 0),
        ):
            cu(name, *arguments)
        pynvml.nvmlShutdown()


def test_what_is_not_given_back_is_named(fake_node: MakeFakeNode) -> None:
    node = fake_node(nvl4())
    run_on(node, take_everything, True)
    assert node.leaks() == []
    node.forget_calls()
    run_on(node, take_everything, False)
    kinds = [line.split(": ")[1].rpartition(" 0x")[0] or line.split(": ")[1] for line in node.leaks()]
    assert sorted(kinds) == [
        "allocation",
        "event",
        "mapping",
        "memory",
        "module",
        "pinned memory",
        "primary context of device 0",
        "reserved addresses",
        "stream",
        "use of NVML ",
    ]


def test_a_call_that_failed_took_nothing() -> None:
    failed = Call(1, "cuMemAlloc", {"size": "16", "address": "0x0"}, 2, injected=True)
    other = Call(2, "cuMemFree", {"address": "0x10"}, 0, injected=False)
    taken = Call(1, "cuMemAlloc", {"size": "16", "address": "0x10"}, 0, injected=False)
    assert leaks([failed]) == []
    assert leaks([taken, other]) == ["process 1: memory 0x10"]


def many_calls() -> None:
    cu("cuInit", 0)
    for _ in range(2000):
        cu("cuDeviceGetCount")


def test_processes_side_by_side_write_whole_lines(fake_node: MakeFakeNode) -> None:
    node = fake_node(nvl4())
    processes = [start_on(node, many_calls) for _ in range(3)]
    for process in processes:
        _, err = process.communicate(timeout=60)
        assert process.returncode == 0, err
    calls = node.calls("cuDeviceGetCount")
    assert {process.pid: sum(call.pid == process.pid for call in calls) for process in processes} == {
        process.pid: 2000 for process in processes
    }


def test_the_log_tells_the_arguments_that_matter(fake_node: MakeFakeNode) -> None:
    node = fake_node(nvl4())
    run_on(node, take_everything, False)
    (granted,) = node.calls("cuMemSetAccess")
    assert granted.arguments["access"] == "DEVICE:0:RW"
    assert [call.arguments["location"] for call in node.calls("cuMemCreate")] == ["HOST_NUMA:0", "DEVICE:0"]
    assert all(call.result == 0 and not call.injected for call in node.calls())
