"""Threads and pages on a chosen NUMA node of the host."""

from __future__ import annotations

import ctypes
import errno
import mmap
import os
import platform
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TypeVar

from egmctl.driver import breadcrumb
from egmctl.driver.reading import NUMBERS

T = TypeVar("T")

TOUCH_THREADS = 8
"""Threads that write memory for the first time; the kernel zeroes a page at a few GB/s a thread."""

_MPOL_BIND = 2  # linux/mempolicy.h
_MADV_POPULATE_WRITE = 23  # asm-generic/mman-common.h

_libc = ctypes.CDLL(None, use_errno=True)
_libc.syscall.restype = ctypes.c_long


@dataclass(frozen=True, slots=True)
class Node:
    """A NUMA node of the host."""

    id: int
    cpus: tuple[int, ...] = ()
    """Its CPUs; none where it has memory only, or where they are not known."""


def on_node(node: Node, work: Callable[[], T]) -> tuple[T, str | None]:
    """Do something in a thread that runs on a node's CPUs and gets its new pages there.

    The thread ends with it, so nothing has to be set back.

    Returns
    -------
    tuple
        The result of the work, and a phrase for the part of the binding that was refused, ``None`` if none was.
    """
    with ThreadPoolExecutor(1) as thread:
        refused = thread.submit(_bind_thread, node).result()
        return thread.submit(work).result(), "; ".join(refused) or None


def bind_pages(node: Node, address: int, size_bytes: int) -> str | None:
    """Have the pages of a mapping come from a node once they are touched; return why not, ``None`` if they will."""
    mask, bits = _mask(node)
    return _call("mbind", ctypes.c_void_p(address), ctypes.c_ulong(size_bytes), _MPOL_BIND, mask, bits, 0)


def touch(node: Node, address: int, size_bytes: int, *, huge: bool = False) -> None:
    """Write memory for the first time, by threads that run on the node.

    Parameters
    ----------
    huge
        The memory has huge pages of the kernel's pools: where one is missing (a hugetlb cgroup's limit, others took
        it), a write ends the process with SIGBUS. So the kernel is told to make them first (from Linux 5.14 on).

    Raises
    ------
    OSError
        If the kernel has no such pages for it: EFAULT or ENOMEM (madvise(2), MADV_POPULATE_WRITE).
    """
    count = max(1, min(TOUCH_THREADS, len(_usable(node))))
    edges = [size_bytes * number // count for number in range(count + 1)]

    def write(start: int, end: int) -> None:
        _bind_thread(node)
        if huge and (code := _populate(address + start, address + end)):
            raise OSError(code, f"the kernel gave no page on NUMA node {node.id} (madvise: {os.strerror(code)})")
        ctypes.memset(address + start, 0, end - start)

    with ThreadPoolExecutor(count) as threads:
        list(threads.map(write, edges, edges[1:]))


def _populate(start: int, end: int) -> int:
    """Have the kernel make the pages of a mapping; return why not, as errno, and 0 where the kernel is too old."""
    start -= start % mmap.PAGESIZE
    breadcrumb.enter("madvise")
    result = _libc.madvise(ctypes.c_void_p(start), ctypes.c_size_t(end - start), _MADV_POPULATE_WRITE)
    breadcrumb.leave()
    code = 0 if result == 0 else ctypes.get_errno()
    return 0 if code == errno.EINVAL else code


def _bind_thread(node: Node) -> Sequence[str]:
    refused = []
    if cpus := _usable(node):
        os.sched_setaffinity(0, cpus)
    elif node.cpus:
        refused.append(f"no CPU of NUMA node {node.id} may be used")
    mask, bits = _mask(node)
    if failed := _call("set_mempolicy", _MPOL_BIND, mask, bits):
        refused.append(failed)
    return refused


def _usable(node: Node) -> set[int]:
    return set(node.cpus) & os.sched_getaffinity(0)


def _mask(node: Node) -> tuple[ctypes.Array[ctypes.c_ulong], ctypes.c_ulong]:
    """Return a set of nodes as the kernel takes it, and its size in bits plus the one that the kernel takes off."""
    width = 8 * ctypes.sizeof(ctypes.c_ulong)
    words = (ctypes.c_ulong * (node.id // width + 1))()
    words[node.id // width] = 1 << node.id % width
    return words, ctypes.c_ulong(len(words) * width + 1)


def _call(name: str, *arguments: object) -> str | None:
    number = NUMBERS.get(platform.machine(), {}).get(name)
    if number is None:
        return f"{name} is not known on {platform.machine()}"
    # An int would leave half of its register to chance.
    words = [ctypes.c_long(argument) if isinstance(argument, int) else argument for argument in arguments]
    breadcrumb.enter(name)
    result = _libc.syscall(ctypes.c_long(number), *words)
    breadcrumb.leave()
    return None if result == 0 else f"{name}: {os.strerror(ctypes.get_errno())}"
