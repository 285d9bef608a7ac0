"""HOST_NUMA memory allocated under each GPU of a NUMA node."""

from __future__ import annotations

from typing import Any

import pytest

from tests.bench.four import cases
from tests.gpu.node import Node

BY_OWNER, USUAL = "host_numa_by_owner_to_device_memcpy_ce", "host_numa_to_device_memcpy_ce"


@pytest.fixture(scope="module")
def result(node: Node) -> dict[str, Any]:
    """Measure two GPUs of one NUMA node with its memory, allocated under each and under any."""
    nodes: dict[int | None, list[int]] = {}
    for gpu in node.gpus:
        nodes.setdefault(gpu.host_numa_id, []).append(gpu.index)
    pair = next(((numa_node, gpus[:2]) for numa_node, gpus in nodes.items() if len(gpus) > 1), None)
    if pair is None:
        pytest.skip("needs two GPUs on one NUMA node")
    numa_node, gpus = pair
    chosen = ["--gpus", ",".join(map(str, gpus))]
    if numa_node is not None:
        chosen += ["--numa", str(numa_node)]
    return node.bench(*chosen, *cases(BY_OWNER, USUAL), "--samples", "3", timeout_s=60)


def by_case(result: dict[str, Any], case: str) -> list[dict[str, Any]]:
    return [m for m in result["measurements"] if m["case"] == case]


def test_each_gpu_reads_what_each_has_allocated_and_every_byte_is_right(node: Node, result: dict[str, Any]) -> None:
    read = by_case(result, BY_OWNER)
    flows = [m["flows"][0] for m in read]
    labels = {flow["initiator_label"] for flow in flows}
    assert len(labels) == 2
    assert {(flow["source"]["allocated_by_label"], flow["initiator_label"]) for flow in flows} == {
        (owner, reader) for owner in labels for reader in labels
    }
    for m in read:
        assert m["status"] in ("ok", "unstable"), m["reason"]
        assert m["verification"] == "gpu-every-sample"
        # Few bytes prove nothing, and on a fake node they are few.
        assert node.is_fake or m["evidence"]["route"]["verdict"] != "refuted", m["evidence"]


@pytest.mark.gpu
def test_without_egm_it_is_as_fast_whoever_allocated_and_belongs_to_no_gpu(result: dict[str, Any]) -> None:
    if any(m["flows"][0]["route"]["egm"] != "no" for m in result["measurements"]):
        pytest.skip("this machine has EGM: there the owner decides over which links the bytes go")
    usual = {m["flows"][0]["initiator"]: m["bandwidth_gb_s"]["median"] for m in by_case(result, USUAL)}
    for m in by_case(result, BY_OWNER):
        assert m["bandwidth_gb_s"]["median"] == pytest.approx(usual[m["flows"][0]["initiator"]], rel=0.05)
    owners = result["verdict"]["owners"]
    assert len(owners) == 2
    assert {(owner["owner"], owner["unknown"]) for owner in owners} == {(None, "not-egm")}
