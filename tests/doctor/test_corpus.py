"""The output of ``egmctl doctor --machine`` for every machine of the corpus, byte for byte; the corpus is complete.

Findings of every check are held by rules: tests/properties/test_text_and_json.py and tests/doctor/test_faults.py.

After a change that is meant: ``EGMCTL_WRITE_GOLDEN=1 pytest tests/doctor/test_corpus.py``.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from egmctl.facts import replay as record
from egmctl.model.machine import OriginKind
from tests.doctor.scenes import CORPUS, RECORDED, named, scenes
from tests.doctor.sick import SICK
from tests.golden import compare
from tests.in_process import run
from tests.invariants import broken_nulls

SCENES = {**scenes(), **named(SICK)}


@pytest.mark.parametrize("name", SCENES)
def test_findings(tmp_path: Path, name: str) -> None:
    """A golden shows a machine's own findings, as the text tells them: one more check that passes changes none."""
    scene = SCENES[name]
    file = tmp_path / f"{name}.json"
    file.write_text(record.machine_text(scene.machine()))
    command: tuple[str | Path, ...] = ("doctor", "--machine", file, *scene.options, "-q")
    samples = run(*command, "--format", "prom")
    assert samples.err == ""
    own = re.findall(r'^egmctl_doctor_check\{check="([^"]+)"\} [12]$', samples.out, re.MULTILINE)
    told = "no check fails or warns\n"
    if own:
        text = run(*command, *(word for check in own for word in ("--check", check)))
        assert text.err == ""
        # Too much is unknown of some models for "no failure" to mean "healthy" (3): these checks alone are not.
        assert text.code == samples.code or (text.code, samples.code) == (0, 3)
        told = text.out
    shown = " ".join(("egmctl doctor --machine", f"{name}.json", *scene.options))
    compare(f"$ {shown}\n{told}exit code {samples.code}\n", CORPUS / name / "doctor.txt")


def test_every_folder_is_of_a_scene() -> None:
    told = {path.name for path in CORPUS.iterdir()}
    assert set(SCENES) - told == set(), "make regenerate writes what the doctor says of a new machine"
    assert told - set(SCENES) == set(), "a folder without its machine in scenes.py or sick.py"
    assert {path.parent.name for path in CORPUS.glob("*/machine.json.gz")} <= set(RECORDED)


def test_at_least_60_machines_have_a_fault() -> None:
    faulty = [
        path for path in CORPUS.glob("*/doctor.txt") if re.search(r"^(FAIL|WARN) ", path.read_text(), re.MULTILINE)
    ]
    assert len(faulty) >= 60


def test_recorded_machines_are_whole() -> None:
    for path in CORPUS.glob("*/machine.json.gz"):
        machine = SCENES[path.parent.name].machine()
        assert machine.origin.kind is OriginKind.RECORDED, path
        # A section that came later is missing in it without a reason.
        faults = [fault for name in machine.sections for fault in broken_nulls(getattr(machine, name), name)]
        assert faults == [], path
