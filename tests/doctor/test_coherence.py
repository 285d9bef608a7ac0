"""NVLink-C2C belongs to a GPU, not to a machine; and what the driver's management of coherent memory takes away."""

from __future__ import annotations

from typing import Any

import pytest

from egmctl.doctor.check import EVERYTHING, Scope
from egmctl.doctor.runner import CHECKS, diagnose
from egmctl.model.finding import Status
from egmctl.model.machine import Machine
from egmctl.topology.platform import MemoryMode, memory_mode
from egmctl.topology.routes import owners
from tests.doctor.faults import healthy
from tests.doctor.machines import patched, run, run_one, shipped, with_card, with_gpu_denied

CARD = "0002:01:00.0"
PARAMETERS = {"CoherentGPUMemoryMode": "", "EnableUserNUMAManagement": "1"}


@pytest.fixture
def station() -> Machine:
    """A Grace machine on which nothing is wrong, with a graphics card in a PCIe slot."""
    return with_card(healthy())


class TestCardOnPcieBesideCoherentGpus:
    def test_the_machine_has_no_fault(self, station: Machine) -> None:
        findings = diagnose(station, EVERYTHING, CHECKS).findings
        problems = [(f.check, f.place.label, f.summary) for f in findings if f.status in (Status.FAIL, Status.WARN)]
        assert problems == []

    @pytest.mark.parametrize("check", ["egm.capability", "egm.preconditions", "numa.mode", "c2c.link"])
    def test_checks_of_coherent_memory_leave_the_card_out(self, station: Machine, check: str) -> None:
        assert [(f.status, f.place.label) for f in run(check, station)] == [(Status.PASS, "GPU0-3")]
        only_the_card = run_one(check, station, Scope(gpus=(CARD,)))
        assert only_the_card.status is Status.SKIP

    def test_each_gpu_has_the_addressing_of_its_kind(self, station: Machine) -> None:
        assert [(f.status, f.place.label) for f in run("uvm.addressing-mode", station)] == [
            (Status.PASS, "GPU0-3"),
            (Status.PASS, "GPU4"),
        ]

    def test_a_card_whose_node_the_firmware_leaves_out_costs_no_egm(self, station: Machine) -> None:
        machine = patched(station, "gpus[4].pci", numa_node=-1)
        assert run("numa.gpu-affinity", machine)[0].status is Status.WARN
        assert run("numa.gpu-affinity", patched(machine, "gpus[1].pci", numa_node=-1))[0].status is Status.FAIL

    def test_the_card_owns_no_egm(self, station: Machine) -> None:
        assert [gpu.index for gpu in owners(station, 0)] == [0, 1]

    def test_denying_the_card_takes_no_route_away(self, station: Machine) -> None:
        machine = with_gpu_denied(station, 4)
        assert run_one("egm.cgroup-route", machine).status is Status.PASS
        assert run_one("dev.cgroup-restricted", machine).status is not Status.FAIL


class TestMemoryMode:
    @pytest.mark.parametrize(
        ("changes", "mode"),
        [
            ({}, MemoryMode.NUMA),
            ({"CoherentGPUMemoryMode": "numa"}, MemoryMode.NUMA),
            ({"CoherentGPUMemoryMode": "driver"}, MemoryMode.CDMM),
            ({"CoherentGPUMemoryMode": '"driver"'}, MemoryMode.CDMM),
            ({"EnableUserNUMAManagement": "0"}, MemoryMode.CDMM),
            ({"CoherentGPUMemoryMode": "Driver"}, MemoryMode.NUMA),
        ],
    )
    def test_either_parameter_turns_cdmm_on(self, changes: dict[str, str], mode: MemoryMode) -> None:
        machine = patched(healthy(), "driver", module_parameters=PARAMETERS | changes)
        assert memory_mode(machine) is mode

    def test_parameters_that_were_not_read_tell_nothing_but_a_node_does(self) -> None:
        machine = patched(healthy(), "driver", module_parameters=None)
        assert memory_mode(machine) is MemoryMode.NUMA
        assert memory_mode(without_nodes(machine)) is MemoryMode.UNKNOWN


def without_nodes(machine: Machine) -> Machine:
    machine = patched(machine, "gpus[*].nvml", numa_node=None)
    return patched(machine, "gpus[*].proc", numa_node=None, numa_status=None)


def cdmm(**driver: Any) -> Machine:
    parameters = PARAMETERS | {"EnableUserNUMAManagement": "0"}
    return patched(without_nodes(healthy()), "driver", **({"module_parameters": parameters} | driver))


class TestWhatCdmmTakesAway:
    def test_it_is_no_fault_and_says_what_does_not_work(self) -> None:
        finding = run_one("numa.mode", cdmm())
        assert (finding.status, "GDRCopy" in finding.note, "mbind" in finding.note) == (Status.PASS, True, True)
        assert run_one("numa.auto-online", cdmm()).status is Status.SKIP

    def test_without_its_parameters_nothing_is_a_pass(self) -> None:
        machine = patched(cdmm(module_parameters=None), "host", auto_online_blocks="online", kernel="6.8.0")
        for check in ("numa.mode", "numa.auto-online", "rdma.coherent-dmabuf", "rdma.gdrcopy"):
            assert run_one(check, machine).status is Status.UNKNOWN, check

    @pytest.mark.parametrize(
        ("kernel", "modules", "status"),
        [
            ("6.18.2", ("nvidia",), Status.PASS),
            ("6.8.0", ("nvidia", "nvidia_uvm"), Status.PASS),
            ("6.8.0", ("nvidia",), Status.WARN),
            ("6.8.0", None, Status.UNKNOWN),
            (None, ("nvidia", "nvidia_uvm"), Status.UNKNOWN),
        ],
    )
    def test_dma_bufs_of_gpu_memory(self, kernel: str | None, modules: tuple[str, ...] | None, status: Status) -> None:
        machine = patched(cdmm(modules=modules), "host", kernel=kernel)
        assert run_one("rdma.coherent-dmabuf", machine).status is status

    def test_in_numa_mode_the_kernel_does_not_matter_to_dma_bufs(self) -> None:
        assert run_one("rdma.coherent-dmabuf", patched(healthy(), "host", kernel=None)).status is Status.PASS

    @pytest.mark.parametrize(
        ("version", "status"),
        [
            (None, Status.PASS),
            ("2.4.4", Status.WARN),
            ("2.5", Status.WARN),
            ("2.5.1", Status.PASS),
            ("", Status.UNKNOWN),
        ],
    )
    def test_gdrcopy(self, version: str | None, status: Status) -> None:
        loaded = {} if version is None else {"gdrdrv": version}
        assert run_one("rdma.gdrcopy", patched(cdmm(), "system", module_versions=loaded)).status is status
        assert run_one("rdma.gdrcopy", patched(healthy(), "system", module_versions=loaded)).status is Status.PASS

    def test_a_machine_without_coherent_gpus_is_not_asked(self) -> None:
        assert run_one("rdma.gdrcopy", shipped("hgx-h200x4")).status is Status.SKIP
