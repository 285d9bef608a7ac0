"""Measurements by several processes, on fake nodes: what they find, and what becomes of a run when one of them fails.

The fake's memory is really shared between real processes, and each is killed where a fault plan says.
"""

from __future__ import annotations

import csv
import io
import os
import signal
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import pytest

from egmctl.bench.case import Case, Footprint
from egmctl.bench.plan.make import make_plan
from egmctl.bench.processes.group import WORKER, Group, start_group, start_rank
from egmctl.bench.processes.protocol import ENVIRONMENT
from egmctl.bench.suites import CASES
from egmctl.bench.supervisor import supervise
from egmctl.errors import ExitCode
from egmctl.launch import Child
from egmctl.model.machine import Machine
from egmctl.model.measurement import Measurement, MeasurementStatus, RunReport, Settings
from egmctl.model.task import Quantity
from egmctl.report.kinds import Format
from egmctl.units import MIB
from egmctl.verdict.answers import answered
from egmctl.verdict.explain import with_causes
from tests import forked
from tests.answers import render
from tests.bench.test_run_failures import SHARED_WITH_FACTS, WORKER_CALLS
from tests.fake.machines import nvl4, with_imex_channel
from tests.fake.node import FakeNode
from tests.fake.plugin import MakeFakeNode
from tests.launch.start import children, wait_until
from tests.tiers import few

ROOT = Path(__file__).resolve().parents[2]
BY_NAME = {case.name: case for case in CASES}
IPC = {name: case for name, case in BY_NAME.items() if case.family == "ipc"}
BANDWIDTHS = [name for name, case in IPC.items() if case.quantity is Quantity.BANDWIDTH]
GOOD = (MeasurementStatus.OK, MeasurementStatus.UNSTABLE)
"""Times of a fake differ as its host is busy."""


class Run(NamedTuple):
    """How a run ended."""

    report: RunReport
    node: FakeNode

    def of(self, case: str) -> list[Measurement]:
        """Return the measurements of a case."""
        return [m for m in self.report.measurements if m.case == case]


RunIpc = Callable[..., Run]


@pytest.fixture
def run(fake_node: MakeFakeNode, monkeypatch: pytest.MonkeyPatch) -> RunIpc:
    """Measure some ipc cases, without those beside them, by two processes and more of this test's."""
    return runner(fake_node, monkeypatch)


@pytest.fixture(scope="module")
def everything(fake_node: MakeFakeNode) -> Run:
    """Return one run of every case: the processes live on from one to the next."""
    with pytest.MonkeyPatch.context() as patch:
        return runner(fake_node, patch)(*IPC)


def runner(fake_node: MakeFakeNode, monkeypatch: pytest.MonkeyPatch) -> RunIpc:

    def run(
        *names: str,
        faults: str = "",
        machine: Machine | None = None,
        gpus: int = 2,
        samples: int = 2,
        timeout_s: float = 30,
        hosts: Sequence[str | None] = (None,) * 4,
        start: Callable[[int], Group] = start_group,
    ) -> Run:
        node = fake_node(machine or with_imex_channel(nvl4()))
        for name, value in node.environment(faults).items():
            monkeypatch.delenv(name, raising=False) if value is None else monkeypatch.setenv(name, value)
        monkeypatch.setenv("PYTHONPATH", str(ROOT))
        settings = Settings(size_bytes=MIB, copies=2, samples=samples, timeout_s=timeout_s)
        cases = [small(BY_NAME[name]) for name in names]
        plan = make_plan(node.machine, (node.machine.gpus or ())[:gpus], [1], cases, settings)
        ranks = tuple(replace(rank, host=host) for rank, host in zip(plan.ranks, hosts, strict=False))
        plan = replace(plan, ranks=ranks)
        before = children()
        with forked.children():
            report = supervise(plan, node.machine, on_progress=lambda _part, _task: None, start_ranks=start)
        report = answered(with_causes(report))
        assert wait_until(lambda: children() <= before), "a process was left behind"
        return Run(report, node)

    return run


def small(case: Case) -> Case:
    """Return a case whose lives and chains are of 2 MiB at most, and nothing beside it."""
    bytes_wanted = case.footprint.least_bytes if case.footprint is not None else 2 * MIB
    footprint = case.footprint and Footprint(least_bytes=min(bytes_wanted, 2 * MIB))
    return replace(case, in_process=None, footprint=footprint)


@pytest.mark.parametrize("name", BANDWIDTHS)
def test_every_kind_and_memory_is_measured_and_verified(everything: Run, name: str) -> None:
    found = everything.of(name)
    assert {m.status for m in found} <= set(GOOD), found[0].reason
    assert len(found) == (1 if "ring" in name else 2)
    for m in found:
        assert m.verification == "gpu-every-sample"
        assert len(m.samples) == 2
        assert m.evidence is not None
        for flow in m.flows:
            far = next(end for end in (flow.source, flow.destination) if end.handle is not None)
            assert far.rank != flow.initiator_rank
            assert far.handle == IPC[name].handle
    assert len({m.seeds[0] for m in found}) == len(found)


