"""Bandwidth against the number of SMs: more SMs move more until a link is full, every byte right."""

from __future__ import annotations

from typing import Any

import pytest

from tests.gpu.node import Node

pytestmark = pytest.mark.usefixtures("two_gpus")

ByPoint = dict[tuple[str, int], dict[str, Any]]

H200_GB_S = {
    # From 16 to 32 blocks write a little slower than 8 or 64: 340, 356 and 372 on three machines.
    ("device_to_device_memcpy_write_tma", 16): (325, 380),
    ("device_to_device_memcpy_write_tma", 32): (345, 380),
    ("device_to_device_memcpy_read_tma", 16): (350, 380),
    ("host_numa_to_device_memcpy_tma", 16): (49, 53),
    ("device_to_host_numa_memcpy_tma", 16): (50, 54),
    ("device_local_copy_tma", 16): (650, 900),
    ("device_local_copy_tma", 132): (1850, 2100),
}
"""Between what a kernel with the same chunks was seen to reach (docs/hardware-notes.md)."""


@pytest.fixture(scope="module")
def measured(node: Node, two_gpus: None) -> ByPoint:  # noqa: ARG001
    """Measure the suite once, on two GPUs, by case and number of blocks."""
    result = node.bench("--gpus", "0-1", "--numa", "0", "--suite", "sms", timeout_s=200)
    return {(m["case"], m["point"]["sms"]): m for m in result["measurements"] if m["status"] != "waived"}


def median(measurement: dict[str, Any]) -> float:
    return float(measurement["bandwidth_gb_s"]["median"])


def test_every_point_is_measured_and_every_byte_is_right(measured: ByPoint) -> None:
    assert measured
    for key, m in measured.items():
        assert m["status"] in ("ok", "unstable"), (key, m["reason"])
        assert m["verification"] == "gpu-every-sample", key


@pytest.mark.gpu
def test_eight_sms_move_more_than_one_and_no_number_of_them_more_than_the_link(measured: ByPoint) -> None:
    for (case, blocks), m in measured.items():
        if blocks == 8:
            # One SM alone moves 38 to 46 of the 52 GB/s of a PCIe 5.0 x16 link.
            assert median(m) > 1.05 * median(measured[case, 1]), case
        limits = [hop["nominal_gb_s"] for flow in m["flows"] for hop in flow["route"]["hops"] if hop["nominal_gb_s"]]
        assert all(median(m) <= limit for limit in limits), (case, blocks)


def test_the_counters_of_the_links_saw_the_bytes(measured: ByPoint) -> None:
    verdicts = {
        m["evidence"]["route"]["verdict"] for m in measured.values() if m["evidence"] and m["evidence"]["route"]
    }
    assert "refuted" not in verdicts


@pytest.mark.gpu
@pytest.mark.parametrize(("case", "blocks"), H200_GB_S)
def test_h200_reaches_what_a_plain_kernel_did(node: Node, measured: ByPoint, case: str, blocks: int) -> None:
    node.only_h200()
    least, most = H200_GB_S[case, blocks]
    assert least <= median(measured[case, blocks]) <= most
