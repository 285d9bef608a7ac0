"""Every check is there for a fault that no other check catches: without it, nobody would be told."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial

import pytest

from egmctl.doctor.check import Scope
from egmctl.doctor.runner import CHECKS, diagnose
from egmctl.model.finding import TOLD, Finding, Status
from egmctl.model.machine import Machine
from egmctl.model.record import Reason, Unread
from tests.doctor.faults import ONLY_TOLD, Fault, faults, healthy, weak_switch
from tests.doctor.machines import patched, shipped, with_gpu_denied

H200 = partial(shipped, "hgx-h200x4")
ALL = Scope(gpus=tuple(gpu.bus_id for gpu in H200().gpus or ()))


def lost(index: int, path: str, **changes: object) -> Callable[[], Machine]:
    """An HGX H200 whose GPU cannot be used, for one reason: no EGM hangs on it."""
    return lambda: patched(with_gpu_denied(H200(), index, access="ok"), f"gpus[{index}].{path}", **changes)


ALONE: Mapping[str, Fault] = {
    "dev.fell-off-bus": Fault(lost(3, "pci", responds=False)),
    "dev.excluded": Fault(lost(3, "proc", excluded=True)),
    "dev.driver-binding": Fault(
        lambda: patched(with_gpu_denied(H200(), 3, access="ENOENT"), "gpus[3].pci", driver="vfio-pci"), ALL
    ),
    "dev.cgroup-restricted": Fault(lambda: with_gpu_denied(H200(), 3), ALL),
    "dev.nodes-missing": Fault(lambda: with_gpu_denied(H200(), 3, access="ENOENT"), ALL),
    "dev.permissions": Fault(lambda: with_gpu_denied(H200(), 3, access="EACCES")),
    "dev.control-nodes": Fault(
        lambda: patched(
            patched(healthy(), "driver.nodes[1]", access="EPERM"),
            "gpus[*]",
            cuda=None,
            unread={"cuda": Unread(reason=Reason.NOT_ASKED)},
        )
    ),
    "gpu.throttle": Fault(lambda: patched(healthy(), "gpus[1].nvml", throttle_reasons=("idle", "hw-thermal-slowdown"))),
    "pcie.acs": Fault(lambda: patched(weak_switch(), "system", iommu_domains={})),
    "pcie.iommu": Fault(lambda: patched(weak_switch(), "system.bridges[*]", acs_control=0)),
}
"""Machines that replace those of ``faults()``, where other checks see that fault too."""

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


def told(fault: Fault, without: str = "") -> tuple[Finding, ...]:
    checks = [check for check in CHECKS if check.id != without]
    return tuple(
        finding for finding in diagnose(fault.machine(), fault.scope, checks).findings if finding.status in TOLD
    )


@pytest.mark.parametrize("check", [check.id for check in CHECKS if check.id not in ONLY_TOLD])
def test_it_alone_catches_its_fault(check: str) -> None:
    fault = ALONE.get(check) or faults()[check]
    assert check in {one.check for one in told(fault)}
    usual = {one.check for one in told(Fault(healthy))} | {one.check for one in told(Fault(H200))}
    others = {one.check for one in told(fault, without=check) if one.status is not Status.NOTE} - usual
    assert others == ALSO_SEEN.get(check, (set(), ""))[0]


def test_every_exception_is_of_a_check() -> None:
    assert {*ALONE, *ALSO_SEEN} <= {check.id for check in CHECKS}
    assert not {*ALONE} & {*ALSO_SEEN}
