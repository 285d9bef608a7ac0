"""The documents of ``egmctl doctor`` are what its checks and types say."""

from __future__ import annotations

import json
import re

import jsonschema
import pytest

from egmctl.doctor.check import EVERYTHING
from egmctl.doctor.runner import CHECKS, anchor, diagnose
from egmctl.facts import replay
from egmctl.report.exports.json import result_json
from tests.conftest import ROOT
from tests.doctor.machines import shipped
from tests.tiers import few

DOCUMENT = (ROOT / "docs/doctor.md").read_text()


def test_every_finding_links_to_a_heading() -> None:
    headings = {re.sub(r"[^a-z0-9_ -]", "", line.lower()) for line in re.findall(r"^### (.+)$", DOCUMENT, re.MULTILINE)}
    assert {anchor(check.id) for check in CHECKS} == headings, "docs/doctor.md: make regenerate"


@pytest.mark.parametrize("name", few(replay.names(), every=4))
def test_every_document_fits_the_schema(name: str) -> None:
    schema = json.loads((ROOT / "docs/schemas/doctor.schema.json").read_text())
    document = json.loads(result_json(diagnose(shipped(name), EVERYTHING, CHECKS)))
    jsonschema.Draft202012Validator(schema).validate(document)
