"""The parts in which the GPU suite runs: each of its files is in one of them, and only a part that exists is run."""

from __future__ import annotations

import subprocess
from collections import Counter
from pathlib import Path

import pytest

from tests.conftest import ROOT

SUITE = ROOT / "tests" / "gpu"


def parts() -> dict[str, list[str]]:
    """Return the names of the files of each part."""
    lines = (SUITE / "parts.txt").read_text().splitlines()
    named = (line.split(":") for line in lines if not line.startswith("#"))
    return {part: files.split() for part, files in named}


def test_each_file_of_the_suite_is_in_one_part() -> None:
    files = Counter(file for part in parts().values() for file in part)
    assert files == Counter(path.stem.removeprefix("test_") for path in SUITE.glob("test_*.py"))


@pytest.mark.processes
def test_a_part_that_does_not_exist_is_refused_with_those_that_do(tmp_path: Path) -> None:
    command = ["sh", str(SUITE / "measure.sh"), str(tmp_path), "facts", "everything"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    there_are = " ".join([*parts(), "measurements"])
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == f"measure.sh: there is no part everything; there are {there_are}\n"
