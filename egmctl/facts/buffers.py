"""Where the pages of a run's buffers are, and how large they are."""

from __future__ import annotations

import ctypes
import errno
import re
from collections import Counter

from egmctl.driver.reading import Unreadable, error_name, read_or
from egmctl.facts.host import NODES, huge_pages, node_memory_free
from egmctl.facts.root import Root
from egmctl.facts.system_calls import system_call
from egmctl.model.measurement import Placement
from egmctl.units import KIB, MIB, format_size

SMAPS_LINES = 2_000_000
"""The maximum number of lines read of ``/proc/self/smaps``, which has about 24 per mapping of the process."""

_MAPPING = re.compile(r"([0-9a-f]{1,16})-([0-9a-f]{1,16}) ", re.ASCII)
_FIELD = re.compile(r"(KernelPageSize|AnonHugePages):\s+([0-9]{1,15}) kB", re.ASCII)


class NoPages(Exception):
    """The requested huge pages are not available. The message gives the reason."""


def huge_page_bytes(node: int, size_bytes: int) -> int:
    """Return the size of the smallest huge pages of which a NUMA node has enough free for a buffer.

    Raises
    ------
    NoPages
        No pool has enough free pages, or the pools cannot be read.
    """
    try:
        pools = huge_pages(Root.from_environment(), f"{NODES}/node{node}/hugepages")
    except Unreadable as error:
        raise NoPages(f"the huge pages of NUMA node {node} cannot be read: {error}") from None
    for pool in pools:
        if (pool.free or 0) * pool.page_size_bytes >= size_bytes:
            return pool.page_size_bytes
    there = ", ".join(f"{pool.free or 0} of {format_size(pool.page_size_bytes)}" for pool in pools) or "none"
    raise NoPages(f"NUMA node {node} has too few free huge pages for {format_size(size_bytes)}: {there}")


def page_sizes(address: int, size_bytes: int) -> tuple[int | None, int | None]:
    """Return the page size of an address range and its bytes in transparent huge pages, from ``/proc/self/smaps``.

    A value is ``None`` if it cannot be read, the second one also if the range shares its mapping with other memory.
    """
    page_bytes: int | None = None
    huge_bytes: int | None = None
    inside = shared = False
    if not Root.from_environment().is_live:
        return None, None
    try:
        with open("/proc/self/smaps", encoding="ascii", errors="replace") as lines:
            for number, line in enumerate(lines):
                if number > SMAPS_LINES:
                    break
                if (mapping := _MAPPING.match(line)) is not None:
                    start, end = int(mapping[1], 16), int(mapping[2], 16)
                    if start >= address + size_bytes:
                        break
                    # The kernel merges adjacent mappings. It does not report which part of one has huge pages.
                    inside = end > address
                    shared = shared or (inside and not address <= start < end <= address + size_bytes)
                elif inside and (field := _FIELD.match(line)) is not None:
                    value = int(field[2]) * KIB
                    if field[1] == "KernelPageSize":
                        page_bytes = value
                    else:
                        huge_bytes = (huge_bytes or 0) + value
    except OSError:
        return None, None
    return page_bytes, None if shared else huge_bytes


STEP_BYTES = 2 * MIB
"""The distance between sampled pages, which is the granularity of the driver's allocations and of huge pages."""

_SHARE = 0.8
"""The part of a buffer by which the node's MemFree must fall. Other programs allocate and free memory, too."""


class Before:
    """The free memory of a NUMA node before the allocation of a buffer there, to find where the buffer is."""

    def __init__(self, node: int) -> None:
        self._node = node
        self._free = _free(node)

    def where(self, label: str, address: int, size_bytes: int) -> Placement:
        """Return the placement of the buffer, written as a whole by now, from move_pages(2) or the node's MemFree.

        Parameters
        ----------
        label
            The name of the buffer's end, e.g. ``NUMA1``.
        """
        if not Root.from_environment().is_live:
            return _unknown(label, "the files of another machine stand for this one's")
        try:
            nodes = page_nodes(address, size_bytes)
            lost = sum(count for node, count in nodes.items() if node < 0)
            answer = f"{errno.errorcode.get(-min(nodes), '?')} for {lost} of {nodes.total()} pages"
        except OSError as error:
            nodes, lost, answer = Counter(), 1, error_name(error)
        if not lost:
            where = ", ".join(f"{count} on node {node}" for node, count in sorted(nodes.items()))
            detail = f"of one page in each {format_size(STEP_BYTES)}: {where}"
            right = nodes[self._node] == nodes.total()
            return Placement(label=label, proof="move_pages", detail=detail, right=right)
        after = _free(self._node)
        if self._free is None or after is None:
            return _unknown(label, f"move_pages: {answer}, and the node's MemFree cannot be read")
        fell = f"the node's MemFree fell by {(self._free - after) // MIB} MiB"
        if self._free - after < _SHARE * size_bytes:
            return _unknown(label, f"move_pages: {answer}, and {fell} only")
        return Placement(label=label, proof="MemFree", detail=f"move_pages: {answer}; {fell}", right=True)


def page_nodes(address: int, size_bytes: int) -> Counter[int]:
    """Return the number of sampled pages of a range on each NUMA node; a negative key is an error, e.g. -ENOENT.

    Raises
    ------
    OSError
        The system call failed, or its number is not known for this architecture.
    """
    addresses = range(address, address + size_bytes, STEP_BYTES)
    count = len(addresses)
    pages = (ctypes.c_void_p * count)(*addresses)
    status = (ctypes.c_int * count)()
    # Without target nodes, the kernel only reports the node of each page (move_pages(2)).
    system_call("move_pages", 0, count, pages, None, status, 0)
    return Counter(status)


def _unknown(label: str, why: str) -> Placement:
    return Placement(label=label, proof="not provable", detail=why, right=None)


def _free(node: int) -> int | None:
    return read_or(None, lambda: node_memory_free(Root.from_environment(), node))
