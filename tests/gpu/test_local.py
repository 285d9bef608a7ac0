"""The cases within one GPU, and the walk by TMA, on one GPU: every byte is compared, every walk ends right."""

from __future__ import annotations

import pytest

from tests.bench.four import cases
from tests.gpu.node import Node

VERIFIED = {
    "device_local_copy": "gpu-every-sample",
    "device_local_copy_sm": "gpu-every-sample",
    "device_local_copy_tma": "gpu-every-sample",
    "device_local_read_sm": "checksum-every-sample",
    "device_local_write_sm": "gpu-every-sample",
}


@pytest.fixture(scope="module")
def bus_id(node: Node) -> str:
    """Return the first GPU with TMA."""
    for gpu in node.gpus:
        if gpu.cuda is not None and (gpu.cuda.attributes.get("COMPUTE_CAPABILITY_MAJOR") or 0) >= 9:
            return gpu.bus_id
    pytest.skip("needs a GPU of compute capability 9.0")


def test_a_walk_by_tma_ends_where_one_by_loads_does_and_a_damaged_line_is_found(node: Node, bus_id: str) -> None:
    node.run_program("walks", bus_id)


@pytest.mark.usefixtures("bus_id")
@pytest.mark.parametrize("size", ["512MiB", "70000048"])
def test_every_case_within_a_gpu_is_verified_and_crosses_no_link(node: Node, size: str) -> None:
    chosen = cases("device_local_*_sm", "device_local_copy*")
    result = node.bench("--gpus", "0", *chosen, "--size", size, "--samples", "3", "--no-verdict", timeout_s=200)
    assert {m["case"]: m["verification"] for m in result["measurements"]} == VERIFIED
    for m in result["measurements"]:
        assert m["status"] in ("ok", "unstable"), (m["case"], m["reason"])
        assert m["bandwidth_gb_s"]["min"] > 0
        assert all(not flow["route"]["hops"] for flow in m["flows"])
