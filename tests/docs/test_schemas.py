"""Every JSON document that a command writes has a schema in docs/schemas, and fits it."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any
from urllib.parse import urljoin

import jsonschema
import pytest

from egmctl.facts.kernel_log import event
from egmctl.journal.events import Begin, Journal, Logged, Note, Problem, StepBegun, TaskOutcome
from egmctl.model.measurement import MeasurementStatus
from egmctl.model.task import NumberedTask
from tests.conftest import ROOT
from tests.in_process import run
from tests.saved.documents import measured_report
from tests.schemas import FILES, FOLDER, SCHEMAS, InvalidDocument, validate

MACHINE = ("--machine", "hgx-h200x4")


@pytest.mark.parametrize("name", FILES)
def test_each_is_a_schema(name: str) -> None:
    jsonschema.Draft202012Validator.check_schema(FILES[name])


def test_each_is_found_by_its_address_and_each_reference_leads_to_a_definition() -> None:
    addresses = {schema["$id"]: schema for schema in FILES.values()}
    assert {address.rpartition("/")[2] for address in addresses} == set(FILES)
    references = [
        urljoin(address, reference) for address, schema in addresses.items() for reference in _references(schema)
    ]
    assert len(references) > 300
    for reference in references:
        address, _, place = reference.partition("#")
        found = addresses[address]
        for key in place.split("/")[1:]:
            found = found[key]


def test_a_record_stands_in_one_file() -> None:
    """Except for a profile's: its own schema refuses unknown keys, which results may have."""
    definitions = [
        json.dumps(record)
        for file, schema in FILES.items()
        if file != "profile.schema.json"
        for record in schema.get("$defs", {}).values()
    ]
    assert len(set(definitions)) == len(definitions) > 100
    assert [name for name, schema in SCHEMAS.items() if "$defs" in schema] == ["profile"]


def _references(schema: Any) -> Iterator[str]:
    parts = schema if isinstance(schema, list) else []
    if isinstance(schema, dict):
        parts = list(schema.values())
        if isinstance(schema.get("$ref"), str):
            yield schema["$ref"]
    for part in parts:
        yield from _references(part)


@pytest.mark.processes
def test_the_example_validates_a_document_offline(tmp_path: Path) -> None:
    document = json.loads(run("doctor", *MACHINE, "--json").out)
    right, wrong = tmp_path / "right.json", tmp_path / "wrong.json"
    right.write_text(json.dumps(document))
    document["result"]["machines"][0]["gpus"][0]["nvml"]["index"] = "0"
    wrong.write_text(json.dumps(document))
    ended = subprocess.run(
        [sys.executable, ROOT / "docs/examples/validate.py", FOLDER, right, wrong],
        capture_output=True,
        text=True,
        check=False,
    )
    told = f"{wrong}: $.result.machines[0].gpus[0].nvml.index: '0' is not of type 'integer'\n"
    assert (ended.returncode, ended.stdout, ended.stderr) == (1, told, "")


@pytest.fixture
def journal(tmp_path: Path) -> Path:
    """The journal of a run that did not end, with every kind of event."""
    report = measured_report("hgx-h200x4")
    kept = Journal([tmp_path], lambda part: part)
    kept(Begin(report=replace(report, measurements=()), steps=2))
    logged = event(1.0, "NVRM: Xid (PCI:0000:00:08): 79, GPU has fallen off the bus.")
    assert logged is not None
    kept(Logged(events=(logged,)))
    for number, measurement in enumerate(report.measurements[:2]):
        kept(StepBegun(tasks=(NumberedTask(number=number, task=measurement),)))
        kept(TaskOutcome(number=number, measurement=replace(measurement, status=MeasurementStatus.OK)))
    kept(Note(text="a note"))
    kept(Problem(text="a problem"))
    kept.close()
    assert kept.path is not None
    return kept.path


@pytest.mark.parametrize(
    ("words", "name"),
    [
        (("topo", *MACHINE), "topo"),
        *((("doctor", "--machine", name), "doctor") for name in ("hgx-h200x4", "gb200-nvl72", "dgx-h100", "gh200")),
        (("bringup", *MACHINE), "bringup"),
        (("doctor", "--list"), "checks"),
        (("doctor", "--explain", "kernel.xid"), "checks"),
        (("bench", *MACHINE, "--list"), "cases"),
        (("bench", *MACHINE, "--dry-run"), "plan"),
        (("bench", *MACHINE, "--dry-run", "--suite", "fabric", "--ranks", "8"), "cost"),
        (("topo", "--machine", "list"), "machines"),
        (("profile", "list"), "profiles"),
        (("profile", "show", "hgx-h200"), "profiles"),
        (("profile", "match", *MACHINE), "match"),
        (("show", "/nowhere.json"), "error"),
        (("topo", "--gpus", "99", *MACHINE), "error"),
    ],
)
def test_what_a_command_writes_fits_its_schema(words: tuple[str, ...], name: str) -> None:
    document = json.loads(run(*words, "--json").out)
    assert document["schema"].startswith(f"egmctl.{name}/")
    validate(document, name)


def test_a_history_and_each_line_of_a_journal_fit_theirs(journal: Path) -> None:
    document = json.loads(run("history", "--journal", journal.parent, "--json").out)
    assert [one["ending"] for one in document["result"]["runs"]] == ["ended between two steps"]
    validate(document, "history")
    lines = [json.loads(line) for line in journal.read_text().splitlines()]
    for line in lines:
        validate(line, "journal")
    assert {line["event"] for line in lines} == {one["properties"]["event"]["const"] for one in _events()}
    with pytest.raises(InvalidDocument):
        validate({"event": "step"}, "journal")


def _events() -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = SCHEMAS["journal"]["oneOf"]
    return found


def test_every_schema_that_the_code_names_is_there_and_in_the_guide() -> None:
    source = "\n".join(path.read_text() for path in sorted((ROOT / "egmctl").rglob("*.py")))
    named = set(re.findall(r'SCHEMA(?:_1|: ClassVar\[str\])? = "egmctl\.([a-z]+)/([0-9]+)"', source))
    names = {f"{name}-{version}" if (name, version) == ("bench", "1") else name for name, version in named}
    assert names == set(SCHEMAS)
    guide = (ROOT / "docs/json.md").read_text()
    assert [name for name in names if f"`{name}`" not in guide] == []
