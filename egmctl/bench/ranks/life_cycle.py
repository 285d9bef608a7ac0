"""The life of shared memory between two processes, again and again: what each stage costs, and that the bytes arrive.

The owner allocates and exports, and sends its offer; the importer opens it, maps it, touches all of it twice and leaves
a pattern, which the owner checks; the importer closes, the owner frees. Times are the host's; the transfer is between
the clocks of two processes of one node, which are one clock (CLOCK_MONOTONIC).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any

from egmctl.bench.exchange import Exchange, Item
from egmctl.bench.ranks.together import Ended, Together, close_all
from egmctl.bench.rig import Rig
from egmctl.bench.statistics import summarize
from egmctl.gpu.handles import ImportedMemory, SharedMemory
from egmctl.gpu.pattern import Region, poison
from egmctl.gpu.timing import Stream
from egmctl.model.codec import from_json, to_json
from egmctl.model.measurement import Endpoint, Flow, HandleKind, Measurement, Mismatch, Stage, Status, Task, finish

CYCLES = 20
"""Timed lives of each task: enough for percentiles."""
WARM_UP_CYCLES = 1
"""The first one opens what the driver keeps open."""

STAGES = ("allocate", "export", "transfer", "open", "map", "first-touch", "second-touch", "close", "free")
"""In the order in which they happen. A legacy handle's mapping is part of its opening."""


def measure(
    exchange: Exchange, rig: Rig, bus_id: str, task: Task, cycles: int = CYCLES, *, one_node: bool = True
) -> Measurement:
    """Take shared memory through its life, several times in the same processes.

    All ranks of the exchange call it with the same task and number of cycles; those that have no part in the task only
    take part in the exchange.

    Parameters
    ----------
    rig
        This rank's: streams, and the pattern.
    bus_id
        Of this rank's GPU.
    task
        One flow: the end that has a handle is memory of the rank ``Endpoint.rank``, opened by the flow's
        ``initiator_rank``.
    cycles
        To be timed, after :data:`WARM_UP_CYCLES`.
    one_node
        Whether both ends of the flow run on one node: the clocks of two say nothing about each other, so that there is
        no ``transfer`` then.

    Returns
    -------
    Measurement
        The same on all ranks, with ``stages`` in milliseconds; ``corrupt`` with a mismatch where the owner did not find
        what the importer had written.

    Raises
    ------
    Abandoned
        Another rank has died or hangs; what this one held it has let go of.
    """
    life = _Life(Together(exchange, task), rig, bus_id, task)
    seeds = range(1, 1 + WARM_UP_CYCLES + cycles)
    try:
        lives = [life.live(seed) for seed in seeds]
    except Ended as ended:
        return ended.outcome
    timed = lives[WARM_UP_CYCLES:]
    names = [name for name in STAGES if name in timed[0] and (one_node or name != "transfer")]
    return finish(
        task,
        Status.OK,
        stages=tuple(Stage(name=name, ms=summarize([stages_ms[name] for stages_ms in timed])) for name in names),
        verification=rig.verification,
        seeds=(seeds[-1],),
    )


