"""Every check finds the fault it is for, alone, and finds none on a machine that has none."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import pytest

from egmctl.doctor.check import EVERYTHING, Check, Scope
from egmctl.doctor.runner import CHECKS
from egmctl.facts import replay
from egmctl.model.finding import TOLD, Finding, Status
from egmctl.model.machine import Machine
from tests.answers import diagnose
from tests.doctor.faults import NOTED, ONLY_TOLD, PASSES, Fault, faults, healthy
from tests.doctor.machines import shipped
from tests.doctor.scenes import Scene, scenes
from tests.doctor.sick import SICK
from tests.invariants import broken_diagnosis

PROBLEMS = (Status.FAIL, Status.WARN)


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: str(check.id))
class TestEveryCheck:
    def test_it_finds_its_fault(self, check: Check) -> None:
        if check.id in ONLY_TOLD:
            assert check.id not in faults()
            return
        assert check.id in faults(), "add a machine that has the fault to FAULTS in tests/doctor/checks/test_AREA.py"
        fault = faults()[check.id]
        findings = diagnose(fault.machine(), fault.scope, [check]).findings
        statuses = (*PROBLEMS, Status.NOTE) if check.id in NOTED else PROBLEMS
        problems = [finding for finding in findings if finding.status in statuses]
        assert problems, [(finding.status, finding.summary) for finding in findings]
        assert all(finding.remedy is not None for finding in problems)

    def test_it_passes_where_there_is_none(self, check: Check) -> None:
        machine = PASSES[check.id]() if check.id in PASSES else healthy()
        diagnosis = diagnose(machine, EVERYTHING, [check])
        assert diagnosis.verdicts[check.id] is Status.PASS, [(f.status, f.summary) for f in diagnosis.findings]


def test_the_healthy_machine_has_no_fault() -> None:
    assert [
        (f.check, f.summary)
        for f in diagnose(healthy(), EVERYTHING, CHECKS).findings
        if f.status in (*PROBLEMS, Status.UNKNOWN)
    ] == []


@pytest.mark.parametrize("name", replay.machine_names())
def test_no_shipped_machine_has_a_fault(name: str) -> None:
    findings = diagnose(shipped(name), EVERYTHING, CHECKS).findings
    assert [(finding.check, finding.summary) for finding in findings if finding.status in PROBLEMS] == []


def test_what_only_tells_never_finds_a_fault() -> None:
    machines = [fault.machine() for fault in faults().values()]
    checks = [check for check in CHECKS if check.id in ONLY_TOLD]
    for machine in machines:
        assert not any(f.status in PROBLEMS for f in diagnose(machine, EVERYTHING, checks).findings)


@pytest.mark.parametrize("check", sorted(faults()))
def test_what_is_said_of_a_fault_agrees_with_itself(check: str) -> None:
    """Also where all GPUs are asked for."""
    fault = faults()[check]
    machine = fault.machine()
    everything = replace(fault.scope, gpus=tuple(gpu.bus_id for gpu in machine.gpus or ()))
    for scope in (fault.scope, everything):
        assert broken_diagnosis(diagnose(machine, scope, CHECKS)) == []


def test_every_fault_is_of_a_check() -> None:
    assert (set(faults()) | set(PASSES) | ONLY_TOLD) <= {check.id for check in CHECKS}


SCENES = {**scenes(), **SICK}
ALONE: Mapping[str, str] = {
    "dev.fell-off-bus": "h200-off-the-bus",
    "dev.excluded": "h200-excluded",
    "dev.driver-binding": "h200-handed-to-a-guest",
    "dev.cgroup-restricted": "h200-v2-cgroup-all-asked-for",
    "dev.nodes-missing": "h200-no-device-node",
    "dev.permissions": "h200-node-mode",
    "dev.control-nodes": "gb200-uvm-denied",
    "pcie.acs": "dgx-h100-acs",
    "pcie.iommu": "dgx-h100-iommu",
}
"""Scenes that replace the machines of ``faults()``, where other checks see that fault too."""

ALSO_SEEN: Mapping[str, tuple[set[str], str]] = {
    "drv.nouveau": (
        {"dev.driver-binding", "dev.count-consistency"},
        "a GPU has one kernel driver: nouveau bound is NVIDIA's not bound; this check says what to do about nouveau",
    ),
    "egm.preconditions": ({"egm.capability"}, "it says why the capability is missing, which the other finds"),
    "egm.cgroup-route": ({"dev.cgroup-restricted"}, "it says what a GPU that others find lost means for EGM"),
    "egm.peer-route": ({"p2p.status"}, "it says what P2P that the other finds refused means for EGM"),
    "fabric.same-node-isolation": (
        {"dev.cgroup-restricted", "egm.cgroup-route"},
        "it says what a GPU that others find denied means for fabric handles",
    ),
    "fabric.management": ({"fabric.state"}, "it says why the fabric stays in progress, which the other finds"),
    "rdma.gdr-path": ({"drv.flavour"}, "these GPUs need the open modules, which also make dma-bufs"),
    "rdma.coherent-dmabuf": ({"ns.gpu-containers"}, "the CDI specification is of the driver that works"),
    "imex.recovery": ({"gpu.health"}, "one recovery action of NVML: it says what to do with the IMEX domain"),
}
"""Checks whose fault others see too, which, and why both are there."""


def told(machine: Machine, scope: Scope = EVERYTHING, without: str = "") -> list[Finding]:
    checks = [check for check in CHECKS if check.id != without]
    return [finding for finding in diagnose(machine, scope, checks).findings if finding.status in TOLD]


def of_scene(scene: Scene) -> Fault:
    gpus = tuple(gpu.bus_id for gpu in scene.machine().gpus or ()) if "--gpus" in scene.options else None
    return Fault(scene.machine, Scope(gpus=gpus))


@pytest.mark.parametrize("check", [check.id for check in CHECKS if check.id not in ONLY_TOLD])
def test_it_alone_catches_its_fault(check: str) -> None:
    fault = of_scene(SCENES[ALONE[check]]) if check in ALONE else faults()[check]
    assert check in {finding.check for finding in told(fault.machine(), fault.scope)}
    usual = {finding.check for machine in (healthy(), shipped("hgx-h200x4")) for finding in told(machine)}
    others = {
        finding.check for finding in told(fault.machine(), fault.scope, check) if finding.status is not Status.NOTE
    } - usual
    assert others == ALSO_SEEN.get(check, (set(), ""))[0]


def test_every_exception_is_of_a_check() -> None:
    assert {*ALONE, *ALSO_SEEN} <= {check.id for check in CHECKS}
    assert not {*ALONE} & {*ALSO_SEEN}
