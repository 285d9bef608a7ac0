"""CPU threads on GPUs' memory: measured where that is a NUMA node of the host, else waived with the reason."""

from __future__ import annotations

import pytest

from tests.bench.four import cases
from tests.gpu.node import Node


@pytest.mark.gpu
def test_it_is_measured_where_the_gpus_memory_is_a_numa_node(node: Node) -> None:
    # Beside one that can be measured everywhere: where all are waived, the command ends with 3.
    result = node.bench(*cases("gpu_numa_*", "device_local_copy"), "--samples", "3", timeout_s=200)
    measured = [m for m in result["measurements"] if m["engine"] == "cpu"]
    assert {m["case"] for m in measured} == {"gpu_numa_read_cpu", "gpu_numa_write_cpu"}
    gpus = {gpu.bus_id: gpu for gpu in node.gpus}
    for m in measured:
        (gpu,) = {end["bus_id"] for f in m["flows"] for end in (f["source"], f["destination"]) if end["bus_id"]}
        nvml = gpus[gpu].nvml
        if nvml is None or nvml.numa_node is None:
            assert m["status"] == "waived"
            assert m["waivers"][0]["kind"] == "unsupported-memory"
        elif m["status"] != "waived":
            assert m["status"] in ("ok", "unstable"), m["reason"]
            assert all(placement["right"] for placement in m["placements"])


@pytest.mark.gpu
def test_a_cpu_waits_for_host_memory_some_hundred_nanoseconds(node: Node) -> None:
    for m in node.bench("--case", "cpu_latency_*", "--samples", "3", timeout_s=200)["measurements"]:
        if m["case"] == "cpu_latency_gpu_numa" and m["status"] == "waived":
            continue
        assert m["status"] in ("ok", "unstable"), m["reason"]
        assert m["verification"] == "walk-every-sample"
        assert 30 < m["latency_ns"]["median"] < 3000
