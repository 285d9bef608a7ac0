"""What doctor says of the states of nodes in public threads, which were written down before it was asked.

A line of ``states.jsonl`` asks for the cause and for a remedy's keyword, and forbids what would harm or mislead there.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from tests.in_process import run
from tests.incidents.machines import MACHINES, document

HERE = Path(__file__).parent
STATES: dict[str, dict[str, Any]] = {
    state["id"]: state for line in (HERE / "states.jsonl").read_text().splitlines() if (state := json.loads(line))
}
LEAST_RIGHT = 80
WRONG: Mapping[str, str] = {}
"""The states of which doctor is known to be wrong, and why."""


def faults_of(state: Mapping[str, Any], folder: Path) -> list[str]:
    """Return what is wrong with the answer about a state: a pattern that is lacking or forbidden, or the exit code."""
    machine = folder / f"{state['machine']}.json"
    machine.write_text(json.dumps(document(state["machine"])))
    ended = run(*(word.format(machine=machine) for word in state["ask"]))
    head = folded("\n".join(ended.out.splitlines()[: state.get("lines", 14)]))
    faults = [f"lacks {pattern}" for pattern in state["want"] if not re.search(pattern, head, re.IGNORECASE)]
    for pattern in state["never"]:
        in_lines = re.search(pattern, ended.out, re.IGNORECASE | re.MULTILINE)
        if in_lines or re.search(pattern, folded(ended.out), re.IGNORECASE):
            faults.append(f"says {pattern}")
    if "code" in state and ended.code not in state["code"]:
        faults.append(f"ends with {ended.code}")
    return faults


def folded(text: str) -> str:
    return " ".join(text.split())


@pytest.mark.parametrize("name", STATES)
def test_doctor_says_the_cause_and_what_to_do(name: str, tmp_path: Path) -> None:
    faults = faults_of(STATES[name], tmp_path)
    if name in WRONG:
        assert faults, "it is right now: take it out of WRONG"
    else:
        assert faults == [], STATES[name]["why"]


def test_an_answer_of_nothing_is_wrong_of_each_state() -> None:
    """Else a state could not fail."""
    assert all(any(not re.search(pattern, "", re.IGNORECASE) for pattern in state["want"]) for state in STATES.values())


def test_each_known_mistake_is_of_a_state() -> None:
    assert set(WRONG) <= set(STATES)
    assert len(STATES) - len(WRONG) >= LEAST_RIGHT


def test_each_machine_is_of_a_state_or_a_part_of_one() -> None:
    used = {state["machine"] for state in STATES.values()}
    parts = {layer for entry in MACHINES.values() for layer in entry.get("like", ())}
    assert set(MACHINES) <= used | parts
