"""How ranks come to the memory that a step works on: owners make and offer it, those that work on it open it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from egmctl.bench.buffers import Buffer, FlowBuffers
from egmctl.bench.case import End
from egmctl.bench.processes.collective import CollectiveStep, close_all
from egmctl.bench.processes.exchange import Item
from egmctl.facts.pages import page_sizes
from egmctl.gpu.handles import ImportedMemory
from egmctl.gpu.release import ReleaseStack
from egmctl.model.measurement import BufferCost, Endpoint, Flow, Task

if TYPE_CHECKING:
    from egmctl.bench.processes.context import AllocatedBuffer, WorkerContext


@dataclass
class OpenBuffers:
    """The buffers of a step, as one process has them."""

    seeds: dict[tuple[int, int, End], int] = field(default_factory=dict)
    """Of each buffer, by the places of its task and its flow and by its end."""
    made: list[tuple[int, Buffer, AllocatedBuffer]] = field(default_factory=list)
    """Those that this process has made for the step, each with the place of the first task that uses it."""

    def made_for(self, place: int, held: AllocatedBuffer) -> bool:
        """Say whether a buffer was made for a task."""
        return any(at == place and one is held for at, _, one in self.made)

    def costs(self, place: int) -> list[BufferCost]:
        """Return what the buffers cost that a task was the first to use."""
        return [_cost_of(buffer, held) for at, buffer, held in self.made if at == place]


def open_buffers(
    collective: CollectiveStep,
    worker: WorkerContext,
    assigned: Sequence[Sequence[FlowBuffers]],
    *,
    before: Callable[[int], None],
) -> OpenBuffers:
    """Have all processes make what they own of the tasks' buffers, and open those of others that they issue work on.

    What a process has open already stays open. A buffer that its owner has created again has another seed.

    Parameters
    ----------
    before
        Called with the place of each task before its buffers are made.
    """
    found = OpenBuffers()

    def offer(place: int) -> Item:
        with ReleaseStack() as undo:
            # What was prepared for the buffers of a task that cannot be made.
            undo.callback(worker.disconnect_unused)
            before(place)
            made = make(place)
            undo.pop_all()
        return made

    def make(place: int) -> Item:
        offers: list[dict[str, Any]] = []
        fds: list[int] = []
        for end in _ends(collective.tasks[place], assigned[place]):
            if not collective.owns(end.endpoint):
                continue
            known = worker.has(end.buffer)
            held = worker.held(end.buffer)
            if not known:
                found.made.append((place, end.buffer, held))
            offers.append({"flow": end.number, "end": end.end, "seed": held.seed})
            if end.endpoint.handle is not None:
                description, given = held.memory.offer()  # type: ignore[attr-defined]  # made by WorkerContext with a handle
                offers[-1] |= {"offer": description, "fds": len(given)}
                fds += given
        return Item(offers, tuple(fds))

    gathered = collective.do(offer)
    offers: dict[tuple[int, int, End], tuple[dict[str, Any], list[int]]] = {}
    for place, items in enumerate(gathered):
        for item in items:
            rest = iter(item.fds)
            for one in item.data or ():
                key = place, one["flow"], End(one["end"])
                found.seeds[key] = one["seed"]
                if "offer" in one:
                    offers[key] = one["offer"], [next(rest) for _ in range(one["fds"])]

    def open_others(place: int) -> None:
        for end in _ends(collective.tasks[place], assigned[place]):
            key = place, end.number, end.end
            if not collective.issues(end.flow) or collective.owns(end.endpoint):
                continue
            if worker.has(end.buffer) and worker.held(end.buffer).seed == found.seeds[key]:
                continue
            worker.release(end.buffer)
            context = worker.stream(end.flow.initiator or "").context
            worker.adopt(end.buffer, ImportedMemory(context, *offers[key]), found.seeds[key])

    try:
        if collective.exchange.size > 1:
            collective.do(open_others)
    finally:
        close_all(gathered)
    return found


def release(worker: WorkerContext, buffers: Sequence[Buffer]) -> str | None:
    """Let go of buffers, of those of others first and in all ranks; return what went wrong with the first one."""
    problem = None
    for own in (False, True):
        chosen = (buffer for buffer in buffers if ((buffer.end.rank or 0) == worker.exchange.rank) is own)
        failed = worker.release_all(chosen)
        problem = problem or failed
        worker.exchange.barrier()
    return problem


@dataclass(frozen=True, slots=True)
class _End:
    """One end of a flow that is memory."""

    number: int
    flow: Flow
    end: End
    endpoint: Endpoint
    buffer: Buffer


def _ends(task: Task, assigned: Sequence[FlowBuffers]) -> Iterator[_End]:
    for number, (flow, buffers) in enumerate(zip(task.flows, assigned, strict=True)):
        if buffers.source is not None:
            yield _End(number, flow, End.SOURCE, flow.source, buffers.source)
        if buffers.destination is not None:
            yield _End(number, flow, End.DESTINATION, flow.destination, buffers.destination)


def _cost_of(buffer: Buffer, held: AllocatedBuffer) -> BufferCost:
    memory = held.memory
    pages = page_sizes(memory.address, memory.size_bytes) if memory.own_pages else None
    return BufferCost(
        label=buffer.end.label,
        memory=buffer.end.memory,
        size_bytes=memory.size_bytes,
        allocate_ms=memory.allocate_ms,
        first_touch_ms=held.first_touch_ms if memory.touch_ms is None else memory.touch_ms,
        granularity_bytes=memory.granularity.minimum if memory.granularity else None,
        recommended_granularity_bytes=memory.granularity.recommended if memory.granularity else None,
        page_bytes=pages.page_bytes if pages else None,
        huge_bytes=pages.huge_bytes if pages else None,
    )
