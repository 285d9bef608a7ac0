"""Latencies on real GPUs: every walk ends where it must, and H200s give what they gave before."""

from __future__ import annotations

import json
from typing import Any

import pytest

from egmctl.facts.collect import collect
from tests.conftest import RunEgmctl

pytestmark = pytest.mark.gpu

Found = dict[str, list[dict[str, Any]]]

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


@pytest.fixture(scope="module")
def names() -> list[str]:
    """Return the names of two GPUs, which the pairs need."""
    found = [gpu.name or "" for gpu in collect(("gpus",)).gpus or ()]
    if len(found) < 2:
        pytest.skip("pairs need two GPUs")
    return found[:2]


@pytest.fixture(scope="module")
def found(egmctl: RunEgmctl, names: list[str]) -> Found:  # noqa: ARG001
    """Measure every latency but the growing footprints once; return the measurements by case."""
    cases = ("--case", "device_*latency*", "--case", "host_*latency*")
    options = ("--gpus", "0-1", "--numa", "0", *cases, "--samples", "3", "--no-verdict", "--json")
    ended = egmctl("bench", *options, timeout_s=110)
    document = json.loads(ended.out)
    assert ended.code == document["exit_code"] == 0, ended.out
    by_case: Found = {}
    for measurement in document["result"]["measurements"]:
        if measurement["status"] != "waived":
            by_case.setdefault(measurement["case"], []).append(measurement)
    return by_case


def test_every_walk_ends_where_its_chain_leads(found: Found) -> None:
    walks = [m for those in found.values() for m in those if m["engine"] == "chase"]
    assert walks
    for m in walks:
        assert (m["status"], m["verification"]) == ("ok", "walk-every-sample"), m
        assert m["latency_ns"]["cv"] < 0.03


@pytest.mark.parametrize("case", H200_NS)
def test_h200_latencies_are_as_they_were(found: Found, names: list[str], case: str) -> None:
    if not all("H200" in name for name in names):
        pytest.skip(f"no reference for {names}")
    above = TOLERANCE + OTHERS_ON_PCIE * case.startswith("host_")
    for m in found[case]:
        ratio = m["latency_ns"]["median"] / H200_NS[case]
        assert 1 - TOLERANCE < ratio < 1 + above, m["flows"]


def test_what_is_not_cached_takes_longer(found: Found) -> None:
    for path in ("device_local", "device_to_device"):
        cached, uncached = (found[f"{path}_latency_{kind}"][0]["latency_ns"] for kind in ("cached", "uncached"))
        assert cached["max"] < uncached["min"]


def test_round_trips_between_gpus_take_about_two_ways(found: Found) -> None:
    (pair,) = found["device_to_device_ping_pong_latency"]
    one_way = found["device_to_device_latency_cached"][0]["latency_ns"]["median"]
    for sample in pair["samples"]:
        assert one_way < sample["p50_ns"] <= sample["p99_ns"] < 10 * one_way


@pytest.mark.parametrize("path", ["device_to_device", "host_numa_to_device"])
def test_latency_grows_with_the_load_that_is_reached(found: Found, path: str) -> None:
    curve = sorted(
        (m["point"]["load"], m["bandwidth_gb_s"]["median"], m["latency_ns"]["median"])
        for m in found[f"{path}_latency_loaded"]
    )
    idle, *_, full = curve
    assert idle[:2] == (0, 0)
    loads = [gb_s for _, gb_s, _ in curve]
    assert loads[:5] == sorted(loads[:5])
    assert full[2] > 1.2 * idle[2]


@pytest.fixture(scope="module")
def atomics(egmctl: RunEgmctl, names: list[str]) -> Found:  # noqa: ARG001
    """Measure every atomic round trip; return the measurements by case."""
    options = (
        "--gpus",
        "0-1",
        "--numa",
        "0",
        "--case",
        "*_atomic_round_trip",
        "--samples",
        "3",
        "--no-verdict",
        "--json",
    )
    ended = egmctl("bench", *options, timeout_s=110)
    document = json.loads(ended.out)
    assert ended.code == document["exit_code"] == 0, ended.out
    by_case: Found = {}
    for measurement in document["result"]["measurements"]:
        by_case.setdefault(measurement["case"], []).append(measurement)
    return by_case


def test_every_addition_is_there_and_had_the_right_answer(atomics: Found) -> None:
    assert len(atomics) == 4
    for m in (m for those in atomics.values() for m in those):
        assert m["verification"] == "counters-every-sample"
        assert m["status"] in ("ok", "unstable"), m
        assert len(m["samples"]) == 3


def test_an_addition_and_its_answer_take_about_what_a_load_takes(atomics: Found, found: Found) -> None:
    for path in ("device_local", "device_to_device"):
        (added, *_), (loaded, *_) = atomics[f"{path}_atomic_round_trip"], found[f"{path}_latency_cached"]
        assert 0.5 < added["latency_ns"]["median"] / loaded["latency_ns"]["median"] < 4


def test_footprints_of_the_host_go_as_far_as_what_is_free_allows(egmctl: RunEgmctl) -> None:
    case = ("--case", "host_numa_to_device_footprint", "--gpus", "0", "--numa", "0", "--samples", "3")
    ended = egmctl("bench", *case, "--json", timeout_s=500)
    document = json.loads(ended.out)
    measured = document["result"]["measurements"]
    assert ended.code == (3 if any(m["status"] == "waived" for m in measured) else 0), ended.out[:3000]
    assert {m["status"] for m in measured} <= {"ok", "unstable", "waived"}, [m["reason"] for m in measured]
    # What has no room above 16 GiB is no task; below it is waived with the reason.
    assert all(m["size_bytes"] <= 16 << 30 for m in measured if m["status"] == "waived")
    assert sum(m["status"] != "waived" for m in measured) >= 3
