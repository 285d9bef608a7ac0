"""What ``egmctl snapshot`` records on a fake node is the machine that the node was made from."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from egmctl.facts import replay
from egmctl.model.codec import to_json
from egmctl.model.machine import Machine
from egmctl.model.record import Reason
from tests.conftest import RunEgmctl
from tests.fake.machines import everything_stated, with_cuda_version
from tests.fake.node import load
from tests.fake.plugin import MakeFakeNode
from tests.invariants import broken_invariants, differences

NOT_THE_SAME = {
    r"origin\..*|sections\.\w+\.duration_ms": "when and where it was recorded",
    r"gpus\[\d+\]\.(nvml|cuda)\.name": "every fake GPU says that it is one",
    r".*\bnode\.(major|minor|mode|uid|gid|unread|access|nodev)(\..*)?": "device nodes are plain files of the test",
    r"driver\.(nodes|imex_channels)\[\d+\]\.(major|minor|mode|uid|gid|unread|access|nodev)(\..*)?": "so are these",
    r"process\.effective_uid": "that of whoever runs the test",
    r"process\.environment\.LD_LIBRARY_PATH": "how the fake libraries are found",
    r"(confinement|sections\.confinement)(\..*)?": "what confines the process that runs the test",
    r".*\.unread\.[\w.]+\.detail": "the wording of a reason",
}
"""Places where a recording differs from the machine that the node was made from, and why."""


@pytest.fixture
def snapshot(egmctl: RunEgmctl, fake_node: MakeFakeNode, tmp_path: Path) -> Any:
    """Record the node of a machine with the real command."""

    def record(machine: Machine | str) -> Machine:
        file = tmp_path / "recorded.json"
        node = fake_node(machine)
        ended = egmctl("snapshot", "--full", "--force", "-o", file, env=node.environment())
        assert ended.code == 0, ended.err
        assert node.leaks() == []
        return load(file)

    return record


@pytest.mark.long
@pytest.mark.parametrize("name", replay.machine_names())
def test_every_value_of_a_shipped_machine_is_recorded_and_recorded_again_the_same(snapshot: Any, name: str) -> None:
    machine = _for_our_bindings(load(name))
    recorded = snapshot(machine)
    assert broken_invariants(recorded) == []
    for section in ("host", "gpus", "pairs", "switches", "nics", "driver"):
        places = differences(getattr(machine, section), getattr(recorded, section), section)
        assert [place for place in places if not (_may_differ(place.partition(":")[0]) or _no_cluster(place))] == []
    # Nothing is "not stated" in a recording: each null and its reason comes back, too.
    assert list(unlike(to_json(recorded), to_json(snapshot(recorded)))) == []


def test_every_value_that_nvml_can_have_is_recorded(snapshot: Any) -> None:
    machine = everything_stated()
    recorded = snapshot(machine)
    places = differences(machine.gpus, recorded.gpus, "gpus") + differences(machine.driver, recorded.driver, "driver")
    assert [place for place in places if not _may_differ(place.partition(":")[0])] == []
    assert [pair.atomics for pair in machine.pairs or ()] == [pair.atomics for pair in recorded.pairs or ()]
    assert list(unlike(to_json(recorded), to_json(snapshot(recorded)))) == []
    for before, after in zip(machine.gpus or (), recorded.gpus or (), strict=True):
        assert before.cuda is not None
        assert after.cuda is not None
        reasons = {name: why.reason for name, why in before.cuda.unread.items() if why.reason is not Reason.NOT_STATED}
        assert reasons.items() <= {name: why.reason for name, why in after.cuda.unread.items()}.items()


def unlike(expected: Any, found: Any, where: str = "") -> Iterator[str]:
    """Name the places where two documents differ, but for those that may."""
    if _may_differ(where):
        return
    if isinstance(expected, dict) and isinstance(found, dict):
        for key in expected.keys() | found.keys():
            yield from unlike(expected.get(key), found.get(key), f"{where}.{key}" if where else key)
    elif isinstance(expected, list) and isinstance(found, list) and len(expected) == len(found):
        for index, pair in enumerate(zip(expected, found, strict=True)):
            yield from unlike(*pair, f"{where}[{index}]")
    elif expected != found:
        yield f"{where}: {expected!r} came back as {found!r}"


def _for_our_bindings(machine: Machine) -> Machine:
    """Return a machine that CUDA can be asked on: bindings for CUDA 13 refuse a driver for 12."""
    version = machine.driver and machine.driver.cuda_driver_version
    return with_cuda_version(machine, 13000) if version and version < 13000 else machine


def _no_cluster(place: str) -> bool:
    """Say whether it is a cluster UUID of zeros, which is recorded as null: in no multi-node NVLink domain."""
    return "fabric.cluster_uuid: '00000000-0000-0000-0000-000000000000' came back as None" in place


def _may_differ(where: str) -> bool:
    return any(re.fullmatch(pattern, where) for pattern in NOT_THE_SAME)
