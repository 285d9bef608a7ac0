"""What people read and what programs read of one machine is the same, for every machine of the doctor's corpus."""

from __future__ import annotations

import json
import re
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from egmctl.facts import replay as record
from tests.doctor.scenes import scenes
from tests.in_process import run
from tests.schemas import validate

SCENES = scenes()
COUNTED = {
    "fail": r"(\d+) failures?",
    "warn": r"(\d+) warnings?",
    "pass": r"(\d+) (?:checks? )?passed",
    "unknown": r"(\d+) not determined",
    "skip": r"(\d+) do(?:es)? not apply",
}
"""How the answer of doctor tells each count."""


def both(tmp_path: Path, name: str, *words: str) -> tuple[str, dict[str, Any]]:
    """Return what a command prints of a machine of the corpus, and its document."""
    file = tmp_path / f"{name}.json"
    file.write_text(record.machine_text(SCENES[name].machine()))
    text, document = run(*words, "--machine", file), run(*words, "--machine", file, "--json")
    read: dict[str, Any] = json.loads(document.out)
    assert (text.code, read["exit_code"]) == (document.code, document.code)
    return text.out, read


@pytest.mark.parametrize("name", SCENES)
def test_what_the_text_of_topo_shows_the_document_states(tmp_path: Path, name: str) -> None:
    text, document = both(tmp_path, name, "topo")
    result = document["result"]
    symbols = {
        ends: link["symbol"]
        for link in result["links"]
        for ends in ((link["source"], link["target"]), (link["target"], link["source"]))
    }
    shown = {ends: symbol for ends, symbol in cells(text).items() if ends[0] != ends[1]}
    # The star marks fewer links than there should be: nvlinks_expected in JSON.
    shown = {ends: symbol.rstrip("*") for ends, symbol in shown.items()}
    assert shown == {ends: symbols[ends] for ends in shown}
    gpus = {end for ends in symbols for end in ends if end.startswith("GPU")}
    assert {ends for ends in symbols if set(ends) <= gpus} <= shown.keys() or document["exit_code"] != 0
    labels = {state["bus_id"]: state["label"] for state in result["gpu_states"]}
    for route in result["routes"] if document["exit_code"] == 0 else ():
        label = labels[route["gpu"]]
        row = next(line for line in text.partition("host memory (")[2].splitlines() if line.startswith(label))
        assert all(symbol in row for symbol in route["symbol"].partition(":")[0].split("|"))


def cells(text: str) -> dict[tuple[str, str], str]:
    """Return the symbol of each pair that a matrix of links shows."""
    found: dict[tuple[str, str], str] = {}
    columns: list[str] = []
    for line in text.partition("host memory (")[0].splitlines():
        words = line.split()
        if line.startswith(" ") and words and re.fullmatch(r"(GPU|NIC)\d+", words[0]):
            columns = [word for word in words if re.fullmatch(r"(GPU|NIC)\d+", word)]
        elif words and re.fullmatch(r"(GPU|NIC)\d+", words[0]):
            found.update(((words[0], column), symbol) for column, symbol in zip(columns, words[1:], strict=False))
        elif not words:
            columns = []
    return found


@pytest.mark.parametrize("name", SCENES)
def test_what_the_text_of_doctor_shows_the_document_states(tmp_path: Path, name: str) -> None:
    text, document = both(tmp_path, name, "doctor", "-vv", *SCENES[name].options)
    findings = document["result"]["findings"]
    answer = " ".join(text.split("\n\n")[0].split())
    counts = document["result"]["counts"]
    own = counted([finding for finding in findings if not finding["explained_by"]])
    hidden = {finding["check"] for finding in findings} - own.keys()
    statuses = Counter(own.values())
    assert counts == {status: statuses[status] for status in counts} | ({"explained": len(hidden)} if hidden else {})
    # An answer for a purpose names what blocks it, and counts nothing.
    for status, words in COUNTED.items() if not document["answer"]["word"].startswith("BLOCKED") else ():
        said = re.search(words, answer)
        listed = sum(finding["status"] == status and not finding["explained_by"] for finding in findings)
        told = listed if status in ("fail", "warn") else counts[status]
        assert said is None or int(said[1]) == told, (status, answer)
        assert said is not None or status not in ("fail", "warn") or not told, (status, answer)
    flat = " ".join(text.split())
    for finding in findings:
        assert finding["check"] in flat
        if finding["status"] in ("fail", "warn"):
            assert " ".join(finding["summary"].split()) in flat


def counted(findings: list[dict[str, Any]]) -> dict[str, str]:
    """Return how each check ended: a check counts once, with its gravest finding."""
    order = ("fail", "warn", "unknown", "note", "assumed", "pass", "skip")
    gravest: dict[str, str] = {}
    for finding in findings:
        gravest[finding["check"]] = min(gravest.get(finding["check"], "skip"), finding["status"], key=order.index)
    return gravest


@pytest.mark.parametrize("name", ["hgx-h200x4", "gb200-nvl72", "gh200", "gb200-slurm-denies-one", "h200-links-down"])
def test_what_a_dry_run_shows_the_plan_states(tmp_path: Path, name: str) -> None:
    text, document = both(tmp_path, name, "bench", "--dry-run")
    validate(document, "plan")
    plan = document["result"]
    measured = {number for step in plan["steps"] for number in step["tasks"]}
    assert measured <= {*range(len(plan["tasks"]))}
    for number, task in enumerate(plan["tasks"]):
        assert (number in measured) == (not task["waivers"]), task
    numbers = [int(number) for number in re.findall(r"^ *(\d+) +(?:GPU|NUMA|CPU)", text, re.MULTILINE)]
    assert numbers == list(range(1, len(plan["steps"]) + 1))
