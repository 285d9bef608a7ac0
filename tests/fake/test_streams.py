"""Streams and events of the fake driver: order, gates, and simulated time from the link model."""

from __future__ import annotations

import ctypes
import time
from typing import Any

import pytest

from egmctl.model.machine import Machine
from tests.fake.machines import nvl4
from tests.fake.memory import DEVICE, HOST_NUMA, MIB, access, mapped
from tests.fake.plugin import MakeFakeNode
from tests.fake.process import code, cu, run_on, use_device
from tests.fake.rates import c2c_rate, local_rate, nvlink_rate, pcie_rate

SIZE = 64 * MIB
OK, NOT_READY = 0, 600
NON_BLOCKING = 1
TWO_SECONDS_NS = 2_000_000_000


class Gate:
    """The gate kernel and its two words."""

    def __init__(self) -> None:
        module = cu("cuModuleLoadData", b"any bytes")
        self._function = cu("cuModuleGetFunction", module, b"gate")
        self._address = int(cu("cuMemHostAlloc", 8, 3))
        self.words = (ctypes.c_uint32 * 2).from_address(self._address)

    def hold(self, stream: Any, timeout_ns: int = TWO_SECONDS_NS) -> None:
        arguments = (self._address, self._address + 4, timeout_ns)
        kinds = (ctypes.c_void_p, ctypes.c_void_p, ctypes.c_uint64)
        cu("cuLaunchKernel", self._function, 1, 1, 1, 1, 1, 1, 0, stream, (arguments, kinds), 0)


def timed(stream: Any, to: int, source: int, copies: int = 1) -> tuple[Any, Any]:
    start, end = cu("cuEventCreate", 0), cu("cuEventCreate", 0)
    cu("cuEventRecord", start, stream)
    for _ in range(copies):
        cu("cuMemcpyAsync", to, source, SIZE, stream)
    cu("cuEventRecord", end, stream)
    return start, end


def bytes_a_second(start: Any, end: Any, copies: int = 1) -> float:
    return copies * SIZE / (float(cu("cuEventElapsedTime", start, end)) * 1e-3)


# --- the link model ---------------------------------------------------------------------------------------------------


def copy_rates() -> dict[str, float]:
    """Copy on GPU 0 along each kind of link."""
    context = use_device(2)
    remote = int(cu("cuMemAlloc", SIZE))
    cu("cuCtxSetCurrent", cu("cuDevicePrimaryCtxRetain", 0))
    staged_peer = int(cu("cuMemAlloc", SIZE))
    local, other = int(cu("cuMemAlloc", SIZE)), int(cu("cuMemAlloc", SIZE))
    stream = cu("cuStreamCreate", NON_BLOCKING)
    rates = {}
    places = {
        "local": other,
        "staged": remote,
        "own node": mapped(HOST_NUMA, 0, SIZE, access(DEVICE, 0)),
        "other node": mapped(HOST_NUMA, 1, SIZE, access(DEVICE, 0)),
        "pinned": int(cu("cuMemHostAlloc", SIZE, 0)),
    }
    for name, place in places.items():
        events = timed(stream, local, place)
        cu("cuStreamSynchronize", stream)
        rates[name] = bytes_a_second(*events)
    cu("cuCtxEnablePeerAccess", context, 0)
    events = timed(stream, staged_peer, remote)
    cu("cuStreamSynchronize", stream)
    return rates | {"peer": bytes_a_second(*events)}


def test_a_copy_takes_as_long_as_its_slowest_link(fake_node: MakeFakeNode) -> None:
    machine = nvl4()
    first, third = _gpu(machine, 0), _gpu(machine, 2)
    c2c, nvlink = c2c_rate(first), nvlink_rate(machine, first, third)
    found = run_on(fake_node(machine), copy_rates)
    expected = {
        "local": local_rate(first) / 2,
        "staged": c2c / 2,
        "own node": c2c,
        "other node": min(c2c, nvlink),
        "pinned": c2c,
        "peer": nvlink,
    }
    assert nvlink == pytest.approx(900e9, rel=1e-3)
    # Each copy has a latency as well.
    assert found == {name: pytest.approx(rate, rel=0.05) for name, rate in expected.items()}
    assert all(found[name] < rate for name, rate in expected.items())


