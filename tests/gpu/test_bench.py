"""The first bench on real GPUs: the numbers that H200s give, verified, and nothing left behind."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from egmctl.facts.collect import collect
from tests.bench.four import OPTIONS
from tests.conftest import ROOT, RunEgmctl, command_environment

pytestmark = pytest.mark.gpu

ARGUMENTS = ("bench", "--numa", "0", "--gpus", "0-1", *OPTIONS)

D2D_WRITE_GB_S = 396.4
HOST_TO_GPU_GB_S = 55.5
"""Seen on HGX H200 with nvbandwidth 0.8 (docs/hardware-notes.md); other GPUs are only verified."""


@pytest.fixture(scope="module")
def names() -> list[str]:
    """Return the names of the GPUs; the bench's tests need two that are peers."""
    found = [gpu.name or "" for gpu in collect(("gpus",)).gpus or ()]
    if len(found) < 2:
        pytest.skip("the bench's tests need two GPUs")
    return found[:2]


@pytest.fixture(scope="module")
def result(egmctl: RunEgmctl, names: list[str]) -> dict[str, Any]:  # noqa: ARG001
    """Run the bench once and return its result."""
    ended = egmctl(*ARGUMENTS, "--json", timeout_s=110)
    document = json.loads(ended.out)
    assert ended.code == document["exit_code"] == 0, ended.out
    found: dict[str, Any] = document["result"]
    return found


def medians(result: dict[str, Any], case: str) -> list[float]:
    """Return the medians of a case's measurements."""
    found = [m["bandwidth_gb_s"]["median"] for m in result["measurements"] if m["case"] == case]
    assert len(found) == 2
    return found


def used_memory_mib() -> list[int]:
    """Return what nvidia-smi shows as used on each GPU."""
    query = ["nvidia-smi", "--query-gpu=memory.used", "--format=csv,noheader,nounits"]
    return [int(line) for line in subprocess.check_output(query, text=True).split()]


def compute_processes() -> list[str]:
    """Return the processes that nvidia-smi shows on the GPUs."""
    query = ["nvidia-smi", "--query-compute-apps=pid", "--format=csv,noheader"]
    return subprocess.check_output(query, text=True).split()


def test_every_path_is_measured_and_every_sample_verified_on_the_gpu(result: dict[str, Any]) -> None:
    assert len(result["measurements"]) == 8
    for measurement in result["measurements"]:
        assert measurement["status"] == "ok", measurement
        assert len(measurement["samples"]) == result["settings"]["samples"]
        assert (measurement["gating"], measurement["verification"]) == ("kernel", "gpu-every-sample")
        assert measurement["bandwidth_gb_s"]["cv"] < 0.03


def test_event_time_and_wall_time_agree(result: dict[str, Any]) -> None:
    # The host wakes up some tens of microseconds after the last event.
    for sample in (sample for m in result["measurements"] for sample in m["samples"]):
        assert sample["elapsed_ms"] <= sample["wall_ms"] * 1.001
        assert sample["wall_ms"] < sample["elapsed_ms"] + 5


def test_h200_device_to_device_write_is_within_one_percent(result: dict[str, Any], names: list[str]) -> None:
    if not all("H200" in name for name in names):
        pytest.skip(f"no reference for {names}")
    assert medians(result, "device_to_device_memcpy_write_ce") == pytest.approx([D2D_WRITE_GB_S] * 2, rel=0.01)


def test_h200_host_numa_to_device_is_within_three_percent(result: dict[str, Any], names: list[str]) -> None:
    if not all("H200" in name for name in names):
        pytest.skip(f"no reference for {names}")
    assert medians(result, "host_numa_to_device_memcpy_ce") == pytest.approx([HOST_TO_GPU_GB_S] * 2, rel=0.03)


def test_host_memory_is_called_egm_only_where_nvml_says_so(result: dict[str, Any]) -> None:
    gpus = {gpu.bus_id: gpu for gpu in collect(("host", "gpus", "pairs")).gpus or ()}
    for measurement in result["measurements"]:
        if "numa" in measurement["case"]:
            (flow,) = measurement["flows"]
            nvml = gpus[flow["initiator"]].nvml
            assert nvml is not None
            if not (nvml.egm_capable and nvml.c2c_enabled):
                assert flow["route"]["egm"] == "no"
                assert flow["route"]["egm_reason"]


def test_kernels_come_out_of_the_cache_without_nvrtc(egmctl: RunEgmctl, names: list[str], tmp_path: Path) -> None:  # noqa: ARG001
    def run(**more: str) -> tuple[int, set[str]]:
        env = {"XDG_CACHE_HOME": str(tmp_path), **more}
        ended = egmctl(*ARGUMENTS, "--json", "--size", "128M", env=env, timeout_s=110)
        return ended.code, {m["status"] for m in json.loads(ended.out)["result"]["measurements"]}

    assert run(EGMCTL_NO_NVRTC="1") == (3, {"waived"})
    assert run() == (0, {"ok"})
    assert run(EGMCTL_NO_NVRTC="1") == (0, {"ok"})


