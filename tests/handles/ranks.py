"""Ranks that measure life cycles and round trips, and say what they hold before and after: run in real processes."""

from __future__ import annotations

import os
import signal
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import count
from pathlib import Path
from typing import Any

from egmctl.bench.engines import life_cycle
from egmctl.bench.processes.collective import Abandoned, Exchange
from egmctl.bench.processes.context import WorkerContext
from egmctl.bench.processes.group import Group, start_rank
from egmctl.bench.processes.protocol import ENVIRONMENT, Event, NodeAccess, Preparation, Request
from egmctl.bench.processes.worker import engine_for, start_driver
from egmctl.driver import cuda
from egmctl.driver.cuda import call
from egmctl.launch import Channel, Child
from egmctl.model.codec import from_json, to_json
from egmctl.model.measurement import Measurement, Settings
from egmctl.model.route import MemoryKind, Rank
from egmctl.model.task import Chase, ChaseOrder, Endpoint, Engine, Flow, HandleKind, Pattern, Quantity, Task
from tests.bench.routes import nv, over

TARGET = "tests.handles.ranks:run"
MIB = 1 << 20
SETTINGS = Settings(size_bytes=2 * MIB, copies=1, samples=2, timeout_s=30)

SHARED = (
    (HandleKind.LEGACY, None),
    (HandleKind.POSIX_FD, None),
    (HandleKind.POSIX_FD, 0),
    (HandleKind.FABRIC, None),
    (HandleKind.FABRIC, 0),
    (HandleKind.POOL, None),
    (HandleKind.POOL, 0),
    (HandleKind.POOL_FABRIC, None),
    (HandleKind.POOL_FABRIC, 0),
)
"""Kinds of handles, and the NUMA node of host memory."""


def stages_of(handle: HandleKind) -> list[str]:
    """Return the stages of a life of memory with such a handle, in order: what the driver has no call for is left out.

    Opening a legacy handle maps it. Access is set to memory from cuMemCreate alone.
    """
    absent = {
        HandleKind.LEGACY: {"map", "set-access", "import-access"},
        HandleKind.POOL: {"set-access", "import-access"},
        HandleKind.POOL_FABRIC: {"set-access", "import-access"},
    }.get(handle, set[str]())
    return [stage for stage in life_cycle.STAGES if stage not in absent]


def run(parent: Channel, arguments: dict[str, Any]) -> None:
    """Measure the ``tasks`` of each request, of one engine, among the ``ranks``; answer with what came of it."""
    start_driver()
    exchange = Exchange(parent, **arguments)
    worker: WorkerContext | None = None
    while (message := parent.receive()[0])["do"] == Request.MEASURE:
        ranks = [from_json(Rank, rank) for rank in message["ranks"]]
        if worker is None:
            own = ranks[exchange.rank]
            access = NodeAccess(numa_node=own.numa_node or 0, gpus=(own.bus_id,))
            preparation = Preparation(settings=SETTINGS, gpus=(own.bus_id,), host_access=(access,), ranks=tuple(ranks))
            worker = WorkerContext(preparation, exchange)
        tasks = [from_json(Task, task) for task in message["tasks"]]
        before = held()
        if (death := message["death"]) and death["rank"] == exchange.rank:
            die_at(death["call"], death["nth"])
        try:
            if tasks[0].engine is Engine.LIFE_CYCLE:
                measured = life_cycle.measure_life_cycles(
                    worker, tasks, replace(SETTINGS, samples=message["lives"]), least=1
                )
            else:
                measured = engine_for(tasks[0].engine)(worker, tasks, SETTINGS)
            said: dict[str, Any] = {"measurements": [to_json(measurement) for measurement in measured]}
        except Abandoned as error:
            said = {"abandoned": str(error)}
        parent.send({"event": Event.OVER, "before": before, "after": held(), **said})
    if worker is not None:
        worker.close()
    parent.send({"event": Event.DONE})


def die_at(name: str, nth: int) -> None:
    """Have this process killed when it has made the nth call of a function of the driver; the breadcrumb names it."""
    make, calls = cuda._call, count(1)

    def die(called: str, arguments: tuple[Any, ...]) -> tuple[Any, ...]:
        result = make(called, arguments)
        if called == name and next(calls) == nth:
            os.kill(os.getpid(), signal.SIGKILL)
        return result

    vars(cuda)["_call"] = die


def held() -> dict[str, int]:
    """Return how much this process has open, has of the driver's files mapped, and has left of its GPU's memory."""
    free, _ = call("cuMemGetInfo")
    maps = Path("/proc/self/maps").read_text().splitlines()
    of_driver = [line for line in maps if "/dev/nvidia" in line or "fake-gpu" in line]
    return {"files": len(os.listdir("/proc/self/fd")), "mappings": len(of_driver), "free_bytes": int(free)}


@dataclass(frozen=True, slots=True)
class Said:
    """What all ranks have said of a request."""

    measurements: list[Measurement]
    """The same in all."""
    before: list[Mapping[str, int]]
    after: list[Mapping[str, int]]


