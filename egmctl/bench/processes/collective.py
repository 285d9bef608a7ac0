"""Collective steps: all processes of a measurement run them together and get the same outcome."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import field, replace
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

from egmctl.bench.buffers import Buffer, FlowBuffers
from egmctl.bench.case import End
from egmctl.bench.evidence import Watch, gpu_labels, link_evidence
from egmctl.bench.processes.protocol import Event, Request
from egmctl.bench.results import FAILURES, failure
from egmctl.dataclass import dataclass
from egmctl.driver.signatures import cause_of
from egmctl.errors import DriverCallError
from egmctl.facts.buffers import page_sizes
from egmctl.gpu.context import ReleaseStack
from egmctl.gpu.handles import ImportedMemory
from egmctl.gpu.telemetry import Traffic
from egmctl.launch import Channel, close_all
from egmctl.model.codec import from_json, to_json
from egmctl.model.finding import WaiverKind
from egmctl.model.measurement import (
    BufferCost,
    GpuEvidence,
    Measurement,
    MeasurementStatus,
    TaskEvidence,
    finish,
    waived,
)
from egmctl.model.route import Rank
from egmctl.model.task import Endpoint, Flow, Task

if TYPE_CHECKING:
    from egmctl.bench.processes.context import AllocatedBuffer, WorkerContext


_Part = TypeVar("_Part")
"""A process' part of a task."""


@dataclass(frozen=True, slots=True)
class Item:
    """A rank's contribution to an exchange."""

    data: Any
    """JSON data."""
    fds: tuple[int, ...] = ()
    """File descriptors, which the receiving process must close; none between nodes."""


class Exchange:
    """The connection to all processes of a measurement. All make the same calls in the same order; each is a barrier.

    Parameters
    ----------
    parent
        The channel to the other processes, through the command; ``None`` if there are none.
    rank, size
        The number of this process, from 0, and the number of processes.
    """

    def __init__(self, parent: Channel | None = None, rank: int = 0, size: int = 1) -> None:
        self.rank = rank
        self.size = size
        self._parent = parent
        self._calls = 0

    def all_gather(self, data: Any, fds: Sequence[int] = ()) -> list[Item]:
        """Send an item to all ranks; return every rank's item, including this one's, by rank.

        Raises
        ------
        Abandoned
            Another rank has died or hangs, or the step has timed out. The caller must release its resources.
        """
        if self._parent is None:
            return [Item(data, tuple(fds))]
        # The number reveals a rank that is out of step and would get the items of another call.
        self._calls += 1
        self._parent.send({"event": Event.EXCHANGE, "call": f"exchange {self._calls}", "data": data}, fds)
        message, received = self._parent.receive()
        if message["do"] == Request.ABANDON:
            close_all(received)
            raise Abandoned(message["why"])
        rest = iter(received)
        return [Item(item["data"], tuple(next(rest) for _ in range(item["fds"]))) for item in message["items"]]


class Abandoned(Exception):
    """The collective step was abandoned because of another rank."""


_OPENING = ("cuIpcOpenMemHandle", "cuIpcOpenEventHandle", "cuMemImportFromShareableHandle")
_OPENING_POOL = ("cuMemPoolImportFromShareableHandle", "cuMemPoolImportPointer")
_MAKING = ("cuMemCreate", "cuMemPoolCreate", "cuMemExportToShareableHandle", "cuMemPoolExportToShareableHandle")
_NOT_PERMITTED = 800


