"""Every check finds the fault it is for, and finds none on a machine that has none."""

from __future__ import annotations

import functools
from dataclasses import replace

import pytest

from egmctl.doctor.check import EVERYTHING, Check
from egmctl.doctor.runner import CHECKS, diagnose
from egmctl.facts import replay
from egmctl.model.finding import Diagnosis, Status
from tests.doctor.faults import ONLY_TOLD, PASSES, faults, healthy
from tests.doctor.machines import shipped
from tests.invariants import broken_diagnosis

PROBLEMS = (Status.FAIL, Status.WARN)


@functools.cache
def well() -> Diagnosis:
    return diagnose(healthy(), EVERYTHING, CHECKS)


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: str(check.id))
class TestEveryCheck:
    def test_it_finds_its_fault(self, check: Check) -> None:
        if check.id in ONLY_TOLD:
            assert check.id not in faults()
            return
        assert check.id in faults(), "add a machine that has the fault to FAULTS in tests/doctor/checks/test_AREA.py"
        fault = faults()[check.id]
        findings = diagnose(fault.machine(), fault.scope, [check]).findings
        problems = [finding for finding in findings if finding.status in PROBLEMS]
        assert problems, [(finding.status, finding.summary) for finding in findings]
        assert all(finding.remedy is not None for finding in problems)

    def test_it_passes_where_there_is_none(self, check: Check) -> None:
        machine = PASSES[check.id]() if check.id in PASSES else healthy()
        diagnosis = diagnose(machine, EVERYTHING, [check])
        assert diagnosis.verdicts[check.id] is Status.PASS, [(f.status, f.summary) for f in diagnosis.findings]


def test_the_healthy_machine_has_no_fault() -> None:
    assert [(f.check, f.summary) for f in well().findings if f.status in (*PROBLEMS, Status.UNKNOWN)] == []


@pytest.mark.parametrize("name", replay.names())
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
