"""The JSON Schema in the documentation is the one that the model's types give, and every machine fits it."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

import jsonschema
import pytest

from egmctl.data import machines_dir
from egmctl.facts import replay
from egmctl.facts.collect import collect
from egmctl.model.machine import SECTION_VERSIONS
from tests.conftest import ROOT

SCHEMA = json.loads((ROOT / "docs/schemas/machine.schema.json").read_text())
VALIDATOR = jsonschema.Draft202012Validator(SCHEMA)


@pytest.mark.long
@pytest.mark.processes
def test_the_file_is_what_the_generator_writes() -> None:
    generate = [sys.executable, str(ROOT / "tools/make_schemas.py"), "--check"]
    done = subprocess.run(generate, env={"PYTHONPATH": str(ROOT)}, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize("name", replay.names())
def test_shipped_machines_fit(name: str) -> None:
    VALIDATOR.validate(json.loads((machines_dir() / f"{name}.json").read_text()))


@pytest.mark.processes
def test_this_machine_fits() -> None:
    VALIDATOR.validate(replay.document(collect(SECTION_VERSIONS)))


@pytest.mark.parametrize(
    ("section", "value"),
    [("gpus", {}), ("gpus", [{"index": 0}]), ("gpus", [{"bus_id": "1b:00.0", "index": 0}]), ("host", {"kernel": 6})],
)
def test_what_a_reader_refuses_does_not_fit(section: str, value: Any) -> None:
    document = {"schema": "egmctl.machine/1", "origin": {"kind": "recorded"}, section: value}
    assert not VALIDATOR.is_valid(document)


def test_unknown_keys_fit() -> None:
    VALIDATOR.validate({"schema": "egmctl.machine/1", "origin": {"kind": "recorded", "new": 1}, "newer": []})