class CollectiveStep:
    """The tasks of a step and their outcomes, which are the same in all processes.

    Attributes
    ----------
    here
        The ranks on this process' node, which share its clock.
    outcomes
        The outcome of each task that has ended early; ``None`` for open tasks.
    """

    def __init__(self, worker: WorkerContext, tasks: Sequence[Task]) -> None:
        self.exchange = worker.exchange
        self.ranks = worker.ranks
        self.tasks = tasks
        self.here = [rank.number for rank in self.ranks if rank.host == self.ranks[self.exchange.rank].host] or [0]
        self.outcomes: list[Measurement | None] = [None] * len(tasks)

    def owns(self, end: Endpoint) -> bool:
        """Return whether this process allocates the memory at an end; a single process allocates all memory."""
        return (end.rank or 0) == self.exchange.rank

    def issues(self, flow: Flow) -> bool:
        """Return whether this process issues the work of a flow."""
        return (flow.initiator_rank or 0) == self.exchange.rank

    def do(self, part: Callable[[int], Any], *, begin: Callable[[int], None] | None = None) -> list[list[Item]]:
        """Run a function for each open task in every process, and wait for all processes.

        Parameters
        ----------
        part
            Called with the index of each task. All processes get its result, JSON data or an :class:`Item` with file
            descriptors. If it raises one of :data:`FAILURES`, the task ends in all processes.
        begin
            Called for every task before the first ``part``, for work that GPUs do at the same time.

        Returns
        -------
        list
            For each task, the item of each process; data is ``None`` if the task has ended. The caller must close the
            file descriptors.

        Raises
        ------
        Abandoned
            See :class:`Exchange`.
        """
        failed: dict[int, Exception] = {}
        given: dict[int, Any] = {}
        if begin is not None:
            for index in self._going():
                _attempt(failed, index, partial(begin, index))
        for index in self._going():
            if index not in failed:
                given[index] = _attempt(failed, index, partial(part, index))
        return self._gather(given, failed)

    def each(
        self, parts: Sequence[_Part], work: Callable[[_Part], Any], *, begin: Callable[[_Part], None] | None = None
    ) -> list[list[Item]]:
        """Run functions for this process' part of each open task, as :meth:`do`, which see.

        Parameters
        ----------
        parts
            This process' parts, by task index.
        """
        start = None if begin is None else lambda index: begin(parts[index])
        return self.do(lambda index: work(parts[index]), begin=start)

    def share(self, offer: Callable[[int], Any], take: Callable[[int, Sequence[Item]], None]) -> None:
        """Make each process offer handles for each open task, then use those of all processes.

        Parameters
        ----------
        offer
            Called with the index of each task; returns as the function of :meth:`do`.
        take
            Called with the index of each task that is still open, and each process' offer. The file descriptors are
            closed afterwards.
        """
        offered = self.do(offer)
        try:
            self.do(lambda index: take(index, offered[index]))
        finally:
            close_all(fd for items in offered for item in items for fd in item.fds)

    def do_at_once(self, part: Callable[[Sequence[int]], Mapping[int, Any]]) -> list[list[Item]]:
        """Run a function once for all open tasks in every process. An error ends all tasks of that process.

        Parameters
        ----------
        part
            Called with the indices of the open tasks, even if there are none. All processes get its result, data by
            task index.

        Returns
        -------
        list
            See :meth:`do`.
        """
        given: Mapping[int, Any] = {}
        failed: dict[int, Exception] = {}
        try:
            given = part(self._going())
        except FAILURES as error:
            own = (index for index in self._going() if self.exchange.rank in (self.tasks[index].ranks or (0,)))
            failed = dict.fromkeys(own, error)
        return self._gather(given, failed)

    def do_for_all(self, part: Callable[[int], None]) -> None:
        """Run a function for each task, including ended ones, in every process, and wait for all processes."""
        failed: dict[int, Exception] = {}
        for index in range(len(self.tasks)):
            _attempt(failed, index, partial(part, index))
        self._gather({}, {index: error for index, error in failed.items() if self.outcomes[index] is None})

    def _going(self) -> list[int]:
        return [index for index, outcome in enumerate(self.outcomes) if outcome is None]

    def _gather(self, given: Mapping[int, Any], failed: Mapping[int, Exception]) -> list[list[Item]]:
        values = [given.get(index) for index in range(len(self.tasks))]
        items = [value if isinstance(value, Item) else Item(value) for value in values]
        if self.exchange.size == 1:
            for index, error in failed.items():
                self.outcomes[index] = failure(self.tasks[index], error)
            return [[item] for item in items]
        data = [
            {"failed": to_json(self._outcome(index, failed[index]))}
            if index in failed
            else {"data": item.data, "fds": len(item.fds)}
            for index, item in enumerate(items)
        ]
        gathered: list[list[Item]] = [[] for _ in self.tasks]
        for rank, contribution in enumerate(self.exchange.all_gather(data, [fd for item in items for fd in item.fds])):
            fds = iter(contribution.fds)
            for index, part in enumerate(contribution.data):
                own_fds = tuple(next(fds) for _ in range(part.get("fds", 0)))
                gathered[index].append(Item(part.get("data"), own_fds))
                if "failed" in part and self.outcomes[index] is None:
                    outcome = from_json(Measurement, part["failed"])
                    self.outcomes[index] = replace(
                        outcome,
                        reason=f"rank {rank} ({self.ranks[rank].label}): {outcome.reason}",
                        waivers=tuple(replace(waiver, rank=rank) for waiver in outcome.waivers),
                        failed_rank=rank,
                    )
        return gathered

    def _outcome(self, index: int, error: Exception) -> Measurement:
        """Return the outcome of a task that an error in this rank ends."""
        task = self.tasks[index]
        if isinstance(error, DriverCallError):
            cause = cause_of(error.call, error.number)
            if error.call in (*_OPENING, *_OPENING_POOL) and cause is not None:
                # NOT_SUPPORTED from opening what another process could create is a failure, not missing support.
                reason = f"{error}; {cause}"
                return finish(task, MeasurementStatus.FAILED, reason=reason, known_cause=True, last_call=error.call)
            if error.call in _MAKING and error.number == _NOT_PERMITTED:
                return waived(task, WaiverKind.NO_IMEX_CHANNEL, f"{error}; {cause}", last_call=error.call)
        return failure(task, error)


