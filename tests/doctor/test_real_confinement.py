"""The real kernel: filters of system calls and cpusets that the command meets, and what it then says."""

from __future__ import annotations

from pathlib import Path

import pytest

from egmctl.facts import replay
from tests.doctor import confined
from tests.doctor.cgroups import cpuset
from tests.doctor.real_node import Node, evidence, without_driver

pytestmark = [pytest.mark.needs_root, pytest.mark.needs("mount", "cc"), without_driver]


@pytest.fixture
def node(tmp_path: Path) -> Node:
    return Node(replay.load("gb200-tray"), tmp_path / "root")


@pytest.mark.long
def test_a_filter_that_refuses_memory_policies(node: Node) -> None:
    def before() -> None:
        confined.filter_calls(("get_mempolicy", "mbind"), confined.ERRNO, 1)

    code, findings = node.doctor("--check", "numa.*", before=before)
    finding = findings["numa.mempolicy-syscalls"]
    assert (code, finding["status"]) == (1, "fail")
    assert finding["summary"].startswith("get_mempolicy and mbind are refused")
    assert (finding["evidence"][0]["errno"], findings["numa.cpuset-mems"]["status"]) == ("EPERM", "pass")


@pytest.mark.long
def test_a_filter_that_kills(node: Node) -> None:
    def before() -> None:
        confined.filter_calls(("get_mempolicy", "mbind", "bpf"), confined.KILL)

    code, findings = node.doctor("--check", "numa.*", before=before)
    finding = findings["numa.mempolicy-syscalls"]
    assert (code, finding["status"]) == (1, "fail")
    assert [item["value"] for item in finding["evidence"]][:3] == ["killed", "killed", "ok"]


@pytest.mark.long
def test_a_cpuset(node: Node) -> None:
    """The kernel's own Mems_allowed_list in a real cpuset, against a machine that has a node more than this one."""
    with cpuset("0", "0") as cgroup:
        code, findings = node.doctor("--numa", "1", before=cgroup.join)
    finding = findings["numa.cpuset-mems"]
    assert (code, finding["status"], finding["place"]["ids"]) == (1, "fail", ["1"])
    assert evidence(finding)["/proc/self/status: Mems_allowed_list"] == "0"
    assert evidence(finding)["/proc/self/status: Cpus_allowed_list"] == "0"
