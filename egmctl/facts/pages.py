"""Pages of host memory: whether a NUMA node has enough huge ones, and what a mapping of this process is made of."""

from __future__ import annotations

import re
from dataclasses import dataclass

from egmctl.facts.host import NODES
from egmctl.facts.root import Root, Unreadable
from egmctl.units import KIB, format_size

SMAPS_LINES = 2_000_000
"""More lines of ``/proc/self/smaps`` than this are not read: some 24 for each mapping of the process."""

_POOL = re.compile(r"hugepages-([0-9]{1,12})kB", re.ASCII)
_MAPPING = re.compile(r"([0-9a-f]{1,16})-([0-9a-f]{1,16}) ", re.ASCII)
_FIELD = re.compile(r"(KernelPageSize|AnonHugePages):\s+([0-9]{1,15}) kB", re.ASCII)


class NoPages(Exception):
    """The kernel does not give such pages; the message says why."""


@dataclass(frozen=True, slots=True)
class PageSizes:
    """What a mapping is made of."""

    page_bytes: int | None
    huge_bytes: int | None
    """In transparent huge pages, of all mappings of the range together."""


def huge_page_bytes(node: int, size_bytes: int) -> int:
    """Return the size of the smallest huge pages of which a NUMA node has enough free ones for a buffer.

    Raises
    ------
    NoPages
        If there are none.
    """
    root = Root.from_environment()
    folder = f"{NODES}/node{node}/hugepages"
    told = []
    try:
        pools = sorted(int(found[1]) * KIB for name in root.names(folder) if (found := _POOL.fullmatch(name)))
        for page_bytes in pools:
            free = root.number(f"{folder}/hugepages-{page_bytes // KIB}kB/free_hugepages")
            if free * page_bytes >= size_bytes:
                return page_bytes
            told.append(f"{free} of {format_size(page_bytes)}")
    except Unreadable as why:
        raise NoPages(f"the huge pages of NUMA node {node} cannot be read: {why}") from None
    there = ", ".join(told) or "none"
    raise NoPages(f"NUMA node {node} has too few free huge pages for {format_size(size_bytes)}: {there}")


def page_sizes(address: int, size_bytes: int) -> PageSizes | None:
    """Return what the mapping of a range is made of, by ``/proc/self/smaps``; ``None`` where that does not say."""
    if not Root.from_environment().is_live:
        return None
    page_bytes: int | None = None
    huge_bytes: int | None = None
    inside = shared = False
    try:
        with open("/proc/self/smaps", encoding="ascii", errors="replace") as lines:
            for number, line in enumerate(lines):
                if number > SMAPS_LINES:
                    break
                if (mapping := _MAPPING.match(line)) is not None:
                    start, end = int(mapping[1], 16), int(mapping[2], 16)
                    if start >= address + size_bytes:
                        break
                    # The kernel merges mappings that lie side by side: of such a one nobody knows whose pages are huge.
                    inside = end > address
                    shared = shared or (inside and not address <= start < end <= address + size_bytes)
                elif inside and (field := _FIELD.match(line)) is not None:
                    value = int(field[2]) * KIB
                    if field[1] == "KernelPageSize":
                        page_bytes = value
                    else:
                        huge_bytes = (huge_bytes or 0) + value
    except OSError:
        return None
    return None if page_bytes is None else PageSizes(page_bytes, None if shared else huge_bytes)