class _Life:
    """One rank's part in the lives of a task."""

    def __init__(self, together: Together, rig: Rig, bus_id: str, task: Task) -> None:
        self._together = together
        self._rig = rig
        self._bus_id = bus_id
        self._task = task
        self._end = shared_end(task.flows[0])
        self._owner, self._importer = self._end.rank, task.flows[0].initiator_rank

    def live(self, seed: int) -> dict[str, float]:
        """Go through one life; return the milliseconds of all its stages.

        Raises
        ------
        Ended
            A driver call failed, or the bytes did not arrive.
        """
        if self._together.rank == self._owner:
            stages_ms = self._own(seed)
        elif self._together.rank == self._importer:
            stages_ms = self._import(seed)
        else:
            stages_ms = self._look_on(seed)
        told = self._together.gather(lambda: (stages_ms, ()))
        return {name: ms for item in told for name, ms in item.data.items()}

    def _own(self, seed: int) -> dict[str, float]:
        with self._together.sharing() as memory:
            made: list[SharedMemory] = []

            def make() -> None:
                kind, context = _kind(self._end), self._rig.stream(self._bus_id).context
                made.append(SharedMemory(kind, context, self._task.size_bytes, self._end.numa_node))
                memory.own += made

            def send() -> tuple[Any, Sequence[int]]:
                description, fds = made[0].offer()
                return {"offer": description, "sent_s": time.monotonic()}, fds

            self._together.do(make)
            for item in self._together.gather(send):
                close_all(item.fds)
            self._together.listen()
            self._judge(self._together.gather(lambda: (self._check(made[0], seed), ())), seed)
        return made[0].stages_ms

    def _import(self, seed: int) -> dict[str, float]:
        with self._together.sharing() as memory:
            opened: list[ImportedMemory] = []
            stages_ms: dict[str, float] = {}

            def open_it() -> None:
                stream = self._rig.stream(self._bus_id)
                try:
                    opened.append(ImportedMemory(stream.context, offered.data["offer"], offered.fds))
                finally:
                    close_all(offered.fds)
                memory.opened += opened
                region = Region(opened[0].address, self._task.size_bytes, seed)
                for touch in ("first-touch", "second-touch"):
                    stages_ms[touch] = _timed(stream, lambda: poison(stream, region))
                self._rig.pattern.fill(stream, region)
                stream.synchronize()

            self._together.listen()
            offered = self._together.listen()[self._owner or 0]
            stages_ms["transfer"] = (time.monotonic() - offered.data["sent_s"]) * 1e3
            self._together.do(open_it)
            self._judge(self._together.listen(), seed)
        return stages_ms | opened[0].stages_ms

    def _look_on(self, seed: int) -> dict[str, float]:
        with self._together.sharing():
            self._together.listen()
            for item in self._together.listen():
                close_all(item.fds)
            self._together.listen()
            self._judge(self._together.listen(), seed)
        return {}

    def _check(self, memory: SharedMemory, seed: int) -> Any:
        """Return how what the importer has left differs from what it should have, as JSON data."""
        region = Region(memory.address, self._task.size_bytes, seed)
        difference = self._rig.pattern.check(self._rig.stream(self._bus_id), region)()
        if difference is None:
            return None
        return to_json(
            Mismatch(
                sample=seed - 1,
                words=difference.words,
                first_offset_bytes=difference.first_offset_bytes,
                expected=f"{difference.expected:#018x}",
                found=f"{difference.found:#018x}",
            )
        )

    def _judge(self, checked: Sequence[Item], seed: int) -> None:
        """End the task on all ranks where the owner has found a difference."""
        found = checked[self._owner or 0].data
        if found is None:
            return
        mismatch = from_json(Mismatch, found)
        reason = (
            f"what the importer wrote in life {seed} of {self._task.path} did not arrive: {mismatch.words} words "
            f"differ, the first at offset {mismatch.first_offset_bytes}: expected {mismatch.expected}, found "
            f"{mismatch.found}"
        )
        verification = self._rig.verification
        outcome = finish(
            self._task, Status.CORRUPT, reason=reason, mismatch=mismatch, verification=verification, seeds=(seed,)
        )
        raise Ended(outcome)


def shared_end(flow: Flow) -> Endpoint:
    """Return the end of a flow that another process has opened by a handle."""
    return next(end for end in (flow.source, flow.destination) if end.handle is not None)


def _kind(end: Endpoint) -> HandleKind:
    if end.handle is None:
        raise ValueError(f"{end.label} is not shared")
    return end.handle


def _timed(stream: Stream, work: Callable[[], None]) -> float:
    started = time.perf_counter()
    work()
    stream.synchronize()
    return (time.perf_counter() - started) * 1e3
