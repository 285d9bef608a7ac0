"""``bench --suite ipc`` on real GPUs: verified, as fast as within one process, and nothing left whatever happens."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from egmctl import launch
from egmctl.bench.case import Case
from egmctl.bench.plan.make import SECTIONS, make_plan
from egmctl.bench.processes.group import WORKER, Group, start_group, start_rank
from egmctl.bench.processes.protocol import ENVIRONMENT
from egmctl.bench.suites import CASES
from egmctl.bench.supervisor import supervise
from egmctl.errors import ExitCode
from egmctl.facts.collect import collect
from egmctl.model.machine import Machine
from egmctl.model.measurement import MeasurementStatus, RunReport, Settings
from egmctl.units import MIB
from tests.conftest import ROOT, RunEgmctl, command_environment
from tests.doctor.cgroups import denying_v2
from tests.gpu.test_bench import compute_processes, used_memory_mib
from tests.gpu.test_doctor_active import imex_channel

__all__ = ["imex_channel"]

pytestmark = pytest.mark.gpu

TWO = ("bench", "--no-verdict", "--gpus", "0-1", "--json")
IPC = {case.name: case for case in CASES if case.family == "ipc"}
CHANNELS = Path("/dev/nvidia-caps-imex-channels")
COPIES = tuple(
    f"ipc_{kind}_{way}_{by}"
    for kind in ("legacy_device", "posix_fd_device", "posix_fd_host_numa", "pool_device", "pool_host_numa")
    for way in ("write", "read")
    for by in ("ce", "sm")
)
LIVES_LEFT = 8
"""MiB that a GPU may have in use more than before: nothing of ours, but the driver's own books move."""


@pytest.fixture(scope="module")
def machine(room: None) -> Machine:  # noqa: ARG001
    found = collect(SECTIONS)
    if len(found.gpus or ()) < 2:
        pytest.skip("ipc needs two GPUs")
    return found


@pytest.fixture(scope="module")
def result(egmctl: RunEgmctl, machine: Machine) -> dict[str, Any]:  # noqa: ARG001
    """Run the suite once and return its result."""
    ended = egmctl(*TWO, "--suite", "ipc", timeout_s=110)
    document = json.loads(ended.out)
    found: dict[str, Any] = document["result"]
    assert ended.code == document["exit_code"] == 0, wrong(found)
    return found


def wrong(result: dict[str, Any]) -> list[str]:
    """Return what was neither measured nor waived, and why."""
    bad = [m for m in result["measurements"] if m["status"] not in ("ok", "unstable", "waived")]
    return [*result["problems"], *(f"{m['case']}: {m['status']}: {m['reason']}" for m in bad)]


def of(result: dict[str, Any], name: str) -> list[dict[str, Any]]:
    """Return the measurements of a case."""
    return [m for m in result["measurements"] if m["case"] == name]


def test_every_kind_but_fabric_is_measured_and_every_byte_verified(result: dict[str, Any]) -> None:
    for m in result["measurements"]:
        if "fabric" in m["case"] and not CHANNELS.exists():
            continue
        assert m["status"] in ("ok", "unstable"), (m["case"], m["status"], m["reason"])
        if m["quantity"] == "bandwidth":
            assert m["verification"] == "gpu-every-sample"
    assert result["problems"] == []
    assert len(result["ranks"]) == 2


def tolerance(case: str) -> float:
    """Return how much slower than in one process a path may be, as a share.

    Host paths go over PCIe, which drifts by up to 4 % from minute to minute (docs/hardware-notes.md). Between processes
    a read may be faster: in one process pairs of GPUs may read from each other at the same time.
    """
    return 0.05 if "host_numa" in case else 0.01


@pytest.mark.parametrize("name", COPIES)
def test_a_path_between_processes_is_no_slower_than_within_one(result: dict[str, Any], name: str) -> None:
    for m in of(result, name):
        assert m["bandwidth_gb_s"]["median"] >= (1 - tolerance(name)) * m["in_process"]


