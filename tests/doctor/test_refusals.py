"""``p2p.status`` names why the driver refuses P2P between GPUs that NVLink joins."""

from __future__ import annotations

from egmctl.facts.kernel_log import event
from egmctl.model.finding import Confidence, Status
from egmctl.model.host import KernelLog
from egmctl.model.machine import Machine
from tests.doctor.faults import HEALTHY_FABRIC, healthy
from tests.doctor.machines import patched, run, run_one, shipped

LINE = "NVRM: knvlinkCheckNvswitchP2pConfig_IMPL: GPU 1 doesn't have a EGM fabric address"


def refused(machine: Machine | None = None) -> Machine:
    """A machine whose driver refuses P2P between all GPUs."""
    status = {"read": "NS", "write": "NS", "nvlink": "NS"}
    return patched(healthy() if machine is None else machine, "pairs[*]", p2p_status=status)


def with_bits(machine: Machine, fabric: int, host: int) -> Machine:
    bits = {"HANDLE_TYPE_FABRIC_SUPPORTED": fabric, "HOST_NUMA_MULTINODE_IPC_SUPPORTED": host}
    return patched(machine, "gpus[*].cuda", attributes=bits)


class TestEgmFabricAddress:
    def test_the_kernels_log_proves_it(self) -> None:
        logged = event(12.0, LINE)
        assert logged is not None
        log = KernelLog(source="/dev/kmsg", now_s=60.0, first_s=0.0, events=(logged,))
        finding = run_one("p2p.status", patched(refused(), "", kernel_log=log))
        assert (finding.status, finding.confidence) == (Status.FAIL, Confidence.HIGH)
        assert "EGM fabric address" in finding.cause
        assert any(evidence.source == "kernel log" for evidence in finding.evidence)

    def test_without_either_it_is_a_guess_and_says_so(self) -> None:
        machine = patched(refused(), "gpus[*]", cuda=None)
        finding = run_one("p2p.status", machine)
        assert ("possibly: " in finding.cause, finding.confidence) == (True, Confidence.LOW)

    def test_it_is_not_blamed_where_host_memory_has_an_address_or_egm_is_off(self) -> None:
        for machine in (with_bits(refused(), 1, 1), patched(refused(), "gpus[*].nvml", capabilities=0)):
            assert "EGM" not in run_one("p2p.status", machine).cause

    def test_gpus_without_switches_need_none(self) -> None:
        assert "EGM fabric" not in run_one("p2p.status", refused(shipped("gh200x4"))).cause


class TestOtherReasons:
    def test_the_bandwidth_mode(self) -> None:
        off = patched(refused(), "gpus[*].nvml", nvlink_bandwidth_mode="off")
        assert "OFF" in run_one("p2p.status", off).cause
        mixed = patched(refused(), "gpus[0].nvml", nvlink_bandwidth_mode="half")
        causes = {finding.place.label: finding.cause for finding in run("p2p.status", mixed)}
        assert any("different bandwidth modes (full and half)" in cause for cause in causes.values())
        assert len(causes) == 2, "pairs without GPU0 have another reason"

    def test_the_fabric(self) -> None:
        sick = patched(refused(), "gpus[2].nvml.fabric", health=HEALTHY_FABRIC, health_summary="unhealthy")
        assert any("unhealthy" in finding.cause for finding in run("p2p.status", sick))
        apart = patched(refused(), "gpus[2].nvml.fabric", clique_id=9)
        assert any("different cliques" in finding.cause for finding in run("p2p.status", apart))

    def test_what_is_not_joined_by_nvlink_is_not_explained_so(self) -> None:
        machine = patched(refused(), "pairs[*]", nvlink_count=0)
        assert run_one("p2p.status", machine).status is Status.SKIP


def test_what_nvml_does_not_report_does_not_excuse_what_it_does() -> None:
    machine = patched(healthy(), "pairs[*]", p2p_status={"read": "CNS"})
    finding = run_one("p2p.status", machine)
    assert (finding.status, finding.summary) == (Status.FAIL, "no P2P read: the chipset does not support it")


class TestByCudaAlone:
    """NVML says OK of a pair, and cuDeviceCanAccessPeer 0."""

    def test_between_gpus_with_nvlink_it_is_a_fault(self) -> None:
        machine = patched(healthy(), "pairs[0]", can_access_peer=False)
        (finding,) = [finding for finding in run("p2p.status", machine) if finding.status is not Status.PASS]
        assert (finding.status, finding.place.label) == (Status.FAIL, "GPU0>GPU1")
        assert finding.summary == "CUDA refuses P2P that NVML allows: copies are staged in host memory"
        assert ("cuDeviceCanAccessPeer", "0") in {(item.source, item.value) for item in finding.evidence}

    def test_what_the_fabric_says_is_its_cause(self) -> None:
        machine = patched(healthy(), "gpus[*].nvml.fabric", health_summary="unhealthy")
        finding = run_one("p2p.status", patched(machine, "pairs[*]", can_access_peer=False))
        assert "unhealthy" in finding.cause

    def test_over_pcie_copies_are_slower(self) -> None:
        machine = patched(healthy(), "pairs[*]", nvlink_count=0, can_access_peer=False)
        assert run_one("p2p.status", machine).status is Status.WARN

    def test_an_answer_that_was_not_read_is_none(self) -> None:
        machine = patched(healthy(), "pairs[*]", can_access_peer=None)
        assert run_one("p2p.status", machine).status is Status.PASS
