"""Any file that calls itself a document of egmctl: shown, compared and judged, or refused in a sentence.

Without a traceback, in less than 10 s, and in less than 1 GB. ``EGMCTL_TEST_ROUNDS=2000`` is 20,000 documents.
"""

from __future__ import annotations

import os
import random
import shutil
import sys
from pathlib import Path

import pytest

from egmctl.errors import UsageError
from egmctl.report.kinds import Format
from egmctl.verdict.judge import with_verdict
from egmctl.verdict.profiles import load_profile
from tests.answers import render
from tests.fuzz.documents import KINDS, Totals, faulty, judged_run, original, readers, spoiled

ROUNDS = int(os.environ.get("EGMCTL_TEST_ROUNDS", "8"))
"""Documents of each kind."""
SUFFIX = {"journal": ".journal", "profile": ".toml"}

pytestmark = pytest.mark.timeout(120 + ROUNDS)


@pytest.mark.long
@pytest.mark.parametrize("kind", KINDS)
def test_any_document(kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "at").mkdir()
    choice = random.Random(kind)  # noqa: S311
    content = original(kind, tmp_path)
    good = tmp_path / f"good{SUFFIX.get(kind, '.json')}"
    good.write_bytes(content)
    # A profile has the name of its file.
    path = tmp_path / "at" / f"hgx-h200{SUFFIX.get(kind, '.json')}"
    faults: list[str] = []
    totals = Totals()
    for number in range(ROUNDS):
        path.write_bytes(spoiled(content, choice))
        words = readers(kind, path, good, choice)
        fault = faulty(words, totals)
        if kind == "profile" and not fault:
            fault = judging(path)
        if fault:
            kept = Path(os.environ.get("EGMCTL_TEST_KEEP", str(tmp_path))) / f"{kind}-{number}{path.suffix}"
            shutil.copy(path, kept)
            faults.append(f"{kept}: {' '.join(words)}: {fault}")
    sys.stdout.write(f"{kind}: {ROUNDS} documents, {totals}\n")
    assert faults == []


def judging(path: Path) -> str:
    """Judge a run by a profile, and show that."""
    try:
        profile = load_profile(str(path))
    except UsageError:
        return ""
    try:
        report = judged_run()
        for format in (Format.TEXT, Format.JSON, Format.HTML):
            render(with_verdict(report, profile), format, verbose=1)
    except Exception as error:
        return f"judged: {type(error).__name__}: {error}"
    return ""