def test_the_ring_of_all_processes_is_as_fast_as_that_of_one(result: dict[str, Any]) -> None:
    for kind in ("legacy", "posix_fd", "pool"):
        (m,) = of(result, f"ipc_{kind}_device_ring_write_ce")
        assert m["bandwidth_gb_s"]["median"] == pytest.approx(m["in_process"], rel=0.01)


def test_what_a_message_takes_is_less_than_what_an_event_takes(result: dict[str, Any]) -> None:
    (event,), (message,) = of(result, "ipc_event_round_trip"), of(result, "ipc_socket_round_trip")
    assert message["latency_ns"]["median"] < event["latency_ns"]["median"] < 1e6


def test_fabric_handles_without_a_channel_are_waived_with_the_remedy(result: dict[str, Any]) -> None:
    if CHANNELS.exists():
        pytest.skip("this node has IMEX channels")
    fabric = [m for m in result["measurements"] if "fabric" in m["case"]]
    assert {m["status"] for m in fabric} == {"waived"}
    assert all("IMEX channel" in m["reason"] and "nvidia-modprobe" not in m["reason"] for m in fabric)


@pytest.mark.needs_root
@pytest.mark.usefixtures("imex_channel")
def test_fabric_handles_with_a_channel(egmctl: RunEgmctl, machine: Machine) -> None:  # noqa: ARG001
    ended = egmctl(*TWO, "--case", "ipc_fabric_*", "--samples", "3", timeout_s=110)
    found = json.loads(ended.out)["result"]
    assert ended.code == 0, wrong(found)
    ipc = [m for m in found["measurements"] if m["family"] == "ipc"]
    assert {m["status"] for m in ipc} <= {"ok", "unstable"}, [(m["case"], m["reason"]) for m in ipc if m["reason"]]
    for m in ipc:
        if m["quantity"] == "bandwidth":
            assert m["bandwidth_gb_s"]["median"] >= (1 - tolerance(m["case"])) * m["in_process"], m["case"]
    assert found["problems"] == []


def measure(machine: Machine, *names: str, start: Callable[[int], Group] = start_group, samples: int = 2) -> RunReport:
    """Measure cases by two processes of this test's, without those beside them."""
    settings = Settings(size_bytes=256 * MIB, copies=4, samples=samples, timeout_s=30)
    cases = [alone(IPC[name]) for name in names]
    plan = make_plan(machine, (machine.gpus or ())[:2], [0], cases, settings)
    return supervise(plan, machine, on_progress=lambda _part, _task: None, start_ranks=start)


def alone(case: Case) -> Case:
    return replace(case, in_process=None)


def nothing_left(before: list[int]) -> bool:
    """Say whether the GPUs' memory is as it was and nobody computes."""
    deadline = time.monotonic() + 10
    while time.monotonic() < deadline:
        if not compute_processes() and all(n <= b + LIVES_LEFT for n, b in zip(used_memory_mib(), before, strict=True)):
            return True
        time.sleep(0.2)
    return False


DENIED = ("ipc_legacy_device_write_ce", "ipc_posix_fd_device_read_ce")


