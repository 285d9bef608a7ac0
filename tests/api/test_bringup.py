"""The bring-up of a node from Python: what a recorded machine answers, and that only what was asked for is named."""

from __future__ import annotations

from egmctl.api.bringup import Examined, NodeBringup
from egmctl.api.options import BringupOptions
from egmctl.model.answer import State
from egmctl.model.machine import Machine
from tests.doctor.faults import FAULTS
from tests.doctor.machines import patched, shipped

RECORDED = "a recorded machine cannot be measured"


def examined(machine: Machine) -> Examined:
    return Examined(machine=machine, not_measured=RECORDED)


def test_a_machine_without_a_run_is_no_more_than_incomplete() -> None:
    bringup = NodeBringup(BringupOptions()).answer(examined(shipped("hgx-h200x4")))
    assert (bringup.answer.state, bringup.run, bringup.not_measured) == (State.INCOMPLETE, None, RECORDED)
    assert str(bringup.answer.sentence) == f"nothing was measured: {RECORDED}"


def test_a_fault_decides_without_a_run() -> None:
    faulty = FAULTS["dev.fell-off-bus"].machine()
    assert NodeBringup(BringupOptions()).answer(examined(faulty)).answer.state is State.BAD


def test_names_are_kept_unless_pseudonyms_are_asked_for() -> None:
    machine = patched(shipped("hgx-h200x4"), "origin", redacted=False)
    asked, node = NodeBringup(BringupOptions()), examined(machine)
    own, redacted = asked.answer(node), asked.answer(node, redacted=True)
    assert not own.diagnosis.machine.origin.redacted
    assert redacted.diagnosis.machine.origin.redacted
    assert own.answer.state is redacted.answer.state


def test_a_fabric_that_was_not_measured_is_said() -> None:
    bringup = NodeBringup(BringupOptions()).answer(examined(shipped("hgx-h200x4")), "no MPI")
    assert "the fabric between the nodes was not measured: no MPI" in [gap.reason for gap in bringup.answer.gaps]
