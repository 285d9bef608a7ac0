"""Change one thing at a time in a copy of the sources, and see whether a test fails.

Run it as ``PYTHONPATH=. python tools/mutants.py [WORD ...]``.
``tools/mutants.toml`` lists the changes: the file, the text, and what takes its place. Each runs the quick tests (not
``long``) that import the changed module, or those that it names, up to the first failure. A mutant that no test kills
is a proof that is missing. Words choose mutants by parts of their names.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from egmctl.files import read_toml

ROOT = Path(__file__).resolve().parents[1]
TABLE = Path(__file__).with_suffix(".toml")
COPIED = ("egmctl", "tests", "tools", "docs", "profiles", "benchmarks", "pyproject.toml", "Makefile", "README.md")
TIMEOUT_S = 240
"""The time limit of a mutant's tests. A mutant that makes them hang counts as killed."""


@dataclass(frozen=True)
class Mutant:
    """One change."""

    name: str
    file: str
    old: str
    new: str
    tests: tuple[str, ...] = ()
    """The tests to run; empty: those that import the module."""

    @property
    def module(self) -> str:
        return self.file.removesuffix(".py").replace("/", ".")


def mutants(words: Sequence[str] = ()) -> list[Mutant]:
    """Return the mutants of the table whose names contain one of the words.

    Raises
    ------
    ValueError
        A text does not occur exactly once in its file.
    """
    every = [
        Mutant(name=name, **{**entry, "tests": tuple(entry.get("tests", ()))})
        for name, entry in read_toml(TABLE.read_text(encoding="utf-8")).items()
    ]
    for mutant in every:
        if (count := (ROOT / mutant.file).read_text(encoding="utf-8").count(mutant.old)) != 1:
            raise ValueError(f"{mutant.name}: {mutant.file} has {mutant.old!r} {count} times, not once")
    return [mutant for mutant in every if not words or any(word in mutant.name for word in words)]


def selection(mutant: Mutant) -> list[str]:
    """Return the test files that import a mutant's module, those of the GPU suite left out."""
    if mutant.tests:
        return list(mutant.tests)
    package, _, name = mutant.module.rpartition(".")
    imports = re.compile(
        rf"from {re.escape(mutant.module)} import|import {re.escape(mutant.module)}\b|"
        rf"from {re.escape(package)} import [^\n]*\b{re.escape(name)}\b"
    )
    files = sorted((ROOT / "tests").rglob("test_*.py"))
    found = [file.relative_to(ROOT) for file in files if imports.search(file.read_text(encoding="utf-8"))]
    return [str(file) for file in found if file.parts[1] != "gpu"]


def tried(mutant: Mutant, copy: Path) -> str:
    """Return the outcome of a mutant in a copy of the sources: ``killed``, ``survived``, or why nothing is known."""
    chosen = tuple(selection(mutant))
    if not chosen:
        return "no test"
    # Without the change the same tests must pass, or their failure would prove nothing.
    if (unchanged := _run(chosen, copy)) != 0:
        return f"not known: unchanged, pytest ends with {unchanged}"
    file = copy / mutant.file
    original = file.read_text(encoding="utf-8")
    file.write_text(original.replace(mutant.old, mutant.new), encoding="utf-8")
    try:
        code = _run.__wrapped__(chosen, copy)
    finally:
        file.write_text(original, encoding="utf-8")
    return {0: "survived", 1: "killed", None: "killed (hung)"}.get(code, f"not known: pytest ends with {code}")


@cache
def _run(chosen: tuple[str, ...], copy: Path) -> int | None:
    """Run tests up to the first failure; return pytest's exit code, ``None`` if they hang."""
    command = [sys.executable, "-m", "pytest", "-q", "-x", "-n", "0", "-p", "no:cacheprovider", "-m", "not long"]
    # A cached module of the same size and second would hide a change.
    environment = {**os.environ, "PYTHONPATH": str(copy), "PYTHONDONTWRITEBYTECODE": "1"}
    try:
        return subprocess.run(
            [*command, *chosen], cwd=copy, env=environment, capture_output=True, timeout=TIMEOUT_S, check=False
        ).returncode
    except subprocess.TimeoutExpired:
        return None


def rows(chosen: Sequence[Mutant]) -> Iterator[tuple[Mutant, str, float]]:
    """Try mutants one after the other; yield each with its outcome and the seconds that it took."""
    with tempfile.TemporaryDirectory() as folder:
        copy = Path(folder)
        for name in COPIED:
            source = ROOT / name
            if source.is_dir():
                shutil.copytree(source, copy / name, ignore=shutil.ignore_patterns("__pycache__"))
            elif source.exists():
                shutil.copy(source, copy / name)
        for mutant in chosen:
            started = time.monotonic()
            yield mutant, tried(mutant, copy), time.monotonic() - started


def main() -> int:
    """Try the mutants and print a table; return 1 if fewer than 90 % are killed."""
    chosen = mutants(sys.argv[1:])
    outcomes = []
    for mutant, outcome, seconds in rows(chosen):
        outcomes.append(outcome)
        print(f"{outcome:10} {seconds:5.0f} s  {mutant.file:38} {mutant.name}", flush=True)  # noqa: T201
    killed = sum(outcome.startswith("killed") for outcome in outcomes)
    print(f"{killed} of {len(outcomes)} killed")  # noqa: T201
    return int(killed < 0.9 * len(outcomes))


if __name__ == "__main__":
    sys.exit(main())
