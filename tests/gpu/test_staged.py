"""Copies without peer access: they take the way that they are said to take, and harm no later copy."""

from __future__ import annotations

from statistics import median
from typing import Any

import pytest

from tests.bench.four import cases
from tests.gpu.node import Node

pytestmark = pytest.mark.usefixtures("two_gpus")

BEFORE, AFTER = "device_to_device_memcpy_write_ce", "device_to_device_write_sm"
STAGED = "device_to_device_staged_memcpy_ce"
ByCase = dict[str, list[dict[str, Any]]]


@pytest.fixture(scope="module")
def measured(node: Node, two_gpus: None) -> ByCase:  # noqa: ARG001
    """Measure copies with and without peer access in one process, by case."""
    by_case: ByCase = {}
    for m in node.bench("--gpus", "0-1", *cases(BEFORE, STAGED, AFTER), timeout_s=110)["measurements"]:
        by_case.setdefault(m["case"], []).append(m)
    return by_case


def gb_s(measurements: list[dict[str, Any]]) -> float:
    return float(median(m["bandwidth_gb_s"]["median"] for m in measurements))


def test_every_byte_arrives_and_no_nvlink_carries_them(node: Node, measured: ByCase) -> None:
    for m in measured[STAGED]:
        assert m["status"] in ("ok", "unstable"), m["reason"]
        assert m["verification"] == "gpu-every-sample"
        assert m["flows"][0]["route"]["staged"]
        carried = [gpu["sent_bytes"].get("nvlink", 0) for gpu in m["evidence"]["gpus"]]
        # The counters of a fake GPU know of peers alone, and count what is staged too.
        assert node.is_fake or max(carried) < 0.05 * m["size_bytes"] * m["copies"] * len(m["samples"]), m["evidence"]


@pytest.mark.gpu
def test_it_is_slower_than_with_peer_access_which_is_there_again_afterwards(measured: ByCase) -> None:
    assert gb_s(measured[STAGED]) < 0.5 * gb_s(measured[BEFORE])
    assert gb_s(measured[AFTER]) == pytest.approx(gb_s(measured[BEFORE]), rel=0.15)