def test_text_and_csv_have_the_stages_of_each_life(everything: Run) -> None:
    stages = {"allocate", "export", "transfer", "open", "first-touch", "close", "free"}
    text = str(render(everything.report, Format.TEXT, verbose=1))
    table = text[text.index("Life of 2 MiB of shared memory, stage by stage (us)") :]
    assert stages <= set(table.split())
    rows = csv.DictReader(io.StringIO(str(render(everything.report, Format.CSV))))
    lives = [row for row in rows if row["case"] == "ipc_legacy_device_life_cycle"]
    assert stages <= {row["stage_name"] for row in lives}
    assert all(float(row["stage_ms_median"]) > 0 for row in lives)


def test_a_run_of_every_kind_gives_everything_back(everything: Run) -> None:
    assert everything.report.problems == ()
    assert everything.node.leaks() == []


@pytest.mark.parametrize("name", [name for name in IPC if name not in BANDWIDTHS])
def test_latencies_round_trips_and_lives_are_measured(everything: Run, name: str) -> None:
    found = everything.of(name)
    assert found
    assert {m.status for m in found} <= set(GOOD), found[0].reason
    if "life_cycle" in name:
        assert all(
            {"allocate", "export", "transfer", "open", "close", "free"} <= {s.name for s in m.stages} for m in found
        )
    else:
        assert all(m.latency_ns is not None for m in found)


@pytest.mark.long
def test_the_processes_live_on_from_case_to_case(run: RunIpc) -> None:
    ended = run("ipc_posix_fd_device_write_ce", "ipc_legacy_device_read_sm", "ipc_pool_device_latency", gpus=3)
    assert {m.status for m in ended.report.measurements} <= set(GOOD)
    pids = {call.pid for call in ended.node.calls("cuDevicePrimaryCtxRetain")}
    assert len(pids) == len(ended.report.ranks) == 3
    assert [(rank.number, rank.label) for rank in ended.report.ranks] == [(0, "GPU0"), (1, "GPU1"), (2, "GPU2")]


def test_each_process_works_one_gpu_only(run: RunIpc) -> None:
    ended = run("ipc_posix_fd_device_write_ce")
    devices = [(call.pid, call.arguments["device"]) for call in ended.node.calls("cuDevicePrimaryCtxRetain")]
    assert len({pid for pid, _ in devices}) == len({device for _, device in devices}) == 2


@pytest.mark.long
def test_clocks_of_other_nodes_are_not_waited_for(run: RunIpc) -> None:
    def start(size: int) -> Group:
        """Start ranks of two nodes, of which the second was booted an hour before the first."""
        ahead = {"before": "tests.bench.clocks:put_ahead", "before_arguments": {"seconds": 3600}}
        there = {
            rank: Child(WORKER, {"rank": rank, "size": size}, environment=ENVIRONMENT, **ahead)  # type: ignore[arg-type]
            for rank in (2, 3)
        }
        return Group({rank: start_rank(rank, size) for rank in (0, 1)} | there)

    hosts = ("one", "one", "two", "two")
    ended = run("ipc_fabric_device_write_ce", gpus=4, timeout_s=60, hosts=hosts, start=start)
    found = ended.of("ipc_fabric_device_write_ce")
    assert {m.status for m in found} <= set(GOOD), [m.reason for m in found if m.status not in GOOD]
    at_once = [{flow.initiator_rank for flow in m.flows} for m in found if (m.concurrent or 0) > 1]
    assert {0} in at_once, "pairs of both nodes were measured at the same time"
    assert {2} in at_once


