"""Results in a notebook: the answer of their page, their rows as a DataFrame, and the example that ships."""

from __future__ import annotations

import builtins
import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any
from xml.etree.ElementTree import Element

import pytest

import egmctl
from egmctl.comparison import compare
from egmctl.model.comparison import Comparison
from egmctl.model.diagnosis import Diagnosis
from egmctl.model.measurement import RunReport
from egmctl.report.kinds import Format
from egmctl.report.render.page import style
from egmctl.saved import load
from egmctl.topology.topology import Topology
from tests.answers import render
from tests.conftest import ROOT
from tests.report.browser import chromium, find
from tests.report.pages import elements, parse, words
from tests.report.runs import hostile_run

RUNS = ROOT / "tests/data/runs"
PICTURES = ("where", "what-is-connected-to-what")
"""The sections with the picture of an answer."""


def measured() -> RunReport:
    report = load(RUNS / "idle.json.gz").result
    assert isinstance(report, RunReport)
    return report


def diagnosed() -> Diagnosis:
    return egmctl.Doctor().diagnose(egmctl.read_machine("hgx-h200x4"))


def connected() -> Topology:
    return egmctl.topology_of(egmctl.read_machine("hgx-h200x4"))


def compared() -> Comparison:
    return compare([load(RUNS / f"{name}.json.gz") for name in ("idle", "beside-traffic")])


def shown(result: Any) -> Element:
    return parse(f"<!doctype html><html><head><title>x</title></head><body>{result._repr_html_()}</body></html>")


@pytest.mark.parametrize(
    ("make", "answer", "pictures"),
    [(measured, "PASS", 2), (diagnosed, "OK", 0), (connected, "no link is degraded", 1), (compared, "WORSE", 0)],
)
def test_a_result_shows_the_answer_of_its_page_and_not_the_rest(
    make: Callable[[], Any], answer: str, pictures: int
) -> None:
    result = make()
    tree = shown(result)
    assert answer.lower() in words(tree).lower()
    assert len(list(elements(tree, "svg"))) >= pictures
    assert {section.get("id") for section in elements(tree, "section")} <= {
        *("answer", "overview", "rates", "rates-2"),
        *PICTURES,
    }
    assert len(result._repr_html_()) < 0.8 * len(str(render(result, Format.HTML)))


@pytest.mark.parametrize("make", [measured, diagnosed, connected, compared])
def test_the_repr_of_a_result_is_its_answer_in_one_line(make: Callable[[], Any]) -> None:
    result = make()
    said = repr(result)
    assert said.startswith(f"<{type(result).__name__} {result.answer.word}: ")
    assert len(said) < 160
    assert "\n" not in said


def test_hostile_words_are_no_markup_in_a_notebook_either() -> None:
    assert list(elements(shown(hostile_run()), "script", "img")) == []


@pytest.mark.processes
def test_the_style_of_a_result_changes_nothing_around_it(tmp_path: Path) -> None:
    assert "body{" in style("page")
    if (program := find()) is None:
        pytest.skip("no chromium")
    page = tmp_path / "notebook.html"
    page.write_text(f'<!doctype html><p class="dim" id="host">x</p>{measured()._repr_html_()}')
    with chromium(program, tmp_path / "profile") as tab:
        tab.open(page)
        color = "getComputedStyle(document.querySelector('{}')).{}"
        assert tab.evaluate(color.format("#host", "color")) == "rgb(0, 0, 0)"
        assert tab.evaluate(color.format("body", "maxWidth")) == "none"
        assert tab.evaluate(color.format(".egmctl .answer .word", "backgroundColor")) == "rgb(232, 245, 237)"


def test_rows_are_those_of_the_csv_and_with_samples_one_for_each() -> None:
    run = measured()
    csv = str(render(run, Format.CSV)).splitlines()
    frame = run.to_pandas()
    assert (",".join(frame.columns), len(frame)) == (csv[0], len(csv) - 1)
    samples = run.to_pandas(samples=True)
    assert len(samples) == sum(len(m.samples) * len(m.flows) for m in run.measurements)
    first = samples[samples.case == run.measurements[0].case].head(3)
    values = [sample.bandwidth_gb_s for sample in run.measurements[0].samples]
    assert list(first["sample"]) == [0, 1, 2]
    assert list(first.sample_bandwidth_gb_s) == pytest.approx(values)
    assert str(render(run, Format.CSV, verbose=1)).count("\n") == len(samples) + 1


def test_without_pandas_one_sentence_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = builtins.__import__

    def without(name: str, *rest: Any) -> ModuleType:
        if name == "pandas":
            raise ImportError(name)
        return whole(name, *rest)

    run = measured()
    monkeypatch.setattr(builtins, "__import__", without)
    with pytest.raises(egmctl.EgmctlError, match=r"^to_pandas needs pandas: pip install pandas$"):
        run.to_pandas()


_EXECUTE = """
import json, sys, nbclient, nbformat
notebook = nbformat.read(sys.argv[1], as_version=4)
nbclient.NotebookClient(notebook, timeout=240, resources={"metadata": {"path": sys.argv[2]}}).execute()
print(json.dumps([cell.outputs for cell in notebook.cells if cell.cell_type == "code"]))
"""


@pytest.mark.long
@pytest.mark.processes
def test_the_example_notebook_runs_without_a_gpu() -> None:
    notebook = ROOT / "docs/examples/notebook.ipynb"
    command = [sys.executable, "-W", "ignore", "-c", _EXECUTE, str(notebook), str(notebook.parent)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=280)
    assert done.returncode == 0, done.stderr
    run, described, spread, diagnosis = (outputs[-1]["data"] for outputs in json.loads(done.stdout))
    assert "INCOMPLETE" in run["text/html"]
    assert "slow only while others used the GPUs or the host" in run["text/html"]
    assert "GPU0-1: in use by process" in run["text/html"]
    assert "; 6 of 10 path classes are slow" in run["text/html"]
    assert "'mean'" in described["text/plain"]
    assert "device_to_device" in spread["text/html"]
    assert "checks passed" in diagnosis["text/html"]
