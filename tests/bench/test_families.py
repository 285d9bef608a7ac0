"""Pools and registered memory on a fake node with EGM: each driver call that only they make may fail."""

from __future__ import annotations

import pytest

from tests.bench.conftest import Bench

ONCE = ("--size", "1M", "--samples", "1", "--copies", "1")

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
