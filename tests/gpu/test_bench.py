"""The first bench: the numbers that H200s give, verified, and nothing left behind."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path
from typing import Any

import pytest

from tests.bench.four import OPTIONS
from tests.gpu.node import Node, NodeOfFakes

pytestmark = pytest.mark.usefixtures("two_gpus")

ARGUMENTS = ("--numa", "0", "--gpus", "0-1", *OPTIONS)

D2D_WRITE_GB_S = 396.4
HOST_TO_GPU_GB_S = 55.5
"""Seen on HGX H200 with nvbandwidth 0.8 (docs/hardware-notes.md); other GPUs are only verified."""


@pytest.fixture(scope="module")
def result(node: Node, two_gpus: None) -> dict[str, Any]:  # noqa: ARG001
    """Run the bench once and return its result."""
    return node.bench(*ARGUMENTS, timeout_s=110)


def medians(result: dict[str, Any], case: str) -> list[float]:
    """Return the medians of a case's measurements."""
    values = [m["bandwidth_gb_s"]["median"] for m in result["measurements"] if m["case"] == case]
    assert len(values) == 2
    return values


def test_every_path_is_measured_and_every_sample_verified_on_the_gpu(node: Node, result: dict[str, Any]) -> None:
    assert len(result["measurements"]) == 8
    for measurement in result["measurements"]:
        assert measurement["status"] == "ok", measurement
        assert len(measurement["samples"]) == result["settings"]["samples"]
        assert (measurement["gating"], measurement["verification"]) == ("kernel", "gpu-every-sample")
        assert node.is_fake or measurement["bandwidth_gb_s"]["cv"] < 0.03


@pytest.mark.gpu
def test_event_time_and_wall_time_agree(result: dict[str, Any]) -> None:
    # The host wakes up some tens of microseconds after the last event.
    for sample in (sample for m in result["measurements"] for sample in m["samples"]):
        assert sample["elapsed_ms"] <= sample["wall_ms"] * 1.001
        assert sample["wall_ms"] < sample["elapsed_ms"] + 5


@pytest.mark.gpu
def test_h200_device_to_device_write_is_within_one_percent(node: Node, result: dict[str, Any]) -> None:
    node.only_h200()
    assert medians(result, "device_to_device_memcpy_write_ce") == pytest.approx([D2D_WRITE_GB_S] * 2, rel=0.01)


@pytest.mark.gpu
def test_h200_host_numa_to_device_is_within_three_percent(node: Node, result: dict[str, Any]) -> None:
    node.only_h200()
    assert medians(result, "host_numa_to_device_memcpy_ce") == pytest.approx([HOST_TO_GPU_GB_S] * 2, rel=0.03)


def test_host_memory_is_called_egm_only_where_nvml_says_so(node: Node, result: dict[str, Any]) -> None:
    gpus = {gpu.bus_id: gpu for gpu in node.gpus}
    for measurement in result["measurements"]:
        if "numa" in measurement["case"]:
            (flow,) = measurement["flows"]
            nvml = gpus[flow["initiator"]].nvml
            assert nvml is not None
            if not (nvml.egm_capable and nvml.c2c_enabled):
                assert flow["route"]["egm"] == "no"
                assert flow["route"]["egm_reason"]


@pytest.mark.gpu
def test_kernels_come_out_of_the_cache_without_nvrtc(node: Node, tmp_path: Path) -> None:
    def run(**more: str) -> tuple[int, set[str]]:
        code, result = node.bench_with_code(
            *ARGUMENTS, "--size", "128M", timeout_s=110, XDG_CACHE_HOME=str(tmp_path), **more
        )
        return code, {m["status"] for m in result["measurements"]}

    assert run(EGMCTL_NO_NVRTC="1") == (3, {"waived"})
    assert run() == (0, {"ok"})
    assert run(EGMCTL_NO_NVRTC="1") == (0, {"ok"})


def test_a_hidden_gpu_is_waived_and_the_other_measured(node: Node) -> None:
    if isinstance(node, NodeOfFakes):
        node.driver.forget_calls()
    code, result = node.bench_with_code(*ARGUMENTS, "--size", "64M", timeout_s=110, CUDA_VISIBLE_DEVICES="1")
    assert code == 1, "GPU0 is required by name"
    for measurement in result["measurements"]:
        touched = {end["label"] for flow in measurement["flows"] for end in (flow["source"], flow["destination"])}
        expected = ("waived", "CUDA_VISIBLE_DEVICES hides GPU0") if "GPU0" in touched else ("ok", None)
        assert (measurement["status"], measurement["reason"]) == expected
    if isinstance(node, NodeOfFakes):
        # GPU1 is the only one that the worker sees: its ordinal there is 0.
        access = {call.arguments["access"] for call in node.driver.calls("cuMemSetAccess")}
        assert access == {"HOST_NUMA:0:RW,DEVICE:0:RW"}


def test_nothing_is_left_on_the_gpus(node: Node) -> None:
    with node.nothing_left():
        node.bench(*ARGUMENTS, "--size", "256M", timeout_s=110)


@pytest.mark.gpu
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_nothing_is_left_when_the_command_is_stopped(node: Node, number: signal.Signals, tmp_path: Path) -> None:
    with node.no_process_left(wait_s=2):
        command = node.start_bench(tmp_path / "out.json", *ARGUMENTS, "--samples", "1000")
        os.kill(command.pid, number)
        code = command.wait(30)
    if number is not signal.SIGKILL:
        assert code == 130
        assert json.loads((tmp_path / "out.json").read_text())["result"]["interrupted"] is True


@pytest.mark.gpu
def test_disjoint_pairs_at_once_are_as_fast_as_one_alone(node: Node) -> None:
    if len(node.gpus) < 4:
        pytest.skip("two pairs at once need four GPUs")
    result = node.bench("--gpus", "0-3", "--case", "device_to_device_memcpy_*_ce", timeout_s=110)
    assert {m["concurrent"] for m in result["measurements"]} == {2}
    proven = [m for m in result["measurements"] if m["alone"]]
    assert len(proven) == 2 * 6
    for measurement in proven:
        assert measurement["bandwidth_gb_s"]["median"] == pytest.approx(measurement["alone"], rel=0.01)
    assert not any("one at a time" in note for note in result["notes"])


@pytest.mark.gpu
def test_a_soak_goes_round_and_keeps_the_worst(node: Node) -> None:
    case = ("--case", "device_to_device_memcpy_write_ce")
    result = node.bench("--gpus", "0-1", *case, "--duration", "6", timeout_s=60)
    for measurement in result["measurements"]:
        assert measurement["attempts"] > 5
        assert 0 <= measurement["slowest_at_s"] <= result["wall_s"]


@pytest.mark.long
@pytest.mark.parametrize(("number", "status"), [(signal.SIGKILL, "crashed"), (signal.SIGSTOP, "timed-out")])
def test_a_worker_that_is_killed_or_stopped_costs_its_step_and_leaves_nothing(
    node: Node, number: signal.Signals, status: str, tmp_path: Path
) -> None:
    options = ("--case", "device_to_device_memcpy_write_ce", "--samples", "100", "--timeout", "5")
    with node.no_process_left():
        command = node.start_bench(tmp_path / "out.json", "--gpus", "0-1", *options)
        os.kill(worker_of(command.pid), number)
        assert command.wait(60) == 4
    result = json.loads((tmp_path / "out.json").read_text())["result"]
    statuses = sorted(measurement["status"] for measurement in result["measurements"])
    between_steps = any("a new one took over" in problem for problem in result["problems"])
    assert statuses == (["ok", "ok"] if between_steps else sorted([status, "ok"]))


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
