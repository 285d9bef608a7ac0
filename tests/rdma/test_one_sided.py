"""How libucp is called for one-sided messages, without one: a stand-in of C functions that keeps what it was asked."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, cast

import pytest

from egmctl.bench.buffers import Window
from egmctl.bench.cases import ipc
from egmctl.bench.engines import ucx as ucx_side
from egmctl.bench.engines.ucx import Side
from egmctl.bench.plan.make import make_plan
from egmctl.errors import DriverCallError
from egmctl.gpu import ucx as ucx_rma
from egmctl.gpu.ucx import RegisteredMemory, RemoteMemory, UcxConnection
from tests.doctor.machines import shipped
from tests.rdma.ranks import SETTINGS

GB200 = shipped("gb200-tray")
IN_PROGRESS, NO_MEMORY, IO_ERROR = 1, -4, -3
LEFT_OVER = 0x7F00
"""What a C function that returns one byte may leave in the rest of the register."""


class Calls:
    """libucp and libucs whose functions come to these statuses, else to success."""

    def __init__(self) -> None:
        self.statuses: dict[str, int] = {}
        self._kept: list[Any] = []

    def function(self, result: Any, of: Callable[..., Any], *arguments: Any) -> Any:
        made = ctypes.CFUNCTYPE(result, *arguments)(of)
        self._kept.append(made)
        return ctypes.CDLL(None)._FuncPtr(ctypes.cast(made, ctypes.c_void_p).value or 0)

    def __getattr__(self, name: str) -> Any:
        if not name.startswith("uc"):
            raise AttributeError(name)
        if name == "ucs_status_string":
            words = ctypes.create_string_buffer(b"Out of memory")
            self._kept.append(words)
            found = self.function(ctypes.c_void_p, lambda _: ctypes.addressof(words), ctypes.c_int8)
        else:
            found = self.function(ctypes.c_int, lambda *_: LEFT_OVER | self.statuses.get(name, 0) & 0xFF)
        setattr(self, name, found)
        return found


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> Any:
    for library in (ucx_rma._library, ucx_rma._strings):
        library.cache_clear()
    found = Calls()
    monkeypatch.setattr(ctypes, "CDLL", lambda *_, _real=ctypes.CDLL, **__: found if _ and _[0] else _real(*_))
    yield found
    for library in (ucx_rma._library, ucx_rma._strings):
        library.cache_clear()


@pytest.mark.usefixtures("calls")
def test_of_a_status_one_byte_is_read() -> None:
    stages_ms: dict[str, float] = {}
    RegisteredMemory(1, 4096, 64, stages_ms).close()
    RemoteMemory(1, b"key", 4096, stages_ms)
    assert list(stages_ms) == ["register", "pack", "deregister", "unpack"]
    assert ucx_rma.UcxRequest("ucp_put_nbx", 4096).completed


def test_a_status_that_is_an_error_is_named_by_its_number(calls: Calls) -> None:
    calls.statuses["ucp_mem_map"] = NO_MEMORY
    with pytest.raises(DriverCallError, match="ucp_mem_map failed: Out of memory") as failed:
        RegisteredMemory(1, 4096, 64, {})
    assert failed.value.number == NO_MEMORY


class Traffic:
    """libucp's requests: each is over at its end, once the worker has gone on often enough."""

    def __init__(self, ends: list[int], *, flushed: bool = True) -> None:
        self.ends = ends
        """What each put comes to, after some progress; one more cannot begin."""
        self.flushed = flushed
        self.progressed = 0
        self.held: dict[int, tuple[int, int]] = {}
        """Requests that are not freed: after how much progress each is over, and what it comes to."""
        self.under_way_at_destroy: list[int] = []
        self._begun = 0

    def ucp_put_nbx(self, *_: object) -> int:
        if self._begun == len(self.ends):
            return NO_MEMORY
        return self._begin(self.ends[self._begun])

    def ucp_ep_flush_nbx(self, *_: object) -> int:
        return self._begin(0) if self.flushed else IO_ERROR

    def ucp_request_check_status(self, pointer: int) -> int:
        over, end = self.held[pointer]
        return end if self.progressed >= over else IN_PROGRESS

    def ucp_request_free(self, pointer: int) -> None:
        del self.held[pointer]

    def ucp_ep_rkey_unpack(self, *_: object) -> int:
        return 0

    def ucp_rkey_destroy(self, _: object) -> None:
        self.under_way_at_destroy.append(len(self.held))

    def progress(self) -> None:
        self.progressed += 1

    def _begin(self, end: int) -> int:
        self._begun += 1
        self.held[self._begun] = (self.progressed + 3 * self._begun, end)
        return self._begun


class OneSided(UcxConnection):
    """A link whose worker is a stand-in, and whose messages are there at once."""

    def __init__(self, traffic: Traffic) -> None:
        self._worker = traffic
        self._ucx = SimpleNamespace(UCXError=ConnectionError)
        self.word = None

    def send(self, buffer: Any, tag: int) -> Any:  # noqa: ARG002 - as Link names them
        return ucx_rma.UcxRequest("ucp_tag_send_nbx", None)

    def close(self) -> str:
        return ""


def put(monkeypatch: pytest.MonkeyPatch, traffic: Traffic, count: int) -> Side:
    """Return the side that has put so many times in vain, and let go."""
    words = SimpleNamespace(ucs_status_string=lambda _: 0)
    monkeypatch.setattr(ucx_rma, "_library", lambda: traffic)
    monkeypatch.setattr(ucx_rma, "_strings", lambda: words)
    cases = [case for case in ipc.UCX_CASES if case.name == "ucx_put_host_to_host"]
    task = make_plan(GB200, (GB200.gpus or ())[:2], [0], cases, SETTINGS).tasks[0]
    held = SimpleNamespace(memory=SimpleNamespace(address=1 << 20))
    collective = SimpleNamespace(exchange=SimpleNamespace(rank=task.flows[0].source.rank or 0))
    side = Side(cast(Any, collective), cast(Any, SimpleNamespace(held=lambda _: held)), task, {})
    side._part = Window(0, 4, 4096)
    side._link = OneSided(traffic)
    side._remote = side._held.keep(RemoteMemory(1, b"key", 4096, {}))
    with pytest.raises(DriverCallError, match="ucp_put_nbx"):
        side._pass_one_sided(side._link, count)
    side.close()
    return side


@pytest.mark.parametrize("ends", [[0, 0, 0], [0, IO_ERROR, 0, 0], [0, IO_ERROR, *[0] * 30]])
def test_after_a_failure_the_key_is_given_back_when_nothing_is_under_way(
    monkeypatch: pytest.MonkeyPatch, ends: list[int]
) -> None:
    traffic = Traffic(ends)
    put(monkeypatch, traffic, 30)
    assert traffic.held == {}
    assert traffic.under_way_at_destroy == [0]


def test_a_key_that_may_be_in_use_is_left_to_the_end_of_the_process(monkeypatch: pytest.MonkeyPatch) -> None:
    traffic = Traffic([0, 0, 0], flushed=False)
    put(monkeypatch, traffic, 30)
    assert traffic.under_way_at_destroy == []


def test_what_never_ends_is_waited_for_so_long_and_no_longer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ucx_side, "SETTLE_S", 0.05)
    traffic = Traffic([0, 0, 0])
    monkeypatch.setattr(traffic, "progress", lambda: None)
    put(monkeypatch, traffic, 30)
    assert traffic.under_way_at_destroy == []
