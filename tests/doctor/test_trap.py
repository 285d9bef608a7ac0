"""``--pid`` of a process that sets a trap in its root directory: its code runs nowhere, and the command goes on."""

from __future__ import annotations

import json
import os
import stat
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from egmctl.driver.reading import Unreadable
from egmctl.facts import inside
from egmctl.facts.root import Root
from egmctl.model.record import Reason
from tests.conftest import ROOT, RunEgmctl
from tests.doctor import confined
from tests.doctor.cgroups import GPU_MAJOR, mounted
from tests.doctor.trap import process_in, trap

pytestmark = [pytest.mark.needs_root, pytest.mark.needs("mount")]

USERS = pytest.mark.parametrize("uid", [0, confined.NOBODY])
"""As root in a container without a user namespace, and as a job."""


@pytest.fixture(autouse=True)
def patience(monkeypatch: pytest.MonkeyPatch) -> None:
    """Wait for the child that enters a process' root as long as a busy machine takes to start it."""
    monkeypatch.setattr(inside, "_TIMEOUT_S", 60.0)


@USERS
def test_the_doctor_does_not_run_the_code_of_a_process(egmctl: RunEgmctl, uid: int) -> None:
    with trap(uid) as set_up:
        done = egmctl("doctor", "--pid", str(set_up.pid), "--json")
        said = set_up.said()
    assert said == "", "code of the process ran in the doctor's place"
    assert json.loads(done.out)["result"]["findings"], done.err


@USERS
def test_the_trap_works(uid: int) -> None:
    """The trap works: a process that does what the doctor did runs the code."""
    careless = (
        "import os, sys; from egmctl.facts.root import Root\n"
        "os.chroot(sys.argv[1]); os.setuid(int(sys.argv[2])); Root().names('/dev')"
    )
    with trap(uid) as set_up:
        command = [sys.executable, "-c", careless, str(set_up.root), str(uid)]
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=60, check=False)
        said = set_up.said()
    assert done.returncode == 1
    assert f"encodings.evil ran as {uid}; " in said


@USERS
def test_what_cannot_be_followed_is_told(uid: int) -> None:
    with trap(uid) as set_up, pytest.raises(Unreadable) as caught:
        inside.read_device_nodes_of(Root(), set_up.pid, [0])
    assert (caught.value.unread.reason, caught.value.unread.detail) == (Reason.FAILED, "/dev: ELOOP")


# --- what a root directory can hold ----------------------------------------------------------------------------------


@pytest.fixture
def root(tmp_path: Path) -> Iterator[Path]:
    """A root directory with a ``/dev`` and a ``/proc``, without nodes."""
    for folder in tmp_path.parents[:3]:
        folder.chmod(0o755)
    with mounted("tmpfs", "dev,mode=755", tmp_path / "root") as made, mounted("proc", "", made / "proc"):
        (made / "dev").mkdir()
        yield made


def make_node(path: Path, minor: int, mode: int = 0o666) -> None:
    path.parent.mkdir(exist_ok=True)
    os.mknod(path, stat.S_IFCHR, os.makedev(GPU_MAJOR, minor))
    path.chmod(mode)


@USERS
def test_links_lead_where_they_lead_the_process(root: Path, uid: int) -> None:
    for minor in (0, 1):
        make_node(root / f"nodes/nvidia{minor}", minor)
    (root / "dev/nvidia0").symlink_to("/nodes/nvidia0")
    (root / "dev/nvidia1").symlink_to("../../../../nodes/nvidia1")
    (root / "dev/nvidia2").symlink_to("/nodes/nvidia2")
    with process_in(root, uid) as pid:
        readings = inside.read_device_nodes_of(Root(), pid, [])
    assert {minor: (node.access, node.minor) for minor, node in readings.gpus.items()} == {
        0: ("ok", 0),
        1: ("ok", 1),
        2: ("ENOENT", None),
    }
    assert not readings.gpus[2].exists