def test_a_hidden_gpu_is_waived_and_the_other_measured(egmctl: RunEgmctl, names: list[str]) -> None:  # noqa: ARG001
    ended = egmctl(*ARGUMENTS, "--json", "--size", "64M", env={"CUDA_VISIBLE_DEVICES": "1"}, timeout_s=110)
    measurements = json.loads(ended.out)["result"]["measurements"]
    assert ended.code == 1, "GPU0 is required by name"
    for measurement in measurements:
        touched = {end["label"] for flow in measurement["flows"] for end in (flow["source"], flow["destination"])}
        expected = ("waived", "CUDA_VISIBLE_DEVICES hides GPU0") if "GPU0" in touched else ("ok", None)
        assert (measurement["status"], measurement["reason"]) == expected


def test_nothing_is_left_on_the_gpus(egmctl: RunEgmctl, names: list[str]) -> None:  # noqa: ARG001
    before = used_memory_mib()
    egmctl(*ARGUMENTS, "--size", "256M", timeout_s=110)
    assert used_memory_mib() == before
    assert not compute_processes()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_nothing_is_left_when_the_command_is_stopped(
    names: list[str],  # noqa: ARG001
    number: signal.Signals,
    tmp_path: Path,
) -> None:
    before = used_memory_mib()
    arguments = [sys.executable, "-m", "egmctl", *ARGUMENTS, "--samples", "1000", "--json"]
    with (tmp_path / "out.json").open("w+") as out:
        command = subprocess.Popen(arguments, stdout=out, cwd=ROOT, env=command_environment({}))
        deadline = time.monotonic() + 30
        # The child that reads the facts takes some memory too; the worker's buffers are more than that.
        while max(used_memory_mib()) < max(before) + 800 and time.monotonic() < deadline:
            time.sleep(0.2)
        assert max(used_memory_mib()) >= max(before) + 800
        os.kill(command.pid, number)
        code = command.wait(30)
    time.sleep(2)
    assert used_memory_mib() == before
    assert not compute_processes()
    if number is not signal.SIGKILL:
        assert code == 130
        assert json.loads((tmp_path / "out.json").read_text())["result"]["interrupted"] is True


def test_disjoint_pairs_at_once_are_as_fast_as_one_alone(egmctl: RunEgmctl, names: list[str]) -> None:  # noqa: ARG001
    if len(collect(("gpus",)).gpus or ()) < 4:
        pytest.skip("two pairs at once need four GPUs")
    ended = egmctl("bench", "--json", "--gpus", "0-3", "--case", "device_to_device_memcpy_*_ce", timeout_s=110)
    result = json.loads(ended.out)["result"]
    assert ended.code == 0, ended.out
    assert {m["concurrent"] for m in result["measurements"]} == {2}
    proven = [m for m in result["measurements"] if m["alone"]]
    assert len(proven) == 2 * 6
    for measurement in proven:
        assert measurement["bandwidth_gb_s"]["median"] == pytest.approx(measurement["alone"], rel=0.01)
    assert not any("one at a time" in note for note in result["notes"])


def test_a_soak_goes_round_and_keeps_the_worst(egmctl: RunEgmctl, names: list[str]) -> None:  # noqa: ARG001
    case = ("--case", "device_to_device_memcpy_write_ce")
    ended = egmctl("bench", "--gpus", "0-1", *case, "--duration", "6", "--json", timeout_s=60)
    result = json.loads(ended.out)["result"]
    assert ended.code == 0, ended.out
    for measurement in result["measurements"]:
        assert measurement["attempts"] > 5
        assert 0 <= measurement["slowest_at_s"] <= result["wall_s"]


@pytest.mark.parametrize(("number", "status"), [(signal.SIGKILL, "crashed"), (signal.SIGSTOP, "timed-out")])
def test_a_worker_that_is_killed_or_stopped_costs_its_step_and_leaves_nothing(
    names: list[str],  # noqa: ARG001
    number: signal.Signals,
    status: str,
    tmp_path: Path,
) -> None:
    before = used_memory_mib()
    options = ("--case", "device_to_device_memcpy_write_ce", "--samples", "100", "--timeout", "5", "--json")
    arguments = [sys.executable, "-m", "egmctl", "bench", "--gpus", "0-1", *options]
    with (tmp_path / "out.json").open("w+") as out:
        command = subprocess.Popen(arguments, stdout=out, cwd=ROOT, env=command_environment({}))
        deadline = time.monotonic() + 30
        while max(used_memory_mib()) < max(before) + 800 and time.monotonic() < deadline:
            time.sleep(0.05)
        os.kill(worker_of(command.pid), number)
        assert command.wait(60) == 4
    measurements = json.loads((tmp_path / "out.json").read_text())["result"]["measurements"]
    assert sorted(m["status"] for m in measurements) == sorted([status, "ok"])
    assert used_memory_mib() == before
    assert not compute_processes()


def worker_of(command: int) -> int:
    """Return the process id of the worker that a command has started."""
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            parent = int((folder / "stat").read_text().rpartition(")")[2].split()[1])
            words = (folder / "cmdline").read_bytes()
        except OSError:
            continue
        if parent == command and b"egmctl.bench.processes.worker" in words:
            return int(folder.name)
    raise AssertionError("the command has no worker")
