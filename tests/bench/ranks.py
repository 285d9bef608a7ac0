"""Ranks that exchange words and no memory, and misbehave where they are told to: run in real processes."""

from __future__ import annotations

import os
import signal
import time
from typing import Any

from egmctl.bench.processes.collective import Abandoned, Exchange
from egmctl.bench.processes.protocol import Event, Request
from egmctl.driver import breadcrumb
from egmctl.launch import Channel


def run(parent: Channel, arguments: dict[str, Any]) -> None:
    """Do what each request asks for: so many ``calls``, and a ``fault`` of rank ``who`` in call ``at``."""
    exchange = Exchange(parent, **arguments)
    while (message := parent.receive()[0])["do"] == Request.MEASURE:
        said: list[Any] = []
        try:
            for number in range(message["calls"]):
                if (message.get("who"), message.get("at")) == (exchange.rank, number):
                    _misbehave(parent, message["fault"])
                said.append(_gather(exchange, number))
            parent.send({"event": "told", "by": exchange.rank})
        except Abandoned as error:
            said.append(str(error))
        parent.send({"event": Event.OVER, "said": said, "pid": os.getpid(), "fds": len(os.listdir("/proc/self/fd"))})


def _gather(exchange: Exchange, number: int) -> Any:
    if number % 3 == 1:
        exchange.all_gather(None)
        return None
    reader, writer = os.pipe()
    os.write(writer, f"file of {exchange.rank}".encode())
    data = {"from": exchange.rank, "number": number}
    found = []
    for item in exchange.all_gather(data, [reader]):
        (fd,) = item.fds
        found.append([item.data, os.read(fd, 100).decode()] if exchange.rank == 0 else item.data)
        os.close(fd)
    os.close(reader)
    os.close(writer)
    return found


def _misbehave(parent: Channel, fault: str) -> None:
    if fault in ("crash", "hang"):
        breadcrumb.enter("cuIpcOpenMemHandle")
    if fault == "crash":
        os.kill(os.getpid(), signal.SIGSEGV)
    if fault == "hang":
        time.sleep(600)
    if fault == "raise":
        raise ValueError("a bug in the rank")
    if fault == "leave":
        parent.send({"event": Event.OVER})
    if fault == "skip":
        parent.send({"event": Event.EXCHANGE, "call": "exchange 77", "data": None})
    if fault == "garbage":
        os.write(parent.fileno(), b"no message at all")
        time.sleep(600)
