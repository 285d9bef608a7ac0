"""Assign buffers to the flows of a step. Pure functions; :mod:`egmctl.bench.peaks` computes the memory of all steps.

The planner and the worker both use them, so that a run allocates as much memory as its plan says.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from itertools import chain

from egmctl.bench.case import End
from egmctl.bench.engine import ENGINES
from egmctl.dataclass import dataclass
from egmctl.model.route import HOST_MEMORY, MemoryKind
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


def assign_buffers(tasks: Sequence[Task]) -> tuple[tuple[FlowBuffers, ...], ...]:
    """Return the buffers of each flow of each task of a step.

    Flows of one step share no buffer, except flows from one GPU to all others, which send the same source.
    """
    taken: Counter[tuple[Endpoint, End]] = Counter()

    def take(task: Task, end: Endpoint, role: End) -> Buffer | None:
        if end.memory is MemoryKind.REGISTERS:
            return None
        index = 0 if role is End.SOURCE and shares_source(task) else taken[end, role]
        taken[end, role] += 1
        return Buffer(end=end, role=role, index=index, size_bytes=buffer_bytes(task))

    def of_flow(task: Task, flow: Flow) -> FlowBuffers:
        source = take(task, flow.source, source_role(task))
        return FlowBuffers(source, take(task, flow.destination, End.DESTINATION))

    return tuple(tuple(of_flow(task, flow) for flow in task.flows) for task in tasks)


def source_role(task: Task) -> End:
    """Return the role of the buffers that a task's flows read from."""
    # A chase writes its chain into the memory that it then reads, so that this memory is no source for others.
    own = task.quantity is Quantity.LATENCY or ENGINES[task.engine].writes_source
    return End.DESTINATION if own else End.SOURCE


def shares_source(task: Task) -> bool:
    """Return whether all flows of a task read from the same buffer, if they begin at the same end."""
    return task.pattern is Pattern.ONE_TO_ALL and source_role(task) is End.SOURCE


def uses_host_memory(task: Task) -> bool:
    """Return whether an end of a task's flows is host memory."""
    return any(end.memory in HOST_MEMORY for flow in task.flows for end in (flow.source, flow.destination))


def moved_bytes(task: Task) -> int:
    """Return the bytes that each flow moves in one pass."""
    return ENGINES[task.engine].arrays * task.size_bytes


def buffer_bytes(task: Task) -> int:
    """Return the size of each buffer of a task."""
    rotates = task.quantity is Quantity.BANDWIDTH and not ENGINES[task.engine].writes_source
    return span_bytes(task.size_bytes, task.rotated_bytes) if rotates else moved_bytes(task)


def buffers_of(tasks: Sequence[Task]) -> tuple[Buffer, ...]:
    """Return all buffers of a step, each once, in the order of its flows."""
    flows = chain.from_iterable(assign_buffers(tasks))
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
