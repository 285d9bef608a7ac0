"""Results with their answers, for tests that make results by hand: as the commands do, the answer is decided last."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeVar

from rich.text import Text

from egmctl.doctor import runner
from egmctl.doctor.check import Check, Scope
from egmctl.errors import ExitCode
from egmctl.model.answer import UNANSWERED
from egmctl.model.diagnosis import Diagnosis
from egmctl.model.machine import Machine
from egmctl.report import kinds
from egmctl.report.document import Verdict
from egmctl.report.kinds import Format
from egmctl.report.views.findings import verdict
from egmctl.verdict.answers import answer_of, answered

Result = TypeVar("Result")


def diagnose(machine: Machine, scope: Scope, checks: Sequence[Check], *, strict: bool = False) -> Diagnosis:
    """Return what doctor says of a machine, with its answer."""
    return answered(runner.diagnose(machine, scope, checks, strict=strict))


def with_answer(result: Result) -> Result:
    """Return a result with its answer, if it is of a kind that has one and nothing has answered it yet."""
    whole: Any = result
    if getattr(whole, "answer", None) != UNANSWERED:
        return result
    made: Result = answered(whole)
    return made


def render(result: object, format: Format, **options: Any) -> Text | str:
    """Return a result in a format, with its answer."""
    return kinds.render(with_answer(result), format, **options)


def shown(result: object) -> Verdict:
    """Return a result's answer as the views show it."""
    return verdict(answer_of(result))


def code_of(result: object) -> ExitCode:
    """Return the exit code of the command with this result."""
    whole: Any = with_answer(result)
    code: ExitCode = whole.exit_code
    return code
