"""The rules of tests/fake/rules.py hold for the driver calls of every family, and each of them notices its fault."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace

import pytest

from tests.conftest import ROOT, RunEgmctl, command_environment
from tests.fake.calls import Call
from tests.fake.plugin import MakeFakeNode
from tests.fake.rules import broken

FAMILIES = {
    "copies": ("--suite", "egm,host,p2p"),
    "latency": (
        "device_to_device_latency_sm",
        "host_device_latency_sm",
        "device_local_latency_cached",
        "host_numa_to_device_latency_cached",
        "device_to_device_latency_loaded",
        "*_ping_pong_latency",
    ),
    "ipc": (
        "ipc_*_device_write_ce",
        "ipc_posix_fd_host_numa_read_sm",
        "ipc_posix_fd_device_ring_write_ce",
        "ipc_posix_fd_device_latency",
    ),
}
SMALL = ("--gpus", "0-1", "--numa", "0", "--size", "1M", "--samples", "1", "--copies", "1", "-q")


@pytest.mark.parametrize("family", FAMILIES)
def test_the_calls_of_a_family_keep_the_rules(egmctl: RunEgmctl, fake_node: MakeFakeNode, family: str) -> None:
    node, words = fake_node("gb200-nvl72"), FAMILIES[family]
    options = words if family == "copies" else [word for case in words for word in ("--case", case)]
    ended = egmctl("bench", *options, *SMALL, env=node.environment())
    # The pages of a GPU's own NUMA node cannot be bound here, which is a gap.
    assert ended.code == (3 if family == "copies" else 0), ended.out
    calls = node.calls()
    assert broken(calls) == []
    assert {call.name for call in calls} >= {"cuDevicePrimaryCtxRelease", "cuStreamDestroy", "nvmlShutdown"}


@pytest.fixture(scope="module")
def healthy(fake_node: MakeFakeNode) -> tuple[Call, ...]:
    """Return the calls of one small case, as they should be."""
    node = fake_node("gb200-nvl72")
    command = [sys.executable, "-m", "egmctl", "bench", "--case", "host_numa_to_device_memcpy_sm", "--serial", *SMALL]
    with subprocess.Popen(
        command, env=command_environment(node.environment()), cwd=ROOT, stdout=subprocess.PIPE
    ) as bench:
        out, _ = bench.communicate(timeout=280)
    assert bench.returncode == 0, out
    calls = node.calls()
    assert broken(calls) == []
    assert bench.pid not in {call.pid for call in calls}, "the command itself asks no driver"
    return calls


def without(name: str, number: int = 0, **arguments: str) -> Callable[[list[Call]], list[Call]]:
    """Return the fault that a call with these arguments is not made."""

    def change(calls: list[Call]) -> list[Call]:
        places = [
            at
            for at, call in enumerate(calls)
            if call.name == name and all(call.arguments.get(key) == value for key, value in arguments.items())
        ]
        return [call for at, call in enumerate(calls) if at != places[number]]

    return change


def swapped(first: str, second: str) -> Callable[[list[Call]], list[Call]]:
    """Return the fault that the next call of the second name comes before one of the first."""

    def change(calls: list[Call]) -> list[Call]:
        at = first_at(calls, first)
        later = at + first_at(calls[at:], second)
        return [*calls[:at], calls[later], *calls[at:later], *calls[later + 1 :]]

    return change


def first_at(calls: list[Call], name: str) -> int:
    return next(at for at, call in enumerate(calls) if name in (call.name, call.arguments.get("kernel")))


def inserted(before: str, *added: Call) -> Callable[[list[Call]], list[Call]]:
    """Return the fault that calls are made before the first of a name, by its process."""

    def change(calls: list[Call]) -> list[Call]:
        at = first_at(calls, before)
        return [*calls[:at], *(replace(call, pid=calls[at].pid) for call in added), *calls[at:]]

    return change


def call(name: str, result: int = 0, **arguments: str) -> Call:
    return Call(1, name, arguments, result, injected=False)


FAULTS = {
    "a buffer that nobody frees": (without("cuMemFree"), "memory 0x"),
    "memory that nobody unmaps": (without("cuMemUnmap"), "addresses at 0x"),
    "addresses given back before what is mapped there": (swapped("cuMemUnmap", "cuMemAddressFree"), "before what is"),
    "a free before the wait": (without("cuStreamSynchronize", -1), "that a stream is working on"),
    "a copy before its gate": (swapped("gate", "copy_vectors"), "a time is taken of nothing"),
    "no gate": (without("cuLaunchKernel", kernel="gate"), "is timed without a gate"),
    "an allocation while a gate is closed": (
        inserted("cuEventElapsedTime", call("cuLaunchKernel", kernel="gate", stream="0x1"), call("cuMemAlloc")),
        "while a gate is closed",
    ),
    "bytes that nobody compares": (without("cuLaunchKernel", kernel="verify_pattern"), "compared"),
    "bytes that are not overwritten before a sample": (
        without("cuMemsetD32Async", value="3735928559"),
        "was not overwritten before",
    ),
    "a path that is not warmed up": (without("cuLaunchKernel", kernel="copy_vectors"), "was not warmed up"),
    "work after the context broke": (inserted("gate", call("cuStreamSynchronize", 700)), "which broke the context"),
    "a context given back while its streams work": (without("cuStreamSynchronize", -1), "while its streams work"),
    "a setting of the node": (inserted("gate", call("nvmlDeviceSetPersistenceMode")), "changes the node"),
    "a reader of facts that makes memory": (inserted("cuDeviceTotalMem", call("cuMemAlloc")), "it reads facts"),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_each_rule_notices_its_fault(healthy: tuple[Call, ...], fault: str) -> None:
    change, said = FAULTS[fault]
    faults = broken(change([*healthy]))
    assert any(said in sentence for sentence in faults), faults
