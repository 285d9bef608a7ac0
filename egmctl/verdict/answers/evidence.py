"""The answer of ``egmctl snapshot --evidence``: how many questions the node settles."""

from __future__ import annotations

from egmctl.model.answer import Answer, Clauses, Gap, GapKind, State
from egmctl.model.evidence import EvidenceReport, EvidenceState
from egmctl.model.remedy import Remedy
from egmctl.units import several


def of_evidence(report: EvidenceReport) -> Answer:
    """Return what a node settles. A contradicted claim is an answer; to settle nothing is a gap."""
    names = {state: [each.question for each in report.answers if each.state is state] for state in EvidenceState}
    word = f"{len(names[EvidenceState.SETTLED])} of {several(len(report.answers), 'question')} are settled"
    wrong = f"contradicted: {', '.join(names[EvidenceState.CONTRADICTED])}" if names[EvidenceState.CONTRADICTED] else ""
    sentence = Clauses.of(wrong, f"not settled: {', '.join(names[EvidenceState.NOT_SETTLED]) or 'none'}")
    step = Remedy(text="send the file: 'egmctl docs first-grace'")
    stopped = [] if report.run is None else [gap for gap in report.run.answer.gaps if gap.kind in _STOPPED]
    if stopped:
        state = stopped[0].kind.state
        return Answer(state=state, word=word, sentence=sentence, gaps=tuple(stopped), next_step=step)
    if len(names[EvidenceState.NOT_SETTLED]) == len(report.answers):
        gap = Gap(kind=GapKind.NOT_DETERMINED, reason=sentence)
        return Answer(state=State.INCOMPLETE, word=word, sentence=sentence, gaps=(gap,), next_step=step)
    state = State.WARN if wrong or names[EvidenceState.NOT_SETTLED] else State.GOOD
    return Answer(state=state, word=word, sentence=sentence, next_step=step)


_STOPPED = (GapKind.INTERRUPTED, GapKind.BROKE)
