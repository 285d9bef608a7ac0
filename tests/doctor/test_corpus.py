"""What ``egmctl doctor --machine`` says of every machine of the corpus, byte for byte, and that the corpus is enough.

After a change that is meant: ``EGMCTL_WRITE_GOLDEN=1 pytest tests/doctor/test_corpus.py``.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from egmctl.facts import record
from egmctl.model.machine import OriginKind
from tests.conftest import RunEgmctl
from tests.doctor.scenes import CORPUS, RECORDED, scenes
from tests.golden import compare
from tests.invariants import broken_nulls

SCENES = scenes()


@pytest.mark.parametrize("name", SCENES)
def test_findings(egmctl: RunEgmctl, tmp_path: Path, name: str) -> None:
    scene = SCENES[name]
    file = tmp_path / f"{name}.json"
    file.write_text(record.text(scene.machine()))
    command = ("doctor", "--machine", file, *scene.options, "-q")
    text, document = egmctl(*command), egmctl(*command, "--json")
    assert text.err == document.err == ""
    assert text.code == document.code
    findings = [
        f"{found['status']:8}{found['check']}  {found['place']['label'] or 'node'}: {found['summary']}\n"
        for found in json.loads(document.out)["result"]["findings"]
    ]
    shown = " ".join(("egmctl doctor --machine", f"{name}.json", *scene.options))
    golden = f"$ {shown}\n{text.out}exit code {text.code}\n\nevery finding\n{''.join(findings)}"
    compare(golden, CORPUS / name / "doctor.txt")


def test_every_folder_is_of_a_scene() -> None:
    assert {path.name for path in CORPUS.iterdir()} == set(SCENES)
    assert {path.parent.name for path in CORPUS.glob("*/machine.json")} <= set(RECORDED)


def test_recorded_machines_are_whole() -> None:
    for path in CORPUS.glob("*/machine.json"):
        machine = SCENES[path.parent.name].machine()
        assert machine.origin.kind is OriginKind.RECORDED, path
        # A section that came later is missing in it without a reason.
        faults = [fault for name in machine.sections for fault in broken_nulls(getattr(machine, name), name)]
        assert faults == [], path
