"""Measurements by several processes, on fake nodes: what becomes of a run when a call or a process fails.

The fake's memory is really shared between real processes, and each is killed where a fault plan says. What holds for
every node is in tests/gpu/test_ipc.py.
"""

from __future__ import annotations

import csv
import io
import os
import signal
import time

import pytest

from egmctl.bench.processes.group import WORKER, Group, start_rank
from egmctl.bench.processes.protocol import ENVIRONMENT
from egmctl.errors import ExitCode
from egmctl.launch import Child
from egmctl.model.measurement import MeasurementStatus
from egmctl.report.kinds import Format
from tests.answers import render
from tests.bench.conftest import SHARED_WITH_FACTS, WORKER_CALLS
from tests.bench.ipc import GOOD, RunIpc
from tests.doctor.machines import patched
from tests.fake.machines import nvl4, with_imex_channel
from tests.tiers import few


def test_text_and_csv_have_the_stages_of_each_life(run_ipc: RunIpc) -> None:
    ended = run_ipc("ipc_legacy_device_life_cycle")
    stages = {"allocate", "export", "transfer", "open", "first-touch", "close", "free"}
    text = str(render(ended.report, Format.TEXT, verbose=1))
    table = text[text.index("Life of 2 MiB of shared memory, stage by stage (us)") :]
    assert stages <= set(table.split())
    rows = csv.DictReader(io.StringIO(str(render(ended.report, Format.CSV))))
    lives = [row for row in rows if row["case"] == "ipc_legacy_device_life_cycle"]
    assert stages <= {row["stage_name"] for row in lives}
    assert all(float(row["stage_ms_median"]) > 0 for row in lives)


@pytest.mark.long
def test_the_processes_live_on_from_case_to_case(run_ipc: RunIpc) -> None:
    ended = run_ipc("ipc_posix_fd_device_write_ce", "ipc_legacy_device_read_sm", "ipc_pool_device_latency", gpus=3)
    assert {m.status for m in ended.report.measurements} <= GOOD
    pids = {call.pid for call in ended.node.calls("cuDevicePrimaryCtxRetain")}
    assert len(pids) == len(ended.report.ranks) == 3
    assert [(rank.number, rank.label) for rank in ended.report.ranks] == [(0, "GPU0"), (1, "GPU1"), (2, "GPU2")]


def test_each_process_works_one_gpu_only(run_ipc: RunIpc) -> None:
    ended = run_ipc("ipc_posix_fd_device_write_ce")
    devices = [(call.pid, call.arguments["device"]) for call in ended.node.calls("cuDevicePrimaryCtxRetain")]
    assert len({pid for pid, _ in devices}) == len({device for _, device in devices}) == 2


@pytest.mark.long
def test_clocks_of_other_nodes_are_not_waited_for(run_ipc: RunIpc) -> None:
    def start(size: int) -> Group:
        """Start ranks of two nodes, of which the second was booted an hour before the first."""
        ahead = {"before": "tests.bench.clocks:put_ahead", "before_arguments": {"seconds": 3600}}
        there = {
            rank: Child(WORKER, {"rank": rank, "size": size}, environment=ENVIRONMENT, **ahead)  # type: ignore[arg-type]
            for rank in (2, 3)
        }
        return Group({rank: start_rank(rank, size) for rank in (0, 1)} | there)

    hosts = ("one", "one", "two", "two")
    ended = run_ipc("ipc_fabric_device_write_ce", gpus=4, timeout_s=60, hosts=hosts, start=start)
    found = ended.of("ipc_fabric_device_write_ce")
    assert {m.status for m in found} <= GOOD, [m.reason for m in found if m.status not in GOOD]
    at_once = [{flow.initiator_rank for flow in m.flows} for m in found if (m.concurrent or 0) > 1]
    assert {0} in at_once, "pairs of both nodes were measured at the same time"
    assert {2} in at_once


def test_corrupt_data_is_found_by_the_owner_and_fails_the_run(run_ipc: RunIpc) -> None:
    ended = run_ipc("ipc_posix_fd_device_write_ce", faults="cuMemcpyAsync@4=corrupt:4096")
    found = ended.of("ipc_posix_fd_device_write_ce")
    assert MeasurementStatus.CORRUPT in {m.status for m in found}
    corrupt = next(m for m in found if m.status is MeasurementStatus.CORRUPT)
    assert corrupt.mismatch is not None
    assert corrupt.mismatch.words == 1
    assert ended.report.exit_code is ExitCode.FAILED


