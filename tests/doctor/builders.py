"""Checks and findings made by hand, for the tests of what runs and shows them."""

from __future__ import annotations

from collections.abc import Iterable

from egmctl.doctor.check import EVERYTHING, Check, Scope
from egmctl.doctor.findings import failed, passed, skipped, unknown, warned
from egmctl.model import remedy
from egmctl.model.diagnosis import Diagnosis
from egmctl.model.finding import Confidence, Evidence, Finding, Guard, on_gpus
from egmctl.model.machine import Machine
from egmctl.model.remedy import Need, Remedy
from tests.answers import diagnose
from tests.doctor.machines import shipped


def check(check_id: str, *findings: Finding, sections: tuple[str, ...] = (), guards: Iterable[Guard] = Guard) -> Check:
    """A check that always finds the same."""
    return Check(check_id, lambda _machine, _scope: findings, guards=tuple(guards), sections=sections)


def broken(check_id: str, error: Exception) -> Check:
    """A check that raises."""

    def judge(_machine: Machine, _scope: Scope) -> Iterable[Finding]:
        raise error

    return Check(check_id, judge, guards=(), sections=())


def diagnosis(
    *checks: Check, machine: Machine | None = None, scope: Scope = EVERYTHING, strict: bool = False
) -> Diagnosis:
    """Return the diagnosis of a machine by these checks."""
    return diagnose(machine or shipped("gb200-tray"), scope, checks, strict=strict)


NODE_MACHINE = shipped("gb200-tray")
GPUS = NODE_MACHINE.gpus or ()

DENIED = failed(
    "the device cgroup denies /dev/nvidia3",
    Remedy(text="Give the step all GPUs of the node and choose with CUDA_VISIBLE_DEVICES.", run="srun --gpu-bind=none"),
    place=on_gpus(GPUS[3:]),
    cause="Slurm's ConstrainDevices took it away from job 42",
    evidence=(Evidence(source="access(/dev/nvidia3)", value="EPERM", errno="EPERM"),),
)
PERSISTENCE = warned(
    "persistence mode is off",
    Remedy(text="Turn it on.", run=f"nvidia-smi -i {remedy.GPUS} -pm 1", needs=(Need.ROOT,)),
    place=on_gpus(GPUS),
    confidence=Confidence.MEDIUM,
    cause="each first start of a process waits for the GPUs",
)
REBOOT = failed("the fabric is broken", Remedy(text="Start anew.", needs=(Need.ROOT, Need.REBOOT)))
FINE = passed("as it should be", note="4 GPUs are there")
ABSENT = skipped("not an EGM platform")
UNTOLD = unknown("NVML is too old to say")
