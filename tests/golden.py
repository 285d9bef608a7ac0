"""Golden files: ``EGMCTL_WRITE_GOLDEN=1 pytest ...`` writes them anew; look at the difference before committing it.

Goldens and examples of the guide have ``...`` for counts of checks (:func:`without_counts`), so that a new check
changes only those which it is about.
"""

from __future__ import annotations

import difflib
import os
import re
from pathlib import Path

import pytest

_PASSED = re.compile(
    r"\d+ checks passed(?:,\s+\d+\s+(?:assumed|not\s+determined|do\s+not\s+apply|does\s+not\s+apply))*"
)


def without_counts(text: str) -> str:
    """Return an output with ``...`` for how many checks passed, were not determined or do not apply."""
    return _PASSED.sub("...", text)


def compare(found: str, golden: Path) -> None:
    """Fail, and say with which lines, unless the file holds this text, byte for byte."""
    if os.environ.get("EGMCTL_WRITE_GOLDEN"):
        golden.parent.mkdir(parents=True, exist_ok=True)
        golden.write_text(found)
    assert golden.exists(), f"{golden} is not there: EGMCTL_WRITE_GOLDEN=1 writes it"
    kept = golden.read_text()
    if found != kept:
        lines = difflib.unified_diff(kept.splitlines(), found.splitlines(), str(golden), "found", lineterm="")
        # Not by assert: pytest would cut the lines or compare both texts anew.
        pytest.fail("\n".join(lines) or "the texts differ in how lines end", pytrace=False)
