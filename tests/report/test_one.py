"""One thing is one: no answer speaks of ``1 paths``."""

from __future__ import annotations

import re

import pytest

from egmctl.report.kinds import Format
from tests.answers import render
from tests.conftest import ROOT
from tests.in_process import run as answered
from tests.report.runs import run

NOUNS = (
    "paths|GPUs|measurements|steps|nodes|NICs|checks|NVLinks|files|pairs|errors|samples|warnings|problems"
    "|(?:non-fatal |fatal |corrected )?PCIe errors|processes|cases"
    "|causes|changes|ranks|machines|profiles|routes|switches|differences"
)
SEVERAL = re.compile(rf"(?<![\w.,:/~+-])1 (?:{NOUNS})\b.*")


def said_of_one(text: str) -> list[str]:
    """Return where a text speaks of one thing as of several; what is of 1 such is a part of several."""
    return [found[0][:80] for found in SEVERAL.finditer(text)]


@pytest.mark.parametrize(
    "arguments",
    [
        ("bench", "--dry-run", "--case", "device_local_copy"),
        ("bench", "--dry-run", "--suite", "fabric", "--ranks", "2"),
        ("bench", "--list", "--case", "device_local_copy"),
        ("doctor", "-vv"),
        ("topo", "-vv"),
        ("bringup", "-v"),
        ("profile", "match"),
    ],
    ids=" ".join,
)
def test_of_a_machine_with_one_gpu(arguments: tuple[str, ...]) -> None:
    ended = answered(*arguments, "--machine", "gh200")
    assert ended.out
    assert said_of_one(ended.out + ended.err) == []


@pytest.mark.parametrize("sizes", [(1 << 20,), (1 << 20, 2 << 20)], ids=["one size", "a sweep"])
@pytest.mark.parametrize("verbose", [0, 2])
def test_of_a_run_of_one_path(sizes: tuple[int, ...], verbose: int) -> None:
    report = run("gh200", cases=("host_numa_to_device_memcpy_ce",), gpus=1, sizes=sizes)
    assert said_of_one(str(render(report, Format.TEXT, verbose=verbose))) == []


@pytest.mark.parametrize("name", sorted(path.name for path in (ROOT / "tests/frozen").glob("*.txt")))
def test_of_what_every_command_says_of_every_machine(name: str) -> None:
    assert said_of_one((ROOT / "tests/frozen" / name).read_text()) == []
