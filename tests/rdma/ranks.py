"""Ranks that measure messages by UCX: real processes and a real UCX, on fake GPUs whose memory is the host's."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from egmctl.bench.group import Group, start_rank
from egmctl.bench.protocol import Event, NodeAccess, Preparation, Request
from egmctl.bench.ranks import ucx
from egmctl.bench.ranks.parent import ParentExchange
from egmctl.bench.rig import Rig
from egmctl.bench.worker import start_driver
from egmctl.launch import Channel
from egmctl.model.codec import from_json, to_json
from egmctl.model.measurement import Measurement, Settings, Task
from egmctl.model.rank import Rank

TARGET = "tests.rdma.ranks:run"
SETTINGS = Settings(size_bytes=1 << 20, copies=None, samples=2, timeout_s=60)


def run(parent: Channel, arguments: dict[str, Any]) -> None:
    """Measure the ``tasks`` of each request among the ``ranks``; answer with what came of it."""
    start_driver()
    exchange = ParentExchange(parent, arguments["rank"], arguments["size"])
    while (message := parent.receive()[0])["do"] == Request.MEASURE:
        ranks = [from_json(Rank, rank) for rank in message["ranks"]]
        own = ranks[exchange.rank]
        access = NodeAccess(numa_node=own.numa_node or 0, gpus=(own.bus_id,))
        rig = Rig(Preparation(settings=SETTINGS, gpus=(own.bus_id,), host_access=(access,)))
        tasks = [from_json(Task, task) for task in message["tasks"]]
        found = ucx.measure(exchange, rig, ranks, tasks, SETTINGS)
        rig.close()
        parent.send({"event": Event.OVER, "measurements": [to_json(measurement) for measurement in found]})
    parent.send({"event": Event.DONE})


def start(count: int) -> Group:
    """Start ranks in this process' environment."""
    return Group({number: start_rank(number, count, TARGET) for number in range(count)})


def ask(group: Group, ranks: Sequence[Rank], *tasks: Task) -> list[Measurement]:
    """Have a group measure tasks; all ranks come to the same."""
    request = {
        "do": Request.MEASURE,
        "ranks": [to_json(rank) for rank in ranks],
        "tasks": [to_json(task) for task in tasks],
    }
    said = group.ask(request, 100)
    (found,) = {str(one["measurements"]): one["measurements"] for one in said}.values()
    return [from_json(Measurement, one) for one in found]
