"""Where pages lie is asked from this kernel, for memory of this process."""

from __future__ import annotations

import ctypes
import errno
import mmap
import os
from collections import Counter
from pathlib import Path

import pytest

from egmctl.facts import buffers as placement
from egmctl.facts.buffers import STEP_BYTES, Before, page_nodes
from egmctl.units import MIB

SIZE = 8 * MIB


def test_pages_of_this_process_are_nowhere_until_written_and_then_on_a_node_that_there_is() -> None:
    pages = mmap.mmap(-1, SIZE)
    address = ctypes.addressof(ctypes.c_char.from_buffer(pages))
    try:
        unwritten = page_nodes(address, SIZE)
    except OSError:  # a system call filter keeps move_pages away
        unwritten = None
    pages.write(bytes(SIZE))
    found = Before(0).where("NUMA0", address, SIZE)
    if unwritten is None:
        assert found.proof in ("MemFree", "not provable")
        return
    assert unwritten == {-errno.ENOENT: SIZE // STEP_BYTES}
    nodes = page_nodes(address, SIZE)
    assert all(Path(f"/sys/devices/system/node/node{node}").exists() or node == 0 for node in nodes)
    assert (found.proof, found.right) == ("move_pages", set(nodes) == {0})


EPERM, ENOSYS = OSError(errno.EPERM, "move_pages"), OSError(errno.ENOSYS, "move_pages")
PAGES = "of one page in each 2 MiB: "


@pytest.mark.parametrize(
    ("answer", "lost", "proof", "right", "detail"),
    [
        ([1, 1, 1, 1], 0, "move_pages", True, f"{PAGES}4 on node 1"),
        ([1, 0, 1, 1], 0, "move_pages", False, f"{PAGES}1 on node 0, 3 on node 1"),
        (EPERM, SIZE, "MemFree", True, "move_pages: EPERM"),
        ([-errno.EFAULT, 1, 1, 1], SIZE, "MemFree", True, "move_pages: E"),
        (ENOSYS, 0, "not provable", None, "move_pages: ENOSYS, and the node's MemFree fell by 0 MiB only"),
    ],
    ids=["all pages there", "one elsewhere", "a filter", "a fault", "nothing tells"],
)
def test_pages_on_the_node_are_proof_else_free_memory_else_nothing_is_claimed(
    monkeypatch: pytest.MonkeyPatch, answer: list[int] | OSError, lost: int, proof: str, right: bool | None, detail: str
) -> None:
    """The kernel has two nodes here, and MemFree of the second falls by ``lost``."""
    free = [100 * MIB, 100 * MIB - lost]

    def nodes(*_arguments: object) -> object:
        if isinstance(answer, OSError):
            raise answer
        return Counter(answer)

    monkeypatch.setattr(placement, "_free", lambda _node: free.pop(0))
    monkeypatch.setattr(placement, "page_nodes", nodes)
    found = Before(1).where("NUMA1", 0, SIZE)
    assert (found.proof, found.right) == (proof, right)
    assert found.detail.startswith(detail)


def test_files_of_another_machine_prove_nothing_of_this_one(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setitem(os.environ, "EGMCTL_SYSROOT", str(tmp_path))
    found = Before(1).where("NUMA1", 0, SIZE)
    assert (found.proof, found.right) == ("not provable", None)
