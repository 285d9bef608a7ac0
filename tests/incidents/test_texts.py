"""What programs printed in public threads: explain names the cause and the remedy, and nothing that would do harm.

The texts and their patterns were written before explain was asked; ``README.md`` says what a line has and who may
change it. By now explain has been mended with them, so they keep what is right and measure nothing new.
"""

from __future__ import annotations

import io
import json
import re
from pathlib import Path
from typing import Any

import pytest

from egmctl.api.doctor import judged
from egmctl.facts.error_log import read_failures
from egmctl.report.kinds import Format
from tests.answers import code_of, render

Incident = dict[str, Any]

INCIDENTS: list[Incident] = [
    json.loads(line) for line in Path(__file__).with_name("texts.jsonl").read_text(encoding="utf-8").splitlines()
]
WRONG: dict[str, str] = {}
"""The ids that are not answered right yet, each with what is missing; the others must stay right."""


def folded(text: str) -> str:
    return " ".join(text.split())


def faults(incident: Incident, answer: str) -> list[str]:
    """What is wrong with an answer: patterns that its first lines lack, and patterns that it must not have."""
    start = folded("\n".join(answer.splitlines()[: incident.get("lines", 14)]))
    # Lines that only repeat the text say nothing.
    for line in sorted(map(folded, incident["text"].splitlines()), key=len, reverse=True):
        if len(line) > 3:
            start = start.replace(line, " ")
    lacks = [f"lacks {each}" for each in incident["want"] if not re.search(each, start, re.IGNORECASE)]
    whole = (folded(answer), answer)
    harm = [
        f"says {each}"
        for each in incident["never"]
        if any(re.search(each, text, re.IGNORECASE | re.MULTILINE) for text in whole)
    ]
    return lacks + harm


@pytest.mark.parametrize("incident", INCIDENTS, ids=lambda incident: incident["id"])
def test_the_cause_and_the_remedy_are_named(incident: Incident) -> None:
    assert incident["ask"] == ["explain", "-"]
    result = judged(read_failures(io.BytesIO(incident["text"].encode())), None)
    wrong = faults(incident, str(render(result, Format.TEXT)))
    assert bool(wrong) == (incident["id"] in WRONG), wrong or "right now: take it out of WRONG"
    assert code_of(result) in incident.get("code", [0, 3])


def test_ids_that_are_called_wrong_exist() -> None:
    assert set(WRONG) <= {incident["id"] for incident in INCIDENTS}
    assert len(INCIDENTS) - len(WRONG) >= 209
