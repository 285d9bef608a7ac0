"""``egmctl snapshot`` as a user runs it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from egmctl.facts import replay
from egmctl.model.machine import SECTION_VERSIONS, OriginKind
from tests.conftest import RunEgmctl
from tests.facts.sysroot import GPU, grace_hopper


@pytest.fixture
def node(tmp_path: Path) -> dict[str, str]:
    grace_hopper(tmp_path / "root")
    return {"EGMCTL_SYSROOT": str(tmp_path / "root"), "CUDA_VISIBLE_DEVICES": "/home/alice,GPU-1111"}


def test_a_snapshot_is_a_machine_to_replay(egmctl: RunEgmctl, tmp_path: Path, node: dict[str, str]) -> None:
    file = tmp_path / "node.json"
    done = egmctl("snapshot", "-o", file, env=node)
    assert (done.code, done.out) == (0, ""), done.err
    machine = replay.load_machine(str(file))
    assert (machine.origin.kind, machine.origin.name, machine.origin.redacted) == (OriginKind.RECORDED, "node", True)
    assert [gpu.bus_id for gpu in machine.gpus or ()] == [GPU]
    assert list(machine.sections) == list(SECTION_VERSIONS)


def test_only_the_sections_asked_for(egmctl: RunEgmctl, node: dict[str, str]) -> None:
    document = json.loads(egmctl("snapshot", "--sections", "nics, host", env=node).out)
    assert [name for name in SECTION_VERSIONS if document[name] is not None] == ["host", "nics"]
    assert document["sections"]["gpus"]["unread"]["reason"] == "not-asked"


def test_nothing_is_overwritten_without_force(egmctl: RunEgmctl, tmp_path: Path, node: dict[str, str]) -> None:
    file = tmp_path / "node.json"
    file.write_text("precious")
    done = egmctl("snapshot", "-o", file, env=node)
    assert (done.code, file.read_text()) == (2, "precious")
    assert "--force" in done.err
    assert egmctl("snapshot", "-o", file, "--force", env=node).code == 0
    assert json.loads(file.read_text())["schema"] == "egmctl.machine/1"
