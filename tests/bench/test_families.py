"""Every family on a fake node with EGM: all of it runs and is given back, and each new driver call may fail."""

from __future__ import annotations

from collections import defaultdict

import pytest

from tests.bench.test_run import Bench

pytest_plugins = ["tests.bench.test_run"]

ONCE = ("--size", "1M", "--samples", "1", "--copies", "1")
CASES = (
    "device_to_host_numa_memcpy_??",
    "host_numa_to_all_memcpy_ce",
    "host_numa_read_*",
    "host_numa_write_*",
    "host_numa_pool_to_device_memcpy_ce",
    "host_to_device_memcpy_sm",
    "host_read_*",
    "host_write_*",
    "registered_to_device_memcpy_ce",
    "system_to_device_memcpy_ce",
    "device_to_device_bidirectional_memcpy_write_ce",
    "device_to_device_read_sm",
    "device_to_device_write_sm",
    "ring_write_ce",
    "all_to_one_read_sm",
    "device_local_copy",
    "device_to_device_latency_sm",
    "device_to_device_ping_pong_latency",
)
"""Of each family something with each engine, kind of memory and pattern."""

POOLS_AND_PAGES = ("bench", "--numa", "0", "--gpus", "0", *ONCE, "--samples", "2")
FAMILY_CASES = ("host_numa_pool_to_device_memcpy_ce", "registered_to_device_memcpy_ce")
FAMILY_CALLS = {
    "cuMemPoolCreate": set[str](),
    "cuMemPoolSetAccess": set[str](),
    "cuMemAllocFromPoolAsync": set[str](),
    "cuMemHostRegister": set[str](),
    "cuMemFreeAsync": {"memory"},
    "cuMemPoolDestroy": {"pool"},
    "cuMemHostUnregister": {"registered"},
}
"""Driver calls that only these families make, and what cannot be given back where the call fails."""


def chosen(*cases: str) -> tuple[str, ...]:
    """Return the options that choose cases."""
    return tuple(word for case in cases for word in ("--case", case))


@pytest.mark.long
def test_every_family_is_measured_on_a_node_with_egm_and_everything_is_given_back(bench: Bench) -> None:
    run = bench("bench", "--numa", "1", "--gpus", "0-3", *ONCE, *chosen(*CASES))
    assert run.code == 0
    seen = defaultdict(set)
    for measurement in run.result["measurements"]:
        seen[measurement["family"]].add(measurement["engine"])
        if measurement["engine"] == "cpu" and measurement["status"] == "waived":
            # The modelled node's CPUs are not this machine's.
            assert "may run on none of the CPUs" in measurement["reason"]
        else:
            assert measurement["status"] == "ok", (measurement["case"], measurement["reason"])
            assert measurement["verification"] is not None or measurement["engine"] == "ping-pong"
    assert seen == {
        "egm": {"ce", "sm-copy", "sm-read", "sm-write", "cpu"},
        "host": {"ce", "sm-copy", "sm-read", "sm-write", "cpu"},
        "p2p": {"ce", "sm-copy", "sm-read", "sm-write"},
        "latency": {"chase", "ping-pong"},
    }
    assert run.node.leaks() == []


@pytest.mark.long
@pytest.mark.parametrize("call", FAMILY_CALLS)
def test_each_call_of_pools_and_registered_memory_that_fails_is_named_and_the_rest_is_given_back(
    bench: Bench, call: str
) -> None:
    run = bench(*POOLS_AND_PAGES, *chosen(*FAMILY_CASES), faults=f"{call}@1=error:719")
    assert run.code == 4
    told = " ".join([*run.reasons(), *run.result["problems"]])
    assert f"{call} failed: CUDA_ERROR_LAUNCH_FAILED (719)" in told
    assert {line.split(": ")[1].split()[0] for line in run.node.leaks()} <= FAMILY_CALLS[call]


@pytest.mark.parametrize("fault", ["missing", "error:801"])
def test_a_driver_without_pools_waives_what_needs_them(bench: Bench, fault: str) -> None:
    run = bench(*POOLS_AND_PAGES, *chosen(*FAMILY_CASES), faults=f"cuMemPoolCreate={fault}")
    assert run.code == 0
    assert run.statuses() == ["waived", "ok"]
    (reason,) = run.reasons()
    assert reason.startswith("cuMemPoolCreate failed: ")
