"""The README's pictures show what the commands say of recorded machines and saved runs.

``EGMCTL_UPDATE_README=1 pytest tests/docs`` has the command draw it anew.
"""

from __future__ import annotations

import os
from pathlib import Path
from xml.etree import ElementTree

import pytest

from egmctl.facts import replay as record
from egmctl.report.kinds import Format
from tests.answers import render
from tests.comparison.runs import unpacked
from tests.conftest import ROOT
from tests.docs.examples import bringup_of_h200, judged_run
from tests.doctor.scenes import RECORDED
from tests.golden import without_counts
from tests.in_process import run

IMAGES = ROOT / "docs/images"
README = ROOT / "README.md"
SCENE = "h200-v2-cgroup-all-asked-for"
ONLY = tuple(
    f"--check={check}" for check in ("dev.cgroup-restricted", "dev.count-consistency", "fabric.same-node-isolation")
)
"""The checks that find something there: the picture is about their findings, and not about how many others pass."""
CODES = {"doctor": 1, "compare": 3}
"""The exit codes of the pictures of a text: a fault, and runs that are no equals."""


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("topo-egm", "topo --machine gb200-tray -q"),
        ("bench", "show idle.json"),
        ("doctor", f"doctor --machine {SCENE}.json {' '.join((*RECORDED[SCENE].options, *ONLY))} -q"),
        ("compare", "compare idle.json beside-traffic.json --tolerance 50"),
    ],
)
def test_a_picture_is_what_the_command_draws(tmp_path: Path, name: str, words: str) -> None:
    for run_name in ("idle", "beside-traffic"):
        unpacked(run_name, tmp_path)
    (tmp_path / f"{SCENE}.json").write_text(record.machine_text(RECORDED[SCENE].machine()))
    arguments = [str(tmp_path / word) if word.endswith(".json") else word for word in words.split()]
    drawn, picture = tmp_path / f"{name}.svg", IMAGES / f"{name}.svg"
    is_text = name in CODES
    assert run(*arguments, "-o", drawn).code == CODES.get(name, 0)
    if os.environ.get("EGMCTL_UPDATE_README"):
        picture.write_text(drawn.read_text())
    if is_text:
        # Word by word: another version of rich may draw the same text otherwise.
        assert _words(picture) == _words(drawn)
        assert set(run(*arguments).out.split()) <= set(_words(drawn))
    else:
        assert picture.read_text() == drawn.read_text()


def test_the_answers_of_bringup_and_bench_are_those_of_the_recorded_checks_and_the_real_run(tmp_path: Path) -> None:
    answer, judged = bringup_of_h200(tmp_path), judged_run(tmp_path)
    for begin, result in (("GO", answer), ("PASS: ", judged)):
        said, readme = without_counts(str(render(result, Format.TEXT))), README.read_text()
        shown = begin + readme.partition(f"```text\n{begin}")[2].partition("```")[0]
        if os.environ.get("EGMCTL_UPDATE_README"):
            README.write_text(readme.replace(f"```text\n{shown}```", f"```text\n{said}```"))
        else:
            assert shown == said


def _words(picture: Path) -> list[str]:
    texts = ElementTree.parse(picture).iter("{http://www.w3.org/2000/svg}text")  # noqa: S314
    return [word for text in texts for word in (text.text or "").replace("\xa0", " ").split()]