STEPS = (
    ("export", "ipc_posix_fd_device_life_cycle", "cuMemExportToShareableHandle"),
    ("import", "ipc_posix_fd_device_life_cycle", "cuMemImportFromShareableHandle"),
    ("mapped", "ipc_posix_fd_host_numa_life_cycle", "cuMemSetAccess@2"),
    ("closing", "ipc_posix_fd_host_numa_life_cycle", "cuMemUnmap"),
    ("export", "ipc_legacy_device_life_cycle", "cuIpcGetMemHandle"),
    ("import", "ipc_legacy_device_life_cycle", "cuIpcOpenMemHandle"),
    ("closing", "ipc_legacy_device_life_cycle", "cuIpcCloseMemHandle"),
    ("export", "ipc_pool_device_life_cycle", "cuMemPoolExportToShareableHandle"),
    ("import", "ipc_pool_device_life_cycle", "cuMemPoolImportFromShareableHandle"),
    ("mapped", "ipc_pool_device_life_cycle", "cuMemPoolImportPointer"),
    ("export", "ipc_fabric_device_write_ce", "cuMemExportToShareableHandle"),
    ("import", "ipc_posix_fd_host_numa_read_ce", "cuMemImportFromShareableHandle"),
    ("copying", "ipc_legacy_device_write_ce", "cuMemcpyAsync@3"),
    ("copying", "ipc_pool_host_numa_read_ce", "cuStreamSynchronize@20"),
    ("walking", "ipc_posix_fd_device_latency", "cuLaunchKernel@4"),
    ("waiting", "ipc_event_round_trip", "cuStreamWaitEvent@3"),
)


@pytest.mark.long
@pytest.mark.parametrize(("step", "case", "call"), few(STEPS, every=4))
def test_a_rank_killed_at_any_step_costs_its_case_and_a_new_group_goes_on(
    run_ipc: RunIpc, step: str, case: str, call: str
) -> None:
    other = "ipc_posix_fd_device_write_sm"
    started = time.monotonic()
    ended = run_ipc(case, other, faults=f"{call}=kill:{signal.SIGKILL:d},once")
    found = ended.of(case) + ended.of(other)
    crashed = [m for m in found if m.status is MeasurementStatus.CRASHED]
    assert len(crashed) in (1, 2), (step, [m.reason for m in found])
    for m in crashed:
        assert m.failed_rank in (0, 1)
        assert call.partition("@")[0] in (m.last_call or "")
        assert (m.reason or "").startswith(f"rank {m.failed_rank}: ")
        assert "died from SIGKILL" in (m.reason or "")
    assert {m.status for m in found if m not in crashed} <= GOOD
    assert time.monotonic() - started < 30
    assert ended.report.exit_code is ExitCode.CRASHED


@pytest.mark.long
@pytest.mark.parametrize(
    ("case", "call"),
    [
        ("ipc_posix_fd_device_read_ce", "cuMemImportFromShareableHandle"),
        ("ipc_pool_host_numa_write_ce", "cuMemPoolCreate"),
        ("ipc_event_round_trip", "cuIpcOpenEventHandle"),
    ],
)
def test_a_rank_that_hangs_costs_its_case_and_the_timeout(run_ipc: RunIpc, case: str, call: str) -> None:
    other = "ipc_legacy_device_write_ce"
    ended = run_ipc(case, other, faults=f"{call}=hang,once", timeout_s=4)
    hung = [m for m in ended.of(case) if m.status is MeasurementStatus.TIMED_OUT]
    assert len(hung) == 1, [(m.status, m.reason) for m in ended.of(case)]
    assert hung[0].failed_rank is not None
    assert hung[0].last_call == call.partition("@")[0]
    assert f"no response for 4 s, it is in {hung[0].last_call}" in (hung[0].reason or "")
    assert {m.status for m in ended.of(other)} <= GOOD


