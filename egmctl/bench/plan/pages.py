"""Whether there are the pages that a task's host memory is to be made of: huge ones, and managed ones. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from egmctl.bench.buffers import Peak, buffers_of
from egmctl.bench.plan.budget import free_bytes
from egmctl.bench.plan.huge_pages import pool_bytes, pools_of
from egmctl.model.machine import Gpu, Machine
from egmctl.model.measurement import Endpoint, MemoryKind, Task
from egmctl.model.waiver import Waiver, WaiverKind
from egmctl.units import format_size

MANAGED_SHARE = 16
"""Managed memory is at most this part of what is free on any GPU that reaches it. A program that asks for more than a
GPU has was seen to hang it; what is measured here stays on the host, and needs none of it."""


def pages_waiver(machine: Machine, task: Task, gpus: Sequence[Gpu]) -> Waiver | None:
    """Say why memory of a task's kind cannot be had in its size; ``None`` if it can, or nobody knows."""
    needed: dict[MemoryKind, int] = {}
    on_huge_pages: dict[int, int] = {}
    for buffer in buffers_of([task]):
        end = buffer.end
        needed[end.memory] = needed.get(end.memory, 0) + buffer.size_bytes
        if end.memory is MemoryKind.HUGETLB and end.numa_node is not None:
            on_huge_pages[end.numa_node] = on_huge_pages.get(end.numa_node, 0) + buffer.size_bytes
    for node, asked in on_huge_pages.items():
        if (waiver := _huge(machine, node, asked)) is not None:
            return waiver
    if MemoryKind.THP in needed and machine.host is not None and machine.host.transparent_huge_pages == "never":
        reason = "transparent huge pages are off: /sys/kernel/mm/transparent_hugepage/enabled is never"
        return Waiver(kind=WaiverKind.NO_PAGES, reason=reason)
    if (size := needed.get(MemoryKind.MANAGED)) is not None:
        return next((why for gpu in gpus if (why := _managed(machine, gpu, size))), None)
    return None


def _huge(machine: Machine, node: int, size_bytes: int) -> Waiver | None:
    there, pools = f" on NUMA{node}", pools_of(machine, node)
    if pools is None:
        there, pools = "", pools_of(machine, None)
    known = [(pool.page_size_bytes, pool.free) for pool in pools or () if pool.free is not None]
    if pools is None or any(pool_bytes(pool) >= size_bytes for pool in pools):
        return None
    told = ", ".join(f"{free} of {format_size(page)}" for page, free in known) or "none"
    reason = (
        f"too few huge pages are free{there} for {format_size(size_bytes)}: {told} (HugePages_Free, vm.nr_hugepages)"
    )
    return Waiver(kind=WaiverKind.NO_PAGES, reason=reason)


def _managed(machine: Machine, gpu: Gpu, size_bytes: int) -> Waiver | None:
    end = Endpoint(memory=MemoryKind.DEVICE, label=f"GPU{gpu.index}", bus_id=gpu.bus_id)
    free = free_bytes(machine, Peak(end, size_bytes))
    if free is None or size_bytes <= free // MANAGED_SHARE:
        return None
    share = f"1/{MANAGED_SHARE} of the {format_size(free)} free on GPU{gpu.index}"
    reason = f"{format_size(size_bytes)} of managed memory are more than {share}"
    return Waiver(kind=WaiverKind.NO_ROOM, reason=reason, gpus=(gpu.bus_id,))
