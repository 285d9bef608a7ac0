"""``bench --suite ipc``: verified, as fast as within one process, and nothing left whatever happens."""

from __future__ import annotations

import json
import os
import signal
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from egmctl import launch
from egmctl.bench.processes.group import WORKER, Group, start_group, start_rank
from egmctl.bench.processes.protocol import ENVIRONMENT
from egmctl.errors import ExitCode
from egmctl.model.codec import from_json
from egmctl.model.measurement import MeasurementStatus, RunReport
from egmctl.model.task import Quantity
from tests.bench.ipc import GOOD, IPC, complaints, of_case
from tests.gpu.node import Node

pytestmark = pytest.mark.usefixtures("two_gpus")

TWO = ("--no-verdict", "--gpus", "0-1")
COPIES = tuple(
    f"ipc_{kind}_{way}_{by}"
    for kind in ("legacy_device", "posix_fd_device", "posix_fd_host_numa", "pool_device", "pool_host_numa")
    for way in ("write", "read")
    for by in ("ce", "sm")
)
LIVES_LEFT_MIB = 8
"""What a GPU may have in use more than before: nothing of ours, but the driver's own books move."""


@pytest.fixture(scope="module")
def report(node: Node, request: pytest.FixtureRequest) -> RunReport:
    """Run the suite once; a fake node leaves out the cases of one process that are beside them."""
    if node.is_fake:
        with node.nothing_left():
            return node.measure(*IPC.values())
    request.getfixturevalue("room")
    return from_json(RunReport, node.bench(*TWO, "--suite", "ipc", timeout_s=110))


def test_all_of_it_comes_to_its_end(report: RunReport) -> None:
    assert complaints(report) == []
    assert [rank.label for rank in report.ranks] == ["GPU0", "GPU1"]


@pytest.mark.parametrize("name", IPC)
def test_every_kind_is_measured_and_every_byte_verified(node: Node, report: RunReport, name: str) -> None:
    case, measured = IPC[name], of_case(report, name)
    if "fabric" in name and not node.has_channel():
        pytest.skip("fabric handles need an IMEX channel")
    assert measured
    assert {m.status for m in measured} <= GOOD, measured[0].reason
    if case.quantity is Quantity.BANDWIDTH:
        for m in measured:
            assert m.verification == "gpu-every-sample"
            assert len(m.samples) == report.settings.samples
            for flow in m.flows:
                far = next(end for end in (flow.source, flow.destination) if end.handle is not None)
                assert far.rank != flow.initiator_rank
                assert far.handle == case.handle
        if node.is_fake:
            assert len(measured) == (1 if "ring" in name else 2)
            assert all(m.evidence for m in measured)
            assert len({m.seeds[0] for m in measured}) == len(measured)
    elif "life_cycle" in name:
        stages = {"allocate", "export", "transfer", "open", "close", "free"}
        assert all(stages <= {stage.name for stage in m.stages} for m in measured)
    else:
        assert all(m.latency_ns is not None for m in measured)


def tolerance(case: str) -> float:
    """Return how much slower than in one process a path may be, as a share.

    Host paths go over PCIe, which drifts by up to 4 % from minute to minute (docs/hardware-notes.md). Between processes
    a read may be faster: in one process pairs of GPUs may read from each other at the same time.
    """
    return 0.05 if "host_numa" in case else 0.01


@pytest.mark.gpu
@pytest.mark.parametrize("name", COPIES)
def test_a_path_between_processes_is_no_slower_than_within_one(report: RunReport, name: str) -> None:
    for m in of_case(report, name):
        assert m.bandwidth_gb_s is not None
        assert m.in_process is not None
        assert m.bandwidth_gb_s.median >= (1 - tolerance(name)) * m.in_process


@pytest.mark.gpu
def test_the_ring_of_all_processes_is_as_fast_as_that_of_one(report: RunReport) -> None:
    for kind in ("legacy", "posix_fd", "pool"):
        (m,) = of_case(report, f"ipc_{kind}_device_ring_write_ce")
        assert m.bandwidth_gb_s is not None
        assert m.bandwidth_gb_s.median == pytest.approx(m.in_process, rel=0.01)


@pytest.mark.gpu
def test_what_a_message_takes_is_less_than_what_an_event_takes(report: RunReport) -> None:
    (event,), (message,) = of_case(report, "ipc_event_round_trip"), of_case(report, "ipc_socket_round_trip")
    assert event.latency_ns is not None
    assert message.latency_ns is not None
    assert message.latency_ns.median < event.latency_ns.median < 1e6


def test_fabric_handles_without_a_channel_are_waived_with_the_remedy_and_not_tried(node: Node) -> None:
    fabric = [case for case in IPC.values() if "fabric" in case.name]
    with node.nothing_left():
        report = node.measure(*fabric, machine=node.without_channel())
    assert {m.status for m in report.measurements} == {MeasurementStatus.WAIVED}
    assert all("IMEX channel" in (m.reason or "") for m in report.measurements)
    assert not any("nvidia-modprobe" in (m.reason or "") for m in report.measurements)
    assert not node.is_fake or all("mknod" in (m.reason or "") for m in report.measurements)
    assert report.exit_code is ExitCode.NOTHING


