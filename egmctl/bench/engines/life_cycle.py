"""The time of each stage in the life cycle of memory that two GPUs share, with a check of the bytes.

Between processes the owner allocates and exports the memory and sends the handle. The importer opens and maps it,
writes all of it twice, and then a pattern, which the owner checks. The importer closes the memory; the owner frees it.
Times are by the host's clock. The transfer is timed by CLOCK_MONOTONIC of both processes, so only within a node.

Within one process, the stages show what peer access adds to each allocation (CUDA Programming Guide, "Virtual Memory
Management": "all past and future user allocations are also mapped to the target peer device").
"""

from __future__ import annotations

import time
from collections.abc import Sequence

from egmctl.bench.processes.collective import CollectiveStep, Item, ResourceScope, resource_scopes
from egmctl.bench.processes.context import WorkerContext
from egmctl.bench.results import FAILURES, failure, mismatch_of, stages
from egmctl.gpu.context import timed
from egmctl.gpu.handles import ImportedMemory, SharedMemory
from egmctl.gpu.memory import DeviceMemory, Memory
from egmctl.gpu.pattern import Difference, Region, poison
from egmctl.launch import close_all
from egmctl.model.measurement import Measurement, Phase, Settings, Status, Verification, finish
from egmctl.model.task import Engine, HandleKind, Task

LIVES = 20
"""The minimum number of timed life cycles, enough for percentiles."""
WARM_UP_LIVES = 1
"""The number of untimed life cycles. The first one initializes what the driver keeps."""

_IMPORTED = ("open", "map", "first-touch", "second-touch", "close")
STAGES = ("allocate", "set-access", "export", "transfer", *_IMPORTED, "free")
"""The stages, in order. A legacy handle is mapped by opening it. Only memory from cuMemCreate needs cuMemSetAccess; the
importer's is part of ``map``."""


def measure(worker: WorkerContext, tasks: Sequence[Task], settings: Settings, least: int = LIVES) -> list[Measurement]:
    """Repeat the life cycle of each task's shared memory in the same processes, and time its stages.

    The tasks of a step run at the same time, so only a step with one task shows the costs of one. Each task has one
    flow: rank ``Endpoint.rank`` owns the memory of the end with a handle, and the flow's ``initiator_rank`` opens it.
    The measurement has ``stages`` in milliseconds. It is ``corrupt`` if the owner does not find the importer's pattern.

    Parameters
    ----------
    least
        The minimum number of timed life cycles if there are fewer samples.

    Without ranks, both GPUs are this process' (:func:`_access_costs`).

    Raises
    ------
    Abandoned
        Another rank has died or hangs; this one has released its resources.
    """
    if not tasks[0].ranks:
        return [_access(worker, task, max(settings.samples, least)) for task in tasks]
    collective = CollectiveStep(worker, tasks)
    seeds = range(1, 1 + WARM_UP_LIVES + max(settings.samples, least))
    lives: list[list[dict[str, float]]] = [[] for _ in tasks]
    for seed in seeds:
        if None in collective.outcomes:
            with worker.stopwatch.phase(Phase.MEASURING):
                for life, stages_ms in zip(lives, _live(collective, worker, seed), strict=True):
                    life.append(stages_ms)
    return [
        outcome
        or finish(
            task,
            Status.OK,
            stages=stages(STAGES, life[WARM_UP_LIVES:]),
            verification=Verification.GPU_EVERY_SAMPLE,
            seeds=(seeds[-1],),
        )
        for task, outcome, life in zip(tasks, collective.outcomes, lives, strict=True)
    ]


def _live(collective: CollectiveStep, worker: WorkerContext, seed: int) -> list[dict[str, float]]:
    """Run one life cycle of each task; return the milliseconds of its stages, by stage."""
    with resource_scopes(collective) as held:
        lives = [_Life(collective, worker, place, held[place], seed) for place in range(len(collective.tasks))]
        collective.do(lambda place: lives[place].make())
        offered = collective.do(lambda place: lives[place].offer())
        received_s = time.monotonic()
        try:
            collective.do(lambda place: lives[place].open(offered[place], received_s))
        finally:
            close_all(fd for items in offered for item in items for fd in item.fds)
        for place, items in enumerate(collective.do(lambda place: lives[place].check())):
            lives[place].judge(items)
    gathered = collective.do(lambda place: lives[place].stages_ms)
    return [{name: ms for item in items for name, ms in (item.data or {}).items()} for items in gathered]


