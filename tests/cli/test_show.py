"""``egmctl show``: a saved result once more, from a file or a pipe, as ASCII whatever is in it."""

from __future__ import annotations

import gzip
import json
import re
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from egmctl.facts import replay
from egmctl.report.kinds import CHECKS, HISTORY, MACHINES, MATCH, PROFILES, Format
from tests.conftest import ROOT, RunEgmctl, ended
from tests.fake.plugin import MakeFakeNode
from tests.in_process import run
from tests.saved.documents import bench_document, machine_of, measured_report


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    """A run of the bench."""
    path = tmp_path / "run.json"
    path.write_text(json.dumps(bench_document(measured_report("hgx-h200x4")), indent=2) + "\n")
    return path


@pytest.mark.processes
def test_a_pipe_is_shown_as_its_file(saved: Path) -> None:
    script = f'cat | exec "{sys.executable}" -m egmctl show /dev/stdin --csv'
    with saved.open("rb") as file:
        assert ended(["sh", "-c", script], stdin=file) == run("show", saved, "--csv")


def test_json_is_ascii_whatever_the_file_holds(saved: Path) -> None:
    document = json.loads(saved.read_text())
    document["result"]["notes"] = ["\u202eé\x7f\x9b2J\u2028😀"]
    document["of a newer version"] = "\x9d0;title\x9c"
    saved.write_text(json.dumps(document, ensure_ascii=False))
    shown = run("show", saved, "--json").out
    assert shown.isascii()
    assert all(line.isprintable() for line in shown.split("\n"))
    assert json.loads(shown) == document


def test_a_number_that_json_has_no_word_for_is_a_sentence(saved: Path) -> None:
    saved.write_text(saved.read_text().rstrip()[:-1] + ', "é": 1e999}')
    done = run("show", saved, "--json")
    assert (done.code, json.loads(done.out)["schema"]) == (2, "egmctl.error/1")
    assert "cannot be shown" in done.err


@pytest.mark.parametrize(
    ("asked", "views"),
    [
        *((f"topo --machine {name}", "") for name in replay.machine_names()),
        ("topo --machine gb200-nvl72", "-v"),
        ("topo --machine gb200-tray --gpus 1,0 --numa 1", "--json"),
        ("topo --machine hgx-h200x4", "--csv"),
        ("doctor --machine gb200-tray --strict", "|-v|--brief|--format nagios|--format junit"),
        ("doctor --machine hgx-h200x4 --strict", "|--brief|--json"),
    ],
)
def test_a_result_shown_again_is_the_same_bytes(tmp_path: Path, asked: str, views: str) -> None:
    path = tmp_path / "result.json"
    run(*asked.split(), "-o", path)
    for view in views.split("|"):
        shown, printed = run("show", path, *view.split()).out, run(*asked.split(), *view.split()).out
        # Of names that are private the file has pseudonyms: this is the only one that a text shows.
        assert re.sub(r"cluster [0-9a-f-]+", "", shown) == re.sub(r"cluster [0-9a-f-]+", "", printed)


@pytest.mark.long
def test_a_live_node_shown_again_is_the_same_bytes(egmctl: RunEgmctl, fake_node: MakeFakeNode, tmp_path: Path) -> None:
    node = fake_node("dgx-h100")
    for command in ("topo", "doctor"):
        path = tmp_path / f"{command}.json"
        egmctl(command, "-q", "-o", path, env=node.environment())
        assert run("show", path).out == egmctl(command, "-q", env=node.environment()).out


def test_a_snapshot_is_shown_as_its_topology_or_as_it_is() -> None:
    path = ROOT / "profiles/machines/hgx-h200x4.json"
    assert run("show", path).out == run("topo", "--machine", "hgx-h200x4").out
    assert run("show", path, "--json").out == path.read_text()