MEASURED = ("ipc_legacy_device_write_ce", "ipc_posix_fd_host_numa_read_sm", "ipc_pool_device_write_ce")
ELSEWHERE = {
    *SHARED_WITH_FACTS,
    *("cuCtxEnablePeerAccess", "cuFuncSetAttribute", "cuMemFreeHost", "cuModuleUnload", "cuEventDestroy"),
    *("cuStreamDestroy", "cuDevicePrimaryCtxRelease"),
}
CALLS = (
    *(call for call in WORKER_CALLS if call not in ELSEWHERE),
    *("cuIpcGetMemHandle", "cuIpcOpenMemHandle", "cuIpcCloseMemHandle"),
    *("cuMemExportToShareableHandle", "cuMemImportFromShareableHandle"),
    *("cuMemPoolCreate", "cuMemPoolSetAccess", "cuMemAllocFromPoolAsync", "cuMemFreeAsync", "cuMemPoolDestroy"),
    *("cuMemPoolExportToShareableHandle", "cuMemPoolExportPointer"),
    *("cuMemPoolImportFromShareableHandle", "cuMemPoolImportPointer"),
)
"""Driver calls that the ranks of :data:`MEASURED` make, but for those whose failure another test has."""


@pytest.mark.long
@pytest.mark.parametrize("call", few(CALLS, every=4))
def test_a_failing_call_is_named_and_the_run_comes_to_its_end(run_ipc: RunIpc, call: str) -> None:
    ended = run_ipc(*MEASURED, faults=f"{call}=error:999")
    assert ended.node.calls(call), "the call was never made"
    told = [m.reason or "" for m in ended.report.measurements] + list(ended.report.problems)
    assert any(call in line for line in told), told
    for m in ended.report.measurements:
        assert m.status in (*GOOD, MeasurementStatus.FAILED, MeasurementStatus.WAIVED), m.reason
        if m.status is MeasurementStatus.FAILED and m.failed_rank is not None:
            assert (m.reason or "").startswith(f"rank {m.failed_rank}")
    assert ended.report.exit_code in (ExitCode.CRASHED, ExitCode.NOTHING)


def test_a_driver_that_dies_in_the_import_of_a_pool_has_a_known_cause(run_ipc: RunIpc) -> None:
    fault = f"cuMemPoolImportFromShareableHandle=kill:{signal.SIGSEGV:d},once"
    ended = run_ipc("ipc_pool_device_write_ce", faults=fault)
    (crashed,) = (m for m in ended.report.measurements if m.status is MeasurementStatus.CRASHED)
    assert crashed.known_cause
    assert "died from SIGSEGV in cuMemPoolImportFromShareableHandle" in (crashed.reason or "")
    assert "its device cgroup or container denies it" in (crashed.reason or "")


def test_fabric_handles_that_the_driver_refuses_are_waived_with_the_remedy(run_ipc: RunIpc) -> None:
    # The channel can be used as far as its node tells: the allocation shows that it cannot.
    ended = run_ipc("ipc_fabric_device_write_ce", "ipc_posix_fd_device_write_ce", faults="cuMemCreate@1=error:800")
    for m in ended.of("ipc_fabric_device_write_ce")[:1]:
        assert m.status is MeasurementStatus.WAIVED
        assert "CUDA_ERROR_NOT_PERMITTED" in (m.reason or "")
        assert "mknod" in (m.reason or "")
    assert {m.status for m in ended.of("ipc_posix_fd_device_write_ce")} <= GOOD


def test_a_channel_that_may_not_be_opened_is_named_and_nothing_is_tried(run_ipc: RunIpc) -> None:
    machine = patched(with_imex_channel(nvl4()), "driver.imex_channels[*]", access="EACCES")
    ended = run_ipc("ipc_fabric_device_write_ce", "ipc_fabric_host_numa_read_ce", machine=machine)
    assert {m.status for m in ended.report.measurements} == {MeasurementStatus.WAIVED}
    assert all("channel0: EACCES" in (m.reason or "") for m in ended.report.measurements)
    assert ended.node.calls() == ()


def test_one_gpu_has_nobody_to_share_with(run_ipc: RunIpc) -> None:
    ended = run_ipc("ipc_posix_fd_device_write_ce", gpus=1)
    assert ended.report.measurements == ()
    assert ended.report.notes == ("these cases need two GPUs: ipc_posix_fd_device_write_ce",)
    assert ended.node.calls() == ()


def test_no_file_of_this_process_stays_open(run_ipc: RunIpc) -> None:
    before = len(os.listdir("/proc/self/fd"))
    run_ipc("ipc_posix_fd_device_write_ce", faults="cuMemcpyAsync@3=kill:9,once")
    assert len(os.listdir("/proc/self/fd")) == before
