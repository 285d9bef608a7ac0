"""The fabric of NVLink 5: what has to run and be loaded on the node itself, and what belongs to the rack."""

from __future__ import annotations

from typing import Any

import pytest

from egmctl.model.finding import Status
from egmctl.model.host import Nic, NicPort
from egmctl.model.machine import Machine
from tests.doctor.faults import healthy, hgx_b200
from tests.doctor.machines import patched, run_one, shipped


def in_progress(**system: Any) -> Machine:
    machine = patched(hgx_b200(), "gpus[*].nvml.fabric", state="in-progress", status=None)
    changed: Machine = patched(machine, "system", **system)
    return changed


@pytest.mark.parametrize(
    ("changes", "status", "words"),
    [
        ({}, Status.PASS, "the NVLink 5 switches"),
        ({"module_versions": {"mlx5_core": "", "mlx5_ib": ""}}, Status.FAIL, "ib_umad not loaded"),
        ({"module_versions": {}}, Status.FAIL, "mlx5_core and mlx5_ib and ib_umad"),
        ({"module_versions": None}, Status.UNKNOWN, "not read"),
        ({"daemons": ("nv-fabricmanager",)}, Status.FAIL, "nvlsm"),
        ({"daemons": None}, Status.UNKNOWN, "processes"),
        ({"nvlink_management": (Nic(name="mlx5_8", ports=(NicPort(number=1, state="DOWN"),)),)}, Status.FAIL, "port"),
        ({"nvlink_management": None}, Status.PASS, "the NVLink 5 switches"),
    ],
)
def test_what_the_switches_need(changes: dict[str, Any], status: Status, words: str) -> None:
    finding = run_one("fabric.management", in_progress(**changes))
    assert (finding.status, words in finding.summary) == (status, True), finding.summary


def test_a_fabric_that_is_complete_needs_no_proof() -> None:
    assert run_one("fabric.management", patched(hgx_b200(), "system", module_versions={})).status is Status.PASS


def test_only_a_node_with_switches_of_its_own_is_asked() -> None:
    for machine in (healthy(), shipped("hgx-h200x4"), shipped("dgx-h100")):
        assert run_one("fabric.management", machine).status is Status.SKIP


def test_its_fabric_manager_must_run_though_no_switch_is_on_pcie() -> None:
    assert run_one("fabric.manager", in_progress(daemons=("nvlsm",))).status is Status.FAIL
    assert run_one("fabric.manager", in_progress()).status is Status.PASS


def test_in_progress_for_ever_names_who_has_to_end_it() -> None:
    board = run_one("fabric.state", patched(in_progress(), "driver", cuda_error="CUDA_ERROR_SYSTEM_NOT_READY"))
    assert "802" in board.summary
    assert "fabric.management" in (board.remedy.text if board.remedy else "")
    assert ("cuInit", "CUDA_ERROR_SYSTEM_NOT_READY") in {(item.source, item.value) for item in board.evidence}
    tray = run_one("fabric.state", patched(healthy(), "gpus[*].nvml.fabric", state="in-progress", status=None))
    assert "NMX-C" in (tray.remedy.text if tray.remedy else "")
