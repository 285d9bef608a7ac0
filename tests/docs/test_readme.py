"""The README and the guide show what the command really prints, and name only what exists.

``EGMCTL_UPDATE_README=1 pytest tests/docs`` writes down what the examples print now.
"""

from __future__ import annotations

import os
import re
import shlex
import subprocess
from pathlib import Path

import pytest

from egmctl.facts import replay as record
from tests.conftest import ROOT, RunEgmctl
from tests.doctor.scenes import scenes
from tests.golden import without_counts

DOCUMENTS = (ROOT / "README.md", *sorted(ROOT.glob("docs/*.md")))
EXAMPLE = re.compile(r"```console\n\$ egmctl (?P<arguments>[^\n]+)\n(?P<shown>.*?)```\n", re.DOTALL)
CALLED_FROM_ELSEWHERE = frozenset({"fleet.md", "rdma.md"})
"""Documents whose consoles need several nodes: tests/fleet has fleet.md's."""


def examples() -> list[tuple[Path, str]]:
    return [(path, match["arguments"]) for path in DOCUMENTS for match in EXAMPLE.finditer(path.read_text())]


@pytest.mark.parametrize(("document", "arguments"), examples(), ids=lambda one: getattr(one, "name", one))
def test_an_example_shows_what_the_command_prints(
    egmctl: RunEgmctl, tmp_path: Path, document: Path, arguments: str
) -> None:
    """A file ``NAME.json`` is the machine of the corpus of that name (tests/doctor/scenes.py)."""
    words: list[str | Path] = []
    for word in shlex.split(arguments):
        if word.endswith(".json"):
            (tmp_path / word).write_text(record.machine_text(scenes()[word.removesuffix(".json")].machine()))
        words.append(tmp_path / word if word.endswith(".json") else word)
    ended = egmctl(*words)
    assert ended.out, ended.err
    printed = without_counts(ended.out)
    head = f"```console\n$ egmctl {arguments}\n"
    shown = document.read_text().partition(head)[2].partition("```")[0]
    if os.environ.get("EGMCTL_UPDATE_README"):
        document.write_text(document.read_text().replace(f"{head}{shown}```", f"{head}{printed}```"))
    else:
        assert shown == printed


def test_examples_are_there() -> None:
    """Guards the pattern above: an example it does not find is an example nobody checks."""
    for document in DOCUMENTS:
        if document.name not in CALLED_FROM_ELSEWHERE:
            shown = sum(path == document for path, _ in examples())
            assert shown == document.read_text().count("```console"), document.name
    assert len(examples()) >= 7


def commands_for_shipped_machines() -> list[str]:
    lines = [line.partition("#")[0] for path in DOCUMENTS for line in path.read_text().splitlines()]
    return [line for line in lines if re.match(r"egmctl .*--machine (?!node\.json)", line)]


@pytest.mark.long
def test_a_command_for_a_shipped_machine_is_not_refused(egmctl: RunEgmctl) -> None:
    assert commands_for_shipped_machines()
    for line in commands_for_shipped_machines():
        assert egmctl(*shlex.split(line)[1:]).code in (0, 1), line


def test_every_make_target_that_is_named_exists() -> None:
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    for document in ("README.md", "CONTRIBUTING.md"):
        named = set(re.findall(r"\bmake ([a-z-]+)\b(?=[`\s]*(?:#|`|$))", (ROOT / document).read_text(), re.MULTILINE))
        assert named or document == "README.md"
        assert named <= targets


@pytest.mark.processes
def test_the_two_commands_of_a_clone_come_first_and_ci_runs_both() -> None:
    commands = ["make run", "make test"]
    first = re.search(r"```sh\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)
    assert first is not None
    assert [line.partition("#")[0].strip() for line in first[1].splitlines()] == commands
    ci = (ROOT / ".ci/run").read_text()
    assert [
        line.split("=")[-1].removeprefix("1 ") for line in ci.splitlines() if line.endswith(tuple(commands))
    ] == commands
    recorded = subprocess.run(["make", "-n", "run"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    assert "egmctl topo --machine 'hgx-h200x4'" in recorded, "the machine that the README shows"


def test_every_exit_code_is_told() -> None:
    from egmctl.errors import ExitCode

    for document in ("README.md", "docs/exit-codes.md"):
        told = set(re.findall(r"^\| ([0-9]+) \|", (ROOT / document).read_text(), re.MULTILINE))
        assert told == {str(int(code)) for code in ExitCode}
