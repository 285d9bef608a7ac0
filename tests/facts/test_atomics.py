"""Atomic operations that links do natively: read from the driver and shown; or why not."""

from __future__ import annotations

import json
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from egmctl.driver import cuda as driver
from egmctl.driver.reading import Unreadable
from egmctl.facts import cuda
from egmctl.model.machine import Machine
from egmctl.model.record import Reason
from egmctl.report.kinds import Format
from egmctl.topology.topology import topology
from tests.answers import render
from tests.facts.conftest import Collect
from tests.fake.machines import everything_stated
from tests.fake.plugin import MakeFakeNode
from tests.known import known

ADD = ["signed", "unsigned", "reduction", "scalar-32", "scalar-64"]
HOST, PEER = "cuDeviceGetHostAtomicCapabilities", "cuDeviceGetP2PAtomicCapabilities"


def text_of(machine: Machine) -> str:
    return " ".join(str(render(topology(machine), Format.TEXT, verbose=1)).split())


def test_they_are_shown() -> None:
    machine = everything_stated()
    pairs = json.loads(str(render(topology(machine), Format.JSON)))["result"]["machines"][0]["pairs"]
    assert (pairs[0]["atomics"]["integer-add"], pairs[0]["atomics"]["float-min"]) == (ADD, [])
    shown = text_of(machine)
    assert (
        "host atomics integer-add integer-min integer-max and or xor: signed unsigned reduction scalar-32 scalar-64; "
        "integer-increment integer-decrement: unsigned scalar-32; "
    ) in shown
    assert "float-min float-max: none peer atomics GPU1 GPU2 GPU3: integer-add" in shown


@pytest.mark.parametrize(
    ("answer", "reason", "detail"),
    [
        ("missing", Reason.DRIVER_TOO_OLD, "the driver has no such function"),
        ("error:999", Reason.FAILED, "CUDA_ERROR_UNKNOWN"),
    ],
)
def test_a_function_that_is_missing_or_fails_says_so(
    fake_node: MakeFakeNode, on: Collect, answer: str, reason: Reason, detail: str
) -> None:
    sections = ("host", "gpus", "pairs", "driver")
    machine = on(fake_node(everything_stated()), f"{HOST}={answer};{PEER}={answer}", sections)
    gpu, pair = known(known(machine.gpus)[0].cuda), known(machine.pairs)[0]
    assert (gpu.host_atomics, pair.atomics) == (None, None)
    for unread in (gpu.unread["host_atomics"], pair.unread["atomics"]):
        assert (unread.reason, detail in unread.detail) == (reason, True), unread.detail
    shown = text_of(machine)
    assert f"host atomics unknown, {reason}: {HOST}: " in shown
    assert f"peer atomics GPU1 GPU2 GPU3: unknown, {reason}: {PEER}: " in shown


@pytest.mark.parametrize("claimed", [0, 1])
def test_an_answer_that_an_attribute_contradicts_is_none(fake_node: MakeFakeNode, on: Collect, claimed: int) -> None:
    # So H100 and H200 answer with driver 580.
    stated = everything_stated()
    silent: dict[str, Any] = dict.fromkeys(known(known(stated.pairs)[0].atomics), ())
    pairs = tuple(
        replace(pair, atomics=silent, cuda_attributes={**pair.cuda_attributes, "NATIVE_ATOMIC_SUPPORTED": claimed})
        for pair in known(stated.pairs)
    )
    pair = known(on(fake_node(replace(stated, pairs=pairs))).pairs)[0]
    assert pair.atomics == (None if claimed else silent)
    if claimed:
        assert "0 for every operation, though NATIVE_ATOMIC_SUPPORTED is 1" in pair.unread["atomics"].detail


def test_bindings_of_an_older_cuda_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(driver, "bindings", SimpleNamespace)
    with pytest.raises(Unreadable, match="cuda-bindings") as raised:
        cuda._atomics(HOST, ({"": 0}, ""), 0)
    assert raised.value.unread.reason is Reason.DRIVER_TOO_OLD


@pytest.mark.parametrize(
    ("mask", "words"), [(0, []), (3, ["signed", "unsigned"]), (1 << 7 | 64, ["vector-32x4", "bit-7"])]
)
def test_each_bit_has_its_word_and_one_that_is_newer_its_number(mask: int, words: list[Any]) -> None:
    assert cuda._capabilities(mask) == words
