"""Copies without peer access on real GPUs: they take the way that they are said to take, and harm no later copy."""

from __future__ import annotations

import json
from statistics import median
from typing import Any

import pytest

from egmctl.facts.collect import collect
from tests.conftest import RunEgmctl

pytestmark = pytest.mark.gpu

BEFORE, AFTER = "device_to_device_memcpy_write_ce", "device_to_device_write_sm"
STAGED = ("device_to_device_staged_memcpy_ce",)


@pytest.fixture(scope="module")
def measured(egmctl: RunEgmctl) -> dict[str, list[dict[str, Any]]]:
    """Measure copies with and without peer access in one process, by case."""
    if len(collect(("gpus",)).gpus or ()) < 2:
        pytest.skip("needs two GPUs")
    cases = [word for name in (BEFORE, *STAGED, AFTER) for word in ("--case", name)]
    ended = egmctl("bench", "--gpus", "0-1", *cases, "--json", timeout_s=110)
    document = json.loads(ended.out)
    assert ended.code == 0, ended.out[:3000]
    found: dict[str, list[dict[str, Any]]] = {}
    for m in document["result"]["measurements"]:
        found.setdefault(m["case"], []).append(m)
    return found


def gb_s(those: list[dict[str, Any]]) -> float:
    return float(median(m["bandwidth_gb_s"]["median"] for m in those))


def test_every_byte_arrives_and_no_nvlink_carries_them(measured: dict[str, list[dict[str, Any]]]) -> None:
    for case in STAGED:
        for m in measured[case]:
            assert m["status"] in ("ok", "unstable"), m["reason"]
            assert m["verification"] == "gpu-every-sample"
            assert m["flows"][0]["route"]["staged"]
            carried = [gpu["sent_bytes"].get("nvlink", 0) for gpu in m["evidence"]["gpus"]]
            assert max(carried) < 0.05 * m["size_bytes"] * m["copies"] * len(m["samples"]), m["evidence"]


def test_it_is_slower_than_with_peer_access_which_is_there_again_afterwards(
    measured: dict[str, list[dict[str, Any]]],
) -> None:
    assert gb_s(measured[STAGED[0]]) < 0.5 * gb_s(measured[BEFORE])
    assert gb_s(measured[AFTER]) == pytest.approx(gb_s(measured[BEFORE]), rel=0.15)
