"""Nodes that are healthy and unusual: nobody is told of a fault that is none, and who wants what they lack is."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from egmctl.doctor.check import EVERYTHING, Scope
from egmctl.doctor.runner import CHECKS
from egmctl.model.diagnosis import Diagnosis
from egmctl.model.finding import Guard, Status
from egmctl.model.machine import Machine
from egmctl.model.record import Reason, Unread
from tests.answers import diagnose
from tests.doctor.faults import healthy
from tests.doctor.machines import patched, shipped, with_gpu_denied

HGX = shipped("hgx-h200x4")
REFUSED = {"read": "NS", "write": "NS", "nvlink": "NS"}


def unread(reason: Reason, *names: str) -> dict[str, Unread]:
    return {name: Unread(reason=reason, detail="") for name in names}


def without_peers(machine: Machine) -> Machine:
    return patched(machine, "pairs[*]", p2p_status=REFUSED, can_access_peer=False)


def mig(machine: Machine = HGX) -> Machine:
    """All GPUs in parts: CUDA gives a process one instance, of one GPU."""
    machine = patched(without_peers(machine), "gpus[*].nvml", mig_mode=True, mig_mode_pending=True)
    for index in range(1, len(machine.gpus or ())):
        machine = patched(machine, f"gpus[{index}]", cuda=None, unread=unread(Reason.NOT_PRESENT, "cuda"))
    nodes = tuple(
        replace(node, exists=True, access="ok") if "nvidia-caps" in node.path else node
        for node in (machine.driver and machine.driver.nodes) or ()
    )
    return patched(machine, "driver", nodes=nodes)


def mig_of_ampere() -> Machine:
    """Its NVLinks are down while MIG is on."""
    return patched(mig(), "gpus[*].nvml.nvlinks[*]", active=False)


def confidential() -> Machine:
    return patched(without_peers(HGX), "driver", confidential_compute="on")


def vgpu() -> Machine:
    return patched(without_peers(HGX), "gpus[*].nvml", virtualization="vgpu")


def partition_of_one() -> Machine:
    """A virtual machine with one of a board's GPUs: the fabric manager turns its NVLinks off."""
    machine = patched(HGX, "", gpus=(HGX.gpus or ())[:1], pairs=())
    return patched(machine, "gpus[0].nvml.nvlinks[*]", active=False)


def wsl() -> Machine:
    """No PCI devices, no kernel module and no device nodes: the host's driver answers through /dev/dxg."""
    gone = ("pci", "proc", "node")
    machine = patched(HGX, "gpus[*]", pci=None, proc=None, node=None, unread=unread(Reason.NOT_PRESENT, *gone))
    machine = patched(machine, "gpus[*].nvml", name="NVIDIA RTX 6000 Ada Generation")
    names = ("nvlinks", "nvlink_count", "fabric", "capabilities", "c2c_enabled", "c2c_links", "persistence_mode")
    nothing = unread(Reason.NOT_SUPPORTED, *names)
    machine = patched(machine, "gpus[*].nvml", **dict.fromkeys(names), unread=nothing)
    machine = patched(machine, "pairs[*]", nvlink_count=None, nvlink_through=None, p2p_status={}, can_access_peer=False)
    nodes = tuple(replace(node, exists=False, access="ENOENT") for node in (HGX.driver and HGX.driver.nodes) or ())
    return patched(machine, "driver", modules=(), module_version=None, module_parameters=None, majors={}, nodes=nodes)


def branch_535() -> Machine:
    names = ("capabilities", "fabric", "addressing_mode", "recovery_action", "nvlink_bandwidth_mode")
    machine = patched(HGX, "driver", module_version="535.183.01", driver_version="535.183.01")
    return patched(machine, "gpus[*].nvml", **dict.fromkeys(names), unread=unread(Reason.DRIVER_TOO_OLD, *names))


def on_pcie() -> Machine:
    """Cards without bridges: NVML lists their links, none of which leads anywhere."""
    machine = patched(
        HGX, "gpus[*].nvml", name="NVIDIA H100 PCIe", fabric=None, unread=unread(Reason.NOT_SUPPORTED, "fabric")
    )
    machine = patched(machine, "gpus[*].pci", device_id=0x2331)
    machine = patched(machine, "gpus[*].nvml.nvlinks[*]", active=False, remote_type="unknown", remote_bus_id=None)
    return patched(machine, "pairs[*]", nvlink_count=0, nvlink_through=None, p2p_status=REFUSED, can_access_peer=False)


UNUSUAL: dict[str, tuple[Callable[[], Machine], dict[str, Status]]] = {
    "MIG on every GPU": (mig, {"gpu.mig": Status.NOTE}),
    "MIG, which takes the links down": (mig_of_ampere, {"gpu.mig": Status.NOTE}),
    "MIG on a Grace node": (lambda: mig(healthy()), {"gpu.mig": Status.NOTE}),
    "confidential computing": (confidential, {"gpu.cc-mode": Status.WARN}),
    "vGPUs": (vgpu, {"gpu.vgpu": Status.WARN}),
    "a virtual machine with one GPU": (partition_of_one, {"nvlink.links": Status.WARN}),
    "a container with one of four GPUs": (
        lambda: with_gpu_denied(HGX, 1, 2, 3, access="ENOENT"),
        {"dev.nodes-missing": Status.NOTE},
    ),
    "WSL": (wsl, {}),
    "driver 535": (branch_535, {}),
    "cards on PCIe without bridges": (on_pcie, {}),
}
"""Each with what is told of it, and how gravely."""


def told(machine: Machine, scope: Scope = EVERYTHING) -> Diagnosis:
    return diagnose(machine, scope, CHECKS)


@pytest.mark.parametrize("name", UNUSUAL)
def test_a_node_that_is_so_on_purpose_is_no_fault(name: str) -> None:
    machine, expected = UNUSUAL[name]
    findings = told(machine())
    problems = {
        check: status
        for check, status in findings.verdicts.items()
        if status in (Status.FAIL, Status.WARN, Status.NOTE)
    }
    assert (problems, int(findings.exit_code)) == (expected, 0)


@pytest.mark.parametrize("machine", [mig, confidential, vgpu])
def test_who_wants_p2p_is_told_that_it_does_not_work(machine: Callable[[], Machine]) -> None:
    assert told(machine(), Scope(purposes=(Guard.P2P,))).exit_code == 1


def test_a_gpu_in_parts_that_was_asked_for_and_cuda_does_not_give_is_a_fault() -> None:
    machine = mig()
    gpus = machine.gpus or ()
    assert told(machine, Scope(gpus=(gpus[3].bus_id,))).exit_code == 1
