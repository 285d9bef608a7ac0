"""What a process' cgroups still let it take of the host's memory."""

from __future__ import annotations

from pathlib import Path

import pytest

from egmctl.facts.inside import memory_left
from tests.facts.sysroot import Tree

V2 = "30 24 0:26 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw\n"
V1 = "33 24 0:29 / /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory\n"


CASES: dict[str, tuple[dict[str, str], int | None]] = {
    "the tightest of all cgroups above counts": (
        {
            "/proc/self/cgroup": "0::/job/step\n",
            "/proc/self/mountinfo": V2,
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
            "/proc/self/mountinfo": V1,
            "/sys/fs/cgroup/memory/job/memory.limit_in_bytes": "4096\n",
            "/sys/fs/cgroup/memory/job/memory.usage_in_bytes": "5000\n",
        },
        0,
    ),
    **{
        f"no limit: {limit}": (
            {
                "/proc/self/cgroup": "0::/job\n",
                "/proc/self/mountinfo": V2,
                "/sys/fs/cgroup/job/memory.max": f"{limit}\n",
                "/sys/fs/cgroup/job/memory.current": "100\n",
            },
            None,
        )
        for limit in ("max", "garbage")
    },
    "nothing readable": ({}, None),
}


@pytest.mark.parametrize(("files", "left"), CASES.values(), ids=CASES)
def test_what_is_left_of_memory(tmp_path: Path, files: dict[str, str], left: int | None) -> None:
    tree = Tree(tmp_path)
    for path, content in files.items():
        tree.write(path, content)
    assert memory_left(tree.root) == left
