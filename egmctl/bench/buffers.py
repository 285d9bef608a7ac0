"""Assign buffers to the flows of a step, and compute the peak memory of a sequence of steps. Pure functions.

The planner and the worker both use them, so that a run allocates as much memory as its plan says.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain

from egmctl.bench.case import End
from egmctl.bench.engine import ENGINES, moved_bytes
from egmctl.model.route import MemoryKind
from egmctl.model.task import Endpoint, Flow, Pattern, Quantity, Task
from egmctl.units import round_up

ROTATED_BELOW_BYTES = 64 << 20
"""The size below which a buffer has several neighbouring slots, which successive passes move in turn. Otherwise the L2
caches on the path (50 MiB on H100, 60 MiB on H200) would serve the data instead of the memory. Where only an L2 cache
that is larger could serve it, :attr:`egmctl.model.task.Task.rotated_bytes` replaces both sizes."""

ROTATED_OVER_BYTES = 128 << 20
"""The minimum size of all slots of such a buffer."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Buffer:
    """A buffer. Steps with an equal buffer share it, one after the other."""

    end: Endpoint
    role: End
    """A source is filled once and never written again; a destination is overwritten before each sample."""
    index: int
    """The number of the buffer among those of one step with the same end and role."""
    size_bytes: int


@dataclass(frozen=True, slots=True)
class FlowBuffers:
    """The buffers that one flow reads from and writes to; ``None`` at an end without memory."""

    source: Buffer | None
    destination: Buffer | None

    @property
    def there(self) -> tuple[Buffer, ...]:
        """The buffers, without missing ends."""
        return tuple(buffer for buffer in (self.source, self.destination) if buffer is not None)


def span_bytes(size_bytes: int, rotated_bytes: int = 0) -> int:
    """Return the size of a buffer with slots of ``size_bytes``; large slots need only one."""
    if size_bytes >= (rotated_bytes or ROTATED_BELOW_BYTES):
        return size_bytes
    return round_up(rotated_bytes or ROTATED_OVER_BYTES, size_bytes)


@dataclass(frozen=True, slots=True)
class Window:
    """The part of a buffer that one sample uses: neighbouring slots, which its passes move in turn."""

    offset_bytes: int
    slots: int
    slot_bytes: int

    @property
    def size_bytes(self) -> int:
        """The bytes of all slots."""
        return self.slots * self.slot_bytes


