"""The NVLink fabric and IMEX: what has to run and be loaded on the node itself, and what belongs to the rack."""

from __future__ import annotations

from typing import Any

import pytest

from egmctl.model.finding import Guard, Status
from egmctl.model.host import Imex, Nic, NicPort
from egmctl.model.machine import Machine
from egmctl.model.record import Reason, Unread
from tests.doctor.cases import asked
from tests.doctor.faults import HEALTHY_FABRIC, healthy, hgx_b200
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


HGX = shipped("hgx-h200x4")


class TestFabric:
    def test_a_fabric_that_comes_up_gets_its_time(self) -> None:
        machine = patched(HGX, "gpus[*].nvml.fabric", state="in-progress", status=None)
        assert run_one("fabric.state", patched(machine, "system", uptime_s=60.0)).status is Status.WARN
        assert run_one("fabric.state", patched(machine, "system", uptime_s=3600.0)).status is Status.FAIL

    @pytest.mark.parametrize(
        ("field", "word", "status"),
        [
            ("degraded_bandwidth", "true", Status.WARN),
            ("route_recovery", "true", Status.WARN),
            ("route_unhealthy", "true", Status.FAIL),
            ("access_timeout_recovery", "true", Status.WARN),
            ("incorrect_configuration", "no-partition", Status.FAIL),
            ("incorrect_configuration", "not-supported", Status.PASS),
            ("fabric_manager", "disconnected", Status.FAIL),
        ],
    )
    def test_every_bit_of_the_health_mask(self, field: str, word: str, status: Status) -> None:
        machine = patched(healthy(), "gpus[*].nvml.fabric", health=HEALTHY_FABRIC | {field: word})
        assert run_one("fabric.state", machine).status is status

    def test_no_channel_is_a_fault_where_handles_are_wanted(self) -> None:
        assert run_one("imex.channel", HGX).status is Status.SKIP
        assert run_one("imex.channel", HGX, asked(Guard.FABRIC)).status is Status.FAIL
        assert run_one("imex.channel", patched(healthy(), "driver", imex_channels=())).status is Status.WARN

    @pytest.mark.parametrize(
        ("daemons", "state", "reason", "hidden", "status"),
        [
            (("nvidia-imex",), "READY", None, False, Status.PASS),
            (("nvidia-imex",), "WAITING_FOR_PEERS", None, False, Status.WARN),
            (("nvidia-imex",), "SHUTTING_DOWN", None, False, Status.FAIL),
            (("nvidia-imex",), None, Reason.TIMED_OUT, False, Status.FAIL),
            (("nvidia-imex",), None, Reason.NOT_PRESENT, False, Status.UNKNOWN),
            ((), None, Reason.NOT_PRESENT, False, Status.FAIL),
            ((), None, Reason.NOT_PRESENT, True, Status.UNKNOWN),
        ],
    )
    def test_the_imex_service(
        self, daemons: tuple[str, ...], state: str | None, reason: Reason | None, hidden: bool, status: Status
    ) -> None:
        unread = {"daemon_state": Unread(reason=reason)} if reason else {}
        known: dict[str, Any] = {"runs_in": ("host",), "kubelet": False, "compute_domains": False}
        imex = Imex(daemon_state=state, unread=unread, **known)
        machine = patched(healthy(), "system", daemons=daemons, imex=imex)
        # What counts is whose processes are seen: a container with the host's PID namespace sees them all.
        machine = patched(machine, "process", container_signs=("/.dockerenv",))
        machine = patched(machine, "confinement", namespaces={"pid": 4026532281 if hidden else 0xEFFFFFFC})
        assert run_one("imex.daemon", machine).status is status
