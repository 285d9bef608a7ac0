"""Where the pages of host memory lie: asked from the kernel after the allocation, never assumed.

On a single-node H200 machine move_pages(2) tells the node of every kind of host memory, HOST_NUMA memory of the driver
included. Where it does not (memory that the kernel has no pages for), what the node's MemFree lost is the next best.
"""

from __future__ import annotations

import ctypes
import errno
import os
from collections import Counter

from egmctl.driver.system_calls import NUMBERS
from egmctl.facts.host import node_memory_free
from egmctl.facts.root import Root, Unreadable
from egmctl.model.evidence import Placement
from egmctl.units import MIB, format_size

STEP_BYTES = 2 * MIB
"""One page in each of these is asked for: the granularity of the driver's allocations and of huge pages."""

_SHARE = 0.8
"""The part of a buffer that the node's MemFree must have lost: other programs take and give back memory too."""


class Before:
    """What was free on a NUMA node before a buffer was allocated there."""

    def __init__(self, node: int) -> None:
        self._node = node
        self._free = _free(node)

    def where(self, label: str, address: int, size_bytes: int) -> Placement:
        """Return where the buffer lies, once all of it has been written.

        Parameters
        ----------
        label
            Of the buffer's end.
        """
        root = Root.from_environment()
        if not root.is_live:
            return _unknown(label, "the files of another machine stand for this one's")
        try:
            nodes = page_nodes(address, size_bytes)
        except OSError as error:
            return self._by_free_memory(label, size_bytes, f"move_pages: {errno.errorcode.get(error.errno or 0, '?')}")
        lost = sum(count for node, count in nodes.items() if node < 0)
        if lost:
            code = errno.errorcode.get(-min(nodes), "?")
            return self._by_free_memory(label, size_bytes, f"move_pages: {code} for {lost} of {nodes.total()} pages")
        there = nodes[self._node]
        where = ", ".join(f"{count} on node {node}" for node, count in sorted(nodes.items()))
        return Placement(
            label=label,
            proof="move_pages",
            detail=f"of one page in each {format_size(STEP_BYTES)}: {where}",
            right=there == nodes.total(),
        )

    def _by_free_memory(self, label: str, size_bytes: int, why: str) -> Placement:
        after = _free(self._node)
        if self._free is None or after is None:
            return _unknown(label, f"{why}, and the node's MemFree cannot be read")
        lost = self._free - after
        if lost < _SHARE * size_bytes:
            return _unknown(label, f"{why}, and the node's MemFree fell by {lost // MIB} MiB only")
        return Placement(
            label=label, proof="MemFree", detail=f"{why}; the node's MemFree fell by {lost // MIB} MiB", right=True
        )


def page_nodes(address: int, size_bytes: int) -> Counter[int]:
    """Return on which nodes the sampled pages of a range lie; a negative number is an error's, e.g. -ENOENT.

    Raises
    ------
    OSError
        The system call failed, or its number is not known for this architecture.
    """
    number = NUMBERS.get(os.uname().machine, {}).get("move_pages")
    if number is None:
        raise OSError(errno.ENOSYS, "move_pages")
    addresses = range(address, address + size_bytes, STEP_BYTES)
    count = len(addresses)
    pages = (ctypes.c_void_p * count)(*addresses)
    status = (ctypes.c_int * count)()
    # Without nodes to move to, the kernel only tells where each page is (move_pages(2)).
    if _libc().syscall(number, 0, ctypes.c_ulong(count), pages, None, status, 0):
        raise OSError(ctypes.get_errno(), "move_pages")
    return Counter(status)


def _libc() -> ctypes.CDLL:
    return ctypes.CDLL(None, use_errno=True)


def _unknown(label: str, why: str) -> Placement:
    return Placement(label=label, proof="not provable", detail=why, right=None)


def _free(node: int) -> int | None:
    try:
        return node_memory_free(Root.from_environment(), node)
    except Unreadable:
        return None
