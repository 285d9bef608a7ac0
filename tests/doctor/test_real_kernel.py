"""The real kernel: device nodes 195:N in real cgroups of both versions, closed by modes, mounts and namespaces.

The command reads a directory tree in the place of ``/`` in which the GPUs' device nodes are real ones, and so are the
process' own files and the cgroups. No GPU is there, and none is needed: the kernel asks nobody but the cgroup. Filters
of system calls and cpusets are real ones too. What holds on GPUs as well is in tests/gpu/test_doctor_access.py.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from egmctl.facts import replay
from tests.doctor import confined
from tests.doctor.cgroups import GPU_MAJOR, cpuset, denying_v1, denying_v2
from tests.doctor.real_node import CONTROL, Findings, Node, evidence, hgx_node, without_driver

pytestmark = [pytest.mark.needs_root, pytest.mark.needs("mount", "cc"), without_driver]

CGROUP, PERMISSIONS, NODES, COUNT = (
    "dev.cgroup-restricted",
    "dev.permissions",
    "dev.nodes-missing",
    "dev.count-consistency",
)


@pytest.fixture
def node() -> Iterator[Node]:
    with hgx_node() as made:
        yield made


PSEUDONYM = r"/cgroup-[0-9]+"
"""What the JSON document has for a cgroup whose name no manager gives."""


def assert_denies(node: Node, minor: int, code: int, findings: Findings) -> None:
    """The doctor names exactly this GPU, and the cgroup."""
    assert code == 1
    finding = findings[CGROUP]
    assert finding["status"] == "fail"
    assert finding["place"]["ids"] == [node.bus_id(minor)]
    assert finding["summary"].startswith(f"the device cgroup denies /dev/nvidia{minor}, but GPU")
    assert (f"access(/dev/nvidia{minor})", "EPERM") in evidence(finding).items()
    assert re.fullmatch(PSEUDONYM, evidence(finding)["/proc/self/cgroup"])
    assert "3 accessible" in findings[COUNT]["evidence"][0]["value"]
    assert findings[PERMISSIONS]["status"] != "fail"


def test_version_1(node: Node) -> None:
    with denying_v1(1) as cgroup:
        code, findings = node.doctor("--gpus", node.bus_id(1), cgroups=[cgroup])
    assert_denies(node, 1, code, findings)
    assert evidence(findings[CGROUP])["devices.list (a hint only)"] == "a *:* rwm", "as if nothing were denied"


@pytest.mark.long
def test_a_user_without_rights_meets_the_same_cgroup(node: Node) -> None:
    def before() -> None:
        cgroup.join()
        confined.become_nobody()

    with denying_v2(1) as cgroup:
        code, findings = node.doctor("--gpus", node.bus_id(1), before=before)
    assert_denies(node, 1, code, findings)
    assert "bpf(BPF_PROG_QUERY)" not in evidence(findings[CGROUP]), "only root may ask for the programs"


@pytest.mark.long
def test_mode_bits(node: Node) -> None:
    node.device(1).chmod(0)
    assert node.doctor()[1][PERMISSIONS]["status"] == "pass", "root passes over mode bits"
    code, findings = node.doctor(before=confined.become_nobody)
    assert (code, findings[PERMISSIONS]["status"]) == (1, "fail")
    assert findings[PERMISSIONS]["place"]["ids"] == [node.bus_id(1)]
    assert findings[PERMISSIONS]["cause"].startswith(
        "the mode bits (mode 0000, uid 0, gid 0) or a security module deny uid 65534"
    )
    assert findings[CGROUP]["status"] == "pass"


def test_a_mount_with_nodev(node: Node) -> None:
    subprocess.run(["mount", "-o", "remount,nodev", str(node.root / "dev")], check=True)
    with pytest.raises(PermissionError):
        node.device(0).open("rb")
    code, findings = node.doctor()
    assert (code, findings[PERMISSIONS]["status"]) == (1, "fail")
    assert "nodev" in findings[PERMISSIONS]["summary"]
    assert evidence(findings[PERMISSIONS])["access(/dev/nvidia0)"] == "ok", "which is why access(2) is not enough here"


def test_a_missing_node_on_a_host(node: Node) -> None:
    node.device(3).unlink()
    code, findings = node.doctor()
    assert (code, findings[NODES]["status"]) == (1, "fail")
    assert findings[NODES]["remedy"]["run"] == "nvidia-modprobe -c 3"


@pytest.mark.long
def test_a_missing_node_in_a_container(node: Node) -> None:
    node.device(3).unlink()
    (node.root / ".dockerenv").touch()
    code, findings = node.doctor("--gpus", node.bus_id(3))
    assert (code, findings[NODES]["cause"]) == (1, "set by Docker")


@pytest.mark.long
def test_a_user_namespace_that_does_not_know_the_owner(node: Node) -> None:
    os.chown(node.device(1), 12345, 12345)
    node.device(1).chmod(0o660)
    assert node.doctor()[1][PERMISSIONS]["status"] == "pass"
    code, findings = node.doctor(before=confined.enter_user_namespace)
    assert (code, findings[PERMISSIONS]["status"]) == (1, "fail")
    assert findings[PERMISSIONS]["place"]["ids"] == [node.bus_id(1)]
    assert "user namespace" in findings[PERMISSIONS]["cause"]


@pytest.mark.long
def test_nvidiactl_denied_in_a_container_is_the_loss_of_its_rules(node: Node) -> None:
    (node.root / ".dockerenv").touch()
    with denying_v2(0, 1, 2, 3, CONTROL) as cgroup:
        code, findings = node.doctor(cgroups=[cgroup])
    assert (code, findings[CGROUP]["status"], findings["dev.control-nodes"]["status"]) == (1, "fail", "fail")
    assert "create-dev-char-symlinks" in findings["dev.control-nodes"]["remedy"]["text"]


def faults_of(findings: Findings) -> dict[str, list[str]]:
    """Return each cause, and what it explains."""
    graves = [finding for finding in findings.values() if finding["status"] == "fail" and not finding["explained_by"]]
    return {one["check"]: one["explains"] for one in graves}


def test_what_is_no_device_node_of_the_gpu_is_named(node: Node) -> None:
    for minor in range(4):
        node.device(minor).unlink()
    node.device(0).mkdir()
    os.mkfifo(node.device(1))
    os.mknod(node.device(2), 0o060666, os.makedev(GPU_MAJOR, 2))
    os.mknod(node.device(3), 0o020666, os.makedev(GPU_MAJOR, 99))
    code, out = node.run("doctor", "--json", "--check", PERMISSIONS)
    faults = {finding["place"]["label"]: finding["summary"] for finding in json.loads(out)["result"]["findings"]}
    words = {
        "GPU0": "/dev/nvidia0 is not a character device (directory)",
        "GPU1": "/dev/nvidia1 is not a character device (fifo)",
        "GPU2": "/dev/nvidia2 is not a character device (block)",
        "GPU3": "/dev/nvidia3 has the numbers of another device",
    }
    assert (code, faults.keys()) == (1, words.keys())
    assert [gpu for gpu, sentence in words.items() if sentence not in faults[gpu]] == []


def test_null_bound_over_a_device_node_is_named(node: Node) -> None:
    node.device(2).unlink()
    os.mknod(node.device(2), 0o020666, os.makedev(1, 3))
    code, findings = node.doctor("--gpus", node.bus_id(2))
    assert (code, list(faults_of(findings))) == (1, [NODES])
    assert "/dev/null is bound over /dev/nvidia2" in findings[NODES]["summary"]
    assert findings[NODES]["place"]["label"] == "GPU2"


@pytest.fixture
def tray(tmp_path: Path) -> Node:
    return Node(replay.load_machine("gb200-tray"), tmp_path / "root")


@pytest.mark.long
def test_a_filter_that_refuses_memory_policies(tray: Node) -> None:
    def before() -> None:
        confined.filter_calls(("get_mempolicy", "mbind"), confined.ERRNO, 1)

    code, findings = tray.doctor("--check", "numa.*", before=before)
    finding = findings["numa.mempolicy-syscalls"]
    assert (code, finding["status"]) == (1, "fail")
    assert finding["summary"].startswith("get_mempolicy and mbind are refused")
    assert (finding["evidence"][0]["errno"], findings["numa.cpuset-mems"]["status"]) == ("EPERM", "pass")


@pytest.mark.long
def test_a_filter_that_kills(tray: Node) -> None:
    def before() -> None:
        confined.filter_calls(("get_mempolicy", "mbind", "bpf"), confined.KILL)

    code, findings = tray.doctor("--check", "numa.*", before=before)
    finding = findings["numa.mempolicy-syscalls"]
    assert (code, finding["status"]) == (1, "fail")
    assert [item["value"] for item in finding["evidence"]][:3] == ["killed", "killed", "ok"]


@pytest.mark.long
def test_a_cpuset(tray: Node) -> None:
    """The kernel's own Mems_allowed_list in a real cpuset, against a machine that has a node more than this one."""
    with cpuset("0", "0") as cgroup:
        code, findings = tray.doctor("--numa", "1", cgroups=[cgroup])
    finding = findings["numa.cpuset-mems"]
    assert (code, finding["status"], finding["place"]["ids"]) == (1, "fail", ["1"])
    assert evidence(finding)["/proc/self/status: Mems_allowed_list"] == "0"
    assert evidence(finding)["/proc/self/status: Cpus_allowed_list"] == "0"