def test_without_c2c_host_memory_is_reached_by_pcie(fake_node: MakeFakeNode) -> None:
    import dataclasses

    machine = nvl4()
    gpus = [
        dataclasses.replace(gpu, nvml=dataclasses.replace(gpu.nvml, c2c_links=(), capabilities=0))
        for gpu in machine.gpus or ()
        if gpu.nvml is not None
    ]
    found = run_on(fake_node(dataclasses.replace(machine, gpus=tuple(gpus))), copy_rates)
    assert found["own node"] == pytest.approx(pcie_rate(gpus[0]), rel=0.05)
    assert found["other node"] == pytest.approx(pcie_rate(gpus[0]), rel=0.05)


def copy_often() -> tuple[float, float]:
    """Return how long the same copy, made often, took by its events and for who waited, in seconds."""
    use_device(0)
    place, other = int(cu("cuMemAlloc", SIZE)), int(cu("cuMemHostAlloc", SIZE, 0))
    stream = cu("cuStreamCreate", NON_BLOCKING)
    cu("cuMemcpyAsync", place, other, SIZE, stream)  # the first touch of this host's pages
    cu("cuStreamSynchronize", stream)
    began = time.perf_counter()
    start, end = timed(stream, place, other, copies=400)
    cu("cuStreamSynchronize", stream)
    waited = time.perf_counter() - began
    return float(cu("cuEventElapsedTime", start, end)) * 1e-3, waited


def test_who_waits_sees_no_less_time_than_the_events_say(fake_node: MakeFakeNode) -> None:
    lasted, waited = run_on(fake_node(nvl4()), copy_often)
    assert 0.06 < lasted < 0.2, "longer than any sample of a bench: a time that the host does not see is impossible"
    assert waited >= lasted


def _gpu(machine: Machine, index: int) -> Any:
    assert machine.gpus is not None
    return machine.gpus[index]


# --- gates and order --------------------------------------------------------------------------------------------------


def gated() -> dict[str, Any]:
    use_device(0)
    gate, streams = Gate(), [cu("cuStreamCreate", NON_BLOCKING) for _ in range(2)]
    buffers = [int(cu("cuMemAlloc", SIZE)) for _ in range(4)]
    events = []
    for number, stream in enumerate(streams):
        gate.hold(stream)
        events.append(timed(stream, buffers[2 * number], buffers[2 * number + 1], copies=4))
    before = [code("cuStreamQuery", stream) for stream in streams] + [code("cuEventQuery", events[0][1])]
    gate.words[0] = 1
    for stream in streams:
        cu("cuStreamSynchronize", stream)
    rates = [bytes_a_second(*pair, copies=4) for pair in events]
    return {"before": before, "after": code("cuStreamQuery", streams[0]), "rates": rates, "expired": gate.words[1]}


def test_a_gate_holds_streams_until_it_is_opened_and_then_they_overlap(fake_node: MakeFakeNode) -> None:
    found = run_on(fake_node(nvl4()), gated)
    assert found["before"] == [NOT_READY] * 3
    assert found["after"] == OK
    assert found["expired"] == 0
    # Both streams have the local memory to themselves: sharing is not modelled.
    assert found["rates"] == [pytest.approx(local_rate(_gpu(nvl4(), 0)) / 2, rel=0.05)] * 2


def forgotten_gate() -> tuple[int, float]:
    use_device(0)
    gate, stream = Gate(), cu("cuStreamCreate", NON_BLOCKING)
    started = time.monotonic()
    gate.hold(stream, timeout_ns=200_000_000)
    cu("cuStreamSynchronize", stream)
    return gate.words[1], time.monotonic() - started


def test_a_gate_that_nobody_opens_gives_up(fake_node: MakeFakeNode) -> None:
    expired, seconds = run_on(fake_node(nvl4()), forgotten_gate)
    assert expired == 1
    assert 0.2 <= seconds < 10


