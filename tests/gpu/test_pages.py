"""Huge-page and managed host memory through GPUs: measured and verified, or waived for what the kernel lacks."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.bench.four import cases
from tests.gpu.node import Node

CASES = ("hugetlb_*", "thp_*", "managed_*", "device_to_hugetlb_*", "device_to_thp_*", "device_to_managed_*")


@pytest.fixture(scope="module")
def measured(node: Node) -> list[dict[str, Any]]:
    """Measure each kind on one GPU."""
    chosen = cases(*CASES, "host_numa_to_device_memcpy_ce")
    result = node.bench("--gpus", "0", "--numa", "0", "--samples", "3", *chosen, timeout_s=200)
    measurements: list[dict[str, Any]] = result["measurements"]
    return measurements


def test_what_is_measured_is_verified_and_what_is_waived_lacks_pages(measured: list[dict[str, Any]]) -> None:
    for m in measured:
        assert m["status"] in ("ok", "unstable", "waived"), (m["case"], m["reason"])
        if m["status"] == "waived":
            assert m["waivers"][0]["kind"] in ("no-pages", "unsupported-memory"), m["waivers"]
        else:
            assert m["verification"] == "gpu-every-sample"


@pytest.mark.gpu
def test_pages_are_what_the_case_says(measured: list[dict[str, Any]]) -> None:
    costs = {cost["memory"]: cost for m in measured for cost in m["costs"]}
    assert costs["host-numa"]["granularity_bytes"] > 0
    assert costs["host-numa"]["recommended_granularity_bytes"] >= costs["host-numa"]["granularity_bytes"]
    if "hugetlb" in costs:
        assert costs["hugetlb"]["page_bytes"] >= 2 << 20
    enabled = Path("/sys/kernel/mm/transparent_hugepage/enabled")
    if "thp" in costs and enabled.exists() and "[never]" not in enabled.read_text():
        assert costs["thp"]["huge_bytes"] is None or costs["thp"]["huge_bytes"] > costs["thp"]["size_bytes"] // 2


@pytest.mark.gpu
def test_managed_memory_stays_on_the_host(measured: list[dict[str, Any]]) -> None:
    managed = [m for m in measured if "managed" in m["case"] and m["status"] != "waived"]
    for m in managed:
        # More than PCIe or C2C carries would be memory of the GPU.
        limits = [hop["nominal_gb_s"] for hop in m["flows"][0]["route"]["hops"] if hop["nominal_gb_s"]]
        assert all(m["bandwidth_gb_s"]["median"] <= limit for limit in limits), m["case"]