@pytest.mark.gpu
@pytest.mark.needs_root
@pytest.mark.usefixtures("imex_channel", "room")
def test_fabric_handles_with_a_channel_are_as_fast(node: Node) -> None:
    report = from_json(RunReport, node.bench(*TWO, "--case", "ipc_fabric_*", "--samples", "3", timeout_s=110))
    assert complaints(report) == []
    measured = [m for m in report.measurements if m.family == "ipc"]
    assert {m.status for m in measured} <= GOOD, [(m.case, m.reason) for m in measured if m.reason]
    for m in measured:
        if m.bandwidth_gb_s is not None:
            assert m.in_process is not None
            assert m.bandwidth_gb_s.median >= (1 - tolerance(m.case)) * m.in_process, m.case


def measure(node: Node, *names: str, start: Callable[[int], Group] = start_group, samples: int = 2) -> RunReport:
    """Measure cases by two processes of this test's, without those beside them."""
    return node.measure(*(IPC[name] for name in names), samples=samples, start=start)


DENIED = ("ipc_legacy_device_write_ce", "ipc_posix_fd_device_read_ce")


def test_an_owner_that_the_importer_s_cgroup_denies_is_the_known_cause(node: Node) -> None:
    with node.nothing_left(more_mib=LIVES_LEFT_MIB, wait_s=10), node.denying(node.gpus[0]) as confined:

        def start(_size: int) -> Group:
            environment = {**ENVIRONMENT, **confined.get("environment", {})}
            options = {**confined, "environment": environment}
            return Group({0: start_rank(0, 2), 1: launch.Child(WORKER, {"rank": 1, "size": 2}, **options)})

        report = measure(node, *DENIED, start=start)
    failed = [m for m in report.measurements if m.flows[0].initiator_rank == 1]
    assert len(failed) == 2
    for m in failed:
        assert m.status is MeasurementStatus.FAILED, m.reason
        assert (m.known_cause, m.failed_rank) == (True, 1)
        assert "its device cgroup or container denies it" in (m.reason or "")
        assert "CUDA_VISIBLE_DEVICES" in (m.reason or "")
    # The other way round the importer is not confined.
    assert all(m.status in GOOD for m in report.measurements if m not in failed)
    assert report.exit_code is ExitCode.FAILED


def test_an_importer_that_cuda_visible_devices_hides_the_owner_from(node: Node) -> None:
    def start(_size: int) -> Group:
        hidden = {**ENVIRONMENT, "CUDA_VISIBLE_DEVICES": node.gpus[1].uuid}
        return Group({0: start_rank(0, 2), 1: launch.Child(WORKER, {"rank": 1, "size": 2}, environment=hidden)})

    report = measure(node, *DENIED, "ipc_posix_fd_host_numa_read_ce", start=start)
    assert {m.status for m in report.measurements} <= GOOD, [m.reason for m in report.measurements]


@pytest.mark.gpu
@pytest.mark.parametrize("after_s", [0.6, 1.0, 1.4, 1.8, 2.2])
def test_a_rank_that_is_killed_leaves_nothing_and_another_group_goes_on(node: Node, after_s: float) -> None:
    starts: list[int] = []

    def start(size: int) -> Group:
        group = start_group(size)
        starts.append(size)
        if len(starts) == 1:
            pid = group._members[1].pid
            threading.Timer(after_s, os.kill, (pid, signal.SIGKILL)).start()
        return group

    names = ("ipc_posix_fd_device_write_ce", "ipc_legacy_device_read_ce", "ipc_posix_fd_host_numa_write_ce")
    with node.nothing_left(more_mib=LIVES_LEFT_MIB, wait_s=10):
        report = measure(node, *names, start=start, samples=30)
    lost = [m for m in report.measurements if m.status is MeasurementStatus.CRASHED]
    assert starts == [2, 2]
    before_a_step = any("died from SIGKILL" in p and "a new one took over" in p for p in report.problems)
    assert bool(lost) != before_a_step, report.problems
    assert {m.failed_rank for m in lost} <= {1}
    assert all("died from SIGKILL" in (m.reason or "") for m in lost)
    assert {m.status for m in report.measurements if m not in lost} <= GOOD


@pytest.mark.long
def test_many_lives_in_the_same_processes_leave_nothing(node: Node) -> None:
    names = ("ipc_legacy_device_life_cycle", "ipc_posix_fd_device_life_cycle", "ipc_pool_device_life_cycle")
    with node.nothing_left(more_mib=LIVES_LEFT_MIB, wait_s=10):
        report = measure(node, *names, samples=10 if node.is_fake else 100)
    assert {m.status for m in report.measurements} == {MeasurementStatus.OK}, [m.reason for m in report.measurements]


@pytest.mark.long
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_nothing_is_left_when_the_command_is_stopped(node: Node, number: signal.Signals, tmp_path: Path) -> None:
    # A life has none beside it within one process: on a fake node, ranks are the first to measure, for minutes.
    case = "ipc_legacy_device_life_cycle" if node.is_fake else "ipc_legacy_device_write_ce"
    with node.no_process_left(more_mib=LIVES_LEFT_MIB, wait_s=10):
        command = node.start_bench(tmp_path / "out.json", *TWO, "--case", case, "--samples", "1000")
        os.kill(command.pid, number)
        code = command.wait(30)
    assert code == (-number if number == signal.SIGKILL else ExitCode.INTERRUPTED)
    if number != signal.SIGKILL:
        result = json.loads((tmp_path / "out.json").read_text())["result"]
        assert result["interrupted"]
        assert "waived" in {m["status"] for m in result["measurements"]}