def _attempt(failed: dict[int, Exception], index: int, work: Callable[[], Any]) -> Any:
    """Return the result of a function; if it raises one of :data:`FAILURES`, record the error and return ``None``."""
    try:
        return work()
    except FAILURES as error:
        failed[index] = error
        return None


@dataclass
class OpenBuffers:
    """The buffers of a step in one process."""

    seeds: dict[tuple[int, int, End], int] = field(default_factory=dict)
    """The seed of each buffer, by task index, flow index and end."""
    made: list[tuple[int, Buffer, AllocatedBuffer]] = field(default_factory=list)
    """The buffers that this process allocated in this step, each after the index of the first task that uses it."""

    def made_for(self, index: int, held: AllocatedBuffer) -> bool:
        """Return whether a buffer was allocated for a task of this step."""
        return any(at == index and buffer is held for at, _, buffer in self.made)

    def costs(self, index: int) -> list[BufferCost]:
        """Return the costs of the buffers that a task was the first to use."""
        return [_cost_of(buffer, held) for at, buffer, held in self.made if at == index]


def open_buffers(
    collective: CollectiveStep,
    worker: WorkerContext,
    assigned: Sequence[Sequence[FlowBuffers]],
    *,
    before: Callable[[int], None],
) -> OpenBuffers:
    """Make all processes allocate their own buffers, and open those of others on which they issue work.

    Existing buffers are kept, unless the owner has allocated them again, with another seed.

    Parameters
    ----------
    before
        Called with the index of each task before its buffers are allocated.
    """
    opened = OpenBuffers()

    def offer(index: int) -> Item:
        offers: list[dict[str, Any]] = []
        fds: list[int] = []
        with ReleaseStack() as undo:
            # Undoes the preparation if the buffers of the task cannot be allocated.
            undo.callback(worker.disconnect_unused)
            before(index)
            for number, _, end, buffer in _ends(collective.tasks[index], assigned[index]):
                if not collective.owns(buffer.end):
                    continue
                known = worker.has(buffer)
                held = worker.held(buffer)
                if not known:
                    opened.made.append((index, buffer, held))
                description, handles = held.memory.offer()
                fds += handles
                offers.append(
                    {"flow": number, "end": end, "seed": held.seed, "description": description, "fds": len(handles)}
                )
            undo.pop_all()
        return Item(offers, tuple(fds))

    def take(index: int, offered: Sequence[Item]) -> None:
        descriptions: dict[tuple[int, End], tuple[dict[str, Any], list[int]]] = {}
        for item in offered:
            fds = iter(item.fds)
            for each in item.data or ():
                number, end = each["flow"], End(each["end"])
                opened.seeds[index, number, end] = each["seed"]
                descriptions[number, end] = each["description"], [next(fds) for _ in range(each["fds"])]
        for number, flow, end, buffer in _ends(collective.tasks[index], assigned[index]):
            if not collective.issues(flow) or collective.owns(buffer.end):
                continue
            seed = opened.seeds[index, number, end]
            if worker.has(buffer) and worker.held(buffer).seed == seed:
                continue
            worker.release(buffer)
            context = worker.stream(flow.initiator or "").context
            memory = ImportedMemory(context, *descriptions[number, end], others=worker.others_for(buffer.end))
            worker.adopt(buffer, memory, seed)

    collective.share(offer, take)
    return opened


def release(worker: WorkerContext, buffers: Sequence[Buffer]) -> str | None:
    """Release buffers after a step in all ranks, first those that another rank owns; return this rank's first error."""
    problem = None
    for own in (False, True):
        chosen = (buffer for buffer in buffers if ((buffer.end.rank or 0) == worker.exchange.rank) is own)
        failed = worker.release_after_step(chosen)
        problem = problem or failed
        worker.exchange.all_gather(None)
    return problem


