"""The time of each stage in the life cycle of memory that two GPUs share, with a check of the bytes.

Between processes the owner allocates and exports the memory and sends the handle. The importer opens and maps it,
writes all of it twice, and then a pattern, which the owner checks. The importer closes the memory; the owner frees it.
Times are by the host's clock. The transfer is timed by CLOCK_MONOTONIC of both processes, so only within a node.
"""

from __future__ import annotations

import time
from collections.abc import Sequence

from egmctl.bench.processes.collective import CollectiveStep, Item, ResourceScope, resource_scopes
from egmctl.bench.processes.context import WorkerContext
from egmctl.bench.results import mismatch_of, stages
from egmctl.gpu.context import timed
from egmctl.gpu.handles import ImportedMemory, SharedMemory
from egmctl.gpu.memory import MappedMemory
from egmctl.gpu.pattern import Difference, Region, poison
from egmctl.model.measurement import Measurement, MeasurementStatus, Phase, Settings, Verification, finish
from egmctl.model.task import Engine, Task

LIVES = 20
"""The minimum number of timed life cycles, enough for percentiles."""
WARM_UP_LIVES = 1
"""The number of untimed life cycles. The first one initializes what the driver keeps."""

_IMPORTED = ("open", "map", "import-access", "first-touch", "second-touch", "close")
STAGES = ("allocate", "set-access", "export", "transfer", *_IMPORTED, "free")
"""The stages, in order. A legacy handle is mapped by opening it. Only memory from cuMemCreate needs cuMemSetAccess:
``set-access`` is the owner's, ``import-access`` the importer's, for all GPUs of its node at once."""


def measure_life_cycles(
    worker: WorkerContext, tasks: Sequence[Task], settings: Settings, least: int = LIVES
) -> list[Measurement]:
    """Repeat the life cycle of each task's shared memory in the same processes, and time its stages.

    The plan gives each task a step of its own. It has one flow: rank ``Endpoint.rank`` owns the memory of the end with
    a handle, and the flow's ``initiator_rank`` opens it. The measurement has ``stages`` in milliseconds. It is
    ``corrupt`` if the owner does not find the importer's pattern.

    Parameters
    ----------
    least
        The minimum number of timed life cycles if there are fewer samples.

    Raises
    ------
    Abandoned
        Another rank has died or hangs; this one has released its resources.
    """
    return [_measure(worker, task, max(settings.samples, least)) for task in tasks]


def _measure(worker: WorkerContext, task: Task, lives: int) -> Measurement:
    collective = CollectiveStep(worker, [task])
    rounds: list[dict[str, float]] = []
    with worker.stopwatch.phase(Phase.MEASURING):
        while collective.outcomes[0] is None and len(rounds) < WARM_UP_LIVES + lives:
            rounds.append(_live(collective, worker, 1 + len(rounds)))
    return collective.outcomes[0] or finish(
        task,
        MeasurementStatus.OK,
        stages=stages(STAGES, rounds[WARM_UP_LIVES:]),
        verification=Verification.GPU_EVERY_SAMPLE,
        seeds=(len(rounds),),
    )


def _live(collective: CollectiveStep, worker: WorkerContext, seed: int) -> dict[str, float]:
    """Run one life cycle of the task; return the milliseconds of its stages, by stage."""
    with resource_scopes(collective) as (held,):
        life = _Life(collective, worker, held, seed)
        collective.do(lambda _: life.make())
        collective.share(lambda _: life.offer(), lambda _, offered: life.open(offered))
        (checked,) = collective.do(lambda _: life.check())
        life.judge(checked)
    (gathered,) = collective.do(lambda _: life.stages_ms)
    return {name: ms for item in gathered for name, ms in (item.data or {}).items()}


class _Life:
    """One life cycle of a task's memory in one rank, which may be the owner, the importer, or neither."""

    def __init__(self, collective: CollectiveStep, worker: WorkerContext, held: ResourceScope, seed: int) -> None:
        self._collective = collective
        self._worker = worker
        self._held = held
        self._seed = seed
        (self._task,) = collective.tasks
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

    def open(self, offered: Sequence[Item]) -> None:
        """Open the memory that the owner offers and write all of it."""
        received_s = time.monotonic()
        if self._me != self._importer:
            return
        item, stream = offered[self._owner], self._worker.own_stream
        others = self._worker.others_for(self._end)
        imported = self._held.opened.keep(ImportedMemory(stream.context, item.data["offer"], item.fds, others))
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
        if difference is None or self._collective.outcomes[0] is not None:
            return
        mismatch = mismatch_of(Difference(*difference), self._seed - 1, 0)
        self._collective.outcomes[0] = finish(
            self._task,
            MeasurementStatus.CORRUPT,
            reason=f"what the other GPU wrote in life {self._seed} did not arrive: {mismatch.words} words differ, the "
            f"first at offset {mismatch.first_offset_bytes}: expected {mismatch.expected}, found {mismatch.found}",
            mismatch=mismatch,
            verification=Verification.GPU_EVERY_SAMPLE,
            seeds=(self._seed,),
        )

    def _region(self, memory: MappedMemory) -> Region:
        return Region(memory.address, self._task.size_bytes, self._seed)


MEASURE = {Engine.LIFE_CYCLE: measure_life_cycles}
