"""Latencies: every walk ends where it must, and H200s give what they gave before."""

from __future__ import annotations

from typing import Any

import pytest

from tests.bench.four import cases
from tests.gpu.node import Node

pytestmark = pytest.mark.usefixtures("two_gpus")

ByCase = dict[str, list[dict[str, Any]]]

H200_NS = {
    "device_local_latency_cached": 146.6,
    "device_local_latency_uncached": 344,
    "device_to_device_latency_cached": 830,
    "device_to_device_latency_uncached": 975,
    "device_to_device_latency_sm": 829,
    "host_numa_to_device_latency_cached": 1185,
    "host_numa_to_device_latency_uncached": 1214,
}
"""The middle of what was seen on HGX H200, whose GPUs differ; the one named _sm is nvbandwidth 0.8's own number."""

TOLERANCE = 0.07
"""Repeats by one GPU differ by a thousandth; some GPUs read 6 % faster than others."""
OTHERS_ON_PCIE = 0.08
"""What other traffic on a path over PCIe adds: 5.7 GB/s made a latency 4.5 % longer, 11.4 GB/s 7 % (the cases under
load). Virtual machines share their server, whose other users have been seen to take 2 to 8 GB/s of a GPU's path."""


def measured(node: Node, *names: str) -> ByCase:
    """Measure cases between two GPUs and one NUMA node; return the measurements by case."""
    options = ("--gpus", "0-1", "--numa", "0", *cases(*names), "--samples", "3", "--no-verdict")
    with node.nothing_left(more_mib=8, wait_s=10):
        result = node.bench(*options, timeout_s=110)
    by_case: ByCase = {}
    for measurement in result["measurements"]:
        if measurement["status"] != "waived":
            assert len(measurement["samples"]) == result["settings"]["samples"]
            by_case.setdefault(measurement["case"], []).append(measurement)
    return by_case


@pytest.fixture(scope="module")
def latencies(node: Node, two_gpus: None) -> ByCase:  # noqa: ARG001
    """Measure every latency but the growing footprints once."""
    return measured(node, "device_*latency*", "host_*latency*")


def test_every_walk_ends_where_its_chain_leads(node: Node, latencies: ByCase) -> None:
    walks = [m for measurements in latencies.values() for m in measurements if m["engine"] == "chase"]
    assert walks
    for m in walks:
        assert (m["status"], m["verification"]) == ("ok", "walk-every-sample"), m
        assert (m["bandwidth_gb_s"] is None) == (m["point"]["load"] is None)
        assert m["latency_ns"]["min"] <= m["latency_ns"]["median"] <= m["latency_ns"]["max"]
        assert node.is_fake or m["latency_ns"]["cv"] < 0.03


@pytest.mark.gpu
@pytest.mark.parametrize("case", H200_NS)
def test_h200_latencies_are_as_they_were(node: Node, latencies: ByCase, case: str) -> None:
    node.only_h200()
    above = TOLERANCE + OTHERS_ON_PCIE * case.startswith("host_")
    for m in latencies[case]:
        ratio = m["latency_ns"]["median"] / H200_NS[case]
        assert 1 - TOLERANCE < ratio < 1 + above, m["flows"]


@pytest.mark.gpu
def test_what_is_not_cached_takes_longer(latencies: ByCase) -> None:
    for path in ("device_local", "device_to_device"):
        cached, uncached = (latencies[f"{path}_latency_{kind}"][0]["latency_ns"] for kind in ("cached", "uncached"))
        assert cached["max"] < uncached["min"]


def test_round_trips_between_gpus_take_about_two_ways(node: Node, latencies: ByCase) -> None:
    (pair,) = latencies["device_to_device_ping_pong_latency"]
    one_way = latencies["device_to_device_latency_cached"][0]["latency_ns"]["median"]
    assert pair["verification"] is None
    for sample in pair["samples"]:
        assert sample["p50_ns"] <= sample["p99_ns"]
        assert node.is_fake or one_way < sample["p50_ns"] <= sample["p99_ns"] < 10 * one_way


@pytest.mark.parametrize("path", ["device_to_device", "host_numa_to_device"])
def test_latency_grows_with_the_load_that_is_reached(node: Node, latencies: ByCase, path: str) -> None:
    curve = sorted(
        (m["point"]["load"], m["bandwidth_gb_s"]["median"], m["latency_ns"]["median"])
        for m in latencies[f"{path}_latency_loaded"]
    )
    idle, *loaded = curve
    assert idle[:2] == (0, 0)
    assert all(gb_s > 0 for _, gb_s, _ in loaded)
    if not node.is_fake:
        loads = [gb_s for _, gb_s, _ in curve]
        assert loads[:5] == sorted(loads[:5])
        assert loaded[-1][2] > 1.2 * idle[2]


@pytest.fixture(scope="module")
def atomics(node: Node, two_gpus: None) -> ByCase:  # noqa: ARG001
    """Measure every atomic round trip."""
    return measured(node, "*_atomic_round_trip")


def test_every_addition_is_there_and_had_the_right_answer(atomics: ByCase) -> None:
    assert len(atomics) == 4
    for m in (m for measurements in atomics.values() for m in measurements):
        assert m["verification"] == "counters-every-sample"
        assert m["status"] in ("ok", "unstable"), m
        assert m["latency_ns"]["median"] > 0


@pytest.mark.gpu
def test_an_addition_and_its_answer_take_about_what_a_load_takes(atomics: ByCase, latencies: ByCase) -> None:
    for path in ("device_local", "device_to_device"):
        (added, *_), (loaded, *_) = atomics[f"{path}_atomic_round_trip"], latencies[f"{path}_latency_cached"]
        assert 0.5 < added["latency_ns"]["median"] / loaded["latency_ns"]["median"] < 4


@pytest.mark.gpu
def test_footprints_of_the_host_go_as_far_as_what_is_free_allows(node: Node) -> None:
    case = ("--case", "host_numa_to_device_footprint", "--gpus", "0", "--numa", "0", "--samples", "3")
    code, result = node.bench_with_code(*case, timeout_s=500)
    measurements = result["measurements"]
    assert code == (3 if any(m["status"] == "waived" for m in measurements) else 0)
    assert {m["status"] for m in measurements} <= {"ok", "unstable", "waived"}, [m["reason"] for m in measurements]
    # What has no room above 16 GiB is no task; below it is waived with the reason.
    assert all(m["size_bytes"] <= 16 << 30 for m in measurements if m["status"] == "waived")
    assert sum(m["status"] != "waived" for m in measurements) >= 3
