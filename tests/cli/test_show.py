"""``egmctl show``: a saved result once more, from a file or a pipe, as ASCII whatever is in it."""

from __future__ import annotations

import gzip
import json
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from egmctl.facts import replay as record
from egmctl.report.kinds import CHECKS, HISTORY, MACHINES, MATCH, PROFILES, Format
from tests.conftest import ROOT, RunEgmctl, ended
from tests.in_process import run
from tests.saved.documents import bench_document, machine_of, measured_report


@pytest.mark.parametrize("options", [[], ["--json"], ["--csv"], ["--format", "html"]])
def test_a_pipe_is_shown_as_its_file(egmctl: RunEgmctl, tmp_path: Path, options: list[str]) -> None:
    path = tmp_path / "run.json"
    path.write_text(json.dumps(bench_document(measured_report("hgx-h200x4")), indent=2) + "\n")
    usual = egmctl("show", str(path), *options)
    assert usual.code == 0, usual.err
    with path.open("rb") as file:
        script = f'cat | exec "{sys.executable}" -m egmctl show /dev/stdin "$@"'
        piped = ended(["sh", "-c", script, "sh", *options], stdin=file)
    assert (piped.code, piped.out) == (0, usual.out), piped.err


def test_json_is_ascii_whatever_the_file_holds(egmctl: RunEgmctl, tmp_path: Path) -> None:
    document = bench_document(measured_report("hgx-h200x4"))
    document["result"]["notes"] = ["\u202eé\x7f\x9b2J\u2028😀"]
    document["of a newer version"] = "\x9d0;title\x9c"
    path = tmp_path / "run.json"
    path.write_text(json.dumps(document, ensure_ascii=False))
    shown = egmctl("show", str(path), "--json").out
    assert shown.isascii()
    assert all(line.isprintable() for line in shown.split("\n"))
    assert json.loads(shown) == document


@pytest.mark.long
def test_json_of_our_own_is_shown_as_the_bytes_that_were_written(egmctl: RunEgmctl, tmp_path: Path) -> None:
    written = {"snapshot": record.text(machine_of("gh200")), "topo": egmctl("topo", "--machine", "gh200", "--json").out}
    for name, text in written.items():
        path = tmp_path / f"{name}.json"
        path.write_text(text)
        assert egmctl("show", str(path), "--json").out == text


@pytest.mark.long
def test_a_number_that_json_has_no_word_for_is_a_sentence(egmctl: RunEgmctl, tmp_path: Path) -> None:
    document = bench_document(measured_report("hgx-h200x4"))
    path = tmp_path / "run.json"
    path.write_text(json.dumps(document)[:-1] + ', "é": 1e999}')
    ended = egmctl("show", str(path), "--json")
    assert ended.code == 2
    assert json.loads(ended.out)["schema"] == "egmctl.error/1"
    assert "cannot be shown" in ended.err


@pytest.mark.long
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
    tmp_path: Path, command: str, valid: Sequence[Format]
) -> None:
    arguments = command.split()
    kept = tmp_path / "list.json"
    assert run(*arguments, "-o", kept).code == 0
    for format in ((), ("--json",)):
        listed = run(*arguments, *format)
        shown = run("show", kept, *format)
        assert (shown.code, shown.out) == (listed.code, listed.out), shown.err
    refused = run("show", kept, "--format", "junit")
    assert (refused.code, refused.out) == (2, "")
    assert f"valid are {', '.join(valid)}" in refused.err
    assert "is a list and no result of a node" in run("compare", kept, kept).err


def test_a_result_that_failed_is_shown_with_0_and_keeps_its_own_code(tmp_path: Path) -> None:
    machine = ROOT / "tests/doctor/corpus/h200-v2-cgroup/machine.json"
    kept = tmp_path / "doctor.json"
    assert run("doctor", "--machine", machine, "--gpus", "all", "-o", kept).code == 1
    assert run("show", kept).code == 0
    shown = run("show", kept, "--json")
    assert (shown.code, json.loads(shown.out)["exit_code"]) == (0, 1)


def test_a_run_that_was_saved_without_its_causes_is_explained_by_what_it_holds(tmp_path: Path) -> None:
    path = tmp_path / "run.json"
    path.write_bytes(gzip.decompress((ROOT / "tests/data/runs/beside-traffic.json.gz").read_bytes()))
    assert json.loads(path.read_text())["result"]["causes"] == []
    text = " ".join(run("show", path).out.split())
    assert "in use by process 1066" in text.partition("CAUSE")[0]
    assert "nothing that was read explains it" not in text


@pytest.mark.parametrize("words", [("show", "monday.json"), ("compare", "monday.json", "today.json")])
def test_quiet_with_a_file_to_write_prints_nothing(egmctl: RunEgmctl, tmp_path: Path, words: tuple[str, ...]) -> None:
    command, *names = words
    for name in names:
        (tmp_path / name).write_text(record.text(machine_of("gh200")))
    done = egmctl(command, *(tmp_path / name for name in names), "-q", "-o", tmp_path / "shown.html")
    assert (done.code, done.out, done.err) == (0, "", "")
    assert (tmp_path / "shown.html").exists()
