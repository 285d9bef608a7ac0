"""The driver's own pools, of each GPU and of the host: all verified, and as fast as memory allocated by itself."""

from __future__ import annotations

import pytest

from tests.bench.four import cases
from tests.gpu.node import Node

SAME = {
    "device_default_pool_memcpy_write_ce": "device_to_device_memcpy_write_ce",
    "device_default_pool_local_copy": "device_local_copy",
    "host_default_pool_to_device_memcpy_ce": "host_to_device_memcpy_ce",
    "device_to_host_default_pool_memcpy_ce": "device_to_host_memcpy_ce",
}
"""Cases, and those that take the same paths with memory of cuMemAlloc and cuMemHostAlloc."""
ALIKE = 0.03
NEEDS_CUDA_13 = 13000


@pytest.mark.usefixtures("two_gpus")
def test_each_path_is_verified_and_as_fast_as_without_a_pool(node: Node) -> None:
    driver = node.machine.driver
    too_old = driver is not None and (driver.cuda_driver_version or 0) < NEEDS_CUDA_13
    chosen = cases(*(case for pair in SAME.items() for case in pair))
    result = node.bench("--gpus", "0-1", "--numa", "0", "--samples", "5", *chosen, "--no-verdict", timeout_s=200)
    assert result["problems"] == [], "access was taken back"
    medians: dict[str, dict[str, float]] = {}
    for m in result["measurements"]:
        if too_old and "host_default_pool" in m["case"]:
            assert m["status"] == "waived"
            assert "cuMemGetDefaultMemPool" in m["reason"]
            continue
        assert m["status"] in ("ok", "unstable"), (m["case"], m["reason"])
        assert m["verification"] == "gpu-every-sample"
        flow = m["flows"][0]
        path = f"{flow['source']['label']} -> {flow['destination']['label']}"
        medians.setdefault(m["case"], {})[path] = m["bandwidth_gb_s"]["median"]
        if "host_default_pool" in m["case"]:
            assert [placement["label"] for placement in m["placements"]] == ["NUMA0"], m["placements"]
    for case, alone in SAME.items():
        assert medians.get(case, {}).keys() <= medians[alone].keys()
        for path, gb_s in medians.get(case, {}).items():
            assert node.is_fake or gb_s == pytest.approx(medians[alone][path], rel=ALIKE), (case, path)
