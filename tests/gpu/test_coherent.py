"""CPU threads on real GPUs' memory: measured where that is a NUMA node of the host, else waived with the reason."""

from __future__ import annotations

import json

import pytest

from egmctl.facts.collect import collect
from tests.conftest import RunEgmctl

pytestmark = pytest.mark.gpu


def test_it_is_measured_where_the_gpus_memory_is_a_numa_node(egmctl: RunEgmctl) -> None:
    # Beside one that can be measured everywhere: where all are waived, the command ends with 3.
    cases = ("--case", "gpu_numa_*", "--case", "device_local_copy", "--samples", "3")
    ended = egmctl("bench", *cases, "--json", timeout_s=200)
    document = json.loads(ended.out)
    assert ended.code == 0, ended.out[:3000]
    measured = [m for m in document["result"]["measurements"] if m["engine"] == "cpu"]
    assert {m["case"] for m in measured} == {"gpu_numa_read_cpu", "gpu_numa_write_cpu"}
    gpus = {gpu.bus_id: gpu for gpu in collect(("gpus",)).gpus or ()}
    for m in measured:
        (gpu,) = {end["bus_id"] for f in m["flows"] for end in (f["source"], f["destination"]) if end["bus_id"]}
        nvml = gpus[gpu].nvml
        if nvml is None or nvml.numa_node is None:
            assert m["status"] == "waived"
            assert m["waivers"][0]["kind"] == "unsupported-memory"
        elif m["status"] != "waived":
            assert m["status"] in ("ok", "unstable"), m["reason"]
            assert all(placement["right"] for placement in m["placements"])


def test_a_cpu_waits_for_host_memory_some_hundred_nanoseconds(egmctl: RunEgmctl) -> None:
    ended = egmctl("bench", "--case", "cpu_latency_*", "--samples", "3", "--json", timeout_s=200)
    document = json.loads(ended.out)
    assert ended.code == 0, ended.out[:3000]
    for m in document["result"]["measurements"]:
        if m["case"] == "cpu_latency_gpu_numa" and m["status"] == "waived":
            continue
        assert m["status"] in ("ok", "unstable"), m["reason"]
        assert m["verification"] == "walk-every-sample"
        assert 30 < m["latency_ns"]["median"] < 3000
