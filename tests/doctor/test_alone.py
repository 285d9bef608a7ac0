"""Every check is there for a fault that no other check catches: without it, nobody would be told."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from egmctl.doctor.check import EVERYTHING, Scope
from egmctl.doctor.runner import CHECKS, diagnose
from egmctl.model.finding import TOLD, Finding, Status
from egmctl.model.machine import Machine
from tests.doctor.faults import ONLY_TOLD, Fault, faults, healthy
from tests.doctor.machines import shipped
from tests.doctor.scenes import Scene, scenes
from tests.doctor.sick import SICK

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
    assert check in {one.check for one in told(fault.machine(), fault.scope)}
    usual = {one.check for machine in (healthy(), shipped("hgx-h200x4")) for one in told(machine)}
    others = {one.check for one in told(fault.machine(), fault.scope, check) if one.status is not Status.NOTE} - usual
    assert others == ALSO_SEEN.get(check, (set(), ""))[0]


def test_every_exception_is_of_a_check() -> None:
    assert {*ALONE, *ALSO_SEEN} <= {check.id for check in CHECKS}
    assert not {*ALONE} & {*ALSO_SEEN}
