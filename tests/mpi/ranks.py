"""Ranks that exchange words without descriptors, as across nodes, and misbehave where they are told to."""

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
                    _misbehave(message["fault"])
                given = {"from": exchange.rank, "handle": "ab" * 64 * 100 * exchange.rank}
                said.append([item.data["from"] for item in exchange.all_gather(given)])
                exchange.all_gather(None)
        except Abandoned as error:
            said.append(str(error))
        parent.send({"event": Event.OVER, "said": said, "pid": os.getpid()})


def _misbehave(fault: str) -> None:
    breadcrumb.enter("cuIpcOpenMemHandle")
    if fault == "crash":
        os.kill(os.getpid(), signal.SIGSEGV)
    if fault == "hang":
        time.sleep(600)
    raise ValueError("a bug in the rank")
