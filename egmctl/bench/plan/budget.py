"""Memory that a plan may take, huge pages included, and buffer sizes that fit into it."""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from egmctl.bench.buffers import ROTATED_BELOW_BYTES, Peak, buffers_of, peaks
from egmctl.errors import UsageError
from egmctl.model.finding import Waiver, WaiverKind
from egmctl.model.host import HugePages
from egmctl.model.machine import Gpu, Machine
from egmctl.model.measurement import Endpoint, MemoryKind, Settings, Task
from egmctl.model.planned import PlannedTask, Step
from egmctl.units import MIB, format_size

if TYPE_CHECKING:
    from egmctl.bench.plan import Plan


def pools_of(machine: Machine, node: int | None) -> tuple[HugePages, ...] | None:
    """Return the pools of huge pages of a NUMA node; ``None`` where nobody knows them.

    Parameters
    ----------
    node
        ``None``: of the host, where those of no node are known: else each node's count, which is where they are taken.
    """
    if machine.host is None:
        return None
    of_nodes = {one.id: one.huge_pages for one in machine.host.numa_nodes or () if one.huge_pages is not None}
    if node is not None:
        return of_nodes.get(node)
    return None if of_nodes else machine.host.huge_pages


def huge_page_sizes(machine: Machine) -> dict[int, int]:
    """Return the size of the huge pages that memory of each NUMA node is counted in, where it is known."""
    nodes = [node.id for node in (machine.host.numa_nodes if machine.host else None) or ()]
    pools = {node: largest_pool(pools_of(machine, node) or pools_of(machine, None)) for node in nodes}
    return {node: pool.page_size_bytes for node, pool in pools.items() if pool is not None}


def largest_pool(pools: Sequence[HugePages] | None) -> HugePages | None:
    """Return the pool with the most bytes free; ``None`` where nobody knows of any.

    A buffer is made of the smallest pages of which there are enough (:func:`egmctl.facts.host.huge_page_bytes`), so
    what fits into this pool alone can be had.
    """
    return max(pools or (), key=pool_bytes, default=None)


def pool_bytes(pool: HugePages) -> int:
    """Return how much is free in a pool of huge pages, 0 where it was not read."""
    return pool.page_size_bytes * (pool.free or 0)


LEAST_BYTES = ROTATED_BELOW_BYTES
"""The smallest size that is chosen: buffers of smaller ones hold several slots and take no less memory."""


def _one_host(_end: Endpoint) -> str | None:
    return None


@dataclass(frozen=True, slots=True)
class Memory:
    """What is free on the nodes of a run, and who is on which node."""

    free: Callable[[Peak], int | None]
    """Bytes free at a place, ``None`` where nobody knows."""
    node_of: Callable[[Endpoint], str | None] = _one_host
    """The name of the host that an end is on, where there are several."""


def memory_of(
    machine: Machine,
    cgroup_left_bytes: int | None = None,
    free_at: Callable[[Machine, Peak], int | None] | None = None,
) -> Memory:
    """Return what is free on one node.

    Parameters
    ----------
    cgroup_left_bytes
        What the cgroup's limit leaves to this process, ``None`` without one.
    free_at
        What says it of a place: :func:`free_bytes`, or :func:`most_bytes`.
    """

    def free(peak: Peak) -> int | None:
        found = (free_at or free_bytes)(machine, peak)
        # The limit of a cgroup's memory does not count huge pages (memory.max, hugetlb.max).
        if peak.place is not None or peak.huge_pages or cgroup_left_bytes is None:
            return found
        return cgroup_left_bytes if found is None else min(found, cgroup_left_bytes)

    return Memory(free)


def check_memory(plan: Plan, memory: Memory) -> None:
    """Refuse a plan whose buffers would take more than its share of what is free on a GPU, a NUMA node or the host.

    Raises
    ------
    UsageError
        Naming the first place that is too small and the largest size that fits everywhere.
    """
    for peak, free in _excesses(_peaks(plan, memory), memory, plan.settings.memory_percent):
        size = plan.settings.size_bytes
        fits = _largest(plan, memory, size, LEAST_BYTES)
        hint = "no smaller size fits" if fits is None else f"at most --size {fits // MIB}M fits"
        raise UsageError(f"--size {format_size(size)} {_takes(peak, free, plan.settings.memory_percent)}; {hint}")


def checked(plan: Plan, memory: Memory) -> Plan:
    """Return a plan for a size that somebody chose; latencies whose own size has no room beside any other are waived.

    Tasks for whose buffers there are no huge pages beside those of others are waived too.

    Raises
    ------
    UsageError
        As :func:`check_memory`.
    """
    plan = _with_huge_pages(plan, memory)
    plan, _ = _with_room(plan, memory, min(plan.settings.size_bytes, LEAST_BYTES))
    check_memory(plan, memory)
    return plan


