"""Whatever was found, all formats and the exit code state one answer: that of the result.

``egmctl/model/answer.py`` has the table. A format that decides by itself fails here.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from egmctl.model.answer import TABLE, JUnit, State
from egmctl.report.kinds import Format, render
from egmctl.saved import load_any
from tests.formats import contradictions
from tests.properties.results import random_result
from tests.tiers import FUZZ

FIRST, MORE = range(40), range(40, 400)


@pytest.mark.parametrize("number", FIRST)
def test_all_formats_state_one_answer(number: int) -> None:
    assert contradictions(random_result(number)) == []


@FUZZ
@pytest.mark.parametrize("number", MORE)
def test_all_formats_of_many_results_state_one_answer(number: int) -> None:
    assert contradictions(random_result(number)) == []


@pytest.mark.parametrize("number", FIRST)
def test_a_saved_result_has_the_answer_that_was_written(number: int, tmp_path: Path) -> None:
    result = random_result(number)
    file = tmp_path / "result.json"
    file.write_text(str(render(result, Format.JSON)))
    loaded: Any = load_any(file).result
    assert loaded.answer == result.answer


def test_the_table_has_a_row_for_each_state_and_no_state_passes_that_is_not_known() -> None:
    assert list(TABLE) == list(State)
    assert {state for state, row in TABLE.items() if row.exit_code == 0} == {State.WARN, State.GOOD}
    assert {state for state, row in TABLE.items() if row.junit is JUnit.PASSES} == {State.WARN, State.GOOD}
