"""The answer of explain: whether a cause of the failed calls is known."""

from __future__ import annotations

from egmctl.model.answer import WORDS, Answer, Asked, Cause, Gap, GapKind, State
from egmctl.model.explanation import CauseState, Explanations, KnownCause
from egmctl.model.remedy import Remedy
from egmctl.units import printable, several


def of_explanations(result: Explanations) -> Answer:
    """Return what explain answers: naming a cause is neither good nor bad, but not to know one is a gap."""
    known = [cause for each in result.explanations for cause in each.causes]
    holding = [cause for cause in known if cause.state is CauseState.HOLDS]
    likely = [cause for cause in known if cause.state is CauseState.LIKELY]
    possible = [cause for cause in known if cause.state is CauseState.UNKNOWN]
    logged = [each.failure.log for each in result.explanations if each.failure.log]
    if holding or likely or logged:
        shown = holding or likely
        said = [cause.cause for cause in shown] or logged
        return _answer(State.GOOD, "; ".join(dict.fromkeys(map(printable, said))), shown)
    if possible:
        return _answer(State.WARN, "; ".join(dict.fromkeys(cause.cause for cause in possible)), possible)
    if known:
        reason = f"no known cause shows here; checks exclude all {len({cause.cause for cause in known})}"
    elif result.lines is not None and not result.explanations:
        lines = several(result.lines, "line")
        reason = f"no error of CUDA or NVML and no Xid is in what was read ({lines})"
    else:
        reason = "no cause of this error is known"
    gap = Gap(kind=GapKind.NOT_DETERMINED, reason=reason)
    step = Remedy(text="run the program with 'egmctl explain -- PROGRAM'")
    state = State.INCOMPLETE
    return Answer(state=state, word=WORDS[Asked.EXPLAIN][state], sentence=reason, gaps=(gap,), next_step=step)


def _answer(state: State, sentence: str, shown: list[KnownCause]) -> Answer:
    found = (finding for cause in shown for finding in cause.findings if cause.state is CauseState.HOLDS)
    causes = tuple(Cause(finding=finding, status=finding.status) for finding in found)
    step = Remedy(text=shown[0].remedy) if shown else None
    return Answer(state=state, word=WORDS[Asked.EXPLAIN][state], sentence=sentence, causes=causes, next_step=step)
