"""The answer of explain: the leading cause, a question, or what to do where no cause is known."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from egmctl.model.answer import Answer, Cause, Clauses, Gap, GapKind, State
from egmctl.model.explanation import DECIDED, CauseState, Explanation, Explanations, KnownCause, Severity, Word
from egmctl.model.remedy import Remedy
from egmctl.units import printable, several

_STATES: Mapping[Word, State] = {
    Word.CAUSE: State.GOOD,
    Word.POSSIBLE_CAUSE: State.WARN,
    Word.WHICH_ERROR: State.WARN,
    Word.NO_FAULT: State.GOOD,
    Word.NOT_KNOWN: State.INCOMPLETE,
    Word.INTERRUPTED: State.INTERRUPTED,
}
_GAPS = {State.INCOMPLETE: GapKind.NOT_DETERMINED, State.INTERRUPTED: GapKind.INTERRUPTED}
_RUN = "run the program with 'egmctl explain -- PROGRAM'"


def of_explanations(result: Explanations) -> Answer:
    """Return what explain answers: naming a cause is neither good nor bad, but not to know one is a gap."""
    if result.interrupted and result.leading is not None:
        return _so_far(result)
    word, leader = result.word, result.leading
    state = _STATES[word]
    if leader is None and word is Word.CAUSE:
        said = Clauses.of("", *(printable(each.failure.log) for each in result.explanations if each.failure.log))
        return Answer(state=state, word=word, sentence=Clauses.explained("the driver says", said))
    if word is Word.NO_FAULT:
        said = Clauses.of("", *(each.meaning for each in result.explanations))
        return Answer(state=state, word=word, sentence=said)
    if leader is None:
        reason = _nothing(result)
        gap = Gap(kind=_GAPS[state], reason=reason)
        step = Remedy(text=_where_to_go(result))
        return Answer(state=state, word=word, sentence=reason, gaps=(gap,), next_step=step)
    if word is Word.WHICH_ERROR:
        step = Remedy(text=_answer_by(result, leader))
        return Answer(state=state, word=word, sentence=_question(result, leader), next_step=step)
    first = leader.causes[0]
    found = [finding for cause in leader.causes if cause.state is CauseState.HOLDS for finding in cause.findings]
    return Answer(
        state=state,
        word=word,
        sentence=_sentence(leader, word, _left_out(result)),
        causes=tuple(Cause(finding=finding, status=finding.status) for finding in found),
        next_step=_next_step(first),
    )


def _so_far(result: Explanations) -> Answer:
    """Return the answer to the part of a text that was read before an interruption."""
    answer = of_explanations(replace(result, interrupted=False))
    lines = several(result.lines or 0, "line")
    gap = Gap(kind=GapKind.INTERRUPTED, reason=f"reading was interrupted after {lines}")
    sentence = Clauses.explained(f"{answer.word.lower()} in the first {lines}", answer.sentence)
    return replace(answer, state=State.INTERRUPTED, word=Word.INTERRUPTED, sentence=sentence, gaps=(gap,))


def _left_out(result: Explanations) -> str:
    """Return that kinds of errors are left out; empty if none are."""
    kept = several(len(result.explanations), "kind")
    return f" (the gravest of more than {kept} of errors)" if result.left_out else ""


def _sentence(leader: Explanation, word: Word, left_out: str) -> str:
    first = leader.causes[0]
    cause = first.cause
    if first.state in DECIDED and first.findings:
        cause = f"{first.cause} ({first.findings[0].title})"
    if word is not Word.POSSIBLE_CAUSE:
        return printable(f"{cause}{left_out}")
    ruled_out = f"{_ruled_out(leader)}{left_out}"
    if leader.failure.log:
        # Without a cause that its words name, CUDA's own log is the better answer.
        likeliest = f"the likeliest cause: {first.cause}{ruled_out}"
        return Clauses.of(Clauses.explained("the driver says", printable(leader.failure.log)), printable(likeliest))
    return printable(f"{cause}{ruled_out}")


def _why_nothing(result: Explanations) -> str:
    """Return why nothing is explained."""
    if result.lines is not None and not any(each.is_fault for each in result.explanations):
        return f"no known error is in what was read ({several(result.lines, 'line')})"
    if any(each.causes for each in result.explanations):
        return "every known cause is ruled out"
    return "no cause of this error is known"


def _nothing(result: Explanations) -> str:
    """Return why nothing is explained, with the lines that are no fault."""
    parts = [_why_nothing(result)]
    parts += [
        f"line {each.failure.line_number} is no fault: {each.meaning}"
        for each in result.explanations
        if each.severity is Severity.HARMLESS
    ]
    return Clauses.of("", *parts)


def _where_to_go(result: Explanations) -> str:
    """Return the next step where nothing is known: what looks at the node, or asks the driver."""
    if not any(each.is_fault for each in result.explanations) and result.lines is not None:
        purposes = f" --for {','.join(result.purposes)}" if result.purposes else ""
        return (
            f"'egmctl doctor{purposes}' looks at the node itself; give more lines around the error, or "
            "'egmctl explain -- PROGRAM'"
        )
    checks = {
        cause.checks[0].partition(".")[0] for each in result.explanations for cause in each.causes if cause.checks
    }
    if checks:
        return f"run egmctl doctor --check '{','.join(f'{area}.*' for area in sorted(checks))}'"
    return f"{_RUN}, or 'egmctl doctor' for the node"


def _question(result: Explanations, leader: Explanation) -> str:
    if result.asks_for_error:
        return f"which error did {printable(leader.failure.call or '')} return? {len(result.explanations)} are known"
    calls = {call for cause in leader.causes for call in cause.calls}
    return (
        f"{leader.meaning or leader.name} ({leader.failure.number}) has other causes for each function; which one "
        f"returned it? {several(len(calls), 'function')} known"
    )


def _answer_by(result: Explanations, leader: Explanation) -> str:
    if result.asks_for_error:
        return f"egmctl explain {printable(leader.failure.call or '')} ERROR"
    return f"{_RUN}, which names the function, or give it: egmctl explain FUNCTION {leader.failure.number}"


def _ruled_out(leader: Explanation) -> str:
    """Return how many causes the checks have ruled out; empty if none."""
    number = sum(cause.state is CauseState.EXCLUDED for cause in leader.causes)
    return f" (none of {len(leader.causes)} known causes confirmed; {number} ruled out)" if number else ""


def _next_step(cause: KnownCause) -> Remedy:
    """Return what to do about a cause: the remedy of its finding, else its own; of a possible one, what to check."""
    if cause.state in DECIDED:
        return next((finding.remedy for finding in cause.findings if finding.remedy), cause.remedy)
    remedy = replace(cause.remedy, run=None)
    if remedy.look is None or not cause.confirmable:
        return remedy
    text = f"{remedy.does[0].lower()}{remedy.does[1:]}"
    where = ", on the host" if remedy.is_for_host else ""
    return replace(remedy, text=f"check first: {remedy.look}. If that confirms it{where}: {text}", on_host="")
