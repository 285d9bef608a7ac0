"""A device without NVSwitch has few peers at a time: access that a step does not need is given back, and 711 waives."""

from __future__ import annotations

from typing import Any

import pytest

from egmctl.bench.results import failure
from egmctl.errors import DriverCallError
from egmctl.gpu import context as gpu_context
from egmctl.gpu.context import PEERS_LIMIT, Context
from egmctl.model.finding import WaiverKind
from egmctl.model.measurement import MeasurementStatus
from tests.bench.plans import plan_of


def contexts(count: int) -> list[Context]:
    made = []
    for number in range(count):
        context: Any = Context.__new__(Context)
        context.bus_id, context.handle, context._peers, context._needed = f"0000:{number:02x}:00.0", number, {}, set()
        made.append(context)
    return made


@pytest.fixture
def enabled(monkeypatch: pytest.MonkeyPatch) -> set[int]:
    """Return the peers of the current context, as the driver has them."""
    peers: set[int] = set()

    def call(name: str, *arguments: Any) -> None:
        if name == "cuCtxEnablePeerAccess":
            peers.add(arguments[0])
        if name == "cuCtxDisablePeerAccess":
            peers.remove(arguments[0])

    monkeypatch.setattr(gpu_context, "call", call)
    return peers


def test_steps_that_need_one_peer_each_never_have_more_than_eight(enabled: set[int]) -> None:
    own, *others = contexts(17)
    for peer in (*others, *others):
        own.begin_step()
        own.enable_access_to(peer)
        assert peer.handle in enabled
        assert len(enabled) <= PEERS_LIMIT


def test_a_step_loses_no_peer_that_it_needs(enabled: set[int]) -> None:
    own, *others = contexts(12)
    own.begin_step()
    for peer in others:
        own.enable_access_to(peer)
    assert enabled == {peer.handle for peer in others}, "the driver decides: with NVSwitch there is no limit"
    own.begin_step()
    own.enable_access_to(others[0])
    assert len(enabled) == len(others), "what is enabled needs no place"


def test_too_many_peers_is_a_waiver_with_that_reason() -> None:
    (task, *_) = plan_of("device_to_device_memcpy_write_ce", machine="hgx-h200x4").tasks
    outcome = failure(task, DriverCallError("cuCtxEnablePeerAccess", 711, "CUDA_ERROR_TOO_MANY_PEERS"))
    assert (outcome.status, outcome.waivers[0].kind) == (MeasurementStatus.WAIVED, WaiverKind.NO_PEER_ACCESS)
    assert "8 peers at a time, those of other processes too" in (outcome.reason or "")
