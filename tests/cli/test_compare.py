"""``egmctl compare`` on files that the bench itself has written, on a fake node."""

from __future__ import annotations

import csv
import io
import json
import re
from pathlib import Path
from typing import Any

import pytest

from tests.bench.four import OPTIONS
from tests.conftest import ROOT, Ended, RunEgmctl
from tests.fake.plugin import MakeFakeNode
from tests.schemas import validate

BENCH = ("bench", "--numa", "1", "--gpus", "0-1", "--size", "1M", "--samples", "3", "--copies", "2", *OPTIONS)


@pytest.fixture(scope="module")
def runs(egmctl: RunEgmctl, fake_node: MakeFakeNode, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a run of the bench, another one, and one in which a copy went wrong."""
    node, folder = fake_node("gb200-tray"), tmp_path_factory.mktemp("runs")
    for name, faults in (("monday", ""), ("tuesday", ""), ("wednesday", "cuMemcpyAsync@9=corrupt:64")):
        egmctl(*BENCH, "-q", "-o", folder / f"{name}.json", env=node.environment(faults))
    return folder


@pytest.fixture
def compared(egmctl: RunEgmctl, runs: Path) -> Any:
    """Compare some of the runs, by their names."""

    def compare(names: str, *options: str | Path, **environment: str) -> Ended:
        files = [runs / f"{name}.json" for name in names.split()]
        return egmctl("compare", *files, "--tolerance", "99", *options, env=environment)

    return compare


def measurements(folder: Path, name: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads((folder / f"{name}.json").read_text())["result"]["measurements"]
    return found


@pytest.mark.long
def test_a_path_that_broke_since_is_named(compared: Any, runs: Path) -> None:
    broken, *_ = [m for m in measurements(runs, "wednesday") if m["status"] != "ok"]
    done = compared("monday wednesday")
    assert done.code == 1
    assert f"{broken['status']} in wednesday" in done.out
    assert "\nbench monday -> wednesday: 2 files" in done.out
    assert max(map(len, done.out.splitlines())) <= 80


@pytest.mark.long
def test_json_fits_its_schema_and_csv_has_a_row_for_each_path(compared: Any, runs: Path) -> None:
    document = json.loads(compared("monday tuesday", "--json").out)
    validate(document, "comparison")
    paths = document["result"]["paths"]
    assert len(paths) == len(measurements(runs, "monday"))
    rows = list(csv.DictReader(io.StringIO(compared("monday tuesday", "--csv").out)))
    assert [row["path"] for row in rows if row["subject"] == "path"] == [path["path"] for path in paths]


@pytest.mark.long
@pytest.mark.parametrize("names", ["monday wednesday", "monday tuesday wednesday"])
def test_a_comparison_shown_again_is_the_same_bytes(
    egmctl: RunEgmctl, compared: Any, tmp_path: Path, names: str
) -> None:
    path = tmp_path / "found.json"
    compared(names, "-o", path)
    for views in ((), ("-v",), ("--csv",)):
        shown = egmctl("show", path, *views)
        assert (shown.code, shown.out) == (0, compared(names, *views).out)


@pytest.mark.long
def test_only_more_than_two_files_need_clustershell(compared: Any, tmp_path: Path) -> None:
    (tmp_path / "ClusterShell.py").write_text("raise ImportError('not installed')")
    path = f"{tmp_path}:{ROOT}"
    assert compared("monday tuesday", PYTHONPATH=path).code == 0
    done = compared("monday tuesday wednesday", PYTHONPATH=path)
    assert (done.code, "needs ClusterShell: pip install 'egmctl[fleet]'" in done.err) == (2, True)


@pytest.mark.long
def test_a_broken_profile_does_not_cost_the_comparison(compared: Any, tmp_path: Path) -> None:
    folder = tmp_path / "egmctl/profiles"
    folder.mkdir(parents=True)
    (folder / "broken.toml").write_text("schema = 1")
    done = compared("monday tuesday", XDG_CONFIG_HOME=str(tmp_path))
    assert done.code == 0
    assert "\nbench monday -> tuesday: 2 files" in done.out
    assert re.search(r"egmctl: profile \S+/broken\.toml, line 1: .*; continuing without it\n", done.err)


@pytest.mark.long
def test_a_run_shown_again_is_what_it_printed(egmctl: RunEgmctl, runs: Path) -> None:
    path = runs / "monday.json"
    text = egmctl("show", path)
    assert text.code == 0
    assert text.out.startswith("FAKE GPUs, nothing of this is hardware\nNO REFERENCE: 8 measurements")
    assert "EGM over NV18>C2C" in egmctl("show", path, "-v").out
    assert egmctl("show", path, "--json").out == path.read_text()
    rows = list(csv.DictReader(io.StringIO(egmctl("show", path, "--csv").out)))
    assert len(rows) == len(measurements(runs, "monday"))
