"""GPUs of a node that are unlike those of the other nodes, which the node itself cannot see."""

from __future__ import annotations

from typing import Any

import pytest

from egmctl.fleet.uniform import unlike, values_of
from egmctl.model.answer import State
from egmctl.model.machine import Machine
from tests.doctor.faults import healthy
from tests.doctor.machines import patched, shipped
from tests.fleet.conftest import Ask
from tests.report.texts import text_of

WELL = healthy()


def fleet(*nodes: Machine) -> list[tuple[str, str, str, str]]:
    """Return what is unlike: the node, its GPUs, the words and the status."""
    items = unlike({f"tray{number}": values_of(machine) for number, machine in enumerate(nodes, start=1)})
    return [(item.node, item.label, item.words, item.status.value) for item in items]


def other(gpus: str = "*", **changes: Any) -> Machine:
    return patched(WELL, f"gpus[{gpus}].nvml", **changes)


@pytest.mark.parametrize(
    ("changes", "words", "status"),
    [
        ({"ecc_mode": False}, "ECC is off; on tray[1,3] it is on", "warn"),
        ({"power_limit_mw": 900_000}, "power limit is 900 W; on tray[1,3] it is 1200 W", "warn"),
        ({"memory_total_bytes": 188 << 30}, "memory is 188 GiB; on tray[1,3] it is 192 GiB", "warn"),
        ({"vbios": "97.00.A1"}, "VBIOS is 97.00.A1; on tray[1,3] it is 97.00.B9.00.76", "note"),
        ({"inforom_image": "G548.02"}, "InfoROM is G548.02; on tray[1,3] it is G548.0201.00.06", "note"),
        ({"board_part_number": "900-X"}, "board is 900-X; on tray[1,3] it is 900-2G548-0001-000", "note"),
    ],
)
def test_a_node_whose_gpus_are_alike_and_unlike_all_others_is_named(
    changes: dict[str, Any], words: str, status: str
) -> None:
    assert fleet(WELL, other(**changes), WELL) == [("tray2", "", words, status)]


def test_what_the_node_itself_names_is_said_once() -> None:
    """A warning of its own is a line of the node already; a note is not."""
    assert fleet(WELL, other("2", ecc_mode=False), WELL) == []
    assert fleet(WELL, other("2", vbios="97.00.A1"), WELL) == [
        ("tray2", "GPU2", "VBIOS is 97.00.A1; on tray[1,3] it is 97.00.B9.00.76", "note")
    ]


def test_of_two_nodes_none_is_the_better_one() -> None:
    assert [(node, words) for node, _, words, _ in fleet(WELL, other(ecc_mode=False))] == [
        ("tray1", "ECC is on; on tray2 most differ from it"),
        ("tray2", "ECC is off; on tray1 most differ from it"),
    ]


def test_equal_nodes_other_kinds_and_what_was_not_read_are_no_difference() -> None:
    board = patched(shipped("hgx-h200x4"), "gpus[*].nvml", ecc_mode=False)
    unread = other(ecc_mode=None)
    assert fleet(WELL, WELL, WELL) == fleet(WELL, WELL, board) == fleet(WELL, WELL, unread) == fleet(WELL) == []


def test_memory_under_a_limit_is_not_the_size_of_the_gpu() -> None:
    limited = other(memory_total_bytes=8 << 30, memory_limit_bytes=8 << 30)
    assert fleet(WELL, limited, WELL) == []


@pytest.mark.parametrize(("changes", "state"), [({"ecc_mode": False}, State.WARN), ({"vbios": "97.00.A1"}, State.GOOD)])
def test_a_rack_names_the_tray_among_its_causes(rack: Ask, changes: dict[str, Any], state: State) -> None:
    report = rack({"tray07": other(**changes)})
    assert report.answer.state is state
    (item,) = report.unlike
    text = text_of(report)
    words = " ".join(text.split())
    assert f"{item.status.value.upper()} tray07: {item.words} [gpu.uniform]" in words
    assert ("tray07  \N{BLACK UP-POINTING TRIANGLE}" in text) is item.slows