def _ends(task: Task, assigned: Sequence[FlowBuffers]) -> Iterator[tuple[int, Flow, End, Buffer]]:
    """Yield (flow index, flow, end, buffer) for each end of a task's flows with memory."""
    for number, (flow, buffers) in enumerate(zip(task.flows, assigned, strict=True)):
        for end, buffer in ((End.SOURCE, buffers.source), (End.DESTINATION, buffers.destination)):
            if buffer is not None:
                yield number, flow, end, buffer


def _cost_of(buffer: Buffer, held: AllocatedBuffer) -> BufferCost:
    memory = held.memory
    page_bytes, huge_bytes = page_sizes(memory.address, memory.size_bytes) if memory.own_pages else (None, None)
    return BufferCost(
        label=buffer.end.label,
        memory=buffer.end.memory,
        size_bytes=memory.size_bytes,
        allocate_ms=memory.allocate_ms,
        first_touch_ms=held.first_touch_ms if memory.touch_ms is None else memory.touch_ms,
        granularity_bytes=memory.granularity_bytes,
        recommended_granularity_bytes=memory.recommended_granularity_bytes,
        page_bytes=page_bytes,
        huge_bytes=huge_bytes,
    )


@dataclass(slots=True)
class ResourceScope:
    """The resources that a rank holds for one task."""

    own: ReleaseStack = field(default_factory=ReleaseStack)
    opened: ReleaseStack = field(default_factory=ReleaseStack)
    """The resources of other ranks."""


@contextmanager
def resource_scopes(collective: CollectiveStep) -> Iterator[list[ResourceScope]]:
    """Yield a scope for each task. At the end all ranks first close resources of other ranks, then free their own.

    An error then becomes the outcome of the task, unless it has one.
    """
    scopes = [ResourceScope() for _ in collective.tasks]
    try:
        yield scopes
        collective.do_for_all(lambda index: scopes[index].opened.close())
        collective.do_for_all(lambda index: scopes[index].own.close())
    except BaseException:
        # The other ranks are gone, or this process is ending: release without an exchange.
        for scope in scopes:
            for resources in (scope.opened, scope.own):
                with suppress(*FAILURES):
                    resources.close()
        raise


@dataclass(frozen=True, slots=True)
class Observations:
    """The observations of one process of its GPUs."""

    gpus: tuple[GpuEvidence, ...]
    traffic: Mapping[str, Traffic]
    no_counters: str | None
    """The reason why NVML was not used."""


def task_evidence(task: Task, samples: int, ranks: Sequence[Rank], items: Sequence[Item]) -> TaskEvidence:
    """Return the evidence of a task from the :class:`Observations` of all ranks.

    Link counters confirm routes on one node only, because GPUs of different nodes may have the same bus id.
    """
    parts = [from_json(Observations, item.data) for item in items]
    gpus: list[GpuEvidence] = []
    for number, part in enumerate(parts):
        if number in (task.ranks or (0,)):
            of_rank = _in_task(task, part.gpus)
            gpus += [replace(gpu, label=ranks[number].label) for gpu in of_rank] if ranks else of_rank
    traffic = {bus_id: rises for part in parts for bus_id, rises in part.traffic.items()}
    one_node = len({rank.host for rank in ranks}) <= 1
    return TaskEvidence(
        # Two processes may use one GPU.
        gpus=tuple({gpu.label: gpu for gpu in gpus}.values()),
        route=link_evidence(task, samples, traffic) if one_node else None,
        unread=next((part.no_counters for part in parts if part.no_counters), None),
    )


def with_evidence(
    collective: CollectiveStep, worker: WorkerContext, watch: Watch, conclude: Callable[[int], Measurement]
) -> list[Measurement]:
    """Return each task's measurement with the evidence of its GPUs, the early outcome or else ``conclude(index)``."""
    own = to_json(Observations(watch.seen(worker.gpus), watch.traffic, watch.unread))
    observations = collective.do(lambda _place: own)
    measurements = [outcome or conclude(index) for index, outcome in enumerate(collective.outcomes)]
    return [
        replace(m, evidence=task_evidence(m, len(m.samples), worker.ranks, items)) if m.samples else m
        for m, items in zip(measurements, observations, strict=True)
    ]


def _in_task(task: Task, gpus: Sequence[GpuEvidence]) -> list[GpuEvidence]:
    """Return the GPUs of a task in the order of its flows; a single GPU is a rank's own and always returned."""
    if len(gpus) == 1:
        return list(gpus)
    by_bus_id = {gpu.bus_id: gpu for gpu in gpus}
    return [by_bus_id[bus_id] for bus_id in gpu_labels([task]) if bus_id in by_bus_id]
