"""Which buffers a step works on, and how much memory a sequence of steps takes at most: pure.

The planner counts with it and the worker allocates by it, so that a run takes as much memory as its plan says.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain

from egmctl.bench.case import End
from egmctl.bench.engine import ENGINES
from egmctl.model.route import MemoryKind
from egmctl.model.task import Endpoint, Flow, Pattern, Quantity, Task
from egmctl.units import round_up

ROTATED_BELOW_BYTES = 64 << 20
"""Buffers of smaller sizes hold several neighbouring slots, and each pass moves another one: the L2 caches that the
bytes pass (50 MiB on H100, 126 MiB on B200) would otherwise answer in place of the memory."""

ROTATED_OVER_BYTES = 128 << 20
"""The least that the slots of such a buffer take together."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Buffer:
    """One buffer: steps that name the same one share it, one after the other."""

    end: Endpoint
    role: End
    """A source is filled once and never written again; a destination is overwritten before each sample."""
    index: int
    """Several flows of one step that work at the same end in the same role have one each."""
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


def span_bytes(size_bytes: int) -> int:
    """Return the size of a buffer in which passes over ``size_bytes`` rotate: a whole number of slots."""
    if size_bytes >= ROTATED_BELOW_BYTES:
        return size_bytes
    return round_up(ROTATED_OVER_BYTES, size_bytes)


@dataclass(frozen=True, slots=True)
class Window:
    """The part of a buffer that one sample works on: neighbouring slots, which its passes take in turn."""

    offset_bytes: int
    slots: int
    slot_bytes: int

    @property
    def size_bytes(self) -> int:
        """The bytes of all slots."""
        return self.slots * self.slot_bytes


