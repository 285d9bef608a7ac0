"""HOST_NUMA memory to HOST_NUMA memory through real GPUs: between two NUMA nodes, or within the only one."""

from __future__ import annotations

import json
from typing import Any

import pytest

from egmctl.facts.collect import collect
from tests.conftest import RunEgmctl

pytestmark = pytest.mark.gpu


def test_each_gpu_copies_from_node_to_node_and_the_bytes_cross_its_link(egmctl: RunEgmctl) -> None:
    ended = egmctl("bench", "--case", "host_numa_to_host_numa_*", "--samples", "3", "--json", timeout_s=200)
    document = json.loads(ended.out)
    assert ended.code == 0, ended.out[:3000]
    measured: list[dict[str, Any]] = document["result"]["measurements"]
    assert {m["engine"] for m in measured} == {"ce", "sm-copy"}
    assert len({m["flows"][0]["initiator_label"] for m in measured}) == len(collect(("gpus",)).gpus or ())
    for m in measured:
        assert m["status"] in ("ok", "unstable"), m["reason"]
        assert m["verification"] == "gpu-every-sample"
        limits = [hop["nominal_gb_s"] for hop in m["flows"][0]["route"]["hops"] if hop["nominal_gb_s"]]
        assert all(m["bandwidth_gb_s"]["median"] <= limit for limit in limits)
        assert m["gating"] == ("none" if m["engine"] == "ce" else "kernel")
        # The driver may have the CPU copy between host memory: the counters refute the GPU's link then.
        route = (m["evidence"] or {}).get("route")
        if m["engine"] == "sm-copy" and route is not None:
            assert route["verdict"] != "refuted", route
