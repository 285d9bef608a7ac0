"""Where pages lie is asked from this kernel, for memory of this process."""

from __future__ import annotations

import ctypes
import errno
import mmap
import os
from collections import Counter
from pathlib import Path

import pytest

from egmctl.facts import host as placement
from egmctl.facts.host import STEP_BYTES, Before, page_nodes
from egmctl.model.measurement import Placement
from egmctl.units import MIB

SIZE = 8 * MIB


@pytest.fixture
def memory() -> tuple[mmap.mmap, int]:
    """Map some memory; return it with its address."""
    pages = mmap.mmap(-1, SIZE)
    return pages, ctypes.addressof(ctypes.c_char.from_buffer(pages))


def allowed() -> bool:
    """Say whether a system call filter lets move_pages through."""
    pages = mmap.mmap(-1, SIZE)
    try:
        page_nodes(ctypes.addressof(ctypes.c_char.from_buffer(pages)), SIZE)
    except OSError:
        return False
    return True


def test_pages_that_were_never_written_are_nowhere(memory: tuple[mmap.mmap, int]) -> None:
    if not allowed():
        with pytest.raises(OSError):  # noqa: PT011 (which error is the filter's choice)
            page_nodes(memory[1], SIZE)
        return
    assert page_nodes(memory[1], SIZE) == {-errno.ENOENT: SIZE // STEP_BYTES}


def test_pages_that_were_written_lie_on_a_node_that_there_is(memory: tuple[mmap.mmap, int]) -> None:
    pages, address = memory
    pages.write(bytes(SIZE))
    found = Before(0).where("NUMA0", address, SIZE)
    assert found.proof in ("move_pages", "MemFree", "not provable")
    if allowed():
        nodes = page_nodes(address, SIZE)
        assert all(Path(f"/sys/devices/system/node/node{node}").exists() or node == 0 for node in nodes)
        assert found.proof == "move_pages"
        assert found.right is (set(nodes) == {0})


class TestJudgement:
    """With answers of a kernel that has two nodes."""

    def where(self, monkeypatch: pytest.MonkeyPatch, answer: list[int] | OSError, lost: int) -> Placement:
        """Return the placement of a buffer of 8 MiB on node 1, whose MemFree fell by ``lost``."""
        free = [100 * MIB, 100 * MIB - lost]

        def nodes(*_arguments: object) -> object:
            if isinstance(answer, OSError):
                raise answer
            return Counter(answer)

        monkeypatch.setattr(placement, "_free", lambda _node: free.pop(0))
        monkeypatch.setattr(placement, "page_nodes", nodes)
        return Before(1).where("NUMA1", 0, SIZE)

    def test_all_pages_on_the_node_is_proof(self, monkeypatch: pytest.MonkeyPatch) -> None:
        found = self.where(monkeypatch, [1, 1, 1, 1], 0)
        assert (found.proof, found.right) == ("move_pages", True)
        assert found.detail == "of one page in each 2 MiB: 4 on node 1"

    def test_one_page_elsewhere_is_wrong(self, monkeypatch: pytest.MonkeyPatch) -> None:
        found = self.where(monkeypatch, [1, 0, 1, 1], 0)
        assert (found.right, found.detail) == (False, "of one page in each 2 MiB: 1 on node 0, 3 on node 1")

    @pytest.mark.parametrize("answer", [OSError(errno.EPERM, "move_pages"), [-errno.EFAULT, 1, 1, 1]])
    def test_where_the_kernel_does_not_tell_free_memory_does(
        self, monkeypatch: pytest.MonkeyPatch, answer: list[int] | OSError
    ) -> None:
        found = self.where(monkeypatch, answer, SIZE)
        assert (found.proof, found.right) == ("MemFree", True)
        assert found.detail.startswith("move_pages: E")

    def test_where_that_does_not_tell_either_nothing_is_claimed(self, monkeypatch: pytest.MonkeyPatch) -> None:
        found = self.where(monkeypatch, OSError(errno.ENOSYS, "move_pages"), 0)
        assert (found.proof, found.right) == ("not provable", None)
        assert found.detail == "move_pages: ENOSYS, and the node's MemFree fell by 0 MiB only"


def test_files_of_another_machine_prove_nothing_of_this_one(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setitem(os.environ, "EGMCTL_SYSROOT", str(tmp_path))
    found = Before(1).where("NUMA1", 0, SIZE)
    assert (found.proof, found.right) == ("not provable", None)
