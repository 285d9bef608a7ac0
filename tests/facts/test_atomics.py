"""What links do natively of atomic operations: read from the driver, recorded, replayed, and shown; or why not."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from egmctl.driver import cuda as driver
from egmctl.driver.reading import Unreadable
from egmctl.facts import cuda
from egmctl.model.record import Reason
from tests.conftest import RunEgmctl
from tests.fake.machines import everything_stated
from tests.fake.plugin import MakeFakeNode

ADD = ["signed", "unsigned", "reduction", "scalar-32", "scalar-64"]


def test_they_are_recorded_by_snapshot_and_shown_from_there(
    egmctl: RunEgmctl, fake_node: MakeFakeNode, tmp_path: Path
) -> None:
    node, file = fake_node(everything_stated()), tmp_path / "node.json"
    assert egmctl("snapshot", "-o", str(file), env=node.environment()).code == 0
    recorded = json.loads(file.read_text())
    assert recorded["gpus"][0]["cuda"]["host_atomics"]["integer-add"] == ADD
    assert recorded["pairs"][0]["atomics"]["float-min"] == []

    document = json.loads(egmctl("topo", "--machine", str(file), "--json").out)
    assert document["result"]["machines"][0]["pairs"][0]["atomics"]["integer-add"] == ADD
    shown = " ".join(egmctl("topo", "-v", "--machine", str(file)).out.split())
    assert (
        "host atomics integer-add integer-min integer-max and or xor: signed unsigned reduction scalar-32 scalar-64; "
        "integer-increment integer-decrement: unsigned scalar-32; "
    ) in shown
    assert "float-min float-max: none peer atomics GPU1 GPU2 GPU3: integer-add" in shown


def test_a_driver_that_has_no_such_function_is_too_old_and_says_so(egmctl: RunEgmctl, fake_node: MakeFakeNode) -> None:
    faults = "cuDeviceGetHostAtomicCapabilities=missing;cuDeviceGetP2PAtomicCapabilities=missing"
    node = fake_node(everything_stated())
    document = json.loads(egmctl("topo", "--json", env=node.environment(faults)).out)
    machine = document["result"]["machines"][0]
    for record, field in ((machine["gpus"][0]["cuda"], "host_atomics"), (machine["pairs"][0], "atomics")):
        assert record[field] is None
        assert record["unread"][field]["reason"] == Reason.DRIVER_TOO_OLD
    told = " ".join(egmctl("topo", "-v", env=node.environment(faults)).out.split())
    assert "host atomics unknown, driver-too-old: cuDeviceGetHostAtomicCapabilities: " in told
    assert "peer atomics GPU1 GPU2 GPU3: unknown, driver-too-old: cuDeviceGetP2PAtomicCapabilities: " in told


def test_an_error_of_the_driver_keeps_its_name(egmctl: RunEgmctl, fake_node: MakeFakeNode) -> None:
    node = fake_node(everything_stated())
    faults = "cuDeviceGetHostAtomicCapabilities=error:999"
    document = json.loads(egmctl("topo", "--json", env=node.environment(faults)).out)
    why = document["result"]["machines"][0]["gpus"][0]["cuda"]["unread"]["host_atomics"]
    assert (why["reason"], "CUDA_ERROR_UNKNOWN" in why["detail"]) == ("failed", True)


def test_an_answer_that_an_attribute_contradicts_is_none(egmctl: RunEgmctl, fake_node: MakeFakeNode) -> None:
    # So H100 and H200 answer with driver 580.
    stated = everything_stated()
    silent = dict.fromkeys((stated.pairs or ())[0].atomics or {}, ())
    for claimed in (0, 1):
        attributes = {"NATIVE_ATOMIC_SUPPORTED": claimed}
        pairs = tuple(
            replace(pair, atomics=silent, cuda_attributes={**pair.cuda_attributes, **attributes})
            for pair in stated.pairs or ()
        )
        node = fake_node(replace(stated, pairs=pairs))
        pair = json.loads(egmctl("topo", "--json", env=node.environment()).out)["result"]["machines"][0]["pairs"][0]
        if claimed:
            assert pair["atomics"] is None
            assert "0 for every operation, though NATIVE_ATOMIC_SUPPORTED is 1" in pair["unread"]["atomics"]["detail"]
        else:
            assert set(map(tuple, pair["atomics"].values())) == {()}


def test_bindings_of_an_older_cuda_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(driver, "bindings", SimpleNamespace)
    with pytest.raises(Unreadable, match="cuda-bindings") as raised:
        cuda._atomics("cuDeviceGetHostAtomicCapabilities", ({"": 0}, ""), 0)
    assert raised.value.unread.reason is Reason.DRIVER_TOO_OLD


@pytest.mark.parametrize(
    ("mask", "words"), [(0, []), (3, ["signed", "unsigned"]), (1 << 7 | 64, ["vector-32x4", "bit-7"])]
)
def test_each_bit_has_its_word_and_one_that_is_newer_its_number(mask: int, words: list[Any]) -> None:
    assert cuda._capabilities(mask) == words
