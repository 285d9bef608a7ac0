"""The memory that a plan may allocate, huge pages included, and buffer sizes that fit into it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cache

from egmctl.bench.buffers import ROTATED_BELOW_BYTES, buffers_of, uses_host_memory
from egmctl.bench.peaks import NodeOf, Peak, Uses, one_node, peaks, places
from egmctl.bench.plan import Plan
from egmctl.dataclass import dataclass
from egmctl.errors import UsageError
from egmctl.model.finding import Waiver, WaiverKind
from egmctl.model.gpu import Gpu
from egmctl.model.host import HugePages
from egmctl.model.listing import PlannedTasks
from egmctl.model.machine import Machine
from egmctl.model.measurement import Settings
from egmctl.model.route import MemoryKind
from egmctl.model.task import Endpoint, Flow, Point, Quantity, Task
from egmctl.topology.access import memory_limit
from egmctl.units import MIB, format_size


def pools_of(machine: Machine, node: int | None) -> tuple[HugePages, ...] | None:
    """Return the pools of huge pages of a NUMA node; ``None`` if they are unknown.

    Parameters
    ----------
    node
        ``None`` for the host's pools, which are returned only if no node's pools are known: pages come from the nodes.
    """
    if machine.host is None:
        return None
    by_node = {numa.id: numa.huge_pages for numa in machine.host.numa_nodes or () if numa.huge_pages is not None}
    if node is not None:
        return by_node.get(node)
    return None if by_node else machine.host.huge_pages


def huge_page_sizes(machine: Machine) -> dict[int, int]:
    """Return the page size that huge-page memory is rounded up to, for each NUMA node where it is known."""
    nodes = [node.id for node in (machine.host.numa_nodes if machine.host else None) or ()]
    pools = {node: largest_pool(pools_of(machine, node) or pools_of(machine, None)) for node in nodes}
    return {node: pool.page_size_bytes for node, pool in pools.items() if pool is not None}


def largest_pool(pools: Sequence[HugePages] | None) -> HugePages | None:
    """Return the pool with the most free bytes; ``None`` if no pool is known.

    A buffer uses the smallest pages of which enough are free (:func:`egmctl.facts.buffers.huge_page_bytes`), so a
    buffer that fits into this pool can be allocated.
    """
    return max(pools or (), key=pool_bytes, default=None)


def pool_bytes(pool: HugePages) -> int:
    """Return the free bytes of a pool of huge pages; 0 if unknown."""
    return pool.page_size_bytes * (pool.free or 0)


LEAST_BYTES = ROTATED_BELOW_BYTES
"""The smallest size that is chosen. Buffers of smaller sizes hold several slots and need no less memory."""


@dataclass(frozen=True, slots=True)
class Memory:
    """The free memory of the nodes of a run, and the node of each end."""

    free: Callable[[Peak], int | None]
    """A function that returns the free bytes at a location, ``None`` if unknown."""
    node_of: NodeOf = one_node


def memory_of(
    machine: Machine, cgroup_left_bytes: int | None = None, free_at: Callable[[Machine, Peak], int | None] | None = None
) -> Memory:
    """Return the free memory of one node.

    Parameters
    ----------
    cgroup_left_bytes
        The memory that the cgroup's limit leaves to this process, ``None`` without a limit.
    free_at
        The function that returns the free bytes of a location: :func:`free_bytes` (the default) or :func:`most_bytes`.
    """

    def free(peak: Peak) -> int | None:
        bytes_free = (free_at or free_bytes)(machine, peak)
        # The memory limit of a cgroup does not include huge pages (memory.max, hugetlb.max).
        if peak.place is not None or peak.huge_pages or cgroup_left_bytes is None:
            return bytes_free
        return cgroup_left_bytes if bytes_free is None else min(bytes_free, cgroup_left_bytes)

    return Memory(free)


def fitted(
    plan: Plan, memory: Memory, replan: Callable[[int], Plan] | None = None, *, several_sizes: bool = False
) -> Plan:
    """Return a plan whose buffers fit into their share of the free memory of each GPU, NUMA node and the host.

    Tasks that exceed the free huge pages are waived, the last one first. So are latencies and life cycles that do not
    fit beside buffers of a quarter of the size, down to which profiles are valid
    (:data:`egmctl.verdict.learning.SMALLER`). Then buffers are halved until they fit, down to :data:`LEAST_BYTES`. If
    that is not enough, the largest are waived.

    Parameters
    ----------
    replan
        A function that makes the same plan with buffers of another size; ``None`` if the user set the size.
    several_sizes
        Whether to waive the sizes that do not fit, as for a sweep up to the size that the user set.

    Raises
    ------
    UsageError
        Buffers of the size set by the user do not fit. The message names the first location that is too small, and a
        size that fits.
    """
    usual = size = plan.settings.size_bytes
    quarter = min(usual, LEAST_BYTES if replan is None else max(LEAST_BYTES, usual // 4))
    waived: dict[int, Waiver] = {}
    note = ""
    uses = plan.uses
    while (excess := next(_excesses(plan, uses, memory), None)) is not None:
        resized = None
        if excess.peak.huge_pages:
            waivers = _last_on_huge_pages(plan, memory, excess)
        elif fixed_size := _largest(plan, memory, next(_excesses(plan, uses, memory, quarter), excess), own_size=True):
            waivers = fixed_size
        elif replan is not None and size > LEAST_BYTES:
            size = max(LEAST_BYTES, size // 2)
            note = note or f"{_name(excess.peak)} has no room for more"
            resized = replan(size)
            waivers = _same_tasks(plan, waived, resized)
        elif replan is not None or several_sizes:
            waivers = _largest(plan, memory, excess, own_size=False)
        else:
            smaller = (size >> power for power in range(1, size.bit_length()) if size >> power >= LEAST_BYTES)
            fits = next((candidate for candidate in smaller if not any(_excesses(plan, uses, memory, candidate))), None)
            hint = "no smaller size fits" if fits is None else f"--size {fits // MIB}M fits"
            raise UsageError(f"--size {format_size(size)} {excess}; {hint}")
        if resized is None:
            waived |= waivers
            kinds = {id(plan.tasks.kinds[number]) for number in waivers}
            plan = _without(plan, waivers)
            # Most kinds are waived as a whole: none of their tasks is left to be added again.
            are_left = not kinds.isdisjoint(id(plan.tasks.distinct[kind]) for kind in set(plan.tasks.numbers))
            steps = [step.tasks for step in plan.steps] if are_left else []
            uses = uses.without(kinds, plan.tasks.kinds, plan.tasks.flows, steps)
        else:
            waived = waivers
            resized = _without(resized, waivers)
            uses, plan = _uses_of_size(uses, plan, resized), resized
    plan = replace(plan, steps=tuple(step for step in plan.steps if step.tasks))
    plan = replace(plan, known_uses=(plan.tasks, plan.steps, uses))
    if size == usual:
        return plan
    return replace(
        plan, notes=(*plan.notes, f"buffers of {format_size(size)}, not of the usual {format_size(usual)}: {note}")
    )


@dataclass(frozen=True, slots=True)
class _Excess:
    """Buffers that exceed their share of the memory at a location."""

    peak: Peak
    free: int
    share: int
    """The share in per cent of the free memory."""

    def __str__(self) -> str:
        part = "half" if self.share == 50 else f"{self.share} %"
        free = f"{part} of the {format_size(self.free)} free there"
        return f"takes {format_size(self.peak.bytes)} on {_name(self.peak)}, more than {free}"


def _excesses(plan: Plan, uses: Uses, memory: Memory, most_bytes: int | None = None) -> Iterator[_Excess]:
    """Yield the locations where a plan exceeds its share, with bandwidth buffers of at most ``most_bytes`` if given.

    All free huge pages may be used, because they have no other purpose.
    """

    def sized(task: Task) -> Task:
        if most_bytes is None or task.quantity is not Quantity.BANDWIDTH or task.size_bytes <= most_bytes:
            return task
        return replace(task, size_bytes=most_bytes)

    keep = plan.settings.duration_s is not None
    for peak in uses.peaks(keep=keep, node_of=memory.node_of, huge_page_bytes=plan.huge_page_bytes, sized=sized):
        share = 100 if peak.huge_pages else plan.settings.memory_percent
        free = memory.free(peak)
        if free is not None and peak.bytes > free * share // 100:
            yield _Excess(peak, free, share)


def _uses_of_size(uses: Uses, plan: Plan, resized: Plan) -> Uses:
    """Return the uses of a plan of another size, from those of this size if both have the same steps."""
    same_steps = [step.tasks for step in plan.steps] == [step.tasks for step in resized.steps]
    if not same_steps or not plan.tasks.alike(resized.tasks):
        return resized.uses
    kinds = zip(plan.tasks.distinct, resized.tasks.distinct, strict=True)
    return uses.of_size({id(kind): resized_kind for kind, resized_kind in kinds})


def _same_tasks(plan: Plan, waived: Mapping[int, Waiver], other: Plan) -> dict[int, Waiver]:
    """Return the waivers of a plan's tasks by the numbers of the same tasks in a plan of another size."""

    if _are_same(plan.tasks, other.tasks):
        return dict(waived)

    def key(tasks: PlannedTasks, number: int) -> tuple[str, Point, tuple[Flow, ...]]:
        return tasks.kinds[number].case, tasks.kinds[number].point, tasks.flows[number]

    by_key = {key(plan.tasks, number): waiver for number, waiver in waived.items()}
    cases = {case for case, _, _ in by_key}
    alike = (number for number, kind in enumerate(other.tasks.kinds) if kind.case in cases)
    return {number: by_key[known] for number in alike if (known := key(other.tasks, number)) in by_key}


