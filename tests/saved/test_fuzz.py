"""Documents that their types allow and no run would write: they are refused in a sentence, or all views show them."""

from __future__ import annotations

import json
import random
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from egmctl import saved
from egmctl.cli.app import run
from egmctl.comparison import compare
from egmctl.doctor.check import EVERYTHING
from egmctl.doctor.runner import CHECKS, diagnose
from egmctl.errors import UsageError
from egmctl.model.codec import to_json
from egmctl.model.command import Command
from egmctl.report.exports.json import result_json
from egmctl.report.kinds import Format
from egmctl.report.rendering import render
from egmctl.saved import Saved
from tests.doctor.machines import shipped
from tests.mutation import mutated
from tests.saved.documents import bench_document, measured_report
from tests.tiers import seeds

COUNT = 10
FORMS: dict[Command | None, tuple[Format, ...]] = {
    Command.BENCH: (Format.TEXT, Format.CSV, Format.JSON),
    Command.DOCTOR: (Format.TEXT, Format.NAGIOS, Format.PROM, Format.JUNIT),
}


@pytest.mark.long
@pytest.mark.parametrize("seed", seeds(6))
def test_runs(tmp_path: Path, seed: int) -> None:
    _examine(json.dumps(bench_document(measured_report("hgx-h200x4"))), tmp_path, random.Random(seed))  # noqa: S311


@pytest.mark.long
@pytest.mark.parametrize("seed", seeds(4))
def test_diagnoses(tmp_path: Path, seed: int) -> None:
    text = result_json(diagnose(shipped("hgx-h200x4"), EVERYTHING, CHECKS))
    _examine(text, tmp_path, random.Random(seed))  # noqa: S311


def _examine(text: str, folder: Path, choice: random.Random) -> None:
    document = json.loads(text)
    good = folder / "good.json"
    good.write_text(text)
    whole = saved.load(good)
    assert whole.result is not None
    for number in range(COUNT):
        path = folder / f"bad{number}.json"
        path.write_text(json.dumps({**document, "result": to_json(mutated(whole.result, choice))}))
        try:
            _show(whole, path, choice)
        except BaseException:
            sys.stdout.write(f"{path}\n")
            raise


def _show(whole: Saved, path: Path, choice: random.Random) -> None:
    loaded = _loaded(path)
    if loaded is None:
        return
    for one in ([whole, loaded], [loaded, whole], [whole, loaded, replace(loaded, name="third")]):
        found = compare(one)
        for format in (Format.TEXT, Format.CSV, Format.JSON, Format.MARKDOWN, Format.HTML):
            shown = str(render(found, format))
            assert all(line.isprintable() for line in shown.split("\n")), shown
    assert run(["show", str(path), "--format", choice.choice(FORMS[loaded.kind])]) in (0, 2)


def _loaded(path: Path) -> Saved | None:
    try:
        return saved.load(path)
    except UsageError as error:
        sentence = str(error)
    assert sentence.startswith(f"file {path} is not a valid ")
    return None
