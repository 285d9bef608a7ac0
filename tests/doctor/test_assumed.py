"""What a shipped model assumes is counted apart, and never hides what its machine states."""

from __future__ import annotations

from dataclasses import replace

import pytest

from egmctl.api.doctor import Doctor
from egmctl.facts import replay
from egmctl.model.answer import State
from egmctl.model.diagnosis import Diagnosis
from egmctl.model.finding import Finding, Status
from egmctl.model.machine import Machine, OriginKind
from egmctl.model.record import Reason, Unread
from tests.doctor.machines import patched, shipped


def diagnosis(machine: Machine) -> Diagnosis:
    return Doctor().diagnose(machine)


def of_check(machine: Machine, check: str) -> Finding:
    (finding,) = [finding for finding in diagnosis(machine).findings if finding.check == check]
    return finding


@pytest.mark.parametrize(
    "name", [name for name in replay.machine_names() if shipped(name).origin.kind is OriginKind.MODELLED]
)
def test_a_healthy_model_is_ok_and_says_what_it_assumes(name: str) -> None:
    result = diagnosis(shipped(name))
    assert (result.answer.state, result.answer.causes) == (State.GOOD, ())
    assert f"{result.counts['assumed']} assumed" in result.answer.sentence
    assumed = [finding for finding in result.findings if finding.status is Status.ASSUMED]
    assert all(finding.evidence == () for finding in assumed), "what was assumed was not read"


@pytest.mark.parametrize("name", [*replay.machine_names(), *replay.sick()])
def test_only_what_is_unknown_becomes_assumed(name: str) -> None:
    """Every other finding is that of the same machine without assumptions."""
    machine = shipped(name)
    alone = diagnosis(patched(machine, "origin", name="no model that ships")).findings
    found = [replace(finding, explained_by=(), explains=()) for finding in diagnosis(machine).findings]
    kept = [replace(each, explained_by=(), explains=()) for each in alone if each.status is not Status.UNKNOWN]
    assert [finding for finding in found if finding.status not in (Status.UNKNOWN, Status.ASSUMED)] == kept


def test_a_recorded_node_assumes_nothing() -> None:
    assert "assumed" not in diagnosis(shipped("hgx-h200x4")).counts


def test_a_fault_and_a_value_that_was_lost_are_not_assumed_away() -> None:
    machine = shipped("gb200-nvl72")
    assert of_check(machine, "gpu.mig").status is Status.ASSUMED
    assert of_check(patched(machine, "gpus[*].nvml", mig_mode=True), "gpu.mig").status is Status.NOTE
    lost = {"mig_mode": Unread(reason=Reason.TIMED_OUT, detail="nvmlDeviceGetMigMode")}
    assert of_check(patched(machine, "gpus[*].nvml", unread=lost), "gpu.mig").status is Status.UNKNOWN