def window(size_bytes: int, passes: int, sample: int, rotated_bytes: int = 0) -> Window:
    """Return the window of a sample.

    It has at most one slot per pass. Successive samples use different windows if the buffer has room for two.

    Parameters
    ----------
    size_bytes
        The size of one slot, which one pass moves.
    passes
        The passes per sample.
    sample
        The index of the sample.
    rotated_bytes
        That of the task.
    """
    all_slots = span_bytes(size_bytes, rotated_bytes) // size_bytes
    slots = min(passes, all_slots)
    return Window(sample % (all_slots // slots) * slots * size_bytes, slots, size_bytes)


def assign(tasks: Sequence[Task]) -> tuple[tuple[FlowBuffers, ...], ...]:
    """Return the buffers of each flow of each task of a step.

    Flows of one step share no buffer, except flows from one GPU to all others, which send the same source.
    """
    taken: Counter[tuple[Endpoint, End]] = Counter()

    def take(task: Task, end: Endpoint, role: End) -> Buffer | None:
        if end.memory is MemoryKind.REGISTERS:
            return None
        shared = task.pattern is Pattern.ONE_TO_ALL and role is End.SOURCE
        index = 0 if shared else taken[end, role]
        taken[end, role] += 1
        rotates = task.quantity is Quantity.BANDWIDTH and not ENGINES[task.engine].writes_source
        size_bytes = span_bytes(task.size_bytes, task.rotated_bytes) if rotates else moved_bytes(task)
        return Buffer(end=end, role=role, index=index, size_bytes=size_bytes)

    def of_flow(task: Task, flow: Flow) -> FlowBuffers:
        # A chase writes its chain into the memory that it then reads, so that this memory is no source for others.
        own = task.quantity is Quantity.LATENCY or ENGINES[task.engine].writes_source
        source = End.DESTINATION if own else End.SOURCE
        return FlowBuffers(take(task, flow.source, source), take(task, flow.destination, End.DESTINATION))

    return tuple(tuple(of_flow(task, flow) for flow in task.flows) for task in tasks)


def buffers_of(tasks: Sequence[Task]) -> tuple[Buffer, ...]:
    """Return all buffers of a step, each once, in the order of its flows."""
    flows = chain.from_iterable(assign(tasks))
    return tuple(dict.fromkeys(buffer for flow in flows for buffer in flow.there))


class Lifetimes:
    """A use count of buffers, which shows the buffers that no later step uses.

    Parameters
    ----------
    steps
        The buffers of each step (:func:`buffers_of`), in order.
    """

    def __init__(self, steps: Iterable[Sequence[Buffer]]) -> None:
        self._uses: Counter[Buffer] = Counter()
        for buffers in steps:
            self.add(buffers)

    def add(self, buffers: Sequence[Buffer]) -> None:
        """Add a step."""
        self._uses.update(buffers)

    def finish(self, buffers: Sequence[Buffer]) -> tuple[Buffer, ...]:
        """Mark a step as finished; return its buffers that no remaining step uses."""
        self._uses.subtract(buffers)
        return tuple(buffer for buffer in buffers if self._uses[buffer] <= 0)


@dataclass(frozen=True, slots=True)
class Peak:
    """The peak memory of a sequence of steps in one place."""

    place: Endpoint | None
    """An end on the GPU or NUMA node; ``None`` for the whole host."""
    bytes: int
    host: str | None = None
    """The host's name if there are several hosts."""
    huge_pages: bool = False
    """Whether this counts huge pages, which are reserved. The free memory of the host and its nodes excludes them
    (``Documentation/admin-guide/mm/hugetlbpage.rst`` of Linux)."""

    @property
    def name(self) -> str:
        """The name of the place: ``GPU0``, ``NUMA1``, ``host``, ``NUMA1 huge pages``, ``huge pages``.

        A NUMA node is named by its number, because the label of an end on it may name the GPU that allocated.
        """
        if self.place is None:
            return "huge pages" if self.huge_pages else "host"
        if self.place.bus_id is not None:
            return self.place.label
        return f"NUMA{self.place.numa_node}{' huge pages' if self.huge_pages else ''}"

    def same_place(self, other: Peak) -> bool:
        """Return whether another peak is in the same place."""
        return _key(self.host, self.place, self.huge_pages) == _key(other.host, other.place, other.huge_pages)


def peaks(
    steps: Sequence[Sequence[Task]],
    *,
    keep: bool = False,
    node_of: Callable[[Endpoint], str | None] = lambda _end: None,
    huge_page_bytes: Mapping[int, int] | None = None,
) -> tuple[Peak, ...]:
    """Return the peak memory of steps on each GPU and NUMA node and on the host, separately for huge pages.

    Parameters
    ----------
    keep
        Whether buffers stay allocated until the last step.
    node_of
        A function that returns the name of an end's host if there are several.
    huge_page_bytes
        The size of huge pages by NUMA node, to which buffers are rounded up.
    """

    def places(buffer: Buffer) -> tuple[_Place, ...]:
        host = node_of(buffer.end)
        huge = _on_huge_pages(buffer)
        own = _key(host, buffer.end, huge)
        # Host memory without a known NUMA node counts for the host only.
        return (own,) if buffer.end.bus_id is not None else tuple(dict.fromkeys((own, _key(host, None, huge))))

    def taken(buffer: Buffer) -> int:
        page = sizes.get(buffer.end.numa_node or 0, 1) if _on_huge_pages(buffer) else 1
        return round_up(buffer.size_bytes, page)

    sizes = huge_page_bytes or {}
    buffers_of_steps = [buffers_of(tasks) for tasks in steps]
    lifetimes = Lifetimes(buffers_of_steps)
    # In order: which of several equals is named does not change from run to run.
    held: dict[_Place, dict[Buffer, None]] = {}
    now: Counter[_Place] = Counter()
    most: dict[_Place, Peak] = {}
    for buffers in buffers_of_steps:
        grown: dict[_Place, None] = {}
        for buffer in buffers:
            for place in places(buffer):
                there = held.setdefault(place, {})
                if buffer not in there:
                    there[buffer] = None
                    now[place] += taken(buffer)
                    grown[place] = None
        for place in grown:
            if place not in most or now[place] > most[place].bytes:
                host, bus_id, node, huge = place
                whole = bus_id is None and node is None
                end = None if whole else next(reversed(held[place])).end
                most[place] = Peak(end, now[place], host, huge)
        if not keep:
            for buffer in lifetimes.finish(buffers):
                for place in places(buffer):
                    del held[place][buffer]
                    now[place] -= taken(buffer)
    return tuple(most.values())


_Place = tuple[str | None, str | None, int | None, bool]
"""A host, its GPU or NUMA node (neither: the whole host), and whether this counts huge pages."""


def _on_huge_pages(buffer: Buffer) -> bool:
    return buffer.end.memory is MemoryKind.HUGETLB


def _key(host: str | None, end: Endpoint | None, huge_pages: bool = False) -> _Place:
    if end is None:
        return host, None, None, huge_pages
    # GPU memory that the kernel exposes as a NUMA node counts for the GPU.
    return host, end.bus_id, None if end.bus_id else end.numa_node, huge_pages
