"""Machines with a fault that ship by name: a few changes to a healthy one each, and doctor names the fault."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace

import pytest

from egmctl.doctor.check import Scope
from egmctl.doctor.runner import CHECKS
from egmctl.errors import UsageError
from egmctl.facts import replay
from egmctl.files import machines_dir
from egmctl.model.finding import TOLD, root_causes
from egmctl.model.machine import Machine, OriginKind
from egmctl.report.kinds import Format
from egmctl.topology.topology import topology
from tests.answers import diagnose, render
from tests.doctor.machines import patched, shipped, with_gpu_denied
from tests.in_process import run

FAULTS = {
    "gb200-egm-off": {"egm.capability": "GPU0-3"},
    "gb200-outside-domain": {"fabric.domain": "GPU0-3"},
    "h200-cgroup-denied": {"dev.cgroup-restricted": "GPU3"},
    "h200-links-down": {"nvlink.links": "GPU2"},
    "h200-nvml-hangs": {"drv.libraries": "GPU0-3"},
    "h200-off-the-bus": {"dev.fell-off-bus": "GPU3"},
    "h200-sick-gpus": {"gpu.health": "GPU0", "gpu.throttle": "GPU1"},
}


def test_each_has_its_fault_here() -> None:
    assert replay.sick() == list(FAULTS)


@pytest.mark.parametrize("name", FAULTS)
def test_doctor_names_the_fault_and_its_gpus(name: str) -> None:
    machine = replay.load_machine(name)
    causes = [cause.finding for cause in root_causes(diagnose(machine, Scope(), CHECKS).findings)]
    healthy = diagnose(replay.load_machine(_like(name)), Scope(), CHECKS).findings
    known = {finding.check for finding in healthy if finding.status in TOLD}
    named = {finding.check: finding.place.label for finding in causes if finding.check not in known}
    assert named | FAULTS[name] == named
    assert named.keys() == FAULTS[name].keys()


def _like(name: str) -> str:
    like = json.loads((machines_dir() / "sick" / f"{name}.json").read_text())["like"]
    assert like in replay.machine_names()
    return str(like)


@pytest.mark.parametrize("name", FAULTS)
def test_each_is_a_model_of_a_few_changes_that_says_what_is_wrong(name: str) -> None:
    machine = replay.load_machine(name)
    assert (machine.origin.kind, machine.origin.name) == (OriginKind.MODELLED, name)
    assert machine.origin.description.startswith(_like(name))
    assert (machines_dir() / "sick" / f"{name}.json").stat().st_size < 1000
    assert str(render(topology(machine), Format.TEXT)).startswith(f"MODEL of {name}")


@pytest.mark.parametrize(
    ("name", "built"),
    [
        ("h200-cgroup-denied", lambda: with_gpu_denied(shipped("hgx-h200x4"), 3)),
        (
            "h200-off-the-bus",
            lambda: patched(with_gpu_denied(shipped("hgx-h200x4"), 3, access="ok"), "gpus[3].pci", responds=False),
        ),
    ],
)
def test_a_gpu_out_of_sight_is_as_doctors_tests_build_it(name: str, built: Callable[[], Machine]) -> None:
    machine = replay.load_machine(name)
    assert replay.document(machine) == replay.document(replace(built(), origin=machine.origin))


def test_the_list_has_them_after_the_healthy_ones_and_a_wrong_name_is_told() -> None:
    text = run("topo", "--machine", "list").out
    assert "h200-links-down" in text
    assert "two NVLinks of GPU2 down" in text
    assert replay.machine_names() + replay.sick() == [line.split()[0] for line in text.splitlines() if line[:1].strip()]
    with pytest.raises(UsageError, match="did you mean h200-links-down"):
        replay.load_machine("h200-links")