def waits() -> list[Any]:
    """Fill on one stream, copy on another that waits for it, behind a gate."""
    use_device(0)
    gate, first, second = Gate(), cu("cuStreamCreate", NON_BLOCKING), cu("cuStreamCreate", NON_BLOCKING)
    source, to = int(cu("cuMemAlloc", SIZE)), int(cu("cuMemAlloc", SIZE))
    filled, start, end = (cu("cuEventCreate", 0) for _ in range(3))
    gate.hold(first)
    cu("cuEventRecord", start, first)
    cu("cuMemsetD8Async", source, 7, SIZE, first)
    cu("cuEventRecord", filled, first)
    cu("cuStreamWaitEvent", second, filled, 0)
    cu("cuMemcpyDtoDAsync", to, source, SIZE, second)
    cu("cuEventRecord", end, second)
    waiting = code("cuStreamQuery", second)
    gate.words[0] = 1
    cu("cuStreamSynchronize", second)
    byte = ctypes.create_string_buffer(1)
    cu("cuMemcpyDtoH", byte, to + SIZE - 1, 1)
    fill_ms, all_ms = (float(cu("cuEventElapsedTime", start, event)) for event in (filled, end))
    return [waiting, byte.raw[0], all_ms > fill_ms > 0]


def test_a_stream_waits_for_an_event_of_another(fake_node: MakeFakeNode) -> None:
    assert run_on(fake_node(nvl4()), waits) == [NOT_READY, 7, True]


def null_stream() -> list[int]:
    """A blocking stream's work comes before a later synchronous copy, a non-blocking one's need not."""
    use_device(0)
    gate = Gate()
    gate.words[0] = 1
    source, to = int(cu("cuMemAlloc", 4096)), int(cu("cuMemAlloc", 4096))
    blocking = cu("cuStreamCreate", 0)
    gate.hold(blocking)
    cu("cuMemsetD8Async", source, 9, 4096, blocking)
    cu("cuMemcpyDtoD", to, source, 4096)
    byte = ctypes.create_string_buffer(1)
    cu("cuMemcpyDtoH", byte, to, 1)
    return [byte.raw[0], code("cuStreamQuery", blocking)]


def test_the_null_stream_comes_after_blocking_streams(fake_node: MakeFakeNode) -> None:
    assert run_on(fake_node(nvl4()), null_stream) == [9, OK]


def wait_for_value() -> list[int]:
    from cuda.bindings import driver

    use_device(0)
    stream = cu("cuStreamCreate", NON_BLOCKING)
    address = int(cu("cuMemHostAlloc", 4, 0))
    word = ctypes.c_uint32.from_address(address)
    cu("cuStreamWaitValue32", stream, address, 5, driver.CUstreamWaitValue_flags.CU_STREAM_WAIT_VALUE_EQ)
    cu("cuStreamWriteValue32", stream, address, 6, 0)
    found = [code("cuStreamQuery", stream)]
    word.value = 5
    return [*found, code("cuStreamSynchronize", stream), word.value]


def test_a_stream_waits_for_a_word_and_writes_one(fake_node: MakeFakeNode) -> None:
    assert run_on(fake_node(nvl4()), wait_for_value) == [NOT_READY, OK, 6]


def misuse() -> list[int]:
    use_device(0)
    stream = cu("cuStreamCreate", NON_BLOCKING)
    recorded, never = cu("cuEventCreate", 0), cu("cuEventCreate", 0)
    untimed = cu("cuEventCreate", 2)
    cu("cuEventRecord", recorded, stream)
    cu("cuEventRecord", untimed, stream)
    cu("cuStreamSynchronize", stream)
    results = [code("cuEventElapsedTime", recorded, never), code("cuEventElapsedTime", recorded, untimed)]
    cu("cuStreamDestroy", stream)
    return [*results, code("cuStreamSynchronize", stream), code("cuEventRecord", recorded, stream)]


def test_events_and_streams_that_cannot_answer_say_so(fake_node: MakeFakeNode) -> None:
    invalid_handle = 400
    assert run_on(fake_node(nvl4()), misuse) == [invalid_handle] * 4