def start(count: int, last: Mapping[str, Any] | None = None) -> Group:
    """Start ranks in this process' environment.

    Parameters
    ----------
    last
        Options of the child that the last one is: variables of its own, say, or what it does first.
    """
    group = {number: start_rank(number, count, TARGET) for number in range(count - 1 if last else count)}
    if last:
        environment = {**ENVIRONMENT, **last.get("environment", {})}
        group[count - 1] = Child(TARGET, {"rank": count - 1, "size": count}, **{**last, "environment": environment})
    return Group(group)


def ask(
    group: Group,
    ranks: Sequence[Rank],
    *tasks: Task,
    lives: int = 2,
    timeout_s: float = 30,
    death: Mapping[str, Any] | None = None,
) -> Said:
    """Have a group measure tasks.

    Parameters
    ----------
    death
        Which ``rank`` dies, having made which ``call`` for the ``nth`` time: :func:`die_at`.
    """
    request = {
        "do": Request.MEASURE,
        "ranks": [to_json(rank) for rank in ranks],
        "tasks": [to_json(task) for task in tasks],
        "lives": lives,
        "death": death,
    }
    said = group.ask(request, timeout_s)
    (measurements,) = {str(answer["measurements"]): answer["measurements"] for answer in said}.values()
    return Said(
        [from_json(Measurement, measurement) for measurement in measurements],
        [answer["before"] for answer in said],
        [answer["after"] for answer in said],
    )


def finish(group: Group) -> None:
    """Have a group give everything back and end."""
    group.ask({"do": Request.FINISH}, 30)


def ranks_on(bus_ids: Sequence[str]) -> list[Rank]:
    return [Rank(number=number, label=f"GPU{number}", bus_id=bus_id) for number, bus_id in enumerate(bus_ids)]


def life_cycle_task(
    ranks: Sequence[Rank],
    handle: HandleKind,
    node: int | None = None,
    *,
    size_bytes: int = 2 * MIB,
    owner: int = 0,
    importer: int = 1,
) -> Task:
    """Return the life cycle of memory that one rank makes and another one opens."""
    memory = _end(ranks, owner, node, handle)
    registers = Endpoint(memory=MemoryKind.REGISTERS, label=ranks[importer].label, rank=importer)
    flow = _flow(ranks, importer, source=memory, destination=registers)
    return _task(Engine.LIFE_CYCLE, Quantity.DURATION, [flow], size_bytes=size_bytes)


def flag_task(ranks: Sequence[Rank], node: int | None = None, *, first: int = 0, other: int = 1) -> Task:
    """Return the round trip of a flag between two ranks: in each one's device memory, or on a node in the first's."""
    flows = []
    for initiator, partner in ((first, other), (other, first)):
        owner = partner if node is None else first
        far = _end(ranks, owner, node, None if owner == initiator else HandleKind.POSIX_FD)
        near = Endpoint(memory=MemoryKind.DEVICE, label=ranks[initiator].label, rank=initiator)
        flows.append(_flow(ranks, initiator, source=near, destination=far))
    return _task(Engine.PING_PONG, Quantity.LATENCY, flows)


def message_task(ranks: Sequence[Rank], engine: Engine, *, first: int = 0, other: int = 1) -> Task:
    """Return the round trip of an event or of a message alone."""
    ends = [Endpoint(memory=MemoryKind.REGISTERS, label=ranks[rank].label, rank=rank) for rank in (first, other)]
    return _task(engine, Quantity.LATENCY, [_flow(ranks, first, source=ends[0], destination=ends[1])])


def _end(ranks: Sequence[Rank], owner: int, node: int | None, handle: HandleKind | None) -> Endpoint:
    if node is None:
        gpu = ranks[owner]
        return Endpoint(memory=MemoryKind.DEVICE, label=gpu.label, bus_id=gpu.bus_id, rank=owner, handle=handle)
    return Endpoint(memory=MemoryKind.HOST_NUMA, label=f"NUMA{node}", numa_node=node, rank=owner, handle=handle)


def _flow(ranks: Sequence[Rank], initiator: int, *, source: Endpoint, destination: Endpoint) -> Flow:
    return Flow(
        source=source,
        destination=destination,
        initiator=ranks[initiator].bus_id,
        initiator_label=ranks[initiator].label,
        initiator_rank=initiator,
        route=over(nv(18)),
    )


def _task(engine: Engine, quantity: Quantity, flows: Sequence[Flow], size_bytes: int = 128) -> Task:
    return Task(
        case=f"a {engine}",
        family="ipc",
        quantity=quantity,
        engine=engine,
        pattern=Pattern.PAIR,
        flows=tuple(flows),
        counted="",
        size_bytes=size_bytes,
        copies=1,
        chase=Chase(order=ChaseOrder.SEQUENTIAL, stride_bytes=128, warm=True, loads=100)
        if quantity is Quantity.LATENCY
        else None,
    )
