"""topo's answer: never better than doctor's, by the same findings, and a problem only with ``--strict``."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from egmctl.api.doctor import Doctor
from egmctl.api.machine import topology_of
from egmctl.doctor.check import EVERYTHING
from egmctl.doctor.runner import CHECKS, diagnose
from egmctl.facts import replay
from egmctl.model.answer import State
from egmctl.model.machine import SECTION_VERSIONS, Machine
from egmctl.report.views.topo import topology_summary
from egmctl.topology.topology import SECTIONS, Topology
from egmctl.verdict.answers import answered
from tests.doctor.faults import faults
from tests.doctor.machines import patched, shipped
from tests.doctor.scenes import scenes

HGX = shipped("hgx-h200x4")
NO_FAULT = "link is degraded"


def sentences(topology: Topology) -> str:
    return repr(tuple(topology_summary(topology))) if topology.missing is None else ""


def never_better(machine: Machine) -> None:
    """Check that topo calls nothing good that doctor calls bad by what topo reads, and names no other fault."""
    topo = topology_of(machine)
    others: Any = {name: None for name in (*SECTION_VERSIONS, "peers") if name not in SECTIONS}
    doctor = answered(diagnose(replace(machine, **others), EVERYTHING, CHECKS)).answer
    if doctor.state is State.BAD:
        assert topo.answer.state is not State.GOOD, topo.answer
        assert NO_FAULT not in sentences(topo)
    assert {cause.finding for cause in topo.answer.causes} <= {cause.finding for cause in doctor.causes}
    assert topo.answer.exit_code == (3 if topo.missing else 0)


@pytest.mark.parametrize("name", scenes())
def test_topo_says_no_better_than_doctor_knows(name: str) -> None:
    never_better(scenes()[name].machine())


@pytest.mark.parametrize("check", sorted(faults()))
def test_nor_of_the_fault_of_any_check(check: str) -> None:
    never_better(faults()[check].machine())


@pytest.mark.parametrize("name", replay.machine_names())
def test_topo_of_a_healthy_machine_is_good(name: str) -> None:
    topo = topology_of(shipped(name))
    assert (topo.answer.state, topo.answer.causes) == (State.GOOD, ())
    assert NO_FAULT in sentences(topo)


@pytest.mark.parametrize(
    ("machine", "words"),
    [
        (patched(HGX, "gpus[*].nvml.fabric", state="not-started", status=None), "the fabric is not ready"),
        (patched(shipped("gb200-nvl72"), "gpus[3].nvml.fabric", clique_id=2), "different NVLink domains or cliques"),
        (patched(HGX, "gpus[2].nvml.fabric", health={"route_unhealthy": "true"}), "a route through the fabric"),
        (patched(HGX, "gpus[*].nvml", mig_mode=True), "MIG is on"),
    ],
    ids=["fabric not started", "another clique", "unhealthy route", "MIG"],
)
def test_what_stops_gpus_that_nvlinks_join_is_in_its_words(machine: Machine, words: str) -> None:
    topo = topology_of(machine)
    said = f"{topo.answer.sentence} {sentences(topo)}"
    assert words in said
    assert NO_FAULT not in said


def test_a_fault_is_a_problem_of_topo_only_where_that_is_asked() -> None:
    machine = replay.load_machine("h200-links-down")
    usual, strict = topology_of(machine), topology_of(machine, strict=True)
    assert (usual.answer.state, usual.answer.exit_code) == (State.WARN, 0)
    assert (strict.answer.state, strict.answer.exit_code) == (State.BAD, 1)
    assert Doctor().diagnose(machine).verdicts["nvlink.links"] == "fail"
    assert usual.answer.sentence == "GPU2: 16 of 18 NVLinks are active"


def test_faults_of_gpus_that_are_not_shown_do_not_count() -> None:
    machine = replay.load_machine("h200-links-down")
    assert topology_of(machine, gpus="0-1").answer.state is State.GOOD
    assert topology_of(machine, gpus="1-2").answer.state is State.WARN
