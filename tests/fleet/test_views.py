"""How a fleet's report reads, from reports made by hand."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from datetime import datetime, timezone
from pathlib import Path

import pytest

from egmctl.doctor.checks.egm import FIRMWARE
from egmctl.fleet import session
from egmctl.fleet.folder import new_folder
from egmctl.model.codec import from_json
from egmctl.model.comparison import ComparedNode, Comparison, Outcome, PathDifference
from egmctl.model.finding import Status
from egmctl.model.fleet import FleetGpu, FleetReport, GroupLine, NodeGroup, UnlikeGpus, Unready
from egmctl.model.record import Command
from egmctl.model.remedy import Need, Remedy, as_root
from egmctl.report.exports.json import result_json
from egmctl.report.kinds import Format
from egmctl.report.views.fleet import CAUSES_SHOWN
from egmctl.saved import load
from egmctl.verdict.answers import answered
from tests.answers import render
from tests.fleet.racks import ANSWERS, REPORT
from tests.in_process import run
from tests.report.texts import text_of
from tests.saved.documents import bench_document, measured_report
from tests.schemas import validate


def test_it_says_which_nodes_are_well_and_each_cause_once() -> None:
    text = text_of(REPORT)
    assert text.splitlines()[:8] == [
        "NO-GO: 2 of 4 nodes are ready, 1 is not, 1 is unknown",
        "Next: the causes are below; 'egmctl show' reads each node's file; --list bad",
        "      prints the node set",
        "",
        "OK 2: node[01-02] \N{MIDDLE DOT} BROKE 1: node04 (ssh: \\x1b[2Jdown) \N{MIDDLE DOT} PROBLEMS 1: node03",
        "(check.0 [bold]: no)",
        "4 nodes node[01-04] by ssh: egmctl doctor --for egm; files in results",
        "",
    ]
    assert "FAIL  node03: no  [check.0]\n" in text
    assert "and 4 more (-v)" in text
    silent = "UNREACHABLE  node04: ssh: \\x1b[2Jdown\n             look  $ egmctl fleet doctor --resume results\n"
    assert silent in text_of(REPORT, verbose=1)
    assert f"check.{CAUSES_SHOWN + 2}" in text_of(REPORT, verbose=1)
    assert "node[01-02]  2 nodes\n" in text_of(REPORT, verbose=1)


def test_a_cause_that_groups_share_is_told_once_with_all_their_nodes() -> None:
    line = GroupLine(key="nvlink.links GPU2", value="2 of 18 NVLinks down", status="fail")
    groups = (
        NodeGroup(nodes=("a1", "a2"), folded="a[1-2]", lines=(line,)),
        NodeGroup(nodes=("b",), folded="b", lines=(line,)),
    )
    text = text_of(replace(REPORT, groups=groups))
    assert text.count("FAIL  a[1-2],b: nvlink.links GPU2: 2 of 18 NVLinks down\n") == 1


def test_commands_that_name_devices_of_one_node_are_not_for_the_others() -> None:
    def group(node: str, bus_id: str, text: str = "Reset it.") -> NodeGroup:
        remedy = Remedy(text=text, run=f"nvidia-smi --gpu-reset -i {bus_id}", needs=(Need.GPU_RESET,), idle="GPU2")
        line = GroupLine(key="k", value="down", check="c", place="GPU2", status="fail", remedy=remedy)
        return NodeGroup(nodes=(node,), folded=node, lines=(line,))

    same, other = group("a", "1:00.0"), group("b", "2:00.0")
    for groups, commands, fixes in (
        ((same, replace(same, nodes=("b",), folded="b")), 1, 1),
        ((same, other), 0, 1),
        ((same, group("b", "1:00.0", "Replace it.")), 0, 0),
    ):
        text = text_of(answered(replace(REPORT, groups=groups)))
        assert (text.count("--gpu-reset"), text.count("fix  ")) == (commands, fixes)
        assert text.count("GPU2 of a,b: down") == 1
    assert answered(replace(REPORT, groups=(same, other))).answer.next_step == Remedy(text="drain a,b, reset GPU2")


@pytest.mark.parametrize(
    ("remedy", "step"),
    [
        (FIRMWARE, "drain a, turn EGM on in the system firmware setup ("),
        (as_root("Power-cycle the drained node.", Need.REBOOT), "drain a, power-cycle the drained node"),
        (as_root("Reboot the drained node.", Need.REBOOT), "drain a, reboot the drained node"),
    ],
)
def test_a_step_says_what_to_do_and_a_reboot_only_where_it_is_all(remedy: Remedy, step: str) -> None:
    line = GroupLine(key="k", value="off", check="c", place="GPU2", status="fail", remedy=remedy)
    report = answered(replace(REPORT, groups=(NodeGroup(nodes=("a",), folded="a", lines=(line,)),)))
    assert report.answer.next_step is not None
    assert report.answer.next_step.text.startswith(step)
    assert "Mind what it takes" not in report.answer.next_step.text


def test_a_page_shows_the_share_of_each_node_that_differs_by_class_of_paths_first() -> None:
    path = PathDifference(
        node="node03", case="c", path="p", link="w", size_bytes=1, unit="GB/s", outcome=Outcome.WORSE, change=-0.25
    )
    page = str(render(replace(REPORT, comparison=replace(COMPARED, paths=(path,))), Format.HTML))
    assert page.index('<th scope="row">node03</th>') < page.index('<th scope="row">2 others</th>')
    assert '<th scope="row">node01</th>' not in page
    assert 'class="heat-bad-1">75<span' in page


def test_a_path_without_a_number_is_not_within_the_bound() -> None:
    slower = PathDifference(
        node="node03", case="c", path="p", link="w", size_bytes=1, unit="GB/s", outcome=Outcome.WORSE, change=-0.25
    )
    broken = replace(slower, node="node02", change=None, outcome=Outcome.DIFFERENT)
    page = str(render(replace(REPORT, comparison=replace(COMPARED, paths=(slower, broken))), Format.HTML))
    assert '<th scope="row">2 others</th>' not in page
    assert '<th scope="row">node01</th>' in page


def test_a_gpu_that_is_not_ready_keeps_its_mark_beside_its_number() -> None:
    gpus = (FleetGpu(index=0, share=1.0), FleetGpu(index=1, share=1.0, kind=Unready.FAULT, reason="Xid 79"))
    answers = tuple(replace(answer, gpus=gpus) for answer in REPORT.answers)
    page = str(render(replace(REPORT, answers=answers), Format.HTML))
    assert ">100</i>" in page
    assert 'class="fault">100✕</i>' in page


def test_a_difference_that_slows_is_in_the_sentence() -> None:
    item = UnlikeGpus(
        node="node03",
        label="GPU2",
        gpus=("x",),
        name="ECC",
        value="off",
        usual="on",
        others="node01",
        status=Status.WARN,
    )
    sentence = answered(replace(REPORT, answers=ANSWERS[:2], unlike=(item,))).answer.sentence
    assert sentence.endswith("; GPU2 of node03: ECC is off; on node01 it is on")


COMPARED = Comparison(
    kind=Command.DOCTOR,
    nodes=tuple(ComparedNode(name=f"node{n:02}", tool="", at="") for n in (1, 2, 3)),
    folded="node[01-03]",
    tolerance=0.05,
    compared=1,
)


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
    path = PathDifference(node="b", case="c", path="p", link="w", size_bytes=1, unit="ns", outcome=outcome, change=0.2)
    named = tuple(ComparedNode(name=f"n{number}", tool="", at="") for number in range(nodes))
    made = Comparison(kind=Command.BENCH, nodes=named, folded="", tolerance=0.05, compared=1, paths=(path,))
    assert answered(replace(REPORT, answers=ANSWERS[:2], comparison=made)).exit_code == code


def test_the_document_fits_its_schema_and_reads_back() -> None:
    document = json.loads(result_json(REPORT))
    validate(document, "fleet")
    assert (document["exit_code"], document["machine"]) == (1, None)
    assert from_json(FleetReport, document["result"] | {"answer": document["answer"]}) == REPORT


def test_what_differs_between_fake_gpus_says_first_that_they_are_fake(tmp_path: Path) -> None:
    named = tuple(ComparedNode(name=f"node{n:02}", tool="", at="", fake=n < 4) for n in (1, 2, 3, 4))
    made = Comparison(kind=Command.DOCTOR, nodes=named, folded="node[01-04]", tolerance=0.05, compared=1)
    file = tmp_path / "fleet.json"
    file.write_text(result_json(replace(REPORT, comparison=made)))
    head = "FAKE GPUs, nothing of this is hardware: node01, node02, node03\nNO-GO: "
    assert run("show", file).out.startswith(head)


def test_a_report_shown_again_is_the_text_that_the_fleet_printed(tmp_path: Path) -> None:
    file = tmp_path / "fleet.json"
    file.write_text(result_json(REPORT))
    assert run("show", file).out == text_of(REPORT)
    assert run("show", file, "-v").out == text_of(REPORT, verbose=1)
    assert run("show", file, "--json").out == file.read_text()
    done = run("show", file, "-o", tmp_path / "page.html")
    assert (done.code, done.out.splitlines()[-1]) == (0, f"written: {tmp_path / 'page.html'}")
    done = run("show", file, "-o", tmp_path / "fleet.prom")
    assert (done.code, "the suffix '.prom' names no format" in done.err) == (2, True)
    done = run("compare", file, file)
    assert done.code == 2
    assert f"file {file} was made of several results: give those" in done.err


def test_a_report_that_is_none_is_refused_with_the_place(tmp_path: Path) -> None:
    file = tmp_path / "fleet.json"
    file.write_text(result_json(REPORT).replace('"reach": "unreachable"', '"reach": "beyond"'))
    done = run("show", file)
    assert (done.code, done.err.count("\n")) == (2, 1)
    assert "is not a valid result: result.answers[3].reach: expected one of answered" in done.err


@pytest.mark.parametrize("content", ["schema = 1", "[[", "\x00", "x = 1e999999"])
def test_a_broken_profile_of_the_user_costs_no_report(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, content: str
) -> None:
    """Nodes took hours to answer: what is wrong beside them is a sentence."""
    profiles = tmp_path / "config/egmctl/profiles"
    profiles.mkdir(parents=True)
    (profiles / "broken.toml").write_text(content)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    folder = new_folder(tmp_path / "out", Command.BENCH, datetime.now(timezone.utc))
    for answer in ANSWERS[:2]:
        (folder.path / answer.file).write_text(json.dumps(bench_document(measured_report("hgx-h200x4"))))
    warnings: list[str] = []
    asked = replace(REPORT.asked, command=Command.BENCH)
    made = session.folded(
        replace(REPORT, asked=asked, answers=ANSWERS[:2], groups=()),
        lambda answer: load(folder.path / answer.file),
        warnings.append,
    )
    (warning,) = warnings
    assert re.search(r"profile .*broken.toml, line 1: .*; continuing without it", warning)
    assert made.comparison is not None
    assert made.counts == {"answered": 2}
