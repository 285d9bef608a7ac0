"""Binding of threads and pages to a NUMA node of the host."""

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
"""The number of threads for the first write to memory. The kernel zeroes pages at a few GB/s per thread."""

_MPOL_BIND = 2  # linux/mempolicy.h
_MADV_POPULATE_WRITE = 23  # asm-generic/mman-common.h

_libc = ctypes.CDLL(None, use_errno=True)
_libc.syscall.restype = ctypes.c_long


@dataclass(frozen=True, slots=True)
class Node:
    """A NUMA node of the host."""

    id: int
    cpus: tuple[int, ...] = ()
    """The node's CPUs; empty if it has only memory or if they are unknown."""


def on_node(node: Node, work: Callable[[], T]) -> tuple[T, str | None]:
    """Run ``work`` in a new thread bound to a node's CPUs and memory.

    Returns
    -------
    tuple
        The result of ``work``, and the part of the binding that was refused, as a phrase; ``None`` if none was.
    """
    with ThreadPoolExecutor(1) as thread:
        refused = thread.submit(_bind_thread, node).result()
        return thread.submit(work).result(), "; ".join(refused) or None


def bind_pages(node: Node, address: int, size_bytes: int) -> str | None:
    """Bind the future pages of a mapping to a node with mbind(2); return the error as text, or ``None``."""
    mask, bits = _mask(node)
    return _call("mbind", ctypes.c_void_p(address), ctypes.c_ulong(size_bytes), _MPOL_BIND, mask, bits, 0)


def touch(node: Node, address: int, size_bytes: int, *, huge: bool = False) -> None:
    """Write zeros to all of a mapping, with threads bound to the node.

    Parameters
    ----------
    huge
        Whether the mapping has huge pages of the kernel's pools. If one is missing (limit of a hugetlb cgroup, taken by
        others), a write kills the process with SIGBUS. So the kernel populates them first (Linux 5.14 or newer).

    Raises
    ------
    OSError
        The kernel has too few huge pages: EFAULT or ENOMEM (madvise(2), MADV_POPULATE_WRITE).
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
    """Populate the pages of a mapping; return 0 or the errno. A kernel without MADV_POPULATE_WRITE gives 0, too."""
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
    """Return a node mask and its size in bits plus 1, because the kernel subtracts 1 (``maxnode``)."""
    width = 8 * ctypes.sizeof(ctypes.c_ulong)
    words = (ctypes.c_ulong * (node.id // width + 1))()
    words[node.id // width] = 1 << node.id % width
    return words, ctypes.c_ulong(len(words) * width + 1)


def _call(name: str, *arguments: object) -> str | None:
    number = NUMBERS.get(platform.machine(), {}).get(name)
    if number is None:
        return f"{name} is not known on {platform.machine()}"
    # ctypes passes an int as 32 bits, which would leave the upper half of the register undefined.
    words = [ctypes.c_long(argument) if isinstance(argument, int) else argument for argument in arguments]
    breadcrumb.enter(name)
    result = _libc.syscall(ctypes.c_long(number), *words)
    breadcrumb.leave()
    return None if result == 0 else f"{name}: {os.strerror(ctypes.get_errno())}"