def test_packed_files_are_read(saved: Path, tmp_path: Path) -> None:
    content, packed = saved.read_bytes(), tmp_path / "run.json.gz"
    packed.write_bytes(gzip.compress(content))
    assert run("show", packed, "--json").out == content.decode()
    packed.write_bytes(gzip.compress(content)[:2000])
    broken = run("show", packed)
    assert (broken.code, "cannot be unpacked" in broken.err, broken.err.count("\n")) == (2, True, 1)
    packed.write_bytes(gzip.compress(bytes(70 << 20), 1))
    assert "is larger than 64 MiB" in run("show", packed).err


@pytest.mark.parametrize(
    ("command", "valid"),
    [
        ("history", HISTORY.formats),
        ("profile list", PROFILES.formats),
        ("profile show hgx-h200", PROFILES.formats),
        ("profile match --machine hgx-h200x4 -q", MATCH.formats),
        ("topo --machine list", MACHINES.formats),
        ("doctor --list", CHECKS.formats),
        ("doctor --explain nvlink.links", CHECKS.formats),
    ],
)
def test_a_list_is_shown_in_every_format_as_its_command_does(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, command: str, valid: Sequence[Format]
) -> None:
    # Other tests may measure meanwhile, and keep their runs where the user's are.
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    arguments = command.split()
    kept = tmp_path / "list.json"
    assert run(*arguments, "-o", kept).code == 0
    for format in ((), ("--json",)):
        assert run("show", kept, *format) == run(*arguments, *format)
    refused = run("show", kept, "--format", "junit")
    assert (refused.code, refused.out) == (2, "")
    assert f"valid are {', '.join(valid)}" in refused.err
    assert "is a list and no result of a node" in run("compare", kept, kept).err


def test_a_result_that_failed_is_shown_with_0_and_keeps_its_own_code(tmp_path: Path) -> None:
    machine = ROOT / "tests/doctor/corpus/h200-v2-cgroup/machine.json.gz"
    kept = tmp_path / "doctor.json"
    assert run("doctor", "--machine", machine, "--gpus", "all", "-o", kept).code == 1
    assert run("show", kept).code == 0
    shown = run("show", kept, "--json")
    assert (shown.code, json.loads(shown.out)["exit_code"]) == (0, 1)


def test_a_run_that_had_no_result_is_told(tmp_path: Path) -> None:
    path = tmp_path / "failed.json"
    path.write_text(run("topo", "--machine", "gh200", "--gpus", "9", "--json").out)
    done = run("show", path)
    assert done.code == 2
    assert "failed.json holds no result: " in done.err


def test_a_run_that_was_saved_without_its_causes_is_explained_by_what_it_holds(tmp_path: Path) -> None:
    path = tmp_path / "run.json"
    path.write_bytes(gzip.decompress((ROOT / "tests/data/runs/beside-traffic.json.gz").read_bytes()))
    assert json.loads(path.read_text())["result"]["causes"] == []
    text = " ".join(run("show", path).out.split())
    assert "in use by process 1066" in text.partition("CAUSE")[0]
    assert "nothing that was read explains it" not in text


@pytest.mark.parametrize(
    ("asked", "sentence"),
    [
        ("topo --machine gh200", "--brief works with a result of egmctl doctor, which "),
        ("doctor --machine gh200", "--brief and --verbose exclude each other"),
        ("doctor --machine nosuch", "--brief works with a result of egmctl doctor, which "),
    ],
)
def test_brief_is_for_diagnoses_only(tmp_path: Path, asked: str, sentence: str) -> None:
    path = tmp_path / "result.json"
    path.write_text(run(*asked.split(), "--json").out)
    shown = run("show", path, "--brief", "-v")
    assert (shown.code, shown.out) == (2, "")
    assert sentence in shown.err


@pytest.mark.parametrize("words", [("show", "monday.json"), ("compare", "monday.json", "today.json")])
def test_quiet_with_a_file_to_write_prints_nothing(tmp_path: Path, words: tuple[str, ...]) -> None:
    command, *names = words
    for name in names:
        (tmp_path / name).write_text(replay.machine_text(machine_of("gh200")))
    done = run(command, *(tmp_path / name for name in names), "-q", "-o", tmp_path / "shown.html")
    assert (done.code, done.out, done.err) == (0, "", "")
    assert (tmp_path / "shown.html").exists()
