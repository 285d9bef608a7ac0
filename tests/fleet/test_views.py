"""How a fleet's report reads, from reports made by hand."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import jsonschema
import pytest

from egmctl.model.codec import from_json
from egmctl.model.command import Command
from egmctl.model.comparison import Comparison, Node, Outcome, PathDifference
from egmctl.model.fleet import Answer, Asked, FleetReport, Group, Launcher, Line, Reach, counts
from egmctl.report.exports.json import fleet_json
from egmctl.report.fleet_text import LINES_SHOWN, fleet_text
from tests.conftest import ROOT, RunEgmctl

ANSWERS = (
    *(Answer(node=f"node{n:02}", reach=Reach.ANSWERED, exit_code=0, file=f"nodes/node{n:02}.json") for n in (1, 2)),
    Answer(node="node03", reach=Reach.ANSWERED, exit_code=1, file="nodes/node03.json"),
    Answer(node="node04", reach=Reach.UNREACHABLE, exit_code=4, reason="ssh: \x1b[2Jdown"),
)
REPORT = FleetReport(
    asked=Asked(
        command=Command.DOCTOR,
        arguments=("--for", "egm"),
        nodes=tuple(answer.node for answer in ANSWERS),
        remote_command="egmctl",
        version="egmctl 0.1.0",
    ),
    folded="node[01-04]",
    launcher=Launcher.SSH,
    folder="results",
    started_at="2026-11-20T22:00:00Z",
    finished=True,
    counts=counts(ANSWERS),
    answers=ANSWERS,
    groups=(
        Group(nodes=("node01", "node02"), folded="node[01-02]", lines=(Line(key="checks", value="40 pass"),)),
        Group(
            nodes=("node03",),
            folded="node03",
            lines=tuple(Line(key=f"check.{n} [bold]", value="no", status="fail") for n in range(LINES_SHOWN + 3)),
        ),
        Group(
            nodes=("node04",), folded="node04", lines=(Line(key="", value="ssh: \x1b[2Jdown", status="unreachable"),)
        ),
    ),
)


def test_alike_nodes_are_one_block_and_what_is_wrong_is_said() -> None:
    lines = fleet_text(REPORT).plain.splitlines()
    assert lines[:9] == [
        "healthy 2: node[01-02] \N{MIDDLE DOT} failed 1: node03 (check.0 [bold]: no) \N{MIDDLE DOT} unreachable 1:",
        "  node04 (ssh: \\x1b[2Jdown)",
        "",
        "4 nodes node[01-04] by ssh: egmctl doctor --for egm",
        "Results: results",
        "",
        "node[01-02]  2 nodes",
        "  checks: 40 pass",
        "",
    ]
    assert lines[9:11] == ["node03", "  FAIL  check.0 [bold]: no"]
    assert "  and 3 lines more (-v shows them)" in lines
    assert lines[-2:] == ["node04", "  UNREACHABLE  ssh: \\x1b[2Jdown"]
    assert "more (-v" not in fleet_text(REPORT, verbose=1).plain
    assert f"check.{LINES_SHOWN + 2}" in fleet_text(REPORT, verbose=1).plain


@pytest.mark.parametrize(
    ("nodes", "outcome", "code"),
    [
        (3, Outcome.WORSE, 1),
        (3, Outcome.BETTER, 0),
        (2, Outcome.WORSE, 1),
        (2, Outcome.BETTER, 1),
        (2, Outcome.SAME, 0),
    ],
)
def test_a_node_that_is_worse_counts_also_where_it_is_the_first_of_two(nodes: int, outcome: Outcome, code: int) -> None:
    path = PathDifference(node="b", case="c", path="p", wire="w", size_bytes=1, unit="ns", outcome=outcome)
    named = tuple(Node(name=f"n{number}", tool="", at="") for number in range(nodes))
    found = Comparison(kind=Command.BENCH, nodes=named, folded="", tolerance=0.05, compared=1, paths=(path,))
    assert replace(REPORT, answers=ANSWERS[:2], comparison=found).exit_code == code


def test_the_document_fits_its_schema_and_reads_back() -> None:
    document = json.loads(fleet_json(REPORT))
    schema = json.loads((ROOT / "docs/schemas/fleet.schema.json").read_text())
    jsonschema.Draft202012Validator(schema).validate(document)
    assert (document["exit_code"], document["machine"]) == (4, None)
    assert from_json(FleetReport, document["result"]) == REPORT


def test_what_differs_between_fake_gpus_says_first_that_they_are_fake(egmctl: RunEgmctl, tmp_path: Path) -> None:
    named = tuple(Node(name=f"node{n:02}", tool="", at="", fake=n < 4) for n in (1, 2, 3, 4))
    found = Comparison(kind=Command.DOCTOR, nodes=named, folded="node[01-04]", tolerance=0.05, compared=1)
    file = tmp_path / "fleet.json"
    file.write_text(fleet_json(replace(REPORT, comparison=found)))
    head = "\nFAKE GPUs, nothing of this is hardware: node01, node02, node03\nCompare doctor: node[01-04]\n"
    assert head in egmctl("show", file).out


def test_a_report_shown_again_is_the_text_that_the_fleet_printed(egmctl: RunEgmctl, tmp_path: Path) -> None:
    file = tmp_path / "fleet.json"
    file.write_text(fleet_json(REPORT))
    assert egmctl("show", file).out == fleet_text(REPORT).plain
    assert egmctl("show", file, "-v").out == fleet_text(REPORT, verbose=1).plain
    assert egmctl("show", file, "--json").out == file.read_text()
    done = egmctl("show", file, "-o", tmp_path / "page.html")
    assert (done.code, "the suffix '.html' names no form; valid are .txt, .json" in done.err) == (2, True)
    done = egmctl("compare", file, file)
    assert done.code == 2
    assert f"file {file} was made of several results: give those" in done.err


def test_a_report_that_is_none_is_refused_with_the_place(egmctl: RunEgmctl, tmp_path: Path) -> None:
    file = tmp_path / "fleet.json"
    file.write_text(fleet_json(REPORT).replace('"reach": "unreachable"', '"reach": "beyond"'))
    done = egmctl("show", file)
    assert (done.code, done.err.count("\n")) == (2, 1)
    assert "is not a valid result: result.answers[3].reach: expected one of answered" in done.err
