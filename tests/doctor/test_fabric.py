"""The NVLink fabric and IMEX: what has to run and be loaded on the node itself, and what belongs to the rack."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from egmctl.api.doctor import Doctor
from egmctl.doctor.check import EVERYTHING, Scope, expectation
from egmctl.doctor.runner import CHECKS
from egmctl.facts import replay
from egmctl.model.finding import TOLD, Guard, Status
from egmctl.model.host import Imex, Nic, NicPort
from egmctl.model.machine import Machine
from egmctl.model.record import Reason, Unread
from egmctl.model.remedy import Need
from egmctl.report.exports.json import result_json
from egmctl.topology.platform import platform
from tests import in_process
from tests.answers import diagnose
from tests.doctor.cases import asked, verdicts
from tests.doctor.faults import HEALTHY_FABRIC, OUTSIDE, healthy, hgx_b200
from tests.doctor.machines import patched, run, run_one, shipped
from tests.doctor.sick import with_cluster


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


@pytest.mark.parametrize(
    ("changes", "daemons", "remedy"),
    [
        ({"virtualization": "vgpu"}, None, "On the host activate this virtual machine's partition"),
        ({"virtualization": "passthrough"}, (), "On the host activate this virtual machine's partition"),
        ({"virtualization": "passthrough"}, ("nv-fabricmanager",), "Read the fabric manager's log"),
        ({"virtualization": "passthrough"}, None, "Start the driver's fabric manager"),
        ({"virtualization": "none"}, (), "Start the driver's fabric manager"),
    ],
)
def test_whose_fabric_manager_it_is(changes: dict[str, Any], daemons: tuple[str, ...] | None, remedy: str) -> None:
    """A guest without switches and fabric manager can do nothing itself; what was not read leaves that open."""
    machine = patched(patched(shipped("hgx-h200x4"), "gpus[*].nvml", **changes), "system", daemons=daemons)
    finding = run_one("fabric.state", patched(machine, "gpus[*].nvml.fabric", state="completed", status=4))
    assert finding.summary == "the fabric's registration ended with NVML error 4 (insufficient permissions)"
    assert finding.remedy is not None
    assert remedy in finding.remedy.text


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
        assert run_one("imex.channel", patched(healthy(), "driver", imex_channels=())).status is Status.NOTE
        in_a_job = patched(patched(healthy(), "driver", imex_channels=()), "process", environment={"SLURM_JOB_ID": "7"})
        assert run_one("imex.channel", in_a_job).status is Status.WARN

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


CLUSTER = "9c6f5af3-53bf-49b5-a436-b66766c413c3"
UNREAD = {"clique_id": Unread(reason=Reason.FAILED)}


def expecting(text: str) -> Scope:
    return Scope(expectation=expectation(text))


def fallen(gpus: str = "*", **changes: Any) -> Machine:
    """A tray, or some of its GPUs, that fell out of the rack's domain: NVML still reports status success."""
    machine: Machine = patched(healthy(), f"gpus[{gpus}].nvml", fabric=OUTSIDE)
    return patched(machine, f"gpus[{gpus}].nvml.fabric", **changes) if changes else machine


def at(cluster: str = CLUSTER, clique: int = 5) -> Machine:
    machine: Machine = patched(healthy(), "gpus[*].nvml.fabric", cluster_uuid=cluster, clique_id=clique)
    return machine


def cliques(**changes: Any) -> Machine:
    """A tray one of whose GPUs is in another clique for multicast than the others."""
    types = {"unicast-pointer": (32766,), "multicast-pointer": (5,)}
    machine: Machine = patched(shipped("vr-nvl72"), "gpus[3].nvml.fabric", cliques=types, **changes)
    return machine


