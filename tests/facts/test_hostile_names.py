"""Names that users choose, of processes, cgroups and mounts, bring no line of their own to what is read of them."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from egmctl.facts.inside import _is_of_cgroups, cgroups, mount_points
from egmctl.facts.process import _container_signs
from egmctl.facts.root import Root
from tests.facts.sysroot import Tree

ENDS = ["\r", "\v", "\f", "\x1c", "\x1d", "\x1e", "\x85", "\u2028", "\u2029"]
"""All but a line feed that ``str.splitlines`` splits at."""
SPACES = ["\t", "\v", "\f", "\r", "\x1f", "\x85", "\xa0", "\u2003", "\u3000"]
"""Some that ``str.split`` splits at; of these the kernel escapes the tabulator in names of mounts."""

NAMED = """
import ctypes, sys
ctypes.CDLL(None).prctl(15, sys.argv[1].encode(), 0, 0, 0)
print(flush=True)
sys.stdin.read()
"""


@pytest.fixture
def tree(tmp_path: Path) -> Tree:
    return Tree(tmp_path)


@pytest.mark.processes
@pytest.mark.parametrize("end", ENDS, ids=ascii)
def test_a_process_does_not_say_in_its_name_how_it_is_confined(end: str) -> None:
    words = [sys.executable, "-c", NAMED, f"{end}Seccomp: 9"]
    with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.readline()
        status = f"/proc/{process.pid}/status"
        whole = Root().read(status)
        entry = Root().line(status, "Seccomp")
        process.kill()
    assert f"{end}Seccomp: 9" in whole, "the kernel lets it have that name"
    assert entry in ("0", "1", "2")


@pytest.mark.parametrize("end", ENDS, ids=ascii)
def test_a_cgroup_is_in_no_other_hierarchy_by_its_name(tree: Tree, end: str) -> None:
    tree.write("/proc/self/cgroup", f"0::/user.slice/a{end}5:devices:/other\n")
    (entry,) = cgroups(tree.root, "/proc/self")
    assert (entry.version, entry.path) == (2, f"/user.slice/a{end}5:devices:/other")


@pytest.mark.parametrize("end", ENDS, ids=ascii)
@pytest.mark.parametrize("space", SPACES, ids=ascii)
def test_a_mount_is_one_by_its_name(tree: Tree, end: str, space: str) -> None:
    forged = space.join(("36", "35", "0:1", "/", "/proc/driver/nvidia", "rw", "-", "tmpfs", "x", "x"))
    text = f"36 35 98:0 / /home/u/{end}{forged} rw,nosuid shared:1 - fuse.sshfs u:/ rw,user_id=1000\n"
    (entry,) = mount_points(text)
    assert (entry.path, entry.kind, entry.device) == (f"/home/u/{end}{forged}", "fuse.sshfs", "98:0")
    tree.write("/proc/self/mountinfo", text)
    assert _container_signs(tree.root, 0, {}) == ()


def test_what_a_mount_is() -> None:
    text = "36 35 0:26 /top /sys/fs/cgroup/devices rw,nodev master:1 propagate_from:2 - cgroup  rw,devices,freezer"
    (entry,) = mount_points(f"\nnonsense\n1 2 3:4 / - - - - -\n{text}\n")
    assert (entry.device, entry.top, entry.path) == ("0:26", "/top", "/sys/fs/cgroup/devices")
    assert (entry.options, entry.kind, entry.settings) == (("rw", "nodev"), "cgroup", ("rw", "devices", "freezer"))


def test_proc_is_no_file_system_of_cgroups() -> None:
    real = list(mount_points(Root().read("/proc/self/mountinfo")))
    assert real
    for mount in real:
        major, _, minor = mount.device.partition(":")
        device = int(major) << 8 | int(minor) & 0xFF | (int(minor) & ~0xFF) << 12
        assert _is_of_cgroups(device) == (mount.kind in ("cgroup", "cgroup2"))
