"""The verdict as text, whole: golden files."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from egmctl.model.measurement import RunReport
from egmctl.model.profile import Profile
from egmctl.model.task import Flow, Task
from egmctl.report.render.text import WIDTH
from egmctl.verdict.judge import with_verdict
from egmctl.verdict.profiles import load_profile
from tests.golden import compare
from tests.report.texts import text_of
from tests.verdict.runs import BOTH, H2D, LATENCY, LOCAL, READ, RING, WRITE, busy, run, usual

GOLDEN = Path(__file__).parent / "golden"


def fewer_links(task: Task, flow: Flow) -> float:
    """Return what one pair reaches that is slower alone."""
    return usual(task, flow) * (0.9 if flow.path == "GPU2 -> GPU3" else 1.0)


CASES = {
    "well": (run(WRITE, READ, BOTH, H2D, LOCAL, LATENCY, RING), "hgx-h200"),
    "busy": (run(WRITE, BOTH, LATENCY, RING, value=busy), "hgx-h200"),
    "pair": (run(WRITE, value=fewer_links), "hgx-h200"),
    "unknown": (run(WRITE, H2D, gpus=3), None),
}


def shown(report: RunReport, profile: Profile | None) -> str:
    """Return the verdict's text."""
    why = "GPU name NVIDIA H200" if profile else "no profile matches"
    return text_of(with_verdict(report, profile, profile_reason=why), verbose=1)


@pytest.mark.parametrize("name", CASES)
def test_the_text(name: str) -> None:
    report, profile = CASES[name]
    # What hgx-h200 says changes with each run that it is learnt from.
    kept = load_profile(profile) if profile else None
    if kept is not None:
        references = [(r, ROUND[r.case]) for r in kept.references if r.case in ROUND]
        kept = replace(kept, references=tuple(replace(r, typical=t, warn=w, fail=f) for r, (t, w, f) in references))
        kept = replace(kept, sources={**kept.sources, "runs": replace(kept.sources["runs"], text="by egmctl")})
    text = shown(report, kept)
    assert max(map(len, text.splitlines())) <= WIDTH
    compare(text, GOLDEN / f"{name}.txt")


ROUND = {
    WRITE: (396.0, 386.0, 376.0),
    READ: (394.0, 384.0, 374.0),
    BOTH: (783.0, 763.0, 744.0),
    H2D: (55.4, 53.0, 50.0),
    LOCAL: (2100.0, 2050.0, 2000.0),
    LATENCY: (834.0, 884.0, 934.0),
}


def test_where_no_class_is_judged_there_is_no_table_to_explain() -> None:
    text = shown(run("ipc_event_round_trip", value=lambda *_: 24700.0), None)
    assert text.startswith("NO REFERENCE: ")
    assert "Measured vs expected" not in text
    assert "References\n  none: no profile matches\n" in text
