"""``egmctl compare`` and ``egmctl show`` on files that the commands themselves have written, on fake nodes."""

from __future__ import annotations

import csv
import io
import json
import re
from pathlib import Path

import jsonschema
import pytest

from egmctl.facts import replay
from tests.bench.four import OPTIONS
from tests.conftest import ROOT, RunEgmctl
from tests.fake.plugin import MakeFakeNode

SCHEMA = json.loads((ROOT / "docs/schemas/comparison.schema.json").read_text())
BENCH = ("bench", "--numa", "1", "--gpus", "0-1", "--size", "1M", "--samples", "3", "--copies", "2", "-q", *OPTIONS)


@pytest.fixture
def runs(egmctl: RunEgmctl, fake_node: MakeFakeNode, tmp_path: Path) -> Path:
    """A folder with a run of the bench, another one, and one in which a copy went wrong."""
    node = fake_node("gb200-tray")
    for name, faults in (("monday", ""), ("tuesday", ""), ("wednesday", "cuMemcpyAsync@9=corrupt:64")):
        egmctl(*BENCH, "-o", tmp_path / f"{name}.json", env=node.environment(faults))
    return tmp_path


def document(folder: Path, name: str) -> dict[str, object]:
    document_shown: dict[str, object] = json.loads((folder / f"{name}.json").read_text())
    return document_shown


@pytest.mark.long
def test_a_path_that_broke_since_is_named(egmctl: RunEgmctl, runs: Path) -> None:
    broken = [m for m in document(runs, "wednesday")["result"]["measurements"] if m["status"] != "ok"]  # type: ignore[index]
    assert broken, "the fault has its effect"
    done = egmctl("compare", runs / "monday.json", runs / "wednesday.json", "--tolerance", "99")
    assert done.code == 1
    assert f"{broken[0]['status']} in wednesday" in done.out
    assert "\nbench monday -> wednesday: 2 files" in done.out
    assert max(map(len, done.out.splitlines())) <= 80


@pytest.mark.long
def test_json_fits_its_schema_and_csv_has_a_row_for_each_path(egmctl: RunEgmctl, runs: Path) -> None:
    files = (runs / "monday.json", runs / "tuesday.json")
    document_shown = json.loads(egmctl("compare", *files, "--json").out)
    jsonschema.Draft202012Validator(SCHEMA).validate(document_shown)
    paths = document_shown["result"]["paths"]
    assert len(paths) == len(document(runs, "monday")["result"]["measurements"])  # type: ignore[index]
    rows = list(csv.DictReader(io.StringIO(egmctl("compare", *files, "--csv").out)))
    assert [row["path"] for row in rows if row["subject"] == "path"] == [path["path"] for path in paths]


@pytest.mark.long
@pytest.mark.parametrize("names", [("monday", "wednesday"), ("monday", "tuesday", "wednesday")])
def test_a_comparison_shown_again_is_the_same_bytes(egmctl: RunEgmctl, runs: Path, names: tuple[str, ...]) -> None:
    asked = ("compare", *(runs / f"{name}.json" for name in names), "--tolerance", "20")
    path = runs / "found.json"
    egmctl(*asked, "-o", path)
    for views in ((), ("-v",), ("--csv",), ("--format", "md"), ("--format", "html")):
        shown = egmctl("show", path, *views)
        assert (shown.code, shown.out) == (0, egmctl(*asked, *views).out)


@pytest.mark.long
def test_only_more_than_two_files_need_clustershell(egmctl: RunEgmctl, runs: Path, tmp_path: Path) -> None:
    hidden = tmp_path / "hidden"
    (hidden / "ClusterShell").mkdir(parents=True)
    (hidden / "ClusterShell/__init__.py").write_text("raise ImportError('not installed')")
    env = {"PYTHONPATH": f"{hidden}:{ROOT}"}
    files = [runs / f"{name}.json" for name in ("monday", "tuesday", "wednesday")]
    assert egmctl("compare", *files[:2], "--tolerance", "99", env=env).code == 0
    done = egmctl("compare", *files, env=env)
    assert (done.code, "needs ClusterShell: pip install 'egmctl[fleet]'" in done.err) == (2, True)


@pytest.mark.long
def test_a_run_shown_again_is_what_it_printed(egmctl: RunEgmctl, fake_node: MakeFakeNode, tmp_path: Path) -> None:
    node = fake_node("gb200-tray")
    path = tmp_path / "run.json"
    egmctl(*BENCH, "-o", path, env=node.environment())
    text = egmctl("show", path)
    assert text.code == 0
    assert text.out.startswith("FAKE GPUs, nothing of this is hardware\nNO REFERENCE: 8 measurements")
    assert "EGM over NV18>C2C" in egmctl("show", path, "-v").out
    assert egmctl("show", path, "--json").out == path.read_text()
    rows = list(csv.DictReader(io.StringIO(egmctl("show", path, "--csv").out)))
    assert len(rows) == len(document(tmp_path, "run")["result"]["measurements"])  # type: ignore[index]


