"""Ranks that measure messages by UCX: real processes and a real UCX, on fake GPUs whose memory is the host's."""

from __future__ import annotations

import ctypes
import os
from typing import Any

from egmctl.bench.engines import ucx as ucx_side
from egmctl.bench.processes.group import Group, start_rank
from egmctl.bench.processes.worker import start_driver
from egmctl.gpu import ucx
from egmctl.gpu.ucx import RegisteredMemory, UcxConnection
from egmctl.launch import Channel
from egmctl.model.measurement import Settings
from tests.handles import ranks

TARGET = "tests.rdma.ranks:run"
SETTINGS = Settings(size_bytes=1 << 20, copies=None, samples=2, timeout_s=60)
SPOILT_OFFSET = 1003
_NO_MEMORY = -4
"""UCS_ERR_NO_MEMORY."""


def run(parent: Channel, arguments: dict[str, Any]) -> None:
    """Measure as other ranks do, with faults that the environment names.

    A function of libucp, EGMCTL_TEST_UCX_FAILS, fails; with EGMCTL_TEST_SPOILT rank 1 receives spoilt messages.
    """
    start_driver()
    if function := os.environ.get("EGMCTL_TEST_UCX_FAILS"):
        ucx._ucx_library()
        setattr(ucx._library(), function, lambda *_: _NO_MEMORY)
    if "EGMCTL_TEST_SPOILT" in os.environ and arguments["rank"] == 1:
        vars(ucx_side)["UcxConnection"] = _Spoiling
    ranks.run(parent, arguments)


class _Spoiling(UcxConnection):
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
