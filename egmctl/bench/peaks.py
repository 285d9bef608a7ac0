"""The peak memory of a sequence of steps, in each place. Pure.

72 GPUs have 72,000 tasks, whose buffers are needed again and again: for each size that a plan tries. So one pass over
the steps notes when each buffer is used first and last, by numbers instead of records, and sizes come afterwards.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from itertools import accumulate, pairwise

from egmctl.bench.buffers import buffer_bytes, shares_source, source_role
from egmctl.bench.case import End
from egmctl.dataclass import dataclass
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
    def key(self) -> MemoryPlace:
        """The place."""
        return _place(self.host, self.place, self.huge_pages)


MemoryPlace = tuple[str | None, str | None, int | None, bool]
"""A host, its GPU or NUMA node (neither: the whole host), and whether this counts huge pages."""
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
    tasks = [task for tasks_of_step in steps for task in tasks_of_step]
    counts = [0, *accumulate(map(len, steps))]
    numbers = [range(first, last) for first, last in pairwise(counts)]
    uses = Uses(tasks, [task.flows for task in tasks], numbers)
    return tuple(uses.peaks(keep=keep, node_of=node_of, huge_page_bytes=huge_page_bytes))


class Uses:
    """The first and the last step that uses each buffer of a sequence of steps.

    The buffers are those that :func:`egmctl.bench.buffers.assign_buffers` assigns.

    Parameters
    ----------
    kinds, flows
        As for :class:`egmctl.model.listing.PlannedTasks`.
    steps
        The numbers of the tasks of each step, in order.
    ends
        The numbers of ends; those of earlier uses save time.
    """

    def __init__(
        self,
        kinds: Sequence[Task],
        flows: Sequence[tuple[Flow, ...]],
        steps: Iterable[Sequence[int]],
        ends: EndNumbers | None = None,
    ) -> None:
        self._ends = ends or EndNumbers()
        self._spans: dict[int, tuple[Task, _Spans]] = {}
        self._sorted: tuple[NodeOf, _ByPlace] | None = None
        self._add(kinds, flows, steps, None)

    def without(
        self,
        waived: Collection[int],
        kinds: Sequence[Task],
        flows: Sequence[tuple[Flow, ...]],
        steps: Iterable[Sequence[int]],
    ) -> Uses:
        """Return the uses without those of some kinds of tasks, which are then added again from the steps.

        Parameters
        ----------
        waived
            The identities of these kinds.
        kinds, flows, steps
            As for :class:`Uses`; each step is where it was.
        """
        rest = Uses((), (), (), self._ends)
        rest._spans = {kind: spans for kind, spans in self._spans.items() if kind not in waived}
        rest._add(kinds, flows, steps, waived)
        return rest

    def of_size(self, kinds: Mapping[int, Task]) -> Uses:
        """Return the uses of the same tasks of another size.

        Parameters
        ----------
        kinds
            The kinds of that size, by the identities of those of this size.
        """
        resized = Uses((), (), (), self._ends)
        resized._spans = {id(kinds[kind]): (kinds[kind], spans) for kind, (_, spans) in self._spans.items()}
        resized._sorted = self._sorted
        return resized

    def _add(
        self,
        kinds: Sequence[Task],
        flows: Sequence[tuple[Flow, ...]],
        steps: Iterable[Sequence[int]],
        only: Collection[int] | None,
    ) -> None:
        numbers_of = self._ends.of_flow
        facts: dict[int, tuple[_Spans, int, bool]] = {}
        for step, tasks in enumerate(steps):
            order = step << _ORDER_BITS
            taken: dict[int, int] = {}
            for task in tasks:
                kind = kinds[task]
                if only is not None and id(kind) not in only:
                    continue
                known = facts.get(id(kind))
                if known is None:
                    self._spans[id(kind)] = kind, {}
                    role = 1 if source_role(kind) is End.SOURCE else 0
                    known = facts[id(kind)] = self._spans[id(kind)][1], role, shares_source(kind)
                spans, source_bit, shared = known
                for flow in flows[task]:
                    source, destination = numbers_of(flow)
                    for buffer in (2 * source + source_bit, 2 * destination):
                        if buffer < 0:
                            continue
                        count = taken.get(buffer, 0)
                        taken[buffer] = count + 1
                        key = (buffer, 0 if shared and buffer & 1 else count)
                        span = spans.get(key)
                        if span is None:
                            spans[key] = [order, step]
                            order += 1
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
        pages = huge_page_bytes or {}
        sizes = [buffer_bytes(sized(kind)) for kind, _ in self._spans.values()]
        for (host, bus_id, node, huge), uses in self._by_place(node_of):
            most, end = self._most(uses, sizes, pages, keep=keep)
            yield Peak(None if bus_id is None and node is None else end, most, host, huge)

    def _by_place(self, node_of: NodeOf) -> _ByPlace:
        """Return the uses in each place in the order of the first use, which does not depend on sizes."""
        if self._sorted is not None and self._sorted[0] is node_of:
            return self._sorted[1]
        by_place: dict[MemoryPlace, list[_Use]] = {}
        places_of: dict[int, tuple[list[_Use], ...]] = {}
        for number, (_, spans) in enumerate(self._spans.values()):
            for (buffer, index), (order, last) in spans.items():
                lists = places_of.get(buffer)
                if lists is None:
                    end = self._ends[buffer >> 1]
                    lists = tuple([by_place.setdefault(where, []) for where in places(end, node_of(end))])
                    places_of[buffer] = lists
                for uses in lists:
                    uses.append((order, last, buffer, index, number))
        for uses in by_place.values():
            uses.sort()
        # The first buffer of a host is the first one of a NUMA node too, which comes first.
        in_order = sorted(by_place.items(), key=lambda entry: (entry[1][0], entry[0][1:3] == (None, None)))
        self._sorted = node_of, in_order
        return in_order

    def _most(
        self, uses: Iterable[_Use], sizes: Sequence[int], pages: Mapping[int, int], *, keep: bool
    ) -> tuple[int, Endpoint]:
        """Return the most bytes that buffers hold at once in one place, and the end of the last one allocated by then.

        Parameters
        ----------
        uses
            The uses of the buffers by each kind of task, in the order of the first use.
        sizes
            The bytes of a buffer of each kind.
        """
        # Equal buffers of several kinds of tasks are one.
        held: dict[tuple[int, int, int], tuple[int, int]] = {}
        for order, last, buffer, index, kind in uses:
            key = buffer, index, sizes[kind]
            first, last_of_others = held.get(key, (order >> _ORDER_BITS, last))
            held[key] = first, max(last, last_of_others)
        buffers = [(*span, self._taken(buffer, size, pages), buffer) for (buffer, _, size), span in held.items()]
        released = [] if keep else sorted((last, size_bytes) for _, last, size_bytes, _ in buffers)
        now = most = gone = 0
        largest = buffers[0][3]
        for number, (first, _, size_bytes, buffer) in enumerate(buffers, 1):
            while gone < len(released) and released[gone][0] < first:
                now -= released[gone][1]
                gone += 1
            now += size_bytes
            # A step allocates all of its buffers before it runs.
            is_last_of_step = number == len(buffers) or buffers[number][0] != first
            if is_last_of_step and now > most:
                most, largest = now, buffer
        return most, self._ends[largest >> 1]

    def _taken(self, buffer: int, size_bytes: int, pages: Mapping[int, int]) -> int:
        end = self._ends[buffer >> 1]
        is_huge = end.memory is MemoryKind.HUGETLB
        return round_up(size_bytes, pages.get(end.numa_node or 0, 1)) if is_huge else size_bytes


_ORDER_BITS = 32
_Spans = dict[tuple[int, int], list[int]]
"""By the number of an end, doubled, plus 1 for a source, and by the index of the buffer there: when it is used first,
which is the step in the upper bits and a count in the lower ones, and the last step that uses it."""
_Use = tuple[int, int, int, int, int]
"""When a buffer is used first, the last step that uses it, the buffer, its index and the number of the kind of task."""
_ByPlace = Sequence[tuple[MemoryPlace, Sequence[_Use]]]


class EndNumbers:
    """Numbers of ends: equal ends have the same one."""

    def __init__(self) -> None:
        self._ends: list[Endpoint] = []
        self._numbers: dict[Endpoint, int] = {}
        # By identity: each flow is kept, and with it its ends, so that no other one gets the same.
        self._flows: dict[int, tuple[Flow, tuple[int, int]]] = {}
        self._known: dict[int, int] = {}

    def __getitem__(self, number: int) -> Endpoint:
        return self._ends[number]

    def of_flow(self, flow: Flow) -> tuple[int, int]:
        """Return the numbers of a flow's source and destination; -1 for an end without memory."""
        known = self._flows.get(id(flow))
        if known is None:
            known = self._flows[id(flow)] = flow, (self._number(flow.source), self._number(flow.destination))
        return known[1]

    def _number(self, end: Endpoint) -> int:
        number = self._known.get(id(end))
        if number is None:
            number = -1
            if end.memory is not MemoryKind.REGISTERS:
                number = self._numbers.setdefault(end, len(self._ends))
                if number == len(self._ends):
                    self._ends.append(end)
            self._known[id(end)] = number
        return number


def places(end: Endpoint, host: str | None) -> tuple[MemoryPlace, ...]:
    """Return the places where memory at an end of a host counts."""
    huge = end.memory is MemoryKind.HUGETLB
    own = _place(host, end, huge)
    # Host memory without a known NUMA node counts for the host only.
    return (own,) if end.bus_id is not None else tuple(dict.fromkeys((own, _place(host, None, huge))))


def _place(host: str | None, end: Endpoint | None, huge_pages: bool = False) -> MemoryPlace:
    if end is None:
        return host, None, None, huge_pages
    # GPU memory that the kernel exposes as a NUMA node counts for the GPU.
    return host, end.bus_id, None if end.bus_id else end.numa_node, huge_pages