class _Life:
    """One life cycle of a task's memory in one rank, which may be the owner, the importer, or neither."""

    def __init__(
        self, collective: CollectiveStep, worker: WorkerContext, place: int, held: ResourceScope, seed: int
    ) -> None:
        self._collective = collective
        self._worker = worker
        self._place = place
        self._held = held
        self._seed = seed
        self._task = collective.tasks[place]
        flow = self._task.flows[0]
        self._end = next(end for end in (flow.source, flow.destination) if end.handle is not None)
        self._owner, self._importer = self._end.rank or 0, flow.initiator_rank or 0
        self._me = collective.exchange.rank
        self._shared: SharedMemory | None = None
        self.stages_ms: dict[str, float] = {}
        """The milliseconds of the stages that this rank has timed."""

    def make(self) -> None:
        if self._me == self._owner:
            self._shared = self._held.own.keep(self._worker.share(self._end, self._task.size_bytes))
            self.stages_ms = self._shared.stages_ms

    def offer(self) -> Item:
        if self._shared is None:
            return Item(None)
        description, fds = self._shared.offer()
        return Item({"offer": description, "sent_s": time.monotonic()}, tuple(fds))

    def open(self, offered: Sequence[Item], received_s: float) -> None:
        """Open the memory that the owner offers and write all of it."""
        if self._me != self._importer:
            return
        item, stream = offered[self._owner], self._worker.own_stream
        imported = self._held.opened.keep(ImportedMemory(stream.context, item.data["offer"], item.fds))
        self.stages_ms = imported.stages_ms
        if self._collective.ranks[self._owner].host == self._collective.ranks[self._importer].host:
            self.stages_ms["transfer"] = (received_s - item.data["sent_s"]) * 1e3
        region = self._region(imported)
        for touch in ("first-touch", "second-touch"):
            with timed(self.stages_ms, touch):
                poison(stream, region)
                stream.synchronize()
        self._worker.pattern.fill(stream, region)
        stream.synchronize()

    def check(self) -> Difference | None:
        """Return the difference between the owner's memory and the importer's pattern; ``None`` if there is none."""
        if self._shared is None:
            return None
        return self._worker.pattern.check(self._worker.own_stream, self._region(self._shared))()

    def judge(self, checked: Sequence[Item]) -> None:
        """End the task in all ranks if the owner has found a difference."""
        difference = checked[self._owner].data if checked else None
        if difference is None or self._collective.outcomes[self._place] is not None:
            return
        self._collective.outcomes[self._place] = _corrupt(self._task, Difference(*difference), self._seed)

    def _region(self, memory: Memory) -> Region:
        return Region(memory.address, self._task.size_bytes, self._seed)


def _corrupt(task: Task, difference: Difference, seed: int) -> Measurement:
    mismatch = mismatch_of(difference, seed - 1, 0)
    return finish(
        task,
        Status.CORRUPT,
        reason=f"what the other GPU wrote in life {seed} did not arrive: {mismatch.words} words differ, the first at "
        f"offset {mismatch.first_offset_bytes}: expected {mismatch.expected}, found {mismatch.found}",
        mismatch=mismatch,
        verification=Verification.GPU_EVERY_SAMPLE,
        seeds=(seed,),
    )


WITH_PEER = "-with-peer"
ACCESS_STAGES = (
    *("allocate", "free", "enable-peer", f"allocate{WITH_PEER}", f"free{WITH_PEER}", "disable-peer"),
    *("create", "set-access", "release", f"set-access{WITH_PEER}", f"release{WITH_PEER}"),
)
"""The stages within one process, in order: cuMemAlloc without and with peer access from another GPU, then cuMemCreate
with cuMemSetAccess for the owner alone and for both GPUs."""


def _access(worker: WorkerContext, task: Task, lives: int) -> Measurement:
    """Time the stages of a task's access to a peer's memory in this process."""
    rounds: list[dict[str, float]] = []
    try:
        with worker.stopwatch.phase(Phase.MEASURING):
            for seed in range(1, 1 + WARM_UP_LIVES + lives):
                rounds.append({})
                if (difference := _access_costs(worker, task, seed, rounds[-1])) is not None:
                    return _corrupt(task, difference, seed)
    except FAILURES as error:
        return failure(task, error)
    costs = stages(ACCESS_STAGES, rounds[WARM_UP_LIVES:])
    return finish(task, Status.OK, stages=costs, verification=Verification.GPU_EVERY_SAMPLE, seeds=(len(rounds),))


def _access_costs(worker: WorkerContext, task: Task, seed: int, stages_ms: dict[str, float]) -> Difference | None:
    """Time one life of memory for each way to give access; return how it differs from what the peer wrote."""
    flow = task.flows[0]
    owner, peer = worker.stream(flow.source.bus_id or ""), worker.stream(flow.initiator or "")
    differences: list[Difference | None] = []

    def use(memory: Memory, free: str, suffix: str) -> None:
        region = Region(memory.address, task.size_bytes, seed)
        try:
            if suffix:
                worker.pattern.fill(peer, region)
                peer.synchronize()
                differences.append(worker.pattern.check(owner, region)())
        finally:
            with timed(stages_ms, f"{free}{suffix}"):
                memory.close()

    # Other steps enable it again where they need it (WorkerContext.connect).
    peer.context.disable_access_to(owner.context)
    for suffix in ("", WITH_PEER):
        if suffix:
            with timed(stages_ms, "enable-peer"):
                peer.context.enable_access_to(owner.context)
        memory = DeviceMemory(owner.context, task.size_bytes)
        stages_ms[f"allocate{suffix}"] = memory.allocate_ms
        use(memory, "free", suffix)
    with timed(stages_ms, "disable-peer"):
        peer.context.disable_access_to(owner.context)
    for suffix, others in (("", []), (WITH_PEER, [peer.context])):
        shared = SharedMemory(HandleKind.POSIX_FD, owner.context, task.size_bytes, others=others)
        stages_ms |= {"create": shared.stages_ms["allocate"], f"set-access{suffix}": shared.stages_ms["set-access"]}
        use(shared, "release", suffix)
    return next(filter(None, differences), None)


MEASURE = {Engine.LIFE_CYCLE: measure}
