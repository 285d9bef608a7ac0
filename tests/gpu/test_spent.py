"""Where the time of a run goes."""

from __future__ import annotations

import pytest

from tests.gpu.node import Node


def test_measuring_takes_what_the_samples_take_and_the_parts_make_the_whole(node: Node) -> None:
    # Whether there is a reference for one GPU alone does not matter here.
    _, result = node.bench_with_code("--gpus", "0", "--numa", "0", "--case", "host_*_memcpy_??", timeout_s=110)
    spent = result["seconds"]
    parts = [spent[f"{name}_s"] for name in ("set_up", "warm_up", "measuring", "verifying", "tear_down")]
    assert sum(parts) + spent["starting_s"] + spent["waiting_s"] == pytest.approx(result["wall_s"])
    samples_s = sum(s["elapsed_ms"] for m in result["measurements"] for s in m["samples"]) / 1e3
    assert node.is_fake or samples_s <= spent["measuring_s"] < 2 * samples_s + 1
    assert node.is_fake or spent["waiting_s"] < 0.25 * result["wall_s"]
