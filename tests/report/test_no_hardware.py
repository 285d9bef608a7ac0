"""Every format of a comparison says which of its files are of a modelled machine or of the fake driver."""

from __future__ import annotations

import csv
import html
import io
import json
import re
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path

import pytest

from egmctl.comparison import compare
from egmctl.model.comparison import Comparison
from egmctl.report.kinds import COMPARISON, Format
from egmctl.saved import Saved, load
from tests.answers import render
from tests.comparison import runs
from tests.conftest import ROOT, RunEgmctl
from tests.fake.plugin import MakeFakeNode

MODELLED = "MODEL built from public documentation, not captured from hardware: "
FAKE = "FAKE GPUs, nothing of this is hardware: "


def machine(name: str) -> Saved:
    return load(ROOT / f"profiles/machines/{name}.json")


def measured(name: str, *, fake: bool) -> Saved:
    made = runs.changed(runs.run(seed=1), runs.times(0.8 if name == "after" else 1, runs.from_gpu("GPU2")))
    gpus = tuple(replace(gpu, name=f"FAKE {gpu.name}" if fake else gpu.name) for gpu in made.gpus)
    return runs.saved(name, replace(made, gpus=gpus))


NO_HARDWARE: Mapping[str, tuple[Callable[[], Comparison], str]] = {
    "the second of two snapshots is modelled": (
        lambda: compare([machine("hgx-h200x4"), machine("dgx-h100")]),
        f"{MODELLED}dgx-h100",
    ),
    "all nodes but one are modelled": (
        lambda: compare([machine(name) for name in ("gh200", "gh200x4", "hgx-h200x4")]),
        f"{MODELLED}gh200, gh200x4",
    ),
    "the first of two runs is of fake GPUs": (
        lambda: compare([measured("before", fake=True), measured("after", fake=False)]),
        f"{FAKE}before",
    ),
    "all runs are of fake GPUs": (
        lambda: compare([measured(name, fake=True) for name in ("before", "between", "after")]),
        f"{FAKE}after,before,between",
    ),
}


@pytest.fixture(params=NO_HARDWARE)
def compared(request: pytest.FixtureRequest) -> tuple[Comparison, str]:
    made, said = NO_HARDWARE[request.param]
    return made(), said


@pytest.mark.parametrize("format", [format for format in COMPARISON.formats if format not in (Format.JSON, Format.CSV)])
def test_it_stands_before_every_result(compared: tuple[Comparison, str], format: Format) -> None:
    comparison, banner = compared
    seen = words(render(comparison, format))
    assert seen.count(banner) == 1
    assert seen.index(banner) < seen.index("paths compared" if "paths compared" in seen else "facts compared")


def test_it_stands_in_every_row(compared: tuple[Comparison, str]) -> None:
    comparison, banner = compared
    rows = list(csv.DictReader(io.StringIO(str(render(comparison, Format.CSV)))))
    assert {row["warning"] for row in rows} == {banner}


def test_a_document_says_it_of_each_file(compared: tuple[Comparison, str]) -> None:
    comparison, banner = compared
    told = json.loads(str(render(comparison, Format.JSON)))["result"]["nodes"]
    named = {node["name"] for node in told if node["modelled" if banner.startswith(MODELLED) else "fake"]}
    assert named == {*re.split(", ?", banner.partition(": ")[2])}
    assert not any(node["fake" if banner.startswith(MODELLED) else "modelled"] for node in told)


@pytest.mark.parametrize("format", COMPARISON.formats)
def test_of_hardware_nothing_is_said(format: Format) -> None:
    seen = words(render(compare([measured("before", fake=False), measured("after", fake=False)]), format))
    assert not re.search("model built|fake gpus", seen, re.IGNORECASE)


@pytest.mark.long
def test_what_the_commands_write_on_fake_nodes_and_of_modelled_ones_says_it(
    egmctl: RunEgmctl, fake_node: MakeFakeNode, tmp_path: Path
) -> None:
    fake = fake_node("dgx-h100")
    for command in ("snapshot", "topo", "doctor"):
        live, model, found = (tmp_path / f"{command}-{name}.json" for name in ("live", "model", "found"))
        egmctl(command, "-o", live, env=fake.environment())
        if command == "snapshot":
            model.write_bytes((ROOT / "profiles/machines/dgx-h100.json").read_bytes())
        else:
            egmctl(command, "--machine", "dgx-h100", "-o", model)
        done = egmctl("compare", live, model)
        head = f"{MODELLED}{model.stem} {FAKE}{live.stem} "
        assert " ".join(done.out.split()).startswith(head), done.err
        egmctl("compare", live, model, "-o", found)
        assert egmctl("show", found).out == done.out


def words(made: object) -> str:
    """Return what a reader sees of a text, a page or a picture, on one line."""
    return " ".join(html.unescape(re.sub("<[^>]*>", " ", str(made))).split())
