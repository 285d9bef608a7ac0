"""A rack is brought up: which nodes go, which do not, and each cause once; and a node's own record shown again."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from egmctl.errors import UsageError
from egmctl.fleet.folder import lines_of
from egmctl.model.bringup import Bringup
from egmctl.model.fleet import FleetReport
from egmctl.model.machine import Machine
from egmctl.report.document import Document, Tone, Verdict
from egmctl.report.kinds import BRINGUP, FLEET, Format
from egmctl.report.render.html import html
from egmctl.saved import Saved, load, viewed
from egmctl.verdict.bringup import bringup_answer
from tests.answers import render
from tests.fleet.racks import H200, go, lines, no_go, rack, saved
from tests.report.pages import elements, parse, words
from tests.report.texts import text_of
from tests.verdict.bringups import healthy, measured
from tests.verdict.narrow import links_down, narrow
from tests.verdict.runs import slow_at


def load_of(result: Bringup) -> Saved:
    with TemporaryDirectory() as folder:
        return load(saved(Path(folder), "node1", result))


def test_a_rack_says_first_which_nodes_go_and_why_the_others_do_not() -> None:
    text = " ".join(text_of(rack()).split())
    assert text.startswith("NO-GO: 68 of 72 nodes are ready, 2 are not, 2 are unknown")
    assert "GO 68: node[01-04,06-22,24-39,41-70,72] \N{MIDDLE DOT} INCOMPLETE 1: node40 " in text
    assert "NO-GO 2: node[05,23] (nvlink.links GPU2: 2 of 18 NVLinks down (links 4, 11))" in text
    assert "BROKE 1: node71 (ssh: no route to host)" in text
    assert text.count("FAIL GPU2 of node[05,23]: 2 of 18 NVLinks down (links 4, 11) [nvlink.links]") == 1


@pytest.mark.parametrize("format", [format for format in FLEET.formats if format is not Format.TEXT])
def test_it_has_every_form_of_a_fleet(format: Format) -> None:
    made = str(render(rack(), format))
    assert "node05" in made or "05,23" in made


@pytest.mark.parametrize("format", [format for format in BRINGUP.formats if format not in (Format.JSON, Format.HTML)])
def test_a_saved_record_shows_what_the_command_showed(tmp_path: Path, format: Format) -> None:
    again = viewed(load(saved(tmp_path, "node", go())))
    assert isinstance(again, Bringup)
    assert str(render(again, format)) == str(render(go(), format))


def test_a_cause_that_is_not_there_is_refused_with_its_place(tmp_path: Path) -> None:
    path = saved(tmp_path, "node", no_go())
    path.write_text(re.sub(r'("measurements": \[\s*)(\d)', r"\g<1>99999, \2", path.read_text(), count=1))
    with pytest.raises(UsageError, match=r"answer\.causes\[0\]\.measurements: a measurement is not there"):
        load(path)


def test_metrics_and_test_cases_hold_doctor_and_bench() -> None:
    metrics = str(render(no_go(), Format.PROM))
    assert 'egmctl_answer{command="bringup",state="bad"} 1\n' in metrics
    assert 'egmctl_answer{command="bringup",state="good"} 0\n' in metrics
    assert 'egmctl_doctor_check{check="nvlink.links"} 2\n' in metrics
    junit = str(render(no_go(), Format.JUNIT))
    assert junit.count("<testsuite ") == 3
    assert '<failure type="fail"' in junit


# --- the lines of a node that was measured: each cause once, or that nothing explains what is slow ---


def causes(machine: Machine, *slow: str) -> list[tuple[str, str]]:
    return [(line.key, line.value) for line in lines(machine, *slow) if line.key.startswith("cause")]


def test_what_is_slow_in_both_directions_is_one_line() -> None:
    shown = lines(H200, "GPU2")
    assert sum("GPU2 is slower than its peers" in line.value for line in shown) == 2, "one for each class of paths"
    assert len(shown) == len(set(shown))


def test_each_cause_is_one_line() -> None:
    assert causes(links_down(narrow(1)), "GPU1", "GPU2") == [
        ("cause nvlink.links GPU2", "16 of 18 NVLinks are active; explains 6 of 16 measurements"),
        ("cause pcie.link GPU1", "PCIe x8 of x16; explains 1 of 16 measurements"),
    ]


def test_what_nothing_explains_says_so() -> None:
    shown = [line.value for line in lines(H200, "GPU2") if line.status == "fail"]
    assert shown[0].endswith("the outliers touch GPU2; nothing that was read explains it")
    assert causes(H200, "GPU2") == []


def test_a_slow_node_without_a_known_cause_names_its_slowest_path_and_the_command_to_run_there() -> None:
    slow = bringup_answer(healthy(), measured(value=slow_at("GPU2")))
    for line in (lines(H200, "GPU2")[2], lines_of(load_of(slow))[0]):
        assert line.status == "fail"
        assert line.remedy is not None
        assert line.remedy.look == "egmctl doctor --active --gpus 0,2"
        assert line.remedy.text.startswith("Look for the cause of GPU0 -> GPU2 (198.1 GB/s, 396.2 expected) with ")
    unmeasured = lines_of(load_of(bringup_answer(healthy(), None, not_measured="no idle GPU")))[0]
    assert unmeasured.remedy is not None
    assert "'egmctl bringup' on the node" in unmeasured.remedy.text


def test_a_node_without_a_whole_answer_is_tagged_with_its_state_and_not_as_a_warning() -> None:
    incomplete = bringup_answer(healthy(), None, not_measured="no idle GPU")
    assert [line.status for line in lines_of(load_of(incomplete)) if line.status] == ["incomplete"]
    text = " ".join(text_of(rack()).split())
    assert "INCOMPLETE node40: nothing was measured: no idle GPU" in text
    assert "WARN node40" not in text


@pytest.mark.parametrize("made", [go, no_go, rack])
def test_an_answer_keeps_the_clauses_of_its_sentence(made: Callable[[], Bringup | FleetReport]) -> None:
    answer = made().answer
    assert "; ".join(answer.clauses) == answer.sentence


def test_a_page_sets_the_first_clause_largest_and_splits_no_sentence() -> None:
    def headings(*clauses: str) -> list[str]:
        verdict = Verdict("FAIL", Tone.BAD, "GPU2: a; b; c", "", clauses)
        page = parse(html(Document(command="egmctl bench", subject="", body=(verdict,))))
        return [words(each) for each in elements(page, "span") if each.get("class") == "sentence"]

    assert headings("GPU2: a; b", "c") == ["GPU2: a; b"]
    assert headings() == ["GPU2: a; b; c"]


def test_a_node_where_all_is_well_has_none() -> None:
    assert causes(H200) == []
