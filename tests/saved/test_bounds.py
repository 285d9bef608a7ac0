"""Documents have bounds: 64 MiB of the smallest values are refused before Python makes gigabytes of them."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from egmctl.documents import ELEMENT_LIMIT, FILE_LIMIT
from egmctl.model.codec import ITEMS_LIMIT
from tests.conftest import ROOT, command_environment
from tests.in_process import run
from tests.saved.documents import bench_document, measured_report

pytestmark = pytest.mark.processes

SMALLEST = {"objects": "{}", "entries": '{"":0}', "texts": '""'}
MEBIBYTES = 700
"""Of address space that are in use in the end; the interpreter with its libraries takes some 60."""


def filled(kind: str, count: int) -> str:
    """Return a result of the bench with so many values under a key that nobody reads."""
    document = bench_document(measured_report("hgx-h200x4"))
    text = json.dumps(document)[:-1]
    return f'{text}, "x": [{",".join([SMALLEST[kind]] * count)}]}}'


def peak_mib(path: Path) -> tuple[int, str]:
    """Show a file in a process of its own, and return the most memory that it had and what it said."""
    script = (
        "import resource, subprocess, sys\n"
        "done = subprocess.run([sys.executable, '-m', 'egmctl', 'show', sys.argv[1]], capture_output=True, text=True)\n"
        "print(resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss >> 10, done.returncode, done.stderr)\n"
    )
    command = [sys.executable, "-c", script, str(path)]
    env = command_environment({})
    done = subprocess.run(command, cwd=ROOT, env=env, capture_output=True, text=True, check=True, timeout=60)
    most, _, said = done.stdout.partition(" ")
    return int(most), said


@pytest.mark.long
@pytest.mark.parametrize("kind", SMALLEST)
def test_a_file_full_of_the_smallest_values_is_refused(tmp_path: Path, kind: str) -> None:
    path = tmp_path / "full.json"
    path.write_text(filled(kind, FILE_LIMIT // (len(SMALLEST[kind]) + 1) - (1 << 19)))
    assert path.stat().st_size < FILE_LIMIT
    most, said = peak_mib(path)
    assert f"holds more than {ELEMENT_LIMIT} values, which no result of egmctl does" in said
    assert most < MEBIBYTES


@pytest.mark.long
def test_a_file_just_below_the_bound_is_read(tmp_path: Path) -> None:
    path = tmp_path / "full.json"
    path.write_text(filled("entries", int(ELEMENT_LIMIT * 0.45)))
    most, said = peak_mib(path)
    assert said.startswith("0 ")
    assert most < MEBIBYTES


def test_a_list_is_no_longer_than_nodes_can_be(tmp_path: Path) -> None:
    document = bench_document(measured_report("hgx-h200x4"))
    document["result"]["notes"] = ["x"] * (ITEMS_LIMIT + 1)
    path = tmp_path / "long.json"
    path.write_text(json.dumps(document))
    ended = run("show", path)
    assert ended.code == 2
    assert f"result.notes: expected at most {ITEMS_LIMIT} items, found {ITEMS_LIMIT + 1}" in ended.err
