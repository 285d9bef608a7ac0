"""A fleet of ten nodes, each in another state: its text, JSON, exit code and ``--list`` say one thing of each.

The nodes' documents are those that ``egmctl bringup --json`` writes there; they are judged without a launcher.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from datetime import datetime, timezone
from pathlib import Path

import pytest

from egmctl.doctor.check import EVERYTHING, Expectation, Scope
from egmctl.doctor.runner import CHECKS
from egmctl.fleet import session
from egmctl.fleet.folder import Folder, new_folder
from egmctl.fleet.judge import Ended, judge_node
from egmctl.model.answer import TABLE, State
from egmctl.model.bringup import Bringup
from egmctl.model.fleet import FleetReport, Launcher, NodeCommand, Reach
from egmctl.model.record import Command
from egmctl.report.exports.json import result_json
from egmctl.report.kinds import Format, render
from egmctl.saved import load
from egmctl.units import fold
from egmctl.verdict.bringup import bringup_answer
from tests.answers import diagnose
from tests.doctor.machines import of_two_gpus
from tests.doctor.scenes import scenes
from tests.formats import contradictions
from tests.verdict.rows import ROWS, Row
from tests.verdict.runs import H200


def lacking_gpus() -> Bringup:
    """Return the bring-up with ``--expect gpus=4`` of a node with two GPUs."""
    node = of_two_gpus(H200)
    scope = Scope(expectation=Expectation(gpus=4))
    return bringup_answer(diagnose(node, scope, CHECKS), Row(bench="", bringup=State.GOOD, machine=node).run)


def with_lost_gpu() -> Bringup:
    """Return the bring-up of a node whose GPU3 fell off the bus."""
    node = scenes()["h200-off-the-bus"].machine()
    return bringup_answer(diagnose(node, EVERYTHING, CHECKS), Row(bench="", bringup=State.GOOD, machine=node).run)


NODES: Mapping[str, tuple[State, Bringup | None]] = {
    "good": (State.GOOD, ROWS["well"].whole),
    "warn": (State.WARN, ROWS["a little slow"].whole),
    "bad": (State.BAD, ROWS["corrupt and crash"].whole),
    "incomplete": (State.INCOMPLETE, ROWS["no profile"].whole),
    "broke": (State.BROKE, ROWS["crash"].whole),
    "interrupted": (State.INTERRUPTED, None),
    "busy": (State.INCOMPLETE, ROWS["GPU3 is busy"].whole),
    "denied": (State.INCOMPLETE, ROWS["GPU3 is denied"].whole),
    "fewer": (State.BAD, lacking_gpus()),
    "lost": (State.BAD, with_lost_gpu()),
}
"""The nodes by name, with what each answers; without a document, the fleet was stopped before."""
ASKED = NodeCommand(command=Command.BRINGUP, nodes=tuple(NODES), remote_command="egmctl", version="")


def sent(result: Bringup) -> str:
    return f"\negmctl-fleet begin\negmctl-fleet version egmctl 0\n{result_json(result)}\n\negmctl-fleet end 0\n"


def fleet(names: Mapping[str, object], folder: Folder) -> FleetReport:
    """Return the report of some of the nodes."""
    nodes = []
    for name in names:
        result = NODES[name][1]
        folder.part(name).write_text(sent(result) if result is not None else "")
        ended = Ended(node=name, code=0, duration_s=1.0, errors="", interrupted=result is None)
        nodes.append(judge_node(ASKED, folder, ended, timeout_s=60)[0])
    report = session.report_of(ASKED, nodes, "2026-11-20T22:00:00Z", Launcher.SSH, str(folder.path))
    return session.folded(report, lambda node: load(folder.path / node.file), lambda _sentence: None)


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> FleetReport:
    path = tmp_path_factory.mktemp("fleet") / "out"
    return fleet(NODES, new_folder(path, Command.BRINGUP, datetime.now(timezone.utc)))


def test_each_node_has_the_state_of_its_document(report: FleetReport) -> None:
    assert {node.node: node.state for node in report.answers} == {name: state for name, (state, _) in NODES.items()}
    assert {node.node for node in report.answers if node.reach is not Reach.ANSWERED} == {"interrupted"}


def test_all_formats_and_the_code_say_the_worst(report: FleetReport) -> None:
    assert (report.answer.word, report.exit_code) == ("NO-GO", 1)
    assert report.answer.sentence.startswith("2 of 10 nodes are ready")
    assert contradictions(report) == []


@pytest.mark.parametrize("state", State)
def test_the_text_the_document_and_the_list_name_the_same_nodes(report: FleetReport, state: State) -> None:
    expected = [name for name, (of_node, _) in NODES.items() if of_node is state]
    assert report.in_state(state) == fold(expected)
    document = json.loads(str(render(report, Format.JSON)))
    assert [node["node"] for node in document["result"]["answers"] if node["state"] == state] == expected
    assert document["answer"]["counts"][f"nodes_{state}"] == len(expected)
    text = str(render(report, Format.TEXT, width=200))
    assert all(name in text for name in expected)


@pytest.mark.parametrize("name", NODES)
def test_a_fleet_of_one_says_what_the_node_says(name: str, tmp_path: Path) -> None:
    alone = fleet({name: None}, new_folder(tmp_path / "out", Command.BRINGUP, datetime.now(timezone.utc)))
    state = NODES[name][0]
    assert (alone.answer.state, alone.exit_code) == (state, TABLE[state].exit_code)
    assert contradictions(alone) == []