class TestDomain:
    """Whether the GPUs are in the NVLink domain that their board is built for."""

    @pytest.mark.parametrize(
        ("machine", "expected", "verdict"),
        [
            (healthy(), "", "pass GPU0-3"),
            (fallen(), "", "warn GPU0-3"),
            (fallen(cluster_uuid=CLUSTER), "", "warn GPU0-3"),
            (fallen(clique_id=3), "", "warn GPU0-3"),
            (fallen("3"), "", "fail GPU3; pass GPU0-2"),
            (patched(healthy(), "gpus[3].nvml.fabric", clique_id=2), "", "fail"),
            (patched(shipped("gh200x4"), "gpus[*].nvml", fabric=OUTSIDE), "", "pass GPU0-3"),
            (fallen(status=23), "", "skip"),
            (fallen(state="in-progress"), "", "skip"),
            (fallen(clique_id=None, unread={}), "", "warn GPU0-3"),
            (patched(at(), "gpus[1].nvml.fabric", clique_id=None, unread=UNREAD), "", "unknown GPU1; pass GPU0,2-3"),
            (fallen(), "domain", "fail GPU0-3"),
            (fallen(), "gb200-nvl72", "fail GPU0-3"),
            (fallen(), "hgx-h200x4", "warn GPU0-3"),
            (fallen(state="in-progress"), "domain", "fail GPU0-3"),
            (patched(healthy(), "gpus[*].nvml", fabric=None), "domain", "unknown GPU0-3"),
            (shipped("gb200-tray"), "domain", "unknown GPU0-3"),
            (shipped("hgx-h200x4"), "gpus=4,domain", "fail GPU0-3"),
            (at(), f"domain={CLUSTER.upper()}/5", "pass GPU0-3"),
            (at(), f"domain={CLUSTER}/4", "fail GPU0-3"),
            (at("9c6f5af3-53bf-49b5-a436-b66766c413c4"), f"domain={CLUSTER}/5", "fail GPU0-3"),
            (at(), "domain-gpus=72", "unknown; pass GPU0-3"),
            (fallen(), "domain-gpus=72", "fail GPU0-3; unknown"),
            (shipped("vr-nvl72"), "domain", "pass GPU0-3"),
            (cliques(), "domain", "note GPU0-3"),
            (cliques(clique_id=7), "domain", "fail"),
        ],
    )
    def test_a_tray_outside_is_a_warning_and_a_failure_where_a_domain_is_expected(
        self, machine: Machine, expected: str, verdict: str
    ) -> None:
        assert verdicts("fabric.domain", machine, expecting(expected) if expected else EVERYTHING) == verdict

    @pytest.mark.parametrize("name", [*replay.machine_names(), "cluster"])
    def test_no_healthy_machine_and_no_hgx_board_is_outside(self, name: str) -> None:
        """HGX boards have a cluster UUID and clique 0 (meta-pytorch/torchcomms, issue 1315)."""
        found = run("fabric.domain", with_cluster() if name == "cluster" else shipped(name))
        assert not {finding.status for finding in found} & {*TOLD}

    def test_the_remedy_is_the_fabrics_and_not_that_of_imex(self) -> None:
        finding = run_one("fabric.domain", fallen())
        assert finding.summary == "outside the NVLink domain (clique 0)"
        assert finding.remedy is not None
        assert {word for word in ("NMX-C", "reset", "IMEX") if word in finding.remedy.text} == {"NMX-C", "reset"}
        assert Need.GPU_RESET in finding.remedy.needs

    @pytest.mark.parametrize(
        ("imex", "effect"), [({"daemon_state": "STARTING"}, "imex.daemon"), ({"domain_status": "DOWN"}, "imex.domain")]
    )
    def test_it_is_the_one_cause_of_the_imex_findings_that_follow(self, imex: dict[str, str], effect: str) -> None:
        machine = patched(fallen(cluster_uuid=CLUSTER), "system.imex", **imex)
        found = diagnose(machine, EVERYTHING, CHECKS).findings
        (root,) = [finding for finding in found if finding.status in TOLD and not finding.explained_by]
        assert (root.check, root.status, root.explains) == ("fabric.domain", Status.FAIL, (effect,))

    def test_a_tray_outside_is_not_called_one_of_a_domain(self) -> None:
        assert "clique 1" in platform(healthy()).line
        assert "domain" not in platform(fallen(cluster_uuid=CLUSTER)).line

    @pytest.mark.parametrize(("clique", "code"), [(5, 0), (6, 1)])
    def test_the_true_uuid_is_compared_on_the_node_and_stays_there(self, clique: int, code: int) -> None:
        """What the text and the document say is the same, and the document has no UUID of the site."""
        doctor = Doctor(expect=f"domain={CLUSTER}/{clique}", check=("fabric.domain",))
        live, shared = doctor.diagnose(at()), doctor.diagnose(at(), redacted=True)
        assert (live.exit_code, shared.exit_code) == (code, code)
        assert CLUSTER in str(live.findings)
        assert CLUSTER not in result_json(shared)
        assert doctor.diagnose(shared.machine).exit_code == code, "a recorded machine has the pseudonym"

    def test_bringup_takes_the_expectation_and_names_the_cause(self, tmp_path: Path) -> None:
        file = tmp_path / "tray07.json"
        file.write_text(replay.machine_text(fallen()))
        done = in_process.run("bringup", "--machine", file, "--expect", "domain")
        assert (done.code, "NO-GO: GPU0-3: outside the NVLink domain (clique 0)\n" in done.out) == (1, True)
        assert in_process.run("bringup", "--machine", file).code == 3
