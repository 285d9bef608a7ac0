"""The driver's own pools on real GPUs: of each GPU and of the host, as fast as memory that is allocated by itself."""

from __future__ import annotations

import json
from typing import Any

import pytest

from egmctl.facts.collect import collect
from tests.conftest import RunEgmctl

pytestmark = pytest.mark.gpu

SAME = {
    "device_default_pool_memcpy_write_ce": "device_to_device_memcpy_write_ce",
    "device_default_pool_local_copy": "device_local_copy",
    "host_default_pool_to_device_memcpy_ce": "host_to_device_memcpy_ce",
    "device_to_host_default_pool_memcpy_ce": "device_to_host_memcpy_ce",
}
"""Cases, and those that take the same paths with memory of cuMemAlloc and cuMemHostAlloc."""
ALIKE = 0.03
NEEDS_CUDA_13 = 13000


@pytest.mark.usefixtures("gpus")
def test_each_path_is_as_fast_as_without_a_pool(egmctl: RunEgmctl) -> None:
    driver = collect(("driver",)).driver
    too_old = driver is not None and (driver.cuda_driver_version or 0) < NEEDS_CUDA_13
    chosen = [word for pair in SAME.items() for case in pair for word in ("--case", case)]
    ended = egmctl(
        "bench", "--gpus", "0-1", "--numa", "0", "--samples", "5", *chosen, "--no-verdict", "--json", timeout_s=200
    )
    assert ended.code == 0, ended.out[:3000]
    result = json.loads(ended.out)["result"]
    assert result["problems"] == [], "access was taken back"
    found: list[dict[str, Any]] = result["measurements"]
    medians: dict[str, dict[str, float]] = {}
    for m in found:
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
        for path, gb_s in medians.get(case, {}).items():
            assert gb_s == pytest.approx(medians[alone][path], rel=ALIKE), (case, path)
