"""Any options in any order: a result or one sentence, and never a fault of the tool itself."""

from __future__ import annotations

import os
import random
from pathlib import Path

import pytest

from tests.in_process import run

ROUNDS = int(os.environ.get("EGMCTL_TEST_ROUNDS", "20"))
"""Combinations for each command; 2,000 take some minutes."""

OPTIONS = {
    "topo": "--json|--csv|--gpus {list}|--numa {list}|--format {form}|-v|-q|-o {file}|--force",
    "doctor": "--json|--gpus {list}|--for {word}|--check {word}|--skip {word}|--strict|--brief|--list|--explain {word}|"
    "--format {form}|--exit-style {word}|--expect {word}|-v|-o {file}",
    "bench": "--dry-run|--list|--quick|--full|--suite {word}|--size {size}|--samples {number}|--sweep {word}|"
    "--ranks {number}|--sample {number}|--memory {number}|--gpus {list}|--numa {list}|--json|--journal {file}|"
    "--no-journal|--case {word}|--duration {number}|-o {file}",
    "show": "--json|--csv|--format {form}|--brief|-v|-o {file}",
}
VALUES = {
    "list": ("all", "0", "0-3,5", "9", "-1", "", "1-", "GPU-", "0000:1b:00.0", "\x1b[31m", "0-99999999999", "²"),
    "word": ("egm", "p2p", "all", "size", "fabric", "full,ipc", "gpus=4", "nagios", "x" * 300, "", "\u202e", "=1"),
    "form": ("text", "json", "csv", "html", "svg", "md", "prom", "nagios", "junit", "yaml", ""),
    "size": ("1M", "0", "-1", "1e9", "99999T", "", "4k", "1MiB"),
    "number": ("0", "1", "-1", "50", "1e308", "nan", "", "99999999999999999999", "2.5"),
    "file": ("-", "x.json", "x.html", "no/x.json", "/dev/null", "x" * 300 + ".json", "", "x.yaml", "x\n.json"),
}


@pytest.mark.parametrize("command", OPTIONS)
def test_any_options(command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    choice = random.Random(command)  # noqa: S311
    for _ in range(ROUNDS):
        words = [command]
        if command == "show":
            words.append(choice.choice(("x.json", "none.json", ".", "/dev/null", "")))
        else:
            words += ["--machine", choice.choice(("gh200", "gb200-nvl4", "hgx-h200x4", "list", "none", ""))]
        for option in choice.sample(OPTIONS[command].split("|"), choice.randint(0, 4)):
            name, _, value = option.partition(" ")
            words += [name, choice.choice(VALUES[value[1:-1]])] if value else [name]
        ended = run(*words)
        assert ended.code in (0, 1, 2, 3), (words, ended.err[-300:])
        assert "unexpected" not in ended.err, words
        assert "Traceback" not in ended.err, words
