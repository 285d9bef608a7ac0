"""The answer of ``egmctl profile match``: whether a profile is of this kind of machine."""

from __future__ import annotations

from egmctl.model.answer import WORDS, Answer, CommandQuestion, Gap, GapKind, State
from egmctl.model.profile import MatchResult


def of_match(result: MatchResult) -> Answer:
    """Return what a match answers: no profile is a gap."""
    if result.profile is not None:
        return Answer(state=State.GOOD, word=WORDS[CommandQuestion.DOCTOR][State.GOOD], sentence=result.reason)
    gap = Gap(kind=GapKind.NO_REFERENCE, reason=result.reason)
    return Answer(state=State.INCOMPLETE, word="NO REFERENCE", sentence=result.reason, gaps=(gap,))
