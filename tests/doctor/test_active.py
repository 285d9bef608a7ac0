"""``doctor --active``: what is tried on fake nodes, and what is made of how it ends."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from egmctl.doctor import prober, probes
from egmctl.doctor.check import EVERYTHING, Scope
from egmctl.doctor.checks.active import CHECKS, KINDS, NOT_ASKED
from egmctl.model.finding import Finding, Guard, Status
from egmctl.model.machine import Machine
from egmctl.model.probes import Probe, ProbeKind, ProbeOutcome
from tests.answers import diagnose
from tests.conftest import ROOT, RunEgmctl, command_environment
from tests.doctor.active import ONLY_ACTIVE, active
from tests.doctor.machines import of_two_gpus, patched, shipped
from tests.doctor.nvml_faults import here
from tests.fake.machines import nvl4, with_imex_channel
from tests.fake.plugin import MakeFakeNode
from tests.launch.start import wait_until

GPUS = [gpu.bus_id for gpu in shipped("gb200-tray").gpus or ()]


def statuses(findings: Sequence[dict[str, Any]], check: str) -> list[str]:
    return [finding["status"] for finding in findings if finding["check"] == check]


class TestOnFakeNodes:
    @pytest.mark.long
    def test_everything_is_tried_and_given_back(self, egmctl: RunEgmctl, fake_node: MakeFakeNode) -> None:
        node = fake_node(with_imex_channel(nvl4()))
        code, findings = active(egmctl, node, *ONLY_ACTIVE)
        assert code == 0
        assert {check: set(statuses(findings, check)) for check in KINDS} == {check: {"pass"} for check in KINDS}
        assert [leak for leak in node.leaks() if "primary context" not in leak] == []
        made = [call.arguments["location"] for call in node.calls("cuMemCreate")]
        assert {"HOST_NUMA:0", "HOST_NUMA:1"} <= set(made)
        assert len(node.calls("cuIpcOpenEventHandle")) == len(GPUS)
        sizes = {int(call.arguments["size"]) for name in ("cuMemCreate", "cuMemAlloc") for call in node.calls(name)}
        assert sizes == {2 << 20}

    @pytest.mark.long
    @pytest.mark.parametrize("mode", ["default", "exclusive-process"])
    def test_where_cuda_shows_one_gpu_two_processes_share_its_memory(
        self, egmctl: RunEgmctl, fake_node: MakeFakeNode, mode: str
    ) -> None:
        machine = patched(with_imex_channel(nvl4()), "gpus[*].nvml", compute_mode=mode)
        node = fake_node(machine)
        _, findings = active(egmctl, node, *ONLY_ACTIVE, CUDA_VISIBLE_DEVICES="0")
        assert statuses(findings, "ipc.legacy-active") == ["pass"]

    @pytest.mark.long
    @pytest.mark.parametrize(
        ("checks", "processes"),
        [(ONLY_ACTIVE, 1 + len(GPUS)), (("--check", "egm.alloc-active", "--check", "p2p.verify"), 1)],
        ids=["all kinds", "kinds of one process"],
    )
    def test_no_process_is_started_that_no_probe_needs(
        self, egmctl: RunEgmctl, fake_node: MakeFakeNode, checks: tuple[str, ...], processes: int
    ) -> None:
        """Those that start while the node is read are used. One more process reads the node."""
        node = fake_node(patched(with_imex_channel(nvl4()), "gpus[*].nvml", compute_mode="default"))
        active(egmctl, node, *checks)
        assert len({call.pid for call in node.calls("cuInit")}) == processes + 1

    @pytest.mark.long
    @pytest.mark.parametrize(("mode", "is_at_once"), [("default", True), ("exclusive-process", False)])
    def test_contexts_are_opened_at_once_unless_a_gpu_may_have_one(
        self, egmctl: RunEgmctl, fake_node: MakeFakeNode, mode: str, is_at_once: bool
    ) -> None:
        """In exclusive mode those who share open theirs when the others have ended."""
        node = fake_node(patched(with_imex_channel(nvl4()), "gpus[*].nvml", compute_mode=mode))
        active(egmctl, node, *ONLY_ACTIVE)
        calls = node.calls()
        sharing = {call.pid for call in calls if call.name == "cuIpcOpenMemHandle"}
        alone = {call.pid for call in calls if call.name == "cuCtxEnablePeerAccess"} - sharing
        opened = min(
            n for n, call in enumerate(calls) if call.pid in sharing and call.name == "cuDevicePrimaryCtxRetain"
        )
        assert (max(n for n, call in enumerate(calls) if call.pid in alone) > opened) is is_at_once

    @pytest.mark.long
    @pytest.mark.parametrize(("name", "status"), [("hgx-h200x4", "skip"), ("gb200-tray", "pass")])
    def test_a_pool_of_host_memory_becomes_the_current_one_of_a_coherent_gpu_and_never_for_long(
        self, egmctl: RunEgmctl, fake_node: MakeFakeNode, name: str, status: str
    ) -> None:
        node = fake_node(name)
        chosen = ("--gpus", "0", "--check", "egm.device-pool", "--check", "egm.location-pool")
        code, findings = active(egmctl, node, *chosen)
        assert {*statuses(findings, "egm.device-pool")} == {status}
        assert {*statuses(findings, "egm.location-pool")} == {"pass"}
        assert code == 0
        pools = [call.arguments["pool"] for call in node.calls("cuDeviceSetMemPool") if call.result == 0]
        set_for_node = [call.arguments["pool"] for call in node.calls("cuMemSetMemPool")]
        for changes in (pools, set_for_node):
            assert len(changes) % 2 == 0, "each is followed by the one that brings back the pool from before"
            # Two processes may have a pool each at one address.
            assert all(own != before for own, before in zip(changes[::2], changes[1::2], strict=True))
        assert [leak for leak in node.leaks() if "primary context" not in leak] == []

    @pytest.mark.long
    def test_chosen_gpus_and_nodes_only(self, egmctl: RunEgmctl, fake_node: MakeFakeNode) -> None:
        node = fake_node(nvl4())
        options = ("--gpus", "2", "--numa", "1", "--check", "egm.alloc-active", "--check", "p2p.verify")
        code, findings = active(egmctl, node, *options, "--check", "ipc.legacy-active")
        assert code == 0
        assert statuses(findings, "egm.alloc-active") == ["pass"]
        assert statuses(findings, "p2p.verify") == ["skip"]
        assert statuses(findings, "ipc.legacy-active") == ["pass"], "between two processes on one GPU"
        assert {call.arguments["location"] for call in node.calls("cuMemCreate")} == {"HOST_NUMA:1"}

    @pytest.mark.long
    def test_what_cuda_visible_devices_hides_is_left_out(self, egmctl: RunEgmctl, fake_node: MakeFakeNode) -> None:
        options = ("--check", "p2p.verify", "--check", "ipc.legacy-active")
        code, findings = active(egmctl, fake_node(nvl4()), *options, CUDA_VISIBLE_DEVICES="0,2")
        assert code == 0
        assert "pass" in statuses(findings, "p2p.verify")
        assert "skip" in statuses(findings, "p2p.verify")
        assert statuses(findings, "ipc.legacy-active") == ["pass"]

    @pytest.mark.long
    def test_lost_bytes_are_seen_though_every_call_succeeds(self, egmctl: RunEgmctl, fake_node: MakeFakeNode) -> None:
        faults = "cuMemcpyAsync@3=corrupt:4096"
        code, findings = active(egmctl, fake_node(nvl4()), "--check", "p2p.verify", faults=faults)
        assert code == 1
        (failure,) = [finding for finding in findings if finding["status"] == "fail"]
        assert failure["place"]["label"] == "GPU0>GPU2"
        assert "bytes are wrong" in failure["summary"]
        assert "written to the peer: 1 of 262144 words differ, the first at offset 4096" in json.dumps(failure)

    @pytest.mark.long
    @pytest.mark.parametrize("fault", ["kill:11", "abort"])
    def test_a_process_that_ends_costs_one_probe_and_is_named(
        self, egmctl: RunEgmctl, fake_node: MakeFakeNode, fault: str
    ) -> None:
        faults = f"cuCtxEnablePeerAccess@2={fault},once"
        code, findings = active(egmctl, fake_node(nvl4()), "--check", "p2p.verify", faults=faults)
        assert (code, sorted(statuses(findings, "p2p.verify"))) == (1, ["fail", "pass"])
        (failure,) = [finding for finding in findings if finding["status"] == "fail"]
        assert failure["summary"].endswith(": killed its process in cuCtxEnablePeerAccess")

    def test_a_process_that_hangs_costs_one_probe_and_is_named(self, fake_node: MakeFakeNode) -> None:
        node = fake_node(of_two_gpus(nvl4()))
        with here(node, faults="cuMemImportFromShareableHandle=hang,once") as patch:
            patch.setattr(prober, "PROBE_TIMEOUT_S", 6)
            machine = probes.probed(node.machine, EVERYTHING, [KINDS["ipc.vmm-active"]])
        checks = [check for check in CHECKS if check.id == "ipc.vmm-active"]
        failure, *others = diagnose(machine, EVERYTHING, checks).findings
        assert [failure.status, *(finding.status for finding in others)] == [Status.FAIL, Status.PASS, Status.PASS]
        assert failure.summary.endswith(": did not end in time in cuMemImportFromShareableHandle")

    @pytest.mark.long
    def test_an_interrupt_ends_probes_of_one_and_of_two_processes(self, fake_node: MakeFakeNode) -> None:
        """Both are made at the same time: one hangs in each, and nothing is left behind."""
        node = fake_node(patched(with_imex_channel(nvl4()), "gpus[*].nvml", compute_mode="default"))
        hangs = ("cuCtxEnablePeerAccess", "cuIpcOpenMemHandle")
        environment = command_environment(node.environment(";".join(f"{name}=hang" for name in hangs)))
        words = [sys.executable, "-m", "egmctl", "doctor", "--active", "-q", *ONLY_ACTIVE]
        command = subprocess.Popen(words, stdout=subprocess.DEVNULL, cwd=ROOT, env=environment)
        assert wait_until(lambda: all(node.calls(name) for name in hangs))
        command.send_signal(signal.SIGINT)
        assert command.wait(60) == 130
        assert [pid for pid in {call.pid for call in node.calls()} if Path(f"/proc/{pid}").exists()] == []

    @pytest.mark.long
    def test_a_numa_node_that_kills_its_process_costs_one_probe(
        self, egmctl: RunEgmctl, fake_node: MakeFakeNode
    ) -> None:
        node = fake_node(nvl4())
        code, findings = active(egmctl, node, "--check", "egm.alloc-active", faults="cuMemCreate@1=kill:11,once")
        assert code == 1
        assert sorted(statuses(findings, "egm.alloc-active")) == ["fail", "pass", "pass"]
        processes = {call.pid for call in node.calls("cuMemCreate")}
        assert len(processes) == 2, "the next probe got a new process, and all later ones used it"
        (failure,) = [finding for finding in findings if finding["status"] == "fail"]
        assert "r595" in failure["cause"]

    @pytest.mark.long
    def test_without_a_driver_nothing_can_be_told(self, egmctl: RunEgmctl, fake_node: MakeFakeNode) -> None:
        options = ("--check", "egm.alloc-active", "--check", "ipc.legacy-active")
        _, findings = active(egmctl, fake_node(nvl4()), *options, faults="cuInit=error:304")
        assert {finding["status"] for finding in findings} == {"fail"}
        assert {finding["cause"] for finding in findings} == {"/proc belongs to another PID namespace than the process"}

    def test_without_active_cuda_is_not_loaded_and_nothing_tried(
        self, egmctl: RunEgmctl, fake_node: MakeFakeNode
    ) -> None:
        node = fake_node(nvl4())
        done = egmctl("doctor", *ONLY_ACTIVE, "--json", env=node.environment())
        findings = json.loads(done.out)["result"]["findings"]
        assert {(finding["status"], finding["summary"]) for finding in findings} == {("skip", NOT_ASKED)}
        assert not [call for call in node.calls() if call.name.startswith("cu")]

    @pytest.mark.parametrize("other", [("--machine", "gh200"), ("--pid", "1")])
    def test_it_is_about_this_process_on_this_node(self, egmctl: RunEgmctl, other: tuple[str, ...]) -> None:
        done = egmctl("doctor", "--active", *other)
        assert done.code == 2
        assert "--active works on this node and process only" in done.err


def judged(machine: Machine, *tried: Probe, scope: Scope = EVERYTHING) -> Finding:
    """Return the one finding about these probes that is no skip for want of a probe."""
    machine = patched(machine, "", probes=tried)
    checks = [check for check in CHECKS if tried[0].kind is KINDS[check.id]]
    (finding,) = diagnose(machine, scope, checks).findings
    return finding


def failing(kind: ProbeKind, call: str, number: int, *, node: int | None = None, name: str = "CUDA_ERROR") -> Probe:
    return Probe(
        kind=kind,
        gpus=tuple(GPUS[:1] if kind in OF_ONE_GPU else GPUS[:2]),
        numa_node=node,
        outcome=ProbeOutcome.ERROR,
        by=GPUS[1],
        call=call,
        error_number=number,
        error_name=name,
        detail=f"{call} failed: {name} ({number})",
    )


@pytest.mark.processes
def test_a_process_that_is_ended_while_it_is_lost_does_not_run_again() -> None:
    """An interrupt ends all processes while a thread may be about to replace one that had crashed."""
    with closing(prober.Prober()) as process:
        process._lose()
        process.kill_soon()
        answer, _ = process.ask({"do": "visible"})
    assert answer["failed"]["outcome"] is ProbeOutcome.CRASHED


def test_without_a_further_thread_probes_are_made_one_by_one(
    fake_node: MakeFakeNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(*_arguments: object) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(ThreadPoolExecutor, "submit", refused)
    node = fake_node(patched(of_two_gpus(nvl4()), "gpus[*].nvml", compute_mode="default"))
    with here(node):
        machine = probes.probed(node.machine, EVERYTHING, [ProbeKind.P2P, ProbeKind.LEGACY_IPC])
    assert {probe.outcome for probe in machine.probes or ()} == {ProbeOutcome.OK}


OF_ONE_GPU = (ProbeKind.HOST_NUMA, ProbeKind.DEVICE_POOL, ProbeKind.LOCATION_POOL, ProbeKind.MANAGED_IPC)
DENIED = "device cgroup or container denies it"


class TestJudgement:
    @pytest.mark.parametrize(
        ("probe", "status", "cause"),
        [
            (failing(ProbeKind.LEGACY_IPC, "cuIpcOpenMemHandle", 1), Status.FAIL, DENIED),
            (failing(ProbeKind.POSIX_FD, "cuMemImportFromShareableHandle", 101), Status.FAIL, DENIED),
            (failing(ProbeKind.FABRIC, "cuMemImportFromShareableHandle", 801), Status.FAIL, DENIED),
            (failing(ProbeKind.PIDFD, "pidfd_getfd", 1, name="EPERM"), Status.FAIL, "ptrace"),
            (failing(ProbeKind.IPC_EVENT, "cuIpcOpenEventHandle", 201), Status.FAIL, ""),
            (failing(ProbeKind.POOL, "cuMemPoolCreate", 801), Status.SKIP, ""),
            (failing(ProbeKind.P2P, "cuCtxEnablePeerAccess", 217), Status.SKIP, ""),
            (failing(ProbeKind.MANAGED_IPC, "cuIpcGetMemHandle", 1), Status.PASS, ""),
            (failing(ProbeKind.MANAGED_IPC, "cuMemAllocManaged", 2), Status.UNKNOWN, ""),
        ],
        ids=lambda value: value.kind if isinstance(value, Probe) else None,
    )
    def test_errors_and_their_causes(self, probe: Probe, status: Status, cause: str) -> None:
        finding = judged(shipped("gb200-tray"), probe)
        assert finding.status is status
        assert cause in finding.cause
        if cause == DENIED:
            assert finding.remedy is not None
            assert "CUDA_VISIBLE_DEVICES" in finding.remedy.text

    def test_a_driver_that_makes_a_handle_of_managed_memory_is_noted(self) -> None:
        made = Probe(kind=ProbeKind.MANAGED_IPC, gpus=tuple(GPUS[:1]), outcome=ProbeOutcome.OK)
        finding = judged(shipped("gb200-tray"), made)
        assert finding.status is Status.NOTE
        assert "does not document" in finding.summary

    def test_a_pool_whose_import_ends_the_process_has_a_cause(self) -> None:
        died = replace(
            failing(ProbeKind.POOL, "cuMemPoolImportFromShareableHandle", 0),
            outcome=ProbeOutcome.CRASHED,
            error_number=None,
        )
        finding = judged(shipped("gb200-tray"), died)
        assert finding.summary.endswith("killed its process in cuMemPoolImportFromShareableHandle")
        assert DENIED in finding.cause

    def test_without_an_imex_channel_only_those_who_need_one_fail(self) -> None:
        probe = failing(ProbeKind.FABRIC, "cuMemCreate", 800)
        assert judged(shipped("dgx-h100"), probe).status is Status.SKIP
        asked = judged(shipped("dgx-h100"), probe, scope=Scope(purposes=(Guard.FABRIC,)))
        assert asked.status is Status.FAIL
        assert "IMEX channel" in asked.cause
        assert judged(shipped("gb200-nvl72"), probe).status is Status.FAIL

    def test_host_memory_that_a_cpuset_or_seccomp_forbids(self) -> None:
        probe = failing(ProbeKind.HOST_NUMA, "cuMemCreate", 1, node=1)
        machine = patched(shipped("gb200-tray"), "host", allowed_numa_nodes="0")
        assert "cpuset" in judged(machine, probe).cause
        machine = patched(shipped("gb200-tray"), "confinement", system_calls={"mbind": "EPERM"})
        assert "mbind is forbidden" in judged(machine, probe).cause

    @pytest.mark.parametrize(("name", "status"), [("hgx-h200x4", Status.SKIP), ("gb200-tray", Status.NOTE)])
    def test_a_pool_of_host_memory_that_no_gpu_takes_is_no_fault_and_names_what_works(
        self, name: str, status: Status
    ) -> None:
        finding = judged(shipped(name), failing(ProbeKind.DEVICE_POOL, "cuDeviceSetMemPool", 1, node=0))
        assert finding.status is status
        assert "an allocation that names the pool works (cuMemAllocFromPoolAsync)" in finding.summary + finding.note

    def test_calls_that_an_older_driver_lacks_are_no_fault(self) -> None:
        probe = replace(failing(ProbeKind.LOCATION_POOL, "cuMemGetMemPool", 0, node=0), error_number=None)
        finding = judged(shipped("gb200-tray"), probe)
        assert (finding.status, "CUDA 13.0 (driver 580)" in finding.summary) == (Status.SKIP, True)

    def test_a_gpu_that_the_machine_does_not_have_is_no_traceback(self) -> None:
        probe = Probe(kind=ProbeKind.P2P, gpus=("0009:01:00.0", "0009:02:00.0"), outcome=ProbeOutcome.OK)
        assert judged(shipped("gb200-tray"), probe).status is Status.PASS
        probe = Probe(kind=ProbeKind.HOST_NUMA, gpus=(), outcome=ProbeOutcome.CORRUPT)
        assert judged(shipped("gb200-tray"), probe).status is Status.SKIP
