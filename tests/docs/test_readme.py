"""The README shows what the command really prints, and names only what exists.

``EGMCTL_UPDATE_README=1 pytest tests/docs`` writes down what the examples print now.
"""

from __future__ import annotations

import os
import re
import shlex

import pytest

from tests.conftest import ROOT, RunEgmctl

README = ROOT / "README.md"
EXAMPLE = re.compile(r"```console\n\$ egmctl (?P<arguments>[^\n]+)\n(?P<shown>.*?)```\n", re.DOTALL)


def examples() -> list[re.Match[str]]:
    return list(EXAMPLE.finditer(README.read_text()))


@pytest.mark.parametrize("arguments", [match["arguments"] for match in examples() if "--machine" in match["arguments"]])
def test_an_example_shows_what_the_command_prints(egmctl: RunEgmctl, arguments: str) -> None:
    ended = egmctl(*shlex.split(arguments))
    assert ended.code == 0, ended.err
    (shown,) = [match["shown"] for match in examples() if match["arguments"] == arguments]
    if os.environ.get("EGMCTL_UPDATE_README"):
        head = f"```console\n$ egmctl {arguments}\n"
        README.write_text(README.read_text().replace(f"{head}{shown}```", f"{head}{ended.out}```"))
    else:
        assert shown == ended.out


def test_examples_are_there() -> None:
    """Guards the pattern above: an example it does not find is an example nobody checks."""
    assert len(examples()) == README.read_text().count("$ egmctl ") >= 2


def test_every_make_target_that_is_named_exists() -> None:
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    for document in ("README.md", "CONTRIBUTING.md"):
        named = set(re.findall(r"\bmake ([a-z-]+)\b(?=[`\s]*(?:#|`|$))", (ROOT / document).read_text(), re.MULTILINE))
        assert named
        assert named <= targets


def test_every_exit_code_is_told() -> None:
    from egmctl.errors import ExitCode

    for document in ("README.md", "docs/exit-codes.md"):
        told = set(re.findall(r"^\| ([0-9]+) \|", (ROOT / document).read_text(), re.MULTILINE))
        assert told == {str(int(code)) for code in ExitCode}
