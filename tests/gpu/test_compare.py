"""Comparing real runs of one node: nothing differs while it is idle, and what traffic beside a run costs is named."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.conftest import ROOT, RunEgmctl, command_environment

pytestmark = pytest.mark.gpu

CASE = ("--case", "device_to_device_memcpy_write_ce")
STARTED_S = 6
"""The facts, CUDA's start and the buffers take some three seconds before anything moves."""


def test_traffic_beside_a_run_is_named(egmctl: RunEgmctl, tmp_path: Path) -> None:
    first, second, beside = (tmp_path / f"{name}.json" for name in ("first", "second", "beside"))
    for path in (first, second):
        assert egmctl("bench", "-q", *CASE, "-o", path).code == 0
    gpus = json.loads(first.read_text())["result"]["gpus"]
    if len(gpus) < 2:
        pytest.skip("it takes two GPUs")
    idle = egmctl("compare", first, second)
    assert (idle.code, "0 worse, 0 better" in idle.out) == (0, True), idle.out
    traffic = subprocess.Popen(
        [sys.executable, "-m", "egmctl", "bench", "-q", "--gpus", "0-1", *CASE, "--duration", "60", "--allow-busy"],
        cwd=ROOT,
        env=command_environment({}),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        time.sleep(STARTED_S)
        egmctl("bench", "-q", *CASE, "--allow-busy", "-o", beside)
    finally:
        traffic.send_signal(signal.SIGINT)
        traffic.wait(30)
    found = egmctl("compare", first, beside, "--json")
    assert found.code == 1, found.out
    worse = [path["path"] for path in json.loads(found.out)["result"]["paths"] if path["outcome"] == "worse"]
    assert {"GPU0 -> GPU1", "GPU1 -> GPU0"} & set(worse), worse
