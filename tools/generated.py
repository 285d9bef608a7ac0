"""Functions for tools that generate a file of this repository: write it, or with ``--check`` report if it is stale."""

from __future__ import annotations

import sys
import textwrap
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]


def settle(arguments: list[str], path: Path, wanted: str, tool: str) -> int:
    """Write a file, or with the argument ``--check`` only compare it; return the exit code, 1 if the file is stale."""
    if arguments != ["--check"]:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(wanted, encoding="utf-8")
        return 0
    if path.exists() and path.read_text(encoding="utf-8") == wanted:
        return 0
    sys.stderr.write(f"{path} is not what {tool} writes\n")
    return 1


def below(path: Path, mark: str, reference: str) -> str:
    """Return a document with everything below the line ``mark`` replaced by ``reference``.

    Raises
    ------
    SystemExit
        If the document has no such line.
    """
    head, line, _ = path.read_text(encoding="utf-8").partition(mark)
    if not line:
        raise SystemExit(f"{path} has no line {mark}")
    return f"{head}{mark}\n{reference}"


def wrap(text: str) -> str:
    """Return a paragraph wrapped at the width of this repository's documents."""
    return textwrap.fill(text, 120, break_long_words=False, break_on_hyphens=False)
