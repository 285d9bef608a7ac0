"""Where the time of a run goes on real GPUs."""

from __future__ import annotations

import json

import pytest

from tests.conftest import RunEgmctl

pytestmark = pytest.mark.gpu


def test_measuring_takes_what_the_samples_take_and_the_parts_make_the_whole(egmctl: RunEgmctl) -> None:
    ended = egmctl("bench", "--gpus", "0", "--numa", "0", "--case", "host_*_memcpy_??", "--json", timeout_s=110)
    result = json.loads(ended.out)["result"]
    spent = result["seconds"]
    parts = [spent[f"{name}_s"] for name in ("set_up", "warm_up", "measuring", "verifying", "tear_down")]
    assert sum(parts) + spent["starting_s"] + spent["waiting_s"] == pytest.approx(result["wall_s"])
    samples_s = sum(s["elapsed_ms"] for m in result["measurements"] for s in m["samples"]) / 1e3
    assert samples_s <= spent["measuring_s"] < 2 * samples_s + 1
    assert spent["waiting_s"] < 0.25 * result["wall_s"]
