"""The real kernel: the access of another process, which only that process' own place can tell."""

from __future__ import annotations

import contextlib
import errno
import functools
import os
import signal
import stat
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from egmctl.driver.reading import Unreadable
from egmctl.facts import inside
from egmctl.facts.root import Root
from egmctl.model.record import Reason
from tests.conftest import RunEgmctl
from tests.doctor import confined
from tests.doctor.cgroups import GPU_MAJOR, denying_v2, mounted
from tests.doctor.real_node import Node, evidence, hgx_node, without_driver

pytestmark = [pytest.mark.needs_root, pytest.mark.needs("mount", "cc"), without_driver]

CGROUP = "dev.cgroup-restricted"


@pytest.fixture
def node() -> Iterator[Node]:
    with hgx_node() as made:
        yield made


@contextlib.contextmanager
def job(node: Node, before: Callable[[], None], **variables: str) -> Iterator[int]:
    """Run a process as a job would be; return its number."""
    with subprocess.Popen(["sleep", "60"], preexec_fn=before, env={"PATH": os.environ["PATH"], **variables}) as process:
        (node.root / f"proc/{process.pid}").symlink_to(f"/proc/{process.pid}")
        try:
            yield process.pid
        finally:
            process.kill()


@pytest.mark.long
def test_its_environment_and_its_user_count(node: Node) -> None:
    def before() -> None:
        os.setgid(confined.NOBODY)
        os.setuid(confined.NOBODY)

    node.device(2).chmod(0o600)
    with job(node, before, CUDA_VISIBLE_DEVICES="0,2", AWS_SESSION="hunter2") as pid:
        _, findings = node.doctor("--pid", str(pid))
    assert findings["dev.permissions"]["place"]["ids"] == [node.bus_id(2)]
    assert f"or a security module deny uid {confined.NOBODY}" in findings["dev.permissions"]["cause"]
    assert evidence(findings["env.visible-devices"])["environment"] == "CUDA_VISIBLE_DEVICES=0,2"
    assert "hunter2" not in repr(findings)


def test_root_of_a_user_namespace_is_no_root(node: Node) -> None:
    """Its capabilities count for its own users' files, and the nodes are not theirs."""

    def before() -> None:
        os.setgid(confined.NOBODY)
        os.setuid(confined.NOBODY)
        confined.enter_user_namespace()

    node.device(2).chmod(0o600)
    with job(node, before) as pid:
        _, findings = node.doctor("--pid", str(pid))
    assert findings["dev.permissions"]["place"]["ids"] == [node.bus_id(2)]


@pytest.mark.long
@pytest.mark.parametrize("call", ["openat2", "faccessat2"])
@pytest.mark.parametrize(("number", "name"), [(errno.ENOSYS, "ENOSYS"), (errno.EPERM, "EPERM")])
def test_without_a_system_call_its_access_is_unknown(node: Node, call: str, number: int, name: str) -> None:
    """As on a kernel that is too old, or under a filter that does not know the call: nothing else is tried instead."""
    with job(node, lambda: None) as pid:
        confine = functools.partial(confined.filter_calls, [call], confined.ERRNO, number)
        _, findings = node.doctor("--pid", str(pid), before=confine)
    finding = findings[CGROUP]
    assert finding["status"] == "unknown"
    assert finding["summary"] == (
        f"whether these GPUs are accessible is unknown: /proc/{pid}: the child cannot stand beside it: {call}: {name}"
    )


@pytest.mark.long
def test_where_asking_kills_its_access_is_unknown(node: Node) -> None:
    with job(node, lambda: None) as pid:
        _, findings = node.doctor("--pid", str(pid), before=lambda: confined.filter_calls(["openat2"], confined.KILL))
    assert findings[CGROUP]["status"] == "unknown"
    assert findings[CGROUP]["summary"].endswith(f"/proc/{pid}: the child that stands beside it crashed")


@pytest.mark.long
def test_without_roots_rights_its_access_is_unknown(node: Node) -> None:
    with denying_v2(1) as cgroup, job(node, cgroup.join) as pid:
        _, findings = node.doctor("--pid", str(pid), before=confined.become_nobody)
    finding = findings[CGROUP]
    assert finding["status"] == "unknown"
    reason = "only root can join the cgroup of another process"
    assert finding["summary"] == f"whether these GPUs are accessible is unknown: {reason}"


def test_a_process_that_is_not_there(egmctl: RunEgmctl) -> None:
    done = egmctl("doctor", "--pid", "4194305")
    assert (done.code, done.err.strip()) == (2, "egmctl: there is no process 4194305")


def test_its_own_root_directory(tmp_path: Path) -> None:
    """As a container has one: the device nodes are looked for there, and not in ours."""
    with mounted("tmpfs", "dev", tmp_path / "root") as root:
        (root / "dev").mkdir()
        for minor in (0, 1):
            os.mknod(root / f"dev/nvidia{minor}", stat.S_IFCHR | 0o666, os.makedev(GPU_MAJOR, minor))
        with denying_v2(1) as cgroup:
            started, ready = os.pipe()
            if (child := os.fork()) == 0:
                try:
                    cgroup.join()
                    os.chroot(root)
                    os.write(ready, b".")
                    signal.pause()
                finally:
                    os._exit(0)
            try:
                os.read(started, 1)
                reading = inside.read_device_nodes_of(Root(), child, [0, 1, 2])
            finally:
                os.kill(child, signal.SIGKILL)
                os.waitpid(child, 0)
                os.close(started)
                os.close(ready)
    assert {minor: node.access for minor, node in reading.gpus.items()} == {0: "ok", 1: "EPERM", 2: "ENOENT"}


def test_a_process_that_has_ended() -> None:
    with pytest.raises(Unreadable) as caught:
        inside.read_device_nodes_of(Root(), 4194305, [0])
    assert caught.value.unread.reason is Reason.NOT_PRESENT
