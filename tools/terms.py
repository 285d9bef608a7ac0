"""Finds terms that this project no longer uses, and prints the replacement for each.

    python tools/terms.py [FILE]...        without an argument: every file that git tracks

``tools/terms.txt`` has one term per line: ``old words = replacement``. A term in lower case matches in any case, and
several words also match across a line break. CHANGELOG.md may contain old terms.
"""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[1]
TERMS = ROOT / "tools" / "terms.txt"
EXEMPT = frozenset({"CHANGELOG.md", "tools/terms.txt", "tests/tools/test_terms.py"})


class Term(NamedTuple):
    """An old term and its replacement."""

    longest: str
    """The longest of the old words, in lower case. A text without it needs no search."""
    pattern: re.Pattern[str]
    any_case: bool
    """Whether the pattern is that of the text in lower case."""
    better: str


def main(arguments: list[str]) -> int:
    """Print the places of old terms; return 1 if there are any."""
    names = arguments or known_to_git()
    words = terms(TERMS.read_text(encoding="utf-8"))
    count = 0
    for name in sorted({str(Path(name).resolve().relative_to(ROOT)) for name in names} - EXEMPT):
        for line, old, better in found(_text(ROOT / name), words):
            sys.stdout.write(f"{name}:{line}: {old!r}: the word is {better!r}\n")
            count += 1
    return int(count > 0)


def terms(text: str) -> Sequence[Term]:
    """Return the terms of a list.

    Raises
    ------
    ValueError
        If a line is neither empty, nor a comment, nor ``old = new``.
    """
    words = []
    for number, line in enumerate(text.splitlines(), start=1):
        if not line or line.startswith("#"):
            continue
        old, _, better = line.partition(" = ")
        if not better:
            raise ValueError(f"line {number}: {line!r} is not 'old words = the field's word'")
        first, *others = (re.escape(word) for word in old.split())
        # With the word itself first, and only then what stands before it, re looks for the word alone, which is fast.
        apart = r"[\s#*>]+".join((rf"{first}(?<![\w-]{first})", *others))
        pattern = re.compile(rf"{apart}(?![\w-])")
        words.append(Term(max(old.lower().split(), key=len), pattern, old == old.lower(), better.strip()))
    return words


def found(text: str, words: Sequence[Term]) -> Iterator[tuple[int, str, str]]:
    """Yield the line number, the old term and its replacement for each place in a text."""
    lower = text.lower()
    for term in words:
        searched = lower if term.any_case else text
        for match in term.pattern.finditer(searched) if term.longest in lower else ():
            line = searched.count("\n", 0, match.start()) + 1
            # A few letters are two in lower case, such as a capital I with a dot, which moves all that follows.
            written = text[match.start() : match.end()] if len(lower) == len(text) else match[0]
            yield line, " ".join(written.split()), term.better


def known_to_git() -> list[str]:
    """Return the paths of all files that git tracks."""
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=True)  # noqa: S607
    return [str(ROOT / name) for name in listed.stdout.split("\0") if name]


def _text(path: Path) -> str:
    """Return a file's text, or an empty string if it is not a text or does not exist."""
    try:
        return path.read_text(encoding="utf-8")
    except (UnicodeDecodeError, FileNotFoundError, IsADirectoryError):
        return ""


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
