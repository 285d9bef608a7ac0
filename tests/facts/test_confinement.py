"""Confinement of a process: its files of every kind, this process itself, and the kernel's own answers."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from egmctl.driver.reading import Unreadable
from egmctl.facts import confinement, system_calls
from egmctl.facts.inside import cgroup_memory_limit, device_cgroup, memory_left
from egmctl.facts.root import Root
from egmctl.model.codec import from_json
from egmctl.model.host import INITIAL_NAMESPACES, Confinement
from egmctl.model.record import Reason
from tests.conftest import ROOT
from tests.doctor import confined
from tests.doctor.cgroups import denying_v2
from tests.facts.sysroot import Tree
from tests.invariants import broken_nulls
from tests.known import known

pytestmark = pytest.mark.processes

FILES = {
    "status": "NSpid:\t4711\t12\nCapEff:\t0000000000800000\nNoNewPrivs:\t1\nSeccomp:\t2\n",
    "uid_map": "         0       1000          1\n         1     100000      65536\n",
    "limits": "Limit                     Soft Limit           Hard Limit           Units     \n"
    "Max stack size            8388608              unlimited            bytes     \n"
    "Max processes             96365                96365                processes \n"
    "Max open files            1024                 4096                 files     \n"
    "Max address space         unlimited            unlimited            bytes     \n"
    "Max locked memory         unlimited            unlimited            bytes     \n",
    "cgroup": "5:devices:/slurm/job_42\n0::/slurm/job_42/step_0\n",
    "mountinfo": "22 1 0:5 / /dev rw,nosuid - devtmpfs udev rw,size=1k\n"
    "23 22 0:6 /nvidia0 /dev/nvidia0 ro,nosuid,noexec - devtmpfs udev rw\n"
    "24 1 0:7 / /proc/driver/nvidia rw - tmpfs tmpfs rw\n"
    "25 1 8:1 / /home/alice rw - ext4 /dev/sda1 rw\n"
    "30 1 0:30 / /sys/fs/cgroup/devices rw shared:3 - cgroup cgroup rw,devices\n"
    "31 1 0:31 /slurm /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw\n",
}
NAMESPACES = {"cgroup": 7, "ipc": INITIAL_NAMESPACES["ipc"], "mnt": 1, "net": 2, "pid": 3, "user": 4}


@pytest.fixture
def tree(tmp_path: Path) -> Tree:
    made = Tree(tmp_path)
    for name, content in FILES.items():
        made.write(f"/proc/self/{name}", content)
    made.folder("/proc/self/ns")
    for name, number in NAMESPACES.items():
        (tmp_path / f"proc/self/ns/{name}").symlink_to(f"{name}:[{number}]")
    made.write("/proc/sys/kernel/yama/ptrace_scope", "1\n")
    made.write("/sys/fs/cgroup/devices/slurm/job_42/devices.list", "c 1:* rwm\nc 195:255 rw\nnonsense\n")
    made.folder("/sys/fs/cgroup/unified/job_42/step_0")
    made.folder("/dev/shm")  # noqa: S108 - below the tree
    return made


def test_a_confined_process(tree: Tree) -> None:
    facts = confinement.confinement(tree.root)
    assert facts.namespaces == NAMESPACES
    assert facts.pid_namespace_depth == 2
    assert facts.uid_map == ((0, 1000, 1), (1, 100000, 65536))
    assert (facts.capable("SYS_NICE"), facts.capable("SYS_ADMIN")) == (True, False)
    assert (facts.seccomp, facts.no_new_privileges) == ("filter", True)
    assert facts.limits == {"as": -1, "memlock": -1, "nofile": 1024, "nproc": 96365, "stack": 8388608}
    assert [(mount.path, mount.kind, mount.options) for mount in facts.mounts or ()] == [
        ("/dev", "devtmpfs", ("rw", "nosuid")),
        ("/dev/nvidia0", "devtmpfs", ("ro", "nosuid", "noexec")),
        ("/proc/driver/nvidia", "tmpfs", ("rw",)),
    ]
    assert facts.ptrace_scope == 1
    assert facts.shm_total_bytes is not None
    assert facts.device_rules == ("c 1:* rwm", "c 195:255 rw")
    assert broken_nulls(facts) == []


def test_a_folder_that_is_no_cgroup_has_no_programs(tree: Tree) -> None:
    facts = confinement.confinement(tree.root)
    assert facts.device_programs is None
    assert "bpf(BPF_PROG_QUERY)" in facts.unread["device_programs"].detail


def test_the_directories_of_a_cgroup_from_the_top_down(tree: Tree) -> None:
    assert device_cgroup(tree.root, "/proc/self", 1) == (
        "/sys/fs/cgroup/devices",
        "/sys/fs/cgroup/devices/slurm",
        "/sys/fs/cgroup/devices/slurm/job_42",
    )
    assert device_cgroup(tree.root, "/proc/self", 2) == (
        "/sys/fs/cgroup/unified",
        "/sys/fs/cgroup/unified/job_42",
        "/sys/fs/cgroup/unified/job_42/step_0",
    ), "what lies above the mounted one is not shown"


@pytest.mark.parametrize("path", ["/../../other", "/slurmX/job_42", "/slurm/job_43"])
def test_a_cgroup_that_is_not_mounted_here(tree: Tree, path: str) -> None:
    tree.write("/proc/self/cgroup", f"0::{path}\n")
    with pytest.raises(Unreadable) as caught:
        device_cgroup(tree.root, "/proc/self", 2)
    assert caught.value.unread.reason is Reason.NOT_PRESENT


def test_of_a_process_that_is_not_ours_no_system_call_is_known(tree: Tree) -> None:
    (tree.directory / "proc/77").symlink_to("self")
    facts = confinement.confinement(tree.root, 77)
    assert facts.seccomp == "filter"
    assert facts.system_calls is None
    assert facts.unread["system_calls"].reason is Reason.NOT_ASKED


def test_an_empty_tree_gives_reasons(tmp_path: Path) -> None:
    assert broken_nulls(confinement.confinement(Root(str(tmp_path)))) == []


@pytest.mark.parametrize("content", ["", "\x00", "-1 - -", "Seccomp: 9\nCapEff: zz\nNSpid:\n" * 3])
def test_garbage_costs_no_more_than_its_values(tree: Tree, content: str) -> None:
    for name in FILES:
        tree.write(f"/proc/self/{name}", content)
    assert broken_nulls(confinement.confinement(tree.root)) == []


def test_an_architecture_without_numbers_is_not_called(tree: Tree, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "uname", lambda: os.uname_result(("Linux", "", "", "", "riscv64")))
    facts = confinement.confinement(tree.root)
    assert facts.system_calls is None
    assert facts.unread["system_calls"].reason is Reason.NOT_SUPPORTED


def test_this_process_itself() -> None:
    facts = confinement.confinement(Root())
    assert broken_nulls(facts) == []
    assert known(facts.namespaces)["net"] == os.stat("/proc/self/ns/net").st_ino
    assert facts.system_calls == dict.fromkeys(system_calls.PROBES, "ok")


def snapshot(before: Callable[[], None]) -> Confinement:
    """Return what a process of its own reads that was prepared in this way."""
    program = (
        "import json; from egmctl.facts import confinement; from egmctl.facts.root import Root;"
        "from egmctl.model.codec import to_json; print(json.dumps(to_json(confinement.confinement(Root()))))"
    )

    done = subprocess.run(
        [sys.executable, "-c", program],
        preexec_fn=before,
        env={**os.environ, "PYTHONPATH": str(ROOT), "PYTHONDONTWRITEBYTECODE": "1"},
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    return from_json(Confinement, json.loads(done.stdout))


def test_a_filter_that_refuses() -> None:
    facts = snapshot(lambda: confined.filter_calls(("get_mempolicy", "mbind"), confined.ERRNO, 1))
    assert facts.system_calls == {"get_mempolicy": "EPERM", "mbind": "EPERM", "set_mempolicy": "ok", "pidfd_open": "ok"}
    assert (facts.seccomp, facts.no_new_privileges) == ("filter", True)


def test_a_filter_that_kills_costs_the_child_only() -> None:
    facts = snapshot(lambda: confined.filter_calls(("mbind", "pidfd_open", "bpf"), confined.KILL))
    answers = {"get_mempolicy": "ok", "mbind": "killed", "set_mempolicy": "ok", "pidfd_open": "killed"}
    assert facts.system_calls == answers
    assert facts.device_programs is None
    assert facts.unread["device_programs"].reason in (Reason.CRASHED, Reason.NOT_PRESENT)


@pytest.mark.needs_root
def test_programs_of_the_cgroup_and_of_those_above() -> None:
    with denying_v2(7, name="sd_devices", below="a/b") as cgroup:
        facts = snapshot(cgroup.join)
    assert [(program.name, program.cgroup) for program in facts.device_programs or ()] == [
        ("sd_devices", cgroup.path.removesuffix("/a/b"))
    ]


@pytest.mark.needs_root
def test_only_root_may_ask_for_programs() -> None:
    with denying_v2(7):
        facts = snapshot(confined.become_nobody)
    assert facts.device_programs is None
    assert facts.unread["device_programs"].reason is Reason.NO_PERMISSION


# --- what its cgroups still let it take of the host's memory --------------------------------------------------------

MOUNTED_V2 = "30 24 0:26 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw\n"
MOUNTED_V1 = "33 24 0:29 / /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory\n"


MEMORY: dict[str, tuple[dict[str, str], int | None]] = {
    "the tightest of all cgroups above counts": (
        {
            "/proc/self/cgroup": "0::/job/step\n",
            "/proc/self/mountinfo": MOUNTED_V2,
            "/sys/fs/cgroup/job/memory.max": "1000\n",
            "/sys/fs/cgroup/job/memory.current": "900\n",
            "/sys/fs/cgroup/job/step/memory.max": "500\n",
            "/sys/fs/cgroup/job/step/memory.current": "100\n",
        },
        100,
    ),
    "version 1 has other names": (
        {
            "/proc/self/cgroup": "9:memory:/job\n",
            "/proc/self/mountinfo": MOUNTED_V1,
            "/sys/fs/cgroup/memory/job/memory.limit_in_bytes": "4096\n",
            "/sys/fs/cgroup/memory/job/memory.usage_in_bytes": "5000\n",
        },
        0,
    ),
    "a limit that can be read counts beside one that cannot, and beside none": (
        {
            "/proc/self/cgroup": "9:memory:/job\n",
            "/proc/self/mountinfo": MOUNTED_V1,
            "/sys/fs/cgroup/memory/memory.limit_in_bytes": "garbage\n",
            "/sys/fs/cgroup/memory/job/memory.limit_in_bytes": "4096\n",
            "/sys/fs/cgroup/memory/job/memory.usage_in_bytes": "96\n",
        },
        4000,
    ),
    **{
        f"no limit: {limit}": (
            {
                "/proc/self/cgroup": "0::/job\n",
                "/proc/self/mountinfo": MOUNTED_V2,
                "/sys/fs/cgroup/job/memory.max": f"{limit}\n",
                "/sys/fs/cgroup/job/memory.current": "100\n",
            },
            None,
        )
        for limit in ("max", "garbage")
    },
    "nothing readable": ({}, None),
}


@pytest.mark.parametrize(("files", "left"), MEMORY.values(), ids=MEMORY)
def test_what_is_left_of_memory(tmp_path: Path, files: dict[str, str], left: int | None) -> None:
    tree = Tree(tmp_path)
    for path, content in files.items():
        tree.write(path, content)
    assert memory_left(tree.root) == left


def test_the_largest_number_of_version_1_is_no_limit(tmp_path: Path) -> None:
    tree = Tree(tmp_path)
    tree.write("/proc/self/cgroup", "9:memory:/job\n")
    tree.write("/proc/self/mountinfo", MOUNTED_V1)
    tree.write("/sys/fs/cgroup/memory/job/memory.limit_in_bytes", "9223372036854771712\n")
    assert cgroup_memory_limit(tree.root, "/proc/self") == -1
