"""Ranks that measure messages by UCX: real processes and a real UCX, on fake GPUs whose memory is the host's."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Sequence
from typing import Any

from egmctl.bench.engines import ucx as ucx_side
from egmctl.bench.processes.collective import ParentExchange
from egmctl.bench.processes.context import WorkerContext
from egmctl.bench.processes.group import Group, start_rank
from egmctl.bench.processes.protocol import Event, NodeAccess, Preparation, Request
from egmctl.bench.processes.worker import start_driver
from egmctl.gpu import ucx
from egmctl.gpu import ucx as ucx_rma
from egmctl.gpu.ucx import Link, RegisteredMemory
from egmctl.launch import Channel
from egmctl.model.codec import from_json, to_json
from egmctl.model.measurement import Measurement, Settings, Task
from egmctl.model.ucx import Rank

TARGET = "tests.rdma.ranks:run"
SETTINGS = Settings(size_bytes=1 << 20, copies=None, samples=2, timeout_s=60)
SPOILT_OFFSET = 1003
_NO_MEMORY = -4
"""UCS_ERR_NO_MEMORY."""


def run(parent: Channel, arguments: dict[str, Any]) -> None:
    """Measure the ``tasks`` of each request among the ``ranks``; answer with what came of it."""
    start_driver()
    exchange = ParentExchange(parent, arguments["rank"], arguments["size"])
    while (message := parent.receive()[0])["do"] == Request.MEASURE:
        ranks = [from_json(Rank, rank) for rank in message["ranks"]]
        own = ranks[exchange.rank]
        access = NodeAccess(numa_node=own.numa_node or 0, gpus=(own.bus_id,))
        worker = WorkerContext(
            Preparation(settings=SETTINGS, gpus=(own.bus_id,), host_access=(access,), ranks=tuple(ranks)),
            exchange,
        )
        tasks = [from_json(Task, task) for task in message["tasks"]]
        if call := os.environ.get("EGMCTL_TEST_UCX_FAILS"):
            ucx._ucx_library()
            setattr(ucx_rma._library(), call, lambda *_: _NO_MEMORY)
        if message["spoilt"] and exchange.rank == 1:
            vars(ucx_side)["Link"] = _Spoiling
        found = ucx_side.measure(worker, tasks, SETTINGS)
        worker.close()
        parent.send({"event": Event.OVER, "measurements": [to_json(measurement) for measurement in found]})
    parent.send({"event": Event.DONE})


class _Spoiling(Link):
    """Overwrites a byte of each message that has come."""

    _address = 0
    _registered = 0
    _receives = False

    def buffer(self, address: int, size_bytes: int, *, on_gpu: bool) -> Any:
        if size_bytes > SPOILT_OFFSET:
            self._address = address
        return super().buffer(address, size_bytes, on_gpu=on_gpu)

    def register(self, address: int, size_bytes: int) -> RegisteredMemory:
        self._registered = address
        return super().register(address, size_bytes)

    def receive(self, buffer: Any, tag: int) -> Any:
        self._receives |= buffer is not self.word
        return super().receive(buffer, tag)

    def wait(self, *requests: Any, patience_s: float = ucx.PATIENCE_S) -> None:
        super().wait(*requests, patience_s=patience_s)
        if self._receives:
            ctypes.memset(self._address + SPOILT_OFFSET, 0xA5, 1)
        if self._registered:
            ctypes.memset(self._registered + SPOILT_OFFSET, 0xA5, 1)


def start(count: int) -> Group:
    """Start ranks in this process' environment."""
    return Group({number: start_rank(number, count, TARGET) for number in range(count)})


def ask(group: Group, ranks: Sequence[Rank], *tasks: Task, spoilt: bool = False) -> list[Measurement]:
    """Have a group measure tasks; all ranks come to the same. Rank 1 receives ``spoilt`` messages."""
    request = {
        "do": Request.MEASURE,
        "ranks": [to_json(rank) for rank in ranks],
        "tasks": [to_json(task) for task in tasks],
        "spoilt": spoilt,
    }
    said = group.ask(request, 100)
    (found,) = {str(one["measurements"]): one["measurements"] for one in said}.values()
    return [from_json(Measurement, one) for one in found]
