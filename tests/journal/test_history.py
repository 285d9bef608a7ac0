"""What the history of a node shows of each run is what that run answered."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from egmctl.journal.events import Begin, Journal, read_state, state_line
from egmctl.model.answer import TABLE, Answer, State
from egmctl.model.listing import History, KeptRun
from egmctl.report.document import Matrix, Span, Tone
from egmctl.report.views.lists import history_document
from egmctl.saved import load_journal
from tests.known import known
from tests.verdict.runs import WRITE, run


def ended(folder: Path, answer: Answer | None) -> Path:
    """Return the journal of a run that ended with an answer, or not."""
    journal = Journal([folder], lambda part: part)
    journal(Begin(report=replace(run(WRITE), measurements=()), steps=1))
    journal.close() if answer is None else journal.end(answer)
    assert journal.path is not None
    return journal.path


@pytest.mark.parametrize("state", State)
def test_a_journal_keeps_what_its_run_answered_as_well_as_its_code(state: State, tmp_path: Path) -> None:
    kept = load_journal(ended(tmp_path, Answer(state=state, word="")))
    assert (kept.state, kept.exit_code) == (state, TABLE[state].exit_code)


def test_a_run_that_did_not_end_broke(tmp_path: Path) -> None:
    kept = load_journal(ended(tmp_path, None))
    assert (kept.state, kept.exit_code) == (State.BROKE, None)


@pytest.mark.parametrize(
    ("code", "state"), [(0, "good"), (1, "bad"), (2, "broke"), (3, "incomplete"), (4, "broke"), (130, "interrupted")]
)
def test_of_a_journal_of_version_0_1_only_the_code_is_known(code: int, state: str, tmp_path: Path) -> None:
    path = ended(tmp_path, Answer(state=State.GOOD, word=""))
    first, _, rest = path.read_bytes().partition(b"\n")
    state_then = replace(known(read_state(first + b"\n")), exit_code=code, answer=None)
    path.write_bytes(state_line(state_then) + rest)
    assert load_journal(path).state == state


@pytest.mark.parametrize("state", State)
def test_its_colour_is_that_of_the_answer(state: State) -> None:
    kept = KeptRun(
        file="a.journal", started_at="", gpus=(), measurements=1, ok=1, exit_code=0, state=state, ending="as it ended"
    )
    (table,) = (block for block in history_document(History(runs=(kept,))).body if isinstance(block, Matrix))
    (cell,) = table.groups[0][-1].cells
    assert cell.text == Span("as it ended", Tone(TABLE[state].tone))
