"""The engines and the kinds of memory: kernels against their definition, every byte, and the rates."""

from __future__ import annotations

from typing import Any

import pytest

from tests.bench.four import cases
from tests.gpu.node import Node

H200_GB_S = {
    "device_to_device_memcpy_write_sm": (365, 376),
    "device_to_device_memcpy_read_sm": (370, 380),
    "device_to_device_read_sm": (370, 380),
    "device_to_device_write_sm": (365, 377),
    "device_to_device_bidirectional_memcpy_write_ce": (775, 790),
    "device_to_device_bidirectional_memcpy_write_sm": (725, 740),
    "host_numa_to_device_memcpy_sm": (50, 53),
    "device_to_host_numa_memcpy_sm": (51, 54),
    "host_numa_pool_to_device_memcpy_ce": (54, 57),
    "host_numa_default_pool_to_device_memcpy_ce": (54, 57),
    "device_to_host_numa_default_pool_memcpy_ce": (54, 57),
    "registered_to_device_memcpy_ce": (54, 57),
}
"""Between what the medians of H200s lie (docs/hardware-notes.md). More than the upper bound would be bytes that a cache
gave: a kernel that only reads was seen to count 389 GB/s over NVLink, of which the links' counters showed 376."""


pytestmark = pytest.mark.usefixtures("two_gpus")


def run(node: Node, *arguments: str) -> list[dict[str, Any]]:
    """Run the bench on two GPUs and return its measurements."""
    result = node.bench("--gpus", "0-1", "--numa", "0", *arguments, timeout_s=200)
    measurements: list[dict[str, Any]] = result["measurements"]
    return measurements


@pytest.fixture(scope="module")
def measured(node: Node, two_gpus: None) -> list[dict[str, Any]]:  # noqa: ARG001
    """Measure each case once."""
    return run(node, "--samples", "3", *cases(*H200_GB_S))


def test_every_sample_of_every_engine_and_kind_of_memory_is_right(measured: list[dict[str, Any]]) -> None:
    assert {m["case"] for m in measured} == set(H200_GB_S)
    assert {m["status"] for m in measured} <= {"ok", "waived"}
    for m in (m for m in measured if m["status"] == "ok"):
        assert m["verification"] == ("checksum-every-sample" if m["engine"] == "sm-read" else "gpu-every-sample")


@pytest.mark.gpu
@pytest.mark.parametrize("case", H200_GB_S)
def test_h200_reaches_what_it_did(node: Node, measured: list[dict[str, Any]], case: str) -> None:
    node.only_h200()
    least, most = H200_GB_S[case]
    medians = [m["bandwidth_gb_s"]["median"] for m in measured if m["case"] == case]
    assert medians
    assert all(least <= median <= most for median in medians), medians


@pytest.mark.gpu
@pytest.mark.parametrize("size", ["16", "4080", "1000016", "70000048"])
def test_sizes_that_nothing_divides_are_moved_whole(node: Node, size: str) -> None:
    kernels = ("device_to_device_memcpy_*", "device_to_device_read_sm", "device_to_device_write_sm", "host_numa_*_sm")
    chosen = cases(*kernels, "host_numa_pool_*", "registered_*")
    measured = run(node, "--size", size, "--samples", "2", "--copies", "5", *chosen)
    # Samples of a few microseconds vary.
    assert {m["status"] for m in measured} <= {"ok", "unstable"}, [m["reason"] for m in measured]


def test_kernels_do_what_their_sources_say_and_differences_are_found(node: Node) -> None:
    node.run_program("kernels", node.gpus[0].bus_id)
