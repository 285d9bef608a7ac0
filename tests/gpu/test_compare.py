"""Comparing real runs of one node: nothing differs while it is idle, and what traffic beside a run costs is named."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.conftest import RunEgmctl
from tests.gpu.traffic import pushing

pytestmark = pytest.mark.gpu

CASE = ("--case", "device_to_device_memcpy_write_ce")


@pytest.mark.usefixtures("gpus")
def test_traffic_beside_a_run_is_named(egmctl: RunEgmctl, tmp_path: Path) -> None:
    first, second, beside = (tmp_path / f"{name}.json" for name in ("first", "second", "beside"))
    for path in (first, second):
        assert egmctl("bench", "-q", *CASE, "-o", path).code == 0
    idle = egmctl("compare", first, second)
    assert (idle.code, "0 worse, 0 better" in idle.out) == (0, True), idle.out
    with pushing():
        egmctl("bench", "-q", *CASE, "--allow-busy", "-o", beside)
    compared = egmctl("compare", first, beside, "--json")
    document = json.loads(compared.out)
    # What was measured beside other work is no reason to call a path worse.
    assert (compared.code, document["answer"]["state"]) == (3, "incomplete"), compared.out
    assert "other processes used GPU0 and GPU1 in beside" in document["answer"]["sentence"]
    outcomes = {path["path"]: path["outcome"] for path in document["result"]["paths"]}
    assert outcomes["GPU0 -> GPU1"] == "different", outcomes