def test_corrupt_data_is_found_by_the_owner_and_fails_the_run(run: RunIpc) -> None:
    ended = run("ipc_posix_fd_device_write_ce", faults="cuMemcpyAsync@4=corrupt:4096")
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
    run: RunIpc, step: str, case: str, call: str
) -> None:
    other = "ipc_posix_fd_device_write_sm"
    started = time.monotonic()
    ended = run(case, other, faults=f"{call}=kill:{signal.SIGKILL:d},once")
    found = ended.of(case) + ended.of(other)
    crashed = [m for m in found if m.status is MeasurementStatus.CRASHED]
    assert len(crashed) in (1, 2), (step, [m.reason for m in found])
    for m in crashed:
        assert m.failed_rank in (0, 1)
        assert call.partition("@")[0] in (m.last_call or "")
        assert (m.reason or "").startswith(f"rank {m.failed_rank}: ")
        assert "died from SIGKILL" in (m.reason or "")
    assert {m.status for m in found if m not in crashed} <= set(GOOD)
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
def test_a_rank_that_hangs_costs_its_case_and_the_timeout(run: RunIpc, case: str, call: str) -> None:
    other = "ipc_legacy_device_write_ce"
    ended = run(case, other, faults=f"{call}=hang,once", timeout_s=4)
    hung = [m for m in ended.of(case) if m.status is MeasurementStatus.TIMED_OUT]
    assert len(hung) == 1, [(m.status, m.reason) for m in ended.of(case)]
    assert hung[0].failed_rank is not None
    assert hung[0].last_call == call.partition("@")[0]
    assert f"no response for 4 s, it is in {hung[0].last_call}" in (hung[0].reason or "")
    assert {m.status for m in ended.of(other)} <= set(GOOD)


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
def test_a_failing_call_is_named_and_the_run_comes_to_its_end(run: RunIpc, call: str) -> None:
    ended = run(*MEASURED, faults=f"{call}=error:999")
    assert ended.node.calls(call), "the call was never made"
    told = [m.reason or "" for m in ended.report.measurements] + list(ended.report.problems)
    assert any(call in line for line in told), told
    for m in ended.report.measurements:
        assert m.status in (*GOOD, MeasurementStatus.FAILED, MeasurementStatus.WAIVED), m.reason
        if m.status is MeasurementStatus.FAILED and m.failed_rank is not None:
            assert (m.reason or "").startswith(f"rank {m.failed_rank}")
    assert ended.report.exit_code in (ExitCode.CRASHED, ExitCode.NOTHING)


def test_an_owner_that_the_importer_may_not_use_is_a_known_cause(run: RunIpc) -> None:
    denied = "cuMemImportFromShareableHandle=error:101;cuIpcOpenMemHandle=error:1"
    ended = run("ipc_posix_fd_device_write_ce", "ipc_legacy_device_write_ce", faults=denied)
    for m in ended.report.measurements:
        assert m.status is MeasurementStatus.FAILED
        assert m.known_cause
        assert "its device cgroup or container denies it" in (m.reason or "")
        assert "CUDA_VISIBLE_DEVICES" in (m.reason or "")
    assert ended.report.exit_code is ExitCode.FAILED


def test_a_driver_that_dies_in_the_import_of_a_pool_has_a_known_cause(run: RunIpc) -> None:
    fault = f"cuMemPoolImportFromShareableHandle=kill:{signal.SIGSEGV:d},once"
    ended = run("ipc_pool_device_write_ce", faults=fault)
    (crashed,) = (m for m in ended.report.measurements if m.status is MeasurementStatus.CRASHED)
    assert crashed.known_cause
    assert "died from SIGSEGV in cuMemPoolImportFromShareableHandle" in (crashed.reason or "")
    assert "its device cgroup or container denies it" in (crashed.reason or "")


def test_fabric_handles_that_the_driver_refuses_are_waived_with_the_remedy(run: RunIpc) -> None:
    # The channel can be used as far as its node tells: the allocation shows that it cannot.
    ended = run("ipc_fabric_device_write_ce", "ipc_posix_fd_device_write_ce", faults="cuMemCreate@1=error:800")
    for m in ended.of("ipc_fabric_device_write_ce")[:1]:
        assert m.status is MeasurementStatus.WAIVED
        assert "CUDA_ERROR_NOT_PERMITTED" in (m.reason or "")
        assert "mknod" in (m.reason or "")
    assert {m.status for m in ended.of("ipc_posix_fd_device_write_ce")} <= set(GOOD)


@pytest.mark.parametrize(("denied", "words"), [(None, "mknod"), ("EACCES", "channel0: EACCES")], ids=["none", "denied"])
def test_without_a_channel_nothing_of_fabric_is_tried(run: RunIpc, denied: str | None, words: str) -> None:
    machine = with_imex_channel(nvl4())
    assert machine.driver is not None
    usual = machine.driver.imex_channels or ()
    channels = tuple(replace(node, access=denied) for node in usual if denied)
    machine = replace(machine, driver=replace(machine.driver, imex_channels=channels))
    ended = run("ipc_fabric_device_write_ce", "ipc_fabric_host_numa_read_ce", machine=machine)
    assert {m.status for m in ended.report.measurements} == {MeasurementStatus.WAIVED}
    assert all(words in (m.reason or "") for m in ended.report.measurements)
    assert ended.node.calls() == ()
    assert ended.report.exit_code is ExitCode.NOTHING


def test_one_gpu_has_nobody_to_share_with(run: RunIpc) -> None:
    ended = run("ipc_posix_fd_device_write_ce", gpus=1)
    assert ended.report.measurements == ()
    assert ended.report.notes == ("these cases need two GPUs: ipc_posix_fd_device_write_ce",)
    assert ended.node.calls() == ()


def test_no_file_of_this_process_stays_open(run: RunIpc) -> None:
    before = len(os.listdir("/proc/self/fd"))
    run("ipc_posix_fd_device_write_ce", faults="cuMemcpyAsync@3=kill:9,once")
    assert len(os.listdir("/proc/self/fd")) == before