@USERS
def test_links_that_lead_out_of_the_root_or_nowhere_are_not_followed(root: Path, uid: int) -> None:
    """The links of ``/proc`` lead to what a process has open, and to other roots: ours would answer for its own."""
    (root / "dev/nvidia0").symlink_to("/proc/self/root/dev/null")
    (root / "dev/nvidia1").symlink_to("/proc/self/fd/0")
    (root / "dev/nvidia2").symlink_to("nvidia2")
    with process_in(root, uid) as pid:
        readings = inside.read_device_nodes_of(Root(), pid, [])
    for node in readings.gpus.values():
        assert (node.access, node.mode) == (None, None)
    assert readings.gpus[0].unread["access"].detail == "/dev/nvidia0: ELOOP"
    assert readings.gpus[2].unread["access"].detail == "/dev/nvidia2: ELOOP"


def test_what_is_no_device_is_not_opened(root: Path) -> None:
    """Opening a FIFO waits for its other end; opening a device may start it."""
    os.mkfifo(root / "dev/nvidia0")
    (root / "dev/nvidia1").mkdir()
    (root / "dev/nvidia-caps").write_text("a file in the place of a folder")
    os.mkfifo(root / "dev/nvidia-caps-imex-channels")
    with process_in(root, 0) as pid:
        readings = inside.read_device_nodes_of(Root(), pid, [])
    assert [node.unread["major"].detail for node in readings.gpus.values()] == [
        "/dev/nvidia0: not a character device",
        "/dev/nvidia1: not a character device",
    ]
    assert (readings.imex_channels, [node.exists for node in readings.control]) == ((), [False] * 3)


def test_other_files_are_looked_for_in_its_root_only(root: Path) -> None:
    (root / ".dockerenv").symlink_to("/proc/1/root/etc/passwd")
    (root / "run").symlink_to("/proc/1/root/run")
    (root / "real").touch()
    (root / "dev/shm").symlink_to("/")
    own = os.statvfs(root)
    with process_in(root, confined.NOBODY) as pid:
        files_found = inside.files(Root(), pid, ["/.dockerenv", "/run", "/real", "/../real", "/etc/passwd"])
        size, _ = inside.file_system(Root(), pid, "/dev/shm")  # noqa: S108 - looked at
    assert files_found == ("/real", "/../real")
    assert size == own.f_blocks * own.f_frsize


# --- rights that the one who asks does not have ----------------------------------------------------------------------


def test_a_refusal_that_the_process_may_pass_over_is_none(root: Path) -> None:
    """Root of a container has CAP_DAC_OVERRIDE, the one who asks has not: it cannot tell, and says so."""
    make_node(root / "dev/nvidia0", 0, mode=0o600)
    os.chown(root / "dev/nvidia0", confined.NOBODY, confined.NOBODY)
    make_node(root / "dev/nvidia1", 1, mode=0o600)
    with process_in(root, 0) as pid:
        root_sees = inside.read_device_nodes_of(Root(), pid, []).gpus
    with process_in(root, 0, capable=False) as pid:
        weak_root_sees = inside.read_device_nodes_of(Root(), pid, []).gpus
    with process_in(root, confined.NOBODY) as pid:
        nobody_sees = inside.read_device_nodes_of(Root(), pid, []).gpus
    assert [root_sees[minor].access for minor in (0, 1)] == [None, "ok"]
    assert root_sees[0].unread["access"].detail == "/dev/nvidia0: EACCES; the process has CAP_DAC_OVERRIDE"
    assert [weak_root_sees[minor].access for minor in (0, 1)] == ["EACCES", "ok"]
    assert [nobody_sees[minor].access for minor in (0, 1)] == ["ok", "EACCES"]


def test_a_folder_that_is_closed_to_it(root: Path) -> None:
    make_node(root / "dev/closed/nvidia0", 0)
    (root / "dev/closed").chmod(0o700)
    (root / "dev/nvidia0").symlink_to("closed/nvidia0")
    with process_in(root, confined.NOBODY) as pid:
        (readings,) = inside.read_device_nodes_of(Root(), pid, []).gpus.values()
    assert (readings.exists, readings.access) == (True, "EACCES")
