"""The README's pictures show what the commands say of recorded machines and saved runs.

``EGMCTL_UPDATE_README=1 pytest tests/docs`` has the command draw it anew.
"""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path
from xml.etree import ElementTree

from egmctl.doctor.check import EVERYTHING
from egmctl.doctor.runner import CHECKS, diagnose
from egmctl.facts import replay as record
from egmctl.model.measurement import RunReport
from egmctl.report.kinds import Format, render
from egmctl.saved import load
from egmctl.verdict import profiles
from egmctl.verdict.bringup import bringup
from egmctl.verdict.judge import judge
from egmctl.verdict.profiles import choose
from tests.comparison.test_real_runs import unpacked
from tests.conftest import ROOT, RunEgmctl
from tests.doctor.machines import shipped
from tests.doctor.scenes import RECORDED

IMAGES = ROOT / "docs/images"
README = ROOT / "README.md"
SCENE = "h200-v2-cgroup-all-asked-for"


def test_doctor(egmctl: RunEgmctl, tmp_path: Path) -> None:
    recorded = tmp_path / "node.json"
    recorded.write_text(record.text(RECORDED[SCENE].machine()))
    _shows(egmctl, tmp_path, "doctor", "--machine", recorded, *RECORDED[SCENE].options, "-q")


def test_bench(egmctl: RunEgmctl, tmp_path: Path) -> None:
    run = unpacked("idle", tmp_path)
    drawn, picture = tmp_path / "bench.svg", IMAGES / "bench.svg"
    assert egmctl("show", run, "-o", drawn).code == 0
    if os.environ.get("EGMCTL_UPDATE_README"):
        picture.write_text(drawn.read_text())
    assert picture.read_text() == drawn.read_text()


def test_the_answer_of_bringup_is_that_of_the_recorded_checks_and_the_real_run(tmp_path: Path) -> None:
    run = load(unpacked("idle", tmp_path)).result
    assert isinstance(run, RunReport)
    profile, why = choose(run.machines[0], [profiles.load("hgx-h200")])
    judged = replace(run, verdict=judge(run, profile, profile_reason=why))
    found = bringup(diagnose(shipped("hgx-h200x4"), EVERYTHING, CHECKS), judged)
    said = str(render(found, Format.TEXT))
    readme = README.read_text()
    shown = "GO" + readme.partition("```text\nGO")[2].partition("```")[0]
    if os.environ.get("EGMCTL_UPDATE_README"):
        README.write_text(readme.replace(f"```text\n{shown}```", f"```text\n{said}```"))
    else:
        assert shown == said


def test_the_text_of_the_bench_is_what_the_command_says_by_the_profile_that_ships(tmp_path: Path) -> None:
    run = load(unpacked("idle", tmp_path)).result
    assert isinstance(run, RunReport)
    (machine,) = run.machines
    profile, why = choose(machine, [profiles.load("hgx-h200")])
    said = str(render(replace(run, verdict=judge(run, profile, profile_reason=why)), Format.TEXT))
    readme = README.read_text()
    before, _, rest = readme.partition("```text\nPASS: ")
    shown = "PASS: " + rest.partition("```")[0]
    if os.environ.get("EGMCTL_UPDATE_README"):
        README.write_text(readme.replace(shown, said))
    else:
        assert before != readme
        assert shown == said


def test_compare(egmctl: RunEgmctl, tmp_path: Path) -> None:
    before, after = (unpacked(name, tmp_path) for name in ("idle", "beside-traffic"))
    _shows(egmctl, tmp_path, "compare", before, after, "--tolerance", "50")


def _shows(egmctl: RunEgmctl, folder: Path, command: str, *arguments: str | Path) -> None:
    """Fail unless the picture shows what the command says, which finds something wrong."""
    drawn, picture = folder / f"{command}.svg", IMAGES / f"{command}.svg"
    assert egmctl(command, *arguments, "-o", drawn).code == 1
    if os.environ.get("EGMCTL_UPDATE_README"):
        picture.write_text(drawn.read_text())
    # Word by word: another version of rich may draw the same text otherwise.
    assert _words(picture) == _words(drawn)
    said = egmctl(command, *arguments).out
    assert set(said.split()) <= set(_words(drawn))


def _words(picture: Path) -> list[str]:
    texts = ElementTree.parse(picture).iter("{http://www.w3.org/2000/svg}text")  # noqa: S314
    return [word for text in texts for word in (text.text or "").replace("\xa0", " ").split()]