@pytest.mark.long
@pytest.mark.parametrize(
    ("asked", "views"),
    [
        *((f"topo --machine {name}", [""]) for name in replay.names()),
        ("topo --machine gb200-nvl72", ["-v"]),
        ("topo --machine gb200-tray --gpus 1,0 --numa 1", [""]),
        ("topo --machine hgx-h200x4", ["--csv"]),
        *(
            (f"doctor --machine {name} --strict", ["", "-v", "--brief", "--format nagios", "--format junit"])
            for name in ("gb200-tray", "hgx-h200x4")
        ),
    ],
)
def test_a_result_shown_again_is_the_same_bytes(
    egmctl: RunEgmctl, tmp_path: Path, asked: str, views: list[str]
) -> None:
    path = tmp_path / "result.json"
    egmctl(*asked.split(), "-o", path)
    for view in views:
        shown, printed = egmctl("show", path, *view.split()).out, egmctl(*asked.split(), *view.split()).out
        # Of names that are private the file has pseudonyms: this is the only one that a text shows.
        assert re.sub(r"cluster [0-9a-f-]+", "", shown) == re.sub(r"cluster [0-9a-f-]+", "", printed)


def test_brief_is_for_diagnoses_only(egmctl: RunEgmctl, tmp_path: Path) -> None:
    none = "--brief works with a result of egmctl doctor, which "
    for command, machine, sentence in (
        ("topo", "gh200", none),
        ("doctor", "gh200", "--brief and --verbose exclude each other"),
        ("doctor", "nosuch", none),
    ):
        path = tmp_path / f"{command}-{machine}.json"
        path.write_text(egmctl(command, "--machine", machine, "--json").out)
        shown = egmctl("show", path, "--brief", "-v")
        assert (shown.code, shown.out) == (2, "")
        assert sentence in shown.err


@pytest.mark.long
def test_a_live_node_shown_again_is_the_same_bytes(egmctl: RunEgmctl, fake_node: MakeFakeNode, tmp_path: Path) -> None:
    node = fake_node("dgx-h100")
    for command in ("topo", "doctor"):
        path = tmp_path / f"{command}.json"
        egmctl(command, "-q", "-o", path, env=node.environment())
        assert egmctl("show", path).out == egmctl(command, "-q", env=node.environment()).out


def test_a_snapshot_is_shown_as_its_topology(egmctl: RunEgmctl) -> None:
    path = ROOT / "profiles/machines/hgx-h200x4.json"
    assert egmctl("show", path).out == egmctl("topo", "--machine", "hgx-h200x4").out


def test_a_run_that_had_no_result_is_told(egmctl: RunEgmctl, tmp_path: Path) -> None:
    path = tmp_path / "failed.json"
    path.write_text(egmctl("bench", "--gpus", "nonsense", "--json").out)
    done = egmctl("show", path)
    assert done.code == 2
    assert "failed.json holds no result: " in done.err


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (("compare", "none.json"), "file none.json cannot be read: No such file or directory"),
        (("compare", "README.md", "README.md"), "file README.md is not JSON"),
        (("compare", "a.json", "b.json", "--tolerance", "100"), "it must be from 0 to below 100 per cent"),
        (("show", "none.json"), "file none.json cannot be read: No such file or directory"),
        (("show", "profiles/machines/gh200.json", "--format", "nagios"), "no such format here"),
    ],
)
def test_wrong_use_is_one_sentence(egmctl: RunEgmctl, arguments: tuple[str, ...], sentence: str) -> None:
    done = egmctl(*arguments)
    assert done.code == 2
    assert sentence in done.err
    assert done.err.count("\n") == 1


@pytest.mark.long
def test_a_broken_profile_does_not_cost_the_comparison(egmctl: RunEgmctl, runs: Path, tmp_path: Path) -> None:
    folder = tmp_path / "config/egmctl/profiles"
    folder.mkdir(parents=True)
    (folder / "broken.toml").write_text("schema = 1")
    files = (runs / "monday.json", runs / "tuesday.json")
    done = egmctl("compare", *files, "--tolerance", "99", env={"XDG_CONFIG_HOME": str(tmp_path / "config")})
    assert done.code == 0
    assert "\nbench monday -> tuesday: 2 files" in done.out
    assert re.search(r"egmctl: profile \S+/broken\.toml, line 1: .*; continuing without it\n", done.err)
