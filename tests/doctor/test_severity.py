"""When the same fact is a fault and when it is not: what was asked for, and what kind of node it is."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from egmctl.doctor.check import EVERYTHING, Expectation, Scope
from egmctl.doctor.runner import CHECKS
from egmctl.model.finding import Guard, Status
from egmctl.model.host import Driver, NicPort
from egmctl.model.machine import Machine
from tests.doctor.cases import asked
from tests.doctor.faults import healthy
from tests.doctor.machines import patched, run, run_one, shipped

HGX = shipped("hgx-h200x4")


def verdicts(check: str, machine: Machine, scope: Scope = EVERYTHING) -> list[tuple[Status, str]]:
    return [(finding.status, finding.place.label) for finding in run(check, machine, scope)]


class TestGpu:
    def test_what_asks_for_a_reset_has_its_command(self) -> None:
        on_host = patched(HGX, "process", container_signs=())
        for changes in ({"remapped_rows_pending": True}, {"recovery_action": "gpu-reset"}):
            (finding,) = [f for f in run("gpu.health", patched(on_host, "gpus[1].nvml", **changes)) if f.remedy]
            assert finding.remedy is not None
            assert finding.remedy.run == f"nvidia-smi --gpu-reset -i {(HGX.gpus or ())[1].bus_id}"

    def test_each_fault_of_health(self) -> None:
        for changes, status in (
            ({"remapped_rows_pending": True, "ecc_uncorrected_volatile": 1}, Status.WARN),
            ({"ecc_uncorrected_volatile": 2}, Status.FAIL),
            ({"recovery_action": "gpu-reset"}, Status.FAIL),
            ({"recovery_action": "17"}, Status.FAIL),
        ):
            assert (status, "GPU1") in verdicts("gpu.health", patched(HGX, "gpus[1].nvml", **changes)), changes


class TestIpc:
    def test_the_limits_of_a_plain_shell_are_a_note(self) -> None:
        limits = {"memlock": 8 << 20, "nofile": 1024, "stack": 8 << 20}
        machine = patched(HGX, "confinement", limits=limits, capabilities=0)
        finding = run_one("ipc.limits", machine)
        assert (finding.status, "8 MiB" in finding.summary, "1024" in finding.note) == (Status.PASS, True, True)
        assert run_one("ipc.limits", machine, asked(Guard.RDMA)).status is Status.FAIL
        assert run_one("ipc.limits", machine, asked(Guard.IPC)).status is Status.PASS

    def test_root_may_lock_beyond_the_limit(self) -> None:
        limits = {"memlock": 8 << 20, "nofile": 1 << 20, "stack": 8 << 20}
        machine = patched(HGX, "confinement", limits=limits, capabilities=1 << 14)
        assert run_one("ipc.limits", machine, asked(Guard.RDMA)).status is Status.PASS

    @pytest.mark.parametrize(
        ("total", "free", "status", "for_ipc"),
        [
            # Podman's default, Docker's, what NCCL's guide asks for.
            (64000 << 10, 64000 << 10, Status.WARN, Status.FAIL),
            (64 << 20, 64 << 20, Status.WARN, Status.FAIL),
            (512 << 20, 512 << 20, Status.WARN, Status.WARN),
            (1 << 30, 1 << 20, Status.WARN, Status.WARN),
            (1 << 30, 1 << 30, Status.PASS, Status.PASS),
        ],
    )
    def test_little_shared_memory_fails_only_where_ranks_are_to_share_it(
        self, total: int, free: int, status: Status, for_ipc: Status
    ) -> None:
        machine = patched(HGX, "confinement", shm_total_bytes=total, shm_free_bytes=free)
        assert run_one("ipc.shm", machine).status is status
        assert run_one("ipc.shm", machine, asked(Guard.IPC)).status is for_ipc
        large = Expectation(reference=patched(HGX, "confinement", shm_total_bytes=400 << 30))
        assert run_one("ipc.shm", machine, Scope(expectation=large)).status is for_ipc

    def test_yamas_default_is_no_fault(self) -> None:
        machine = patched(HGX, "confinement", ptrace_scope=1, capabilities=0, unread={})
        assert run_one("ipc.ptrace", machine, asked(Guard.IPC)).status is Status.NOTE
        machine = patched(machine, "process", container_signs=(), environment={})
        assert run_one("ipc.ptrace", machine, asked(Guard.IPC)).status is Status.PASS

    def test_a_namespace_of_its_own_is_a_note(self) -> None:
        namespaces = {"pid": 4026532281, "ipc": 4026532282}
        machine = patched(HGX, "confinement", namespaces=namespaces)
        for check in ("ipc.pid-namespace", "ipc.ipc-namespace"):
            finding = run_one(check, machine)
            assert (finding.status, bool(finding.note)) == (Status.PASS, True)


class TestRdma:
    @staticmethod
    def port_down(machine: Machine, **port: Any) -> Machine:
        down = NicPort(number=1, link_layer="InfiniBand", **port)
        return patched(machine, "nics[0]", ports=(down,))

    def test_a_port_without_a_cable_is_a_note(self) -> None:
        machine = self.port_down(healthy(), state="DOWN", physical_state="Polling")
        noted, passed = run("rdma.ports", machine)
        assert (noted.status, noted.place.label, passed.status) == (Status.NOTE, "ibP2p3s0", Status.PASS)
        before = Scope(expectation=Expectation(reference=healthy()))
        assert verdicts("rdma.ports", machine, before)[0] == (Status.FAIL, "ibP2p3s0")

    def test_a_link_without_a_subnet_manager(self) -> None:
        machine = self.port_down(healthy(), state="INIT", physical_state="LinkUp")
        assert verdicts("rdma.ports", machine)[0] == (Status.WARN, "ibP2p3s0")

    def test_peermem_or_dma_buf_will_do(self) -> None:
        machine = patched(healthy(), "system", module_versions={})
        machine = patched(machine, "gpus[*]", cuda=None)
        for flavour, kernel, status in (
            ("open", "6.8.0-nvidia", Status.PASS),
            ("open", "5.4.0", Status.WARN),
            ("proprietary", "6.8.0", Status.WARN),
            (None, "6.8.0", Status.UNKNOWN),
        ):
            here = patched(patched(machine, "driver", module_flavour=flavour), "host", kernel=kernel)
            assert run_one("rdma.gdr-path", here).status is status, (flavour, kernel)

    def test_no_nic_is_no_rdma_for_who_asked_for_it(self) -> None:
        assert run_one("rdma.ports", HGX).status is Status.SKIP
        assert run_one("rdma.ports", HGX, asked(Guard.RDMA)).status is Status.FAIL


def test_the_healthy_h200_node_has_no_fault_whatever_is_asked_but_of_what_it_lacks() -> None:
    for guard in Guard:
        findings = [f for check in CHECKS if guard in check.guards for f in run(check.id, HGX, asked(guard))]
        problems = {f.check for f in findings if f.status in (Status.FAIL, Status.WARN)}
        expected = {Guard.FABRIC: {"imex.channel"}, Guard.RDMA: {"rdma.ports"}, Guard.EGM: {"egm.platform"}}
        assert problems == expected.get(guard, set()), guard


def test_a_node_without_a_gpu_fails_no_check_of_gpus_whatever_is_asked() -> None:
    """A prolog runs on every node of a cluster, and must not drain those that have no GPU."""
    bare = dataclasses.replace(HGX, gpus=(), pairs=(), switches=(), driver=Driver(majors={}))
    for guard in (Guard.EGM, Guard.P2P, Guard.FABRIC):
        findings = [f for check in CHECKS if guard in check.guards for f in run(check.id, bare, asked(guard))]
        failed = {finding.check for finding in findings if finding.status is Status.FAIL}
        assert failed == set(), guard


def test_no_driver_is_no_fault_of_its_versions() -> None:
    machine = patched(HGX, "driver", module_version=None, driver_version=None, modules=())
    assert run_one("drv.versions", machine).status is Status.SKIP