@pytest.mark.needs_root
def test_an_importer_in_a_cgroup_that_denies_the_owner(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    before = used_memory_mib()
    owner = (machine.gpus or ())[0]
    assert owner.proc is not None
    assert owner.proc.minor is not None
    with denying_v2(owner.proc.minor) as cgroup:

        def start(_size: int) -> Group:
            hook = {
                "before": "tests.doctor.hooks:join_cgroup",
                "before_arguments": {"directory": str(cgroup.directory)},
            }
            importer = launch.Child(WORKER, {"rank": 1, "size": 2}, environment=ENVIRONMENT, **hook)  # type: ignore[arg-type]
            return Group({0: start_rank(0, 2), 1: importer})

        report = measure(machine, *DENIED, start=start)
    failed = [m for m in report.measurements if m.flows[0].initiator_rank == 1]
    assert len(failed) == 2
    for m in failed:
        assert m.status is MeasurementStatus.FAILED, m.reason
        assert (m.known_cause, m.failed_rank) == (True, 1)
        assert "its device cgroup or container denies it" in (m.reason or "")
    # The other way round the importer is not confined.
    assert all(
        m.status in (MeasurementStatus.OK, MeasurementStatus.UNSTABLE) for m in report.measurements if m not in failed
    )
    assert nothing_left(before)


def test_an_importer_that_cuda_visible_devices_hides_the_owner_from(machine: Machine) -> None:
    def start(_size: int) -> Group:
        hidden = {**ENVIRONMENT, "CUDA_VISIBLE_DEVICES": (machine.gpus or ())[1].uuid}
        return Group({0: start_rank(0, 2), 1: launch.Child(WORKER, {"rank": 1, "size": 2}, environment=hidden)})

    report = measure(machine, *DENIED, "ipc_posix_fd_host_numa_read_ce", start=start)
    assert {m.status for m in report.measurements} <= {MeasurementStatus.OK, MeasurementStatus.UNSTABLE}, [
        m.reason for m in report.measurements
    ]


@pytest.mark.parametrize("after_s", [0.6, 1.0, 1.4, 1.8, 2.2])
def test_a_rank_that_is_killed_leaves_nothing_and_another_group_goes_on(machine: Machine, after_s: float) -> None:
    before = used_memory_mib()
    starts: list[int] = []

    def start(size: int) -> Group:
        group = start_group(size)
        starts.append(size)
        if len(starts) == 1:
            pid = group._members[1].pid
            threading.Timer(after_s, os.kill, (pid, signal.SIGKILL)).start()
        return group

    names = ("ipc_posix_fd_device_write_ce", "ipc_legacy_device_read_ce", "ipc_posix_fd_host_numa_write_ce")
    report = measure(machine, *names, start=start, samples=30)
    lost = [m for m in report.measurements if m.status is MeasurementStatus.CRASHED]
    assert starts == [2, 2]
    before_a_step = any("died from SIGKILL" in p and "a new one took over" in p for p in report.problems)
    assert bool(lost) != before_a_step, report.problems
    assert {m.failed_rank for m in lost} <= {1}
    assert all("died from SIGKILL" in (m.reason or "") for m in lost)
    rest = [m for m in report.measurements if m not in lost]
    assert {m.status for m in rest} <= {MeasurementStatus.OK, MeasurementStatus.UNSTABLE}
    assert nothing_left(before)


def test_a_hundred_lives_in_the_same_processes(machine: Machine) -> None:
    before = used_memory_mib()
    names = ("ipc_legacy_device_life_cycle", "ipc_posix_fd_device_life_cycle", "ipc_pool_device_life_cycle")
    report = measure(machine, *names, samples=100)
    assert {m.status for m in report.measurements} == {MeasurementStatus.OK}, [m.reason for m in report.measurements]
    assert nothing_left(before)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL])
def test_nothing_is_left_when_the_command_is_stopped(number: signal.Signals, machine: Machine, tmp_path: Path) -> None:  # noqa: ARG001
    before = used_memory_mib()
    arguments = [sys.executable, "-m", "egmctl", *TWO, "--case", "ipc_legacy_device_write_ce", "--samples", "1000"]
    with (tmp_path / "out.json").open("w+") as out:
        command = subprocess.Popen(arguments, stdout=out, cwd=ROOT, env=command_environment({}))
        deadline = time.monotonic() + 60
        while max(used_memory_mib()) < max(before) + 800 and time.monotonic() < deadline:
            time.sleep(0.1)
        os.kill(command.pid, number)
        code = command.wait(30)
    assert code == (ExitCode.INTERRUPTED if number == signal.SIGINT else -number)
    assert nothing_left(before)
