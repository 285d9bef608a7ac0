"""Pools and registered memory on a fake node with EGM: each driver call that only they make may fail."""

from __future__ import annotations

import pytest

from tests.bench.conftest import Bench, Run

CASES = ("host_numa_pool_to_device_memcpy_ce", "registered_to_device_memcpy_ce")
OPTIONS = ("--numa", "0", "--gpus", "0", "--size", "64K", "--samples", "1", "--copies", "1")


def measured(bench: Bench, faults: str) -> Run:
    return bench("bench", *OPTIONS, *(word for case in CASES for word in ("--case", case)), faults=faults)


KEPT = {
    **dict.fromkeys(("cuMemPoolCreate", "cuMemPoolSetAccess", "cuMemAllocFromPoolAsync", "cuMemHostRegister"), ""),
    "cuMemFreeAsync": "memory",
    "cuMemPoolDestroy": "pool",
    "cuMemHostUnregister": "registered",
}
"""Driver calls that only these families make, and what cannot be given back where the call fails."""


@pytest.mark.parametrize("call", KEPT)
def test_each_call_of_pools_and_registered_memory_that_fails_is_named_and_the_rest_is_given_back(
    bench: Bench, call: str
) -> None:
    run = measured(bench, f"{call}@1=error:719")
    assert run.code == 4
    told = " ".join([*run.reasons(), *run.result["problems"]])
    assert f"{call} failed: CUDA_ERROR_LAUNCH_FAILED (719)" in told
    assert {line.split(": ")[1].split()[0] for line in run.node.leaks()} <= {KEPT[call]}


@pytest.mark.parametrize("fault", ["missing", "error:801"])
def test_a_driver_without_pools_waives_what_needs_them(bench: Bench, fault: str) -> None:
    run = measured(bench, f"cuMemPoolCreate={fault}")
    assert (run.code, run.statuses()) == (0, ["waived", "ok"])
    (reason,) = run.reasons()
    assert reason.startswith("cuMemPoolCreate failed: ")
