"""Any file that calls itself a document of egmctl: shown, compared and judged, or refused in a sentence.

Without a traceback, in less than 10 s, and in less than 1 GB. ``EGMCTL_TEST_ROUNDS=2000`` is 20,000 documents.
"""

from __future__ import annotations

import os
import random
import re
import resource
import shutil
import sys
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from egmctl.errors import UsageError
from egmctl.report.kinds import Format
from egmctl.verdict.judge import with_verdict
from egmctl.verdict.profiles import load_profile
from tests.answers import render
from tests.fuzz.documents import KINDS, judged_run, original, readers, spoiled
from tests.in_process import run

ROUNDS = int(os.environ.get("EGMCTL_TEST_ROUNDS", "8"))
"""Documents of each kind."""
SUFFIX = {"journal": ".journal", "profile": ".toml"}
PATIENCE_S = 10.0
COLOUR = re.compile("\x1b\\[[0-9;]*m")
"""What ``--color always`` writes."""
MEMORY_KIB = 1 << 20

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


@dataclass(slots=True)
class Totals:
    """How the commands of a test ended."""

    codes: Counter[int] = field(default_factory=Counter)
    longest_s: float = 0.0
    most_kib: int = 0

    def __str__(self) -> str:
        codes = {int(code): count for code, count in sorted(self.codes.items())}
        return f"by exit code {codes}, at most {self.longest_s:.2f} s of CPU and {self.most_kib >> 10} MiB"


def faulty(words: Sequence[str], totals: Totals) -> str:
    """Run a command, count how it ended, and return what is wrong with that; the time is that of the CPU."""
    began = time.process_time()
    ended = run(*words)
    took = time.process_time() - began
    totals.codes[ended.code] += 1
    totals.longest_s = max(totals.longest_s, took)
    totals.most_kib = most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    codes = [0, 1, 2, 3]
    if words[0] in ("fleet", "show"):
        # Of a fleet: nodes that could not be reached; of a journal: damaged lines.
        codes.append(4)
    if ended.code not in codes or "Traceback" in ended.err or "please report it" in ended.err:
        return f"{ended.code}: {ended.err[-300:]}"
    for stream in (ended.out, ended.err):
        text = COLOUR.sub("", stream) if "always" in words else stream
        if not all(line.isprintable() for line in text.split("\n")):
            return f"control characters in the output: {stream[-300:]!r}"
    if ended.code == 2 and len(ended.err) > 2000:
        return f"no sentence but {len(ended.err)} characters"
    if took > PATIENCE_S:
        return f"it took {took:.0f} s"
    return f"{most >> 10} MiB" if most > MEMORY_KIB else ""


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