def fitted(plan: Plan, memory: Memory, replan: Callable[[int], Plan]) -> Plan:
    """Return a plan that fits, for a size that nobody chose.

    Buffers become smaller, down to a quarter of the usual size, for which profiles still hold
    (:data:`egmctl.verdict.profiles.SMALLER`). Then latencies and messages whose own size has no room are waived, then
    buffers become as small as :data:`LEAST_BYTES`, and at last what does not fit even so is waived. So are, in buffers
    of any size, tasks for which there are no huge pages beside those of others.

    Parameters
    ----------
    replan
        Makes the same plan with buffers of another size.
    """
    share = plan.settings.memory_percent
    tight = next(_excesses(_peaks(plan, memory), memory, share), None)
    if tight is None:
        return _with_huge_pages(plan, memory)
    usual = plan.settings.size_bytes
    waived: dict[int, str] = {}
    size = usual
    if usual > LEAST_BYTES:
        quarter = max(LEAST_BYTES, usual // 4)
        plan, waived = _with_room(plan, memory, quarter)
        size = _largest(plan, memory, usual, quarter) or _largest(plan, memory, quarter, LEAST_BYTES) or LEAST_BYTES
    if size < usual:
        plan = _without(replan(size), waived)
        why = f"{_name(tight[0])} has no room for more"
        note = f"buffers of {format_size(size)}, not of the usual {format_size(usual)}: {why}"
        plan = replace(plan, notes=(*plan.notes, note))
    # It ends: what is too much at a place is that of tasks, and the largest of them go each time (_taken).
    while (excess := next(_excesses(_peaks(plan, memory), memory, share), None)) is not None:
        plan = _without(plan, _largest_at(plan, memory, *excess, sized=True))
    return _with_huge_pages(plan, memory)


def too_large(machine: Machine, task: Task, share: int) -> tuple[Waiver, ...]:
    """Say why a task whose size nobody chose does not fit by itself; nothing if it does.

    Parameters
    ----------
    share
        Per cent of what is free.
    """
    for peak, free in _excesses(peaks([[task]]), memory_of(machine), share):
        return (Waiver(kind=WaiverKind.NO_ROOM, reason=f"it {_takes(peak, free, share)}"),)
    return ()


def has_room(machine: Machine, task: Task, settings: Settings) -> bool:
    """Say whether a task fits into half of what a run may take, so that nothing else becomes smaller for it.

    Of a place whose free memory is not known, what counts is all that it has.
    """
    memory = Memory(lambda peak: _or_total(machine, peak, free_bytes(machine, peak)))
    return not any(_excesses(peaks([[task]]), memory, settings.memory_percent // 2))


def _or_total(machine: Machine, peak: Peak, free: int | None) -> int | None:
    host, place = machine.host, peak.place
    if free is not None or host is None or peak.huge_pages or (place is not None and place.bus_id is not None):
        return free
    if place is None:
        return host.memory_total_bytes
    return next((node.memory_total_bytes for node in host.numa_nodes or () if node.id == place.numa_node), None)


def most_bytes(machine: Machine, peak: Peak) -> int | None:
    """Return what is free at a place, or all that it has where only that is known, as of a model."""
    free = free_bytes(machine, peak)
    if free is None and peak.place is not None and peak.place.bus_id is not None:
        nvml = machine.gpu(peak.place.bus_id).nvml
        return None if nvml is None else nvml.memory_total_bytes
    return _or_total(machine, peak, free)


def free_bytes(machine: Machine, peak: Peak) -> int | None:
    """Return what is free at a place, ``None`` where the facts do not say."""
    host, place = machine.host, peak.place
    if peak.huge_pages:
        pool = largest_pool(pools_of(machine, None if place is None else place.numa_node))
        return None if pool is None else pool_bytes(pool)
    if place is None:
        return host.memory_available_bytes if host else None
    if place.bus_id is None:
        nodes = (host.numa_nodes if host else None) or ()
        return next((node.memory_free_bytes for node in nodes if node.id == place.numa_node), None)
    nvml = machine.gpu(place.bus_id).nvml
    if nvml is None or nvml.memory_total_bytes is None or nvml.memory_used_bytes is None:
        return None
    return nvml.memory_total_bytes - nvml.memory_used_bytes


def _peaks(plan: Plan, memory: Memory, size_bytes: int | None = None) -> tuple[Peak, ...]:
    """Return what a plan holds at most at each place, with buffers of another size where one is given."""

    def sized(planned: PlannedTask) -> Task:
        if size_bytes is None or not planned.sized:
            return planned
        return replace(planned, size_bytes=size_bytes)

    steps = [[sized(plan.tasks[number]) for number in step.tasks] for step in plan.steps]
    keep = plan.settings.duration_s is not None
    return peaks(steps, keep=keep, node_of=memory.node_of, huge_page_bytes=plan.huge_page_bytes)


def _largest(plan: Plan, memory: Memory, most_bytes: int, least_bytes: int) -> int | None:
    """Return the largest size of a range that fits, a whole number of MiB; ``None`` where not even the least does."""
    share = plan.settings.memory_percent

    def fits(mib: int) -> bool:
        return not any(_excesses(_peaks(plan, memory, mib * MIB), memory, share))

    least, most = least_bytes // MIB, most_bytes // MIB
    if most < least or not fits(least):
        return None
    while least < most:
        middle = (least + most + 1) // 2
        if fits(middle):
            least = middle
        else:
            most = middle - 1
    return least * MIB


def _largest_at(plan: Plan, memory: Memory, peak: Peak, free: int, *, sized: bool) -> dict[int, str]:
    """Return those tasks that take the most at a place with too little memory, and why each cannot be run.

    Parameters
    ----------
    sized
        Those too whose buffers have the size of the run.
    """
    taken = {
        number: found
        for step in plan.steps
        for number in step.tasks
        if (sized or not plan.tasks[number].sized) and (found := _taken(plan.tasks[number], memory, peak)) > 0
    }
    most = max(taken.values(), default=0)
    share = plan.settings.memory_percent
    why = (
        f"it {_takes(replace(peak, bytes=most), free, share)}"
        if most > free * share // 100
        else f"{_name(peak)} has no room for its {format_size(most)} beside what others hold there"
    )
    return {number: why for number, found in taken.items() if found == most}


def _with_room(plan: Plan, memory: Memory, size_bytes: int) -> tuple[Plan, dict[int, str]]:
    """Return a plan without the tasks of a size of their own that have no room beside buffers of a size; and those."""
    waived: dict[int, str] = {}
    share = plan.settings.memory_percent
    while (excess := next(_excesses(_peaks(plan, memory, size_bytes), memory, share), None)) is not None:
        gone = _largest_at(plan, memory, *excess, sized=False)
        if not gone:
            break
        waived |= gone
        plan = _without(plan, gone)
    return plan, waived


def _with_huge_pages(plan: Plan, memory: Memory) -> Plan:
    """Return a plan whose buffers of huge pages fit into those that are free; its last tasks of such are waived."""
    wanting = [number for number, one in enumerate(plan.tasks) if one.waiver is None and _on_huge_pages(one)]
    if not wanting:
        return plan
    # Only these hold any: this takes no time.
    others = set(range(len(plan.tasks))).difference(wanting)
    only = replace(plan, steps=tuple(_remaining(plan.steps, others)))
    gone: dict[int, str] = {}
    while (excess := _too_few_huge_pages(_peaks(only, memory), memory)) is not None:
        peak, free = excess
        last = next(number for number in reversed(wanting) if _taken(plan.tasks[number], memory, peak) > 0)
        wanting.remove(last)
        there = "" if peak.place is None else f" on NUMA{peak.place.numa_node}"
        gone[last] = (
            f"beside other buffers of huge pages it needs more than the {format_size(free)} that are free{there} "
            "(HugePages_Free, vm.nr_hugepages)"
        )
        only = _without(only, gone)
    return _without(plan, gone, WaiverKind.NO_PAGES)


def _too_few_huge_pages(wanted: Sequence[Peak], memory: Memory) -> tuple[Peak, int] | None:
    """Return where too few huge pages are free, and how much is, else ``None``."""
    for peak in wanted:
        if peak.huge_pages and (free := memory.free(peak)) is not None and peak.bytes > free:
            return peak, free
    return None


def _on_huge_pages(task: Task) -> bool:
    return any(end.memory is MemoryKind.HUGETLB for flow in task.flows for end in (flow.source, flow.destination))


def _without(plan: Plan, gone: Mapping[int, str], kind: WaiverKind = WaiverKind.NO_ROOM) -> Plan:
    """Return a plan in which some tasks are waived."""
    tasks = tuple(
        replace(one, waivers=(Waiver(kind=kind, reason=gone[number]),)) if number in gone else one
        for number, one in enumerate(plan.tasks)
    )
    return replace(plan, tasks=tasks, steps=tuple(_remaining(plan.steps, gone)))


def _taken(task: Task, memory: Memory, peak: Peak) -> int:
    """Return what a task takes at a place, counted as for the plan but for whole huge pages.

    What exceeds is always some task's.
    """
    return sum(one.bytes for one in peaks([[task]], node_of=memory.node_of) if one.same_place(peak))


def _remaining(steps: Iterable[Step], gone: Container[int]) -> Iterator[Step]:
    for step in steps:
        left = tuple(number for number in step.tasks if number not in gone)
        if left:
            yield replace(step, tasks=left)


def _excesses(wanted: Sequence[Peak], memory: Memory, share: int) -> Iterator[tuple[Peak, int]]:
    """Yield what takes more than its share of a place, with the bytes free there; huge pages are no such place."""
    for peak in wanted:
        free = None if peak.huge_pages else memory.free(peak)
        if free is not None and peak.bytes > free * share // 100:
            yield peak, free


def _name(peak: Peak) -> str:
    if peak.place is None:
        return peak.host or "the host"
    # Of several ends on a NUMA node one is kept, and its label may tell more than the node, as who allocated it.
    own = peak.place.bus_id is not None or peak.place.rank is not None
    return peak.place.label if own else f"NUMA{peak.place.numa_node}"


def _takes(peak: Peak, free: int, share: int) -> str:
    part = "half" if share == 50 else f"{share} %"
    return f"takes {format_size(peak.bytes)} on {_name(peak)}, more than {part} of the {format_size(free)} free there"


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
