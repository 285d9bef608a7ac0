"""IMEX is run by the host's service or by Kubernetes' DRA driver in pods; the two exclude each other."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest

from egmctl.facts import system as services
from egmctl.facts.root import Root
from egmctl.facts.services import IMEX_LOG
from egmctl.model.finding import Finding, Guard, Status
from egmctl.model.host import Imex
from egmctl.model.machine import Machine
from tests.doctor.faults import Fault, changed, healthy
from tests.doctor.machines import patched, run_one, shipped
from tests.fake.sysroot import Tree

HOST = "0::/system.slice/nvidia-imex.service"
POD = "0::/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod1.slice/cri-containerd-2.scope"
PLUGIN = "/usr/bin/compute-domain-kubelet-plugin\0-v\0004"

FAULTS: dict[str, Fault] = {
    "imex.daemon": changed("system", daemons=(), imex=Imex(runs_in=(), kubelet=False, compute_domains=False))
}


def well(machine: Machine) -> Machine:
    return patched(
        machine,
        "system.imex",
        runs_in=("host",),
        kubelet=False,
        compute_domains=False,
        session_in_use=False,
        version=machine.driver and machine.driver.module_version,
        unanswered_unimport=False,
    )


def node(tmp_path: Path, running: Mapping[str, tuple[str, str, str]], *, log: str = "", files: bool = False) -> Imex:
    """Read a node on which processes run, each with its cgroup, command line and environment."""
    tree = Tree(tmp_path)
    tree.folder("/proc")
    for number, (comm, texts) in enumerate(running.items()):
        tree.write(f"/proc/{100 + number}/comm", comm)
        for name, text in zip(("cgroup", "cmdline", "environ"), texts, strict=True):
            tree.write(f"/proc/{100 + number}/{name}", text or None)
    tree.write(IMEX_LOG, log or None)
    if files:
        tree.folder(services.COMPUTE_DOMAIN_PLUGIN)
    root = Root(str(tmp_path))
    return services.imex(root, lambda: services.processes(root))


def on(facts: Imex, *, state: str | None = None) -> Finding:
    """Judge the healthy tray with what was read there."""
    daemons = ("nvidia-imex",) if facts.runs_in else ()
    machine = patched(healthy(), "system", daemons=daemons, imex=patched(facts, "", daemon_state=state))
    return run_one("imex.daemon", machine)


def alone(nodes: int) -> Machine:
    """An HGX board whose fabric is its own, with the IMEX service set up for some nodes."""
    imex = Imex(configured_nodes=nodes)
    machine = patched(shipped("hgx-b200"), "system", daemons=("nvidia-imex",), imex=imex)
    return patched(machine, "gpus[*].nvml.fabric", cluster_uuid=None)


def test_imex_joins_no_nodes_that_nvlink_does_not() -> None:
    finding = run_one("imex.daemon", alone(2))
    assert (finding.status, finding.blocks) == (Status.NOTE, (Guard.FABRIC,))
    assert "no multi-node NVLink joins this one to another" in finding.summary
    assert run_one("imex.daemon", alone(1)).status is Status.SKIP


@pytest.mark.parametrize(("state", "status"), [("DOWN", Status.FAIL), ("DEGRADED", Status.WARN), ("UP", Status.WARN)])
def test_a_node_that_is_listed_twice_is_named_whatever_it_does_to_the_domain(state: str, status: Status) -> None:
    finding = run_one("imex.domain", patched(healthy(), "system.imex", duplicate_nodes=1, domain_status=state))
    assert (finding.status, "lists an address twice" in finding.summary) == (status, True)


KUBELET = {"kubelet": ("0::/system.slice/kubelet.service", "/usr/bin/kubelet", "")}
SERVICE = {"nvidia-imex": (HOST, "/usr/bin/nvidia-imex", "")}
DAEMON = {"nvidia-imex": (POD, "/usr/bin/nvidia-imex", "")}


def plugin(mode: str = "") -> dict[str, tuple[str, str, str]]:
    environment = f"PATH=/usr/bin\0IMEX_MODE={mode}\0A=b" if mode else "PATH=/usr/bin"
    return {**KUBELET, "compute-domain-": (POD, PLUGIN, environment)}


def test_without_kubernetes_the_service_has_to_run(tmp_path: Path) -> None:
    facts = on(node(tmp_path, {}))
    assert facts.status is Status.FAIL
    assert facts.remedy is not None
    assert facts.remedy.run == "systemctl enable --now nvidia-imex"


@pytest.mark.parametrize("mode", ["", "driverManaged"])
def test_driver_managed_domains_need_no_service_and_none_runs_on_an_idle_node(tmp_path: Path, mode: str) -> None:
    imex = node(tmp_path, plugin(mode))
    assert (imex.kubelet, imex.compute_domains, imex.compute_domain_mode) == (True, True, "driverManaged")
    assert on(imex).status is Status.PASS
    assert on(imex, state="UNAVAILABLE").status is Status.PASS


def test_the_daemon_of_a_pod_is_the_drivers(tmp_path: Path) -> None:
    facts = on(node(tmp_path, KUBELET | DAEMON))
    assert (facts.status, facts.summary) == (Status.PASS, "the DRA driver's IMEX daemon runs")


def test_beside_driver_managed_domains_an_unread_place_of_the_daemon_never_passes() -> None:
    machine = patched(healthy(), "system.imex", compute_domain_mode="driverManaged", runs_in=None)
    assert run_one("imex.daemon", machine).status is Status.UNKNOWN


def test_host_managed_domains_need_the_service(tmp_path: Path) -> None:
    facts = on(node(tmp_path, plugin("hostManaged")))
    assert facts.status is Status.FAIL
    assert facts.remedy is not None
    assert (facts.remedy.run, "command socket" in facts.remedy.text) == ("systemctl enable --now nvidia-imex", True)
    assert on(node(tmp_path / "on", plugin("hostManaged") | SERVICE), state="READY").status is Status.PASS


@pytest.mark.parametrize("running", [KUBELET, KUBELET | SERVICE])
def test_where_the_mode_is_unknown_both_cases_are_told(
    tmp_path: Path, running: Mapping[str, tuple[str, str, str]]
) -> None:
    facts = on(node(tmp_path, running, files=True), state="READY" if running != KUBELET else None)
    assert facts.status is Status.NOTE
    assert facts.remedy is not None
    assert facts.remedy.run is None
    assert "need it off" in facts.remedy.text
    assert "nodes without ComputeDomains, need the host's nvidia-imex on" in facts.remedy.text


def test_the_mode_of_another_users_plugin_is_unknown(tmp_path: Path) -> None:
    processes = {**KUBELET, "compute-domain-": (POD, PLUGIN, "")}
    assert on(node(tmp_path, processes)).status is Status.NOTE


def test_a_refused_session_names_the_other_daemon(tmp_path: Path) -> None:
    log = "Failed to allocate Imex session: NV_ERR_IN_USE"
    facts = on(node(tmp_path, SERVICE, log=log), state="SHUTTING_DOWN")
    assert (facts.status, facts.summary) == (Status.FAIL, "another IMEX daemon holds the GPU driver's session")
    assert facts.remedy is not None
    assert "systemctl enable" not in (facts.remedy.run or "")


def test_a_log_of_before_the_service_was_turned_off_is_no_fault(tmp_path: Path) -> None:
    assert on(node(tmp_path, KUBELET, log="NV_ERR_IN_USE", files=True)).status is Status.NOTE


def test_nothing_else_tells_to_restart_a_service_that_must_be_off() -> None:
    waiting = patched(healthy(), "gpus[0].nvml", recovery_action="recover-imex-domain")
    waiting = patched(waiting, "system.imex", compute_domain_mode="driverManaged")
    remedy = run_one("imex.recovery", waiting).remedy
    assert remedy is not None
    assert remedy.run is None
    without = patched(patched(waiting, "system.imex", compute_domains=True), "driver", imex_channels=())
    assert run_one("imex.channel", without).status is Status.SKIP
    assert run_one("imex.domain", without).status is Status.SKIP


STARTED = (
    "[Sep 18 2026 06:40:33] [INFO] [tid 77] IMEX version 580.159.04 is running with the following configuration "
    "options:\n"
)
LONG = "[Sep 18 2026 06:50:00] [INFO] [tid 80] ready\n" * 4000
UNANSWERED = "[Sep 18 2026 06:50:00] [ERROR] [tid 80] failed to receive response for unimport event id 4711\n"


@pytest.mark.parametrize(
    ("log", "version", "unanswered"),
    [
        (STARTED, "580.159.04", False),
        (STARTED + UNANSWERED, "580.159.04", True),
        (STARTED + UNANSWERED + STARTED.replace("580.159.04", "595.71.05"), "595.71.05", False),
        ("READY\n", None, False),
        # Only the end of a long log is read: an earlier start is not the last one, nor its lines those since.
        (STARTED + UNANSWERED + LONG + STARTED.replace("580.159.04", "595.71.05"), "595.71.05", False),
        (STARTED + STARTED.replace("580.159.04", "595.71.05") + LONG, None, None),
        (STARTED + UNANSWERED + LONG + STARTED + LONG, None, None),
        (STARTED + LONG + UNANSWERED, None, True),
    ],
)
def test_the_log_states_the_version_and_who_does_not_answer(
    tmp_path: Path, log: str, version: str | None, unanswered: bool | None
) -> None:
    facts = node(tmp_path, SERVICE, log=log)
    assert (facts.version, facts.unanswered_unimport) == (version, unanswered)


def test_imex_of_another_version_than_the_drivers_is_the_cause_unless_it_is_ready() -> None:
    other = patched(healthy(), "system.imex", version="570.86.15")
    waiting = run_one("imex.daemon", patched(other, "system.imex", daemon_state="INITIALIZING"))
    assert (waiting.status, "the IMEX service is 570.86.15, and the driver" in waiting.summary) == (Status.FAIL, True)
    assert run_one("imex.daemon", other).status is Status.PASS


def test_a_node_that_does_not_release_memory_is_noted() -> None:
    finding = run_one("imex.daemon", patched(healthy(), "system.imex", unanswered_unimport=True))
    assert finding.status is Status.NOTE
    assert "at least once since the service started" in finding.summary
    assert finding.remedy is not None
    assert (finding.remedy.look, finding.remedy.run) == ("nvidia-imex-ctl -N", None)
