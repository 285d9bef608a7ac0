"""bringup under real limits of descriptors, addresses and processes, on a fake node: one cause, and nothing is slow.

Without a limit the same command is in tests/cli/test_bringup.py.
"""

from __future__ import annotations

import resource
import shutil
import sys
from collections.abc import Callable

import pytest

from egmctl.units import MIB
from tests.conftest import ended
from tests.doctor.cgroups import pids
from tests.doctor.machines import patched, shipped
from tests.fake.plugin import MakeFakeNode

pytestmark = pytest.mark.long


def brought_up(fake_node: MakeFakeNode, before: Callable[[], None]) -> tuple[int, str]:
    """Run bringup on two fake GPUs whose files of this process are the kernel's own; return exit code and words."""
    small = patched(shipped("hgx-h200x4"), "gpus[*].nvml", memory_total_bytes=640 * MIB, memory_used_bytes=0)
    node = fake_node(small)
    shutil.rmtree(node.sysroot / "proc/self")
    (node.sysroot / "proc/self").symlink_to("/proc/self")
    cgroups = node.sysroot / "sys/fs/cgroup"
    shutil.rmtree(cgroups, ignore_errors=True)
    cgroups.parent.mkdir(parents=True, exist_ok=True)
    cgroups.symlink_to("/sys/fs/cgroup")
    command = [sys.executable, "-m", "egmctl", "bringup", "--gpus", "0-1", "-q"]
    done = ended(command, env=node.environment(), timeout_s=280, preexec_fn=before)
    return done.code, " ".join(done.out.split())


@pytest.mark.parametrize(
    ("limit", "value", "words"),
    [
        (resource.RLIMIT_NOFILE, 10, "open files are limited to 10"),
        (resource.RLIMIT_NOFILE, 16, "open files are limited to 16"),
        (resource.RLIMIT_AS, 400_000 << 10, "the address space is limited to 390.6 MiB"),
    ],
)
def test_a_limit_that_breaks_the_bench_is_its_cause(
    fake_node: MakeFakeNode, limit: int, value: int, words: str
) -> None:
    code, out = brought_up(fake_node, lambda: resource.setrlimit(limit, (value, value)))
    assert code in (1, 4)
    assert f"NO-GO: {words}" in out
    assert out.count("FAIL ") - out.count("doctor FAIL ") == 1, out
    assert "slow" not in out


@pytest.mark.needs_root
def test_too_few_processes_in_a_real_cgroup(fake_node: MakeFakeNode) -> None:
    with pids(4) as cgroup:
        code, out = brought_up(fake_node, cgroup.join)
    assert code in (1, 4)
    assert "NO-GO: the cgroup allows " in out
    assert "slow" not in out


def test_a_low_limit_that_breaks_nothing_is_a_warning(fake_node: MakeFakeNode) -> None:
    code, out = brought_up(fake_node, lambda: resource.setrlimit(resource.RLIMIT_NOFILE, (48, 48)))
    assert code == 3, "nothing says what a fake GPU should reach"
    assert "WARN open files are limited to 48, too few for CUDA on 4 GPUs" in out
