"""What a process' cgroups still let it take of the host's memory."""

from __future__ import annotations

from pathlib import Path

import pytest

from egmctl.facts.inside import memory_left
from egmctl.facts.root import Root

V2 = "30 24 0:26 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw\n"
V1 = "33 24 0:29 / /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory\n"


def tree(folder: Path, files: dict[str, str]) -> Root:
    """Return a root directory with these files."""
    for path, content in files.items():
        file = folder / path.lstrip("/")
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(content)
    return Root(str(folder))


def test_the_tightest_of_all_cgroups_above_counts(tmp_path: Path) -> None:
    root = tree(
        tmp_path,
        {
            "/proc/self/cgroup": "0::/job/step\n",
            "/proc/self/mountinfo": V2,
            "/sys/fs/cgroup/job/memory.max": "1000\n",
            "/sys/fs/cgroup/job/memory.current": "900\n",
            "/sys/fs/cgroup/job/step/memory.max": "500\n",
            "/sys/fs/cgroup/job/step/memory.current": "100\n",
        },
    )
    assert memory_left(root) == 100


def test_version_1_has_other_names(tmp_path: Path) -> None:
    root = tree(
        tmp_path,
        {
            "/proc/self/cgroup": "9:memory:/job\n",
            "/proc/self/mountinfo": V1,
            "/sys/fs/cgroup/memory/job/memory.limit_in_bytes": "4096\n",
            "/sys/fs/cgroup/memory/job/memory.usage_in_bytes": "5000\n",
        },
    )
    assert memory_left(root) == 0


@pytest.mark.parametrize("limit", ["max\n", "garbage\n"])
def test_no_limit_is_none(tmp_path: Path, limit: str) -> None:
    root = tree(
        tmp_path,
        {
            "/proc/self/cgroup": "0::/job\n",
            "/proc/self/mountinfo": V2,
            "/sys/fs/cgroup/job/memory.max": limit,
            "/sys/fs/cgroup/job/memory.current": "100\n",
        },
    )
    assert memory_left(root) is None


def test_nothing_readable_is_none(tmp_path: Path) -> None:
    assert memory_left(Root(str(tmp_path))) is None