def _are_same(tasks: PlannedTasks, others: PlannedTasks) -> bool:
    """Return whether tasks are the same ones, in the same order, but for their size and waivers."""
    same_kinds = tasks.alike(others)
    pairs = (
        zip(tasks.distinct, others.distinct, strict=True) if same_kinds else zip(tasks.kinds, others.kinds, strict=True)
    )
    return (same_kinds or tasks.flows == others.flows) and all(
        kind.case == other.case and (kind.point is other.point or kind.point == other.point) for kind, other in pairs
    )


def _largest(plan: Plan, memory: Memory, excess: _Excess, *, own_size: bool) -> dict[int, Waiver]:
    """Return the numbers of the tasks that need the most memory at a location that is too small, with their waivers.

    Parameters
    ----------
    own_size
        Consider only tasks whose size does not depend on the run's size.
    """
    on_host = excess.peak.place is None or excess.peak.place.bus_id is None
    candidates = {
        index
        for index, kind in enumerate(plan.tasks.distinct)
        if not kind.waivers
        and not (own_size and kind.quantity is Quantity.BANDWIDTH)
        and (not on_host or uses_host_memory(kind))
    }
    needed_bytes = _needed_bytes(plan, memory, excess.peak)
    needed = {number: needed_bytes(number) for number, kind in enumerate(plan.tasks.numbers) if kind in candidates}
    largest = max(needed.values(), default=0)
    if not largest:
        return {}
    alone = replace(excess, peak=replace(excess.peak, bytes=largest))
    reason = f"{_name(excess.peak)} has no room for its {format_size(largest)} beside what others hold there"
    if largest > excess.free * excess.share // 100:
        reason = f"it {alone}"
    waiver = Waiver(kind=WaiverKind.NO_ROOM, reason=reason)
    return {number: waiver for number, size_bytes in needed.items() if size_bytes == largest}


