"""HOST_NUMA memory to HOST_NUMA memory through GPUs: between two NUMA nodes, or within the only one."""

from __future__ import annotations

from typing import Any

from tests.gpu.node import Node


def test_each_gpu_copies_from_node_to_node_and_the_bytes_cross_its_link(node: Node) -> None:
    case = ("--case", "host_numa_to_host_numa_*")
    code, result = node.bench_with_code(*case, "--samples", "3", timeout_s=200)
    measured: list[dict[str, Any]] = result["measurements"]
    # The driver may have the CPU copy between host memory: the counters refute the GPU's link then.
    by_cpu = [number for number, m in enumerate(measured) if m["engine"] == "ce" and is_refuted(m)]
    assert code == (3 if by_cpu else 0), result["problems"]
    assert [cause["measurements"] for cause in result["causes"]] == ([by_cpu] if by_cpu else [])
    assert {m["engine"] for m in measured} == {"ce", "sm-copy"}
    assert len({m["flows"][0]["initiator_label"] for m in measured}) == len(node.gpus)
    for m in measured:
        assert m["status"] in ("ok", "unstable"), m["reason"]
        assert m["verification"] == "gpu-every-sample"
        limits = [hop["nominal_gb_s"] for hop in m["flows"][0]["route"]["hops"] if hop["nominal_gb_s"]]
        assert all(m["bandwidth_gb_s"]["median"] <= limit for limit in limits)
        assert m["gating"] == ("none" if m["engine"] == "ce" else "kernel")
        assert m["engine"] == "ce" or not is_refuted(m), m["evidence"]


def is_refuted(measurement: dict[str, Any]) -> bool:
    """Return whether the counters of the GPU's link did not rise by the bytes."""
    route = (measurement["evidence"] or {}).get("route")
    return route is not None and route["verdict"] == "refuted"
