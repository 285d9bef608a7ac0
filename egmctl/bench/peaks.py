"""The peak memory of a sequence of steps, in each place. Pure.

72 GPUs have 72,000 tasks, whose buffers are needed again and again: for each size that a plan tries. So one pass over
the steps notes when each buffer is used first and last, by numbers instead of records, and sizes come afterwards.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from egmctl.bench.buffers import buffer_bytes, shares_source, source_role
from egmctl.bench.case import End
from egmctl.model.route import MemoryKind
from egmctl.model.task import Endpoint, Flow, Task
from egmctl.units import round_up


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
        return self.key == other.key

    @property
    def key(self) -> Place:
        """The place."""
        return _place(self.host, self.place, self.huge_pages)


Place = tuple[str | None, str | None, int | None, bool]
"""A host, its GPU or NUMA node (neither: the whole host), and whether this counts huge pages."""
AlikeTasks = tuple[Task, tuple[Flow, ...]]
"""A task, by one that is equal to it in everything but the flows, and its own flows."""
NodeOf = Callable[[Endpoint], str | None]
"""A function that returns the name of an end's host, ``None`` if there is only one."""


def one_node(_end: Endpoint) -> None:
    """Return no name: there is only one host."""


def peaks(
    steps: Sequence[Sequence[Task]],
    *,
    keep: bool = False,
    node_of: NodeOf = one_node,
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
    uses = Uses([[(task, task.flows) for task in tasks] for tasks in steps])
    return tuple(uses.peaks(keep=keep, node_of=node_of, huge_page_bytes=huge_page_bytes))


class Uses:
    """The first and the last step that uses each buffer of a sequence of steps, as :func:`buffers.assign` assigns them.

    Parameters
    ----------
    steps
        The tasks of each step, in order.
    """

    def __init__(self, steps: Iterable[Iterable[AlikeTasks]]) -> None:
        self._ends = Ends()
        self._kinds: list[Task] = []
        # By end and role, index, and kind of task: in the order of the first use.
        self._spans: dict[tuple[int, int, int], list[int]] = {}
        numbers: dict[int, tuple[int, bool, bool]] = {}
        numbers_of_flow = self._ends.numbers_of_flow
        spans = self._spans
        for step, tasks in enumerate(steps):
            taken: dict[int, int] = {}
            for kind, flows in tasks:
                known = numbers.get(id(kind))
                if known is None:
                    own_source = source_role(kind) is End.SOURCE
                    known = numbers[id(kind)] = len(self._kinds), own_source, shares_source(kind)
                    self._kinds.append(kind)
                number, own_source, shared = known
                for flow in flows:
                    source, destination = numbers_of_flow(flow)
                    if source is not None:
                        buffer = 2 * source + own_source
                        index = taken.get(buffer, 0)
                        taken[buffer] = index + 1
                        key = (buffer, 0 if shared else index, number)
                        span = spans.get(key)
                        if span is None:
                            spans[key] = [step, step]
                        else:
                            span[1] = step
                    if destination is not None:
                        buffer = 2 * destination
                        index = taken.get(buffer, 0)
                        taken[buffer] = index + 1
                        key = (buffer, index, number)
                        span = spans.get(key)
                        if span is None:
                            spans[key] = [step, step]
                        else:
                            span[1] = step

    def peaks(
        self,
        *,
        keep: bool = False,
        node_of: NodeOf = one_node,
        huge_page_bytes: Mapping[int, int] | None = None,
        sized: Callable[[Task], Task] = lambda task: task,
    ) -> Iterator[Peak]:
        """Yield the peak of each place, in the order in which the places are used first. See :func:`peaks`.

        Parameters
        ----------
        sized
            A function that returns a task at another size.
        """
        sizes = [buffer_bytes(sized(kind)) for kind in self._kinds]
        # Equal buffers of several kinds of tasks are one.
        held: dict[tuple[int, int, int], list[int]] = {}
        for (buffer, index, kind), (first, last) in self._spans.items():
            span = held.setdefault((buffer, index, sizes[kind]), [first, last])
            if last > span[1]:
                span[1] = last
        pages = huge_page_bytes or {}
        by_place: dict[Place, list[_Held]] = {}
        known_ends: dict[int, tuple[tuple[list[_Held], ...], int, Endpoint]] = {}
        for (buffer, _, size_bytes), (first, last) in held.items():
            known = known_ends.get(buffer)
            if known is None:
                end = self._ends[buffer >> 1]
                huge = end.memory is MemoryKind.HUGETLB
                lists = tuple(by_place.setdefault(place, []) for place in places(end, node_of(end)))
                page = pages.get(end.numa_node or 0, 1) if huge else 1
                known = known_ends[buffer] = lists, page, end
            lists, page, end = known
            for there in lists:
                there.append((first, last, round_up(size_bytes, page), end))
        for (host, bus_id, node, huge), buffers in by_place.items():
            most, end = _most(buffers, keep=keep)
            yield Peak(None if bus_id is None and node is None else end, most, host, huge)


_Held = tuple[int, int, int, Endpoint]
"""The first and the last step that uses a buffer, its bytes, and its end."""


def _most(buffers: Sequence[_Held], *, keep: bool) -> tuple[int, Endpoint]:
    """Return the most bytes that buffers of one place hold at once, and the end of the last one allocated until then.

    Parameters
    ----------
    buffers
        In the order of their first use.
    """
    released = [] if keep else sorted((last, size_bytes) for _, last, size_bytes, _ in buffers)
    now = most = gone = 0
    end = buffers[0][3]
    for place, (first, _, size_bytes, own) in enumerate(buffers):
        while gone < len(released) and released[gone][0] < first:
            now -= released[gone][1]
            gone += 1
        now += size_bytes
        # A step allocates all of its buffers before it runs.
        is_last_of_step = place + 1 == len(buffers) or buffers[place + 1][0] != first
        if is_last_of_step and now > most:
            most, end = now, own
    return most, end


class Ends:
    """Numbers of ends: equal ends have the same one."""

    def __init__(self) -> None:
        self._ends: list[Endpoint] = []
        self._numbers: dict[Endpoint, int] = {}
        self._known: dict[int, tuple[Flow, tuple[int | None, int | None]]] = {}

    def __getitem__(self, number: int) -> Endpoint:
        return self._ends[number]

    def numbers_of_flow(self, flow: Flow) -> tuple[int | None, int | None]:
        """Return the numbers of a flow's source and destination; ``None`` for an end without memory."""
        known = self._known.get(id(flow))
        if known is None:
            # The flow is kept, because another one could get its identity.
            known = self._known[id(flow)] = flow, (self._number(flow.source), self._number(flow.destination))
        return known[1]

    def _number(self, end: Endpoint) -> int | None:
        if end.memory is MemoryKind.REGISTERS:
            return None
        number = self._numbers.setdefault(end, len(self._ends))
        if number == len(self._ends):
            self._ends.append(end)
        return number


def places(end: Endpoint, host: str | None) -> tuple[Place, ...]:
    """Return the places where memory at an end of a host counts."""
    huge = end.memory is MemoryKind.HUGETLB
    own = _place(host, end, huge)
    # Host memory without a known NUMA node counts for the host only.
    return (own,) if end.bus_id is not None else tuple(dict.fromkeys((own, _place(host, None, huge))))


def _place(host: str | None, end: Endpoint | None, huge_pages: bool = False) -> Place:
    if end is None:
        return host, None, None, huge_pages
    # GPU memory that the kernel exposes as a NUMA node counts for the GPU.
    return host, end.bus_id, None if end.bus_id else end.numa_node, huge_pages