def _last_on_huge_pages(plan: Plan, memory: Memory, excess: _Excess) -> dict[int, Waiver]:
    """Return the number of the last task with buffers in huge pages at a location, with its waiver."""
    location = "" if excess.peak.place is None else f" on NUMA{excess.peak.place.numa_node}"
    reason = (
        f"beside other buffers of huge pages it needs more than the {format_size(excess.free)} that are free{location} "
        "(HugePages_Free, vm.nr_hugepages)"
    )
    needed_bytes = _needed_bytes(plan, memory, excess.peak)
    runnable = (number for number in reversed(range(len(plan.tasks))) if not plan.tasks.kinds[number].waivers)
    last_number = next(number for number in runnable if needed_bytes(number) > 0)
    return {last_number: Waiver(kind=WaiverKind.NO_PAGES, reason=reason)}


def _needed_bytes(plan: Plan, memory: Memory, location: Peak) -> Callable[[int], int]:
    """Return a function of a task's number that returns the bytes that it needs at a location.

    They are counted as for the plan but without rounding to huge pages.
    """
    kinds, flows, ends = plan.tasks.kinds, plan.tasks.flows, plan.ends
    known: dict[tuple[int, tuple[int, ...]], int] = {}

    @cache
    def is_there(end: int) -> bool:
        return end >= 0 and location.key in places(ends[end], memory.node_of(ends[end]))

    def needed(number: int) -> int:
        # Each end at the location by the number of its first flow: equal ones share buffers.
        there: dict[int, int] = {}
        of_flows = [
            there.setdefault(end, len(there)) if is_there(end) else -1
            for flow in flows[number]
            for end in ends.of_flow(flow)
        ]
        if not there:
            return 0
        key = id(kinds[number]), tuple(of_flows)
        if key not in known:
            uses = Uses(kinds, flows, [(number,)], ends).peaks(node_of=memory.node_of)
            known[key] = sum(peak.bytes for peak in uses if peak.same_place(location))
        return known[key]

    return needed