def window(size_bytes: int, passes: int, sample: int) -> Window:
    """Return the window of a sample: at most as large as its passes fill, and not the last one if there is room.

    Parameters
    ----------
    size_bytes
        Bytes of one slot, which one pass moves.
    passes
        Passes of one sample.
    sample
        Number of the sample, from 0.
    """
    all_slots = span_bytes(size_bytes) // size_bytes
    slots = min(passes, all_slots)
    return Window(sample % (all_slots // slots) * slots * size_bytes, slots, size_bytes)


def assign(tasks: Sequence[Task]) -> tuple[tuple[FlowBuffers, ...], ...]:
    """Return the buffers of each flow of each task of a step.

    Flows of one step share no buffer, except those from one GPU to all others, which send the same data.
    """
    taken: Counter[tuple[Endpoint, End]] = Counter()

    def take(task: Task, end: Endpoint, role: End) -> Buffer | None:
        if end.memory is MemoryKind.REGISTERS:
            return None
        shared = task.pattern is Pattern.ONE_TO_ALL and role is End.SOURCE
        index = 0 if shared else taken[end, role]
        taken[end, role] += 1
        rotates = task.quantity is Quantity.BANDWIDTH and not ENGINES[task.engine].writes_source
        size_bytes = span_bytes(task.size_bytes) if rotates else task.size_bytes
        return Buffer(end=end, role=role, index=index, size_bytes=size_bytes)

    def of_flow(task: Task, flow: Flow) -> FlowBuffers:
        # A chase writes its chain into what it is going to read.
        own = task.quantity is Quantity.LATENCY or ENGINES[task.engine].writes_source
        source = End.DESTINATION if own else End.SOURCE
        return FlowBuffers(
            take(task, flow.source, source),
            take(task, flow.destination, End.DESTINATION),
        )

    return tuple(tuple(of_flow(task, flow) for flow in task.flows) for task in tasks)


def buffers_of(tasks: Sequence[Task]) -> tuple[Buffer, ...]:
    """Return all buffers of a step, each once, in the order of its flows."""
    flows = chain.from_iterable(assign(tasks))
    return tuple(dict.fromkeys(buffer for flow in flows for buffer in flow.there))


class Lifetimes:
    """Tracks which buffers can be freed after a step because no later step works on them.

    Parameters
    ----------
    steps
        The tasks of each step, in order.
    """

    def __init__(self, steps: Iterable[Sequence[Task]]) -> None:
        self._uses: Counter[Buffer] = Counter()
        for tasks in steps:
            self.add(tasks)

    def add(self, tasks: Sequence[Task]) -> None:
        """Announce one more step."""
        self._uses.update(buffers_of(tasks))

    def finish(self, tasks: Sequence[Task]) -> tuple[Buffer, ...]:
        """End one of the steps; return those of its buffers that no other step will need."""
        used = buffers_of(tasks)
        self._uses.subtract(used)
        return tuple(buffer for buffer in used if self._uses[buffer] <= 0)


@dataclass(frozen=True, slots=True)
class Peak:
    """The most memory that a sequence of steps holds at one place."""

    place: Endpoint | None
    """The GPU or the NUMA node, whatever the kind of memory; ``None``: the host, all nodes together."""
    bytes: int
    host: str | None = None
    """The host's name, where there are several."""
    huge_pages: bool = False
    """Huge pages there: they are reserved for this, so neither the host's free memory nor a node's counts them
    (``Documentation/admin-guide/mm/hugetlbpage.rst`` of Linux)."""

    @property
    def name(self) -> str:
        """The name of the place: ``GPU0``, ``NUMA1``, ``host``, ``NUMA1 huge pages``, ``huge pages``.

        Between processes the label of an end is that of the buffer's owner, and a NUMA node's may name who allocated.
        """
        if self.place is None:
            return "huge pages" if self.huge_pages else "host"
        if self.place.bus_id is not None:
            return self.place.label
        return f"NUMA{self.place.numa_node}{' huge pages' if self.huge_pages else ''}"

    def same_place(self, other: Peak) -> bool:
        """Return whether another peak is one of the same place."""
        return _key(self.host, self.place, self.huge_pages) == _key(other.host, other.place, other.huge_pages)


def peaks(
    steps: Sequence[Sequence[Task]],
    *,
    keep: bool = False,
    node_of: Callable[[Endpoint], str | None] = lambda _end: None,
    huge_page_bytes: Mapping[int, int] | None = None,
) -> tuple[Peak, ...]:
    """Return the most that steps hold at any time, on each GPU, on each NUMA node, on the host, and of huge pages.

    Parameters
    ----------
    keep
        Nothing is freed before the end.
    node_of
        The name of the host that an end is on, where there are several.
    huge_page_bytes
        The size of huge pages by NUMA node: a buffer of them takes a whole number.
    """

    def places(buffer: Buffer) -> tuple[_Place, ...]:
        host = node_of(buffer.end)
        huge = _on_huge_pages(buffer)
        own = _key(host, buffer.end, huge)
        # Host memory of no known node is the host's alone.
        return (own,) if buffer.end.bus_id is not None else tuple(dict.fromkeys((own, _key(host, None, huge))))

    def taken(buffer: Buffer) -> int:
        page = sizes.get(buffer.end.numa_node or 0, 1) if _on_huge_pages(buffer) else 1
        return round_up(buffer.size_bytes, page)

    sizes = huge_page_bytes or {}
    buffers_of_steps = [buffers_of(tasks) for tasks in steps]
    last_step = {buffer: number for number, buffers in enumerate(buffers_of_steps) for buffer in buffers}
    # In order: which of several equals is named does not change from run to run.
    held: dict[_Place, dict[Buffer, None]] = {}
    now: Counter[_Place] = Counter()
    most: dict[_Place, Peak] = {}
    for number, buffers in enumerate(buffers_of_steps):
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
        for buffer in buffers:
            if not keep and last_step[buffer] == number:
                for place in places(buffer):
                    del held[place][buffer]
                    now[place] -= taken(buffer)
    return tuple(most.values())


_Place = tuple[str | None, str | None, int | None, bool]
"""A host, and a GPU or a NUMA node of it, or the huge pages of the host or a node."""


def _on_huge_pages(buffer: Buffer) -> bool:
    return buffer.end.memory is MemoryKind.HUGETLB


def _key(host: str | None, end: Endpoint | None, huge_pages: bool = False) -> _Place:
    if end is None:
        return host, None, None, huge_pages
    # GPU memory that the kernel has as a NUMA node is the GPU's all the same.
    return host, end.bus_id, None if end.bus_id else end.numa_node, huge_pages