def _without(plan: Plan, waivers: Mapping[int, Waiver]) -> Plan:
    """Return a plan in which some tasks are waived; a step may then have none."""
    if not waivers:
        return plan
    distinct, numbers = list(plan.tasks.distinct), list(plan.tasks.numbers)
    waived_kinds: dict[tuple[int, Waiver], int] = {}
    for number, waiver in waivers.items():
        key = numbers[number], waiver
        if key not in waived_kinds:
            waived_kinds[key] = len(distinct)
            distinct.append(replace(distinct[numbers[number]], waivers=(waiver,)))
        numbers[number] = waived_kinds[key]
    left = (
        step if waivers.keys().isdisjoint(step.tasks) else replace(step, tasks=_other_than(step.tasks, waivers))
        for step in plan.steps
    )
    return replace(plan, tasks=PlannedTasks(distinct, numbers, plan.tasks.flows), steps=tuple(left))


def _other_than(numbers: Iterable[int], waivers: Mapping[int, Waiver]) -> tuple[int, ...]:
    return tuple(number for number in numbers if number not in waivers)


def has_room(machine: Machine, task: Task, settings: Settings) -> bool:
    """Return whether a task fits into half of a run's share, so that no other task gets smaller because of it."""
    share = settings.memory_percent // 2
    room = ((peak, most_bytes(machine, peak)) for peak in peaks([[task]]))
    return not any(most is not None and peak.bytes > most * share // 100 for peak, most in room)


def most_bytes(machine: Machine, peak: Peak) -> int | None:
    """Return the free bytes at a location, or its total if only that is known, as for a model of a machine."""
    free, host, end = free_bytes(machine, peak), machine.host, peak.place
    if free is not None or peak.huge_pages:
        return free
    if end is not None and end.bus_id is not None:
        gpu = machine.gpu(end.bus_id)
        limit = memory_limit(machine, gpu)
        total = None if gpu.nvml is None else gpu.nvml.memory_total_bytes
        return total if limit is None else min(limit.max_bytes, total or limit.max_bytes)
    if end is None:
        return host.memory_total_bytes if host else None
    nodes = (host.numa_nodes if host else None) or ()
    return next((node.memory_total_bytes for node in nodes if node.id == end.numa_node), None)


def free_bytes(machine: Machine, peak: Peak) -> int | None:
    """Return the free bytes at a location; ``None`` if unknown."""
    host, end = machine.host, peak.place
    if peak.huge_pages:
        pool = largest_pool(pools_of(machine, None if end is None else end.numa_node))
        return None if pool is None else pool_bytes(pool)
    if end is None:
        return host.memory_available_bytes if host else None
    if end.bus_id is None:
        nodes = (host.numa_nodes if host else None) or ()
        return next((node.memory_free_bytes for node in nodes if node.id == end.numa_node), None)
    gpu = machine.gpu(end.bus_id)
    nvml, limit = gpu.nvml, memory_limit(machine, gpu)
    if nvml is None or nvml.memory_total_bytes is None or nvml.memory_used_bytes is None:
        return None
    free = nvml.memory_total_bytes - nvml.memory_used_bytes
    return free if limit is None else min(free, limit.left_bytes)


def _name(peak: Peak) -> str:
    if peak.place is None:
        return peak.host or "the host"
    # Only one of several ends on a NUMA node is kept. Its label may have more than the node, e.g. the allocating GPU.
    is_gpu = peak.place.bus_id is not None or peak.place.rank is not None
    return peak.place.label if is_gpu else f"NUMA{peak.place.numa_node}"


MANAGED_SHARE = 16
"""Managed memory is at most the free memory of any GPU that reaches it, divided by this. A program that requested more
than a GPU has was seen to hang it. The managed memory measured here stays on the host and needs no GPU memory."""


def pages_waiver(machine: Machine, task: Task, gpus: Sequence[Gpu]) -> Waiver | None:
    """Return why memory of a task's kind is not available in its size; ``None`` if it is, or if unknown."""
    needed: dict[MemoryKind, int] = {}
    on_huge_pages: dict[int, int] = {}
    for buffer in buffers_of([task]):
        end = buffer.end
        needed[end.memory] = needed.get(end.memory, 0) + buffer.size_bytes
        if end.memory is MemoryKind.HUGETLB and end.numa_node is not None:
            on_huge_pages[end.numa_node] = on_huge_pages.get(end.numa_node, 0) + buffer.size_bytes
    for node, size_bytes in on_huge_pages.items():
        if (waiver := _huge(machine, node, size_bytes)) is not None:
            return waiver
    if MemoryKind.THP in needed and machine.host is not None and machine.host.transparent_huge_pages == "never":
        reason = "transparent huge pages are off: /sys/kernel/mm/transparent_hugepage/enabled is never"
        return Waiver(kind=WaiverKind.NO_PAGES, reason=reason)
    if (size := needed.get(MemoryKind.MANAGED)) is not None:
        return next((waiver for gpu in gpus if (waiver := _managed(machine, gpu, size))), None)
    return None


def _huge(machine: Machine, node: int, size_bytes: int) -> Waiver | None:
    suffix, pools = f" on NUMA{node}", pools_of(machine, node)
    if pools is None:
        suffix, pools = "", pools_of(machine, None)
    known = [(pool.page_size_bytes, pool.free) for pool in pools or () if pool.free is not None]
    if pools is None or any(pool_bytes(pool) >= size_bytes for pool in pools):
        return None
    counts = ", ".join(f"{free} of {format_size(page)}" for page, free in known) or "none"
    reason = (
        f"too few huge pages are free{suffix} for {format_size(size_bytes)}: {counts} (HugePages_Free, vm.nr_hugepages)"
    )
    return Waiver(kind=WaiverKind.NO_PAGES, reason=reason)


def _managed(machine: Machine, gpu: Gpu, size_bytes: int) -> Waiver | None:
    end = Endpoint(memory=MemoryKind.DEVICE, label=f"GPU{gpu.index}", bus_id=gpu.bus_id)
    free = free_bytes(machine, Peak(end, size_bytes))
    if free is None or size_bytes <= free // MANAGED_SHARE:
        return None
    share = f"1/{MANAGED_SHARE} of the {format_size(free)} free on GPU{gpu.index}"
    return Waiver.about(WaiverKind.NO_ROOM, f"{format_size(size_bytes)} of managed memory are more than {share}", gpu)
